"""Files of a filtered shard: the part with its documents, and the side files for everything that didn't arrive."""

import heapq
import json
import math
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import zstandard

from marin_core.artifact.canonical import canonical_json
from marin_core.data.documents import Document, Rejection
from marin_core.errors import DataError

SCHEMA_VERSION = "document/1"
SCHEMA = pa.schema(
    [
        pa.field("id", pa.string(), nullable=False),
        pa.field("text", pa.large_string(), nullable=False),
        pa.field("source", pa.string(), nullable=False),
        pa.field("added", pa.string()),
        pa.field("created", pa.string()),
        pa.field("metadata", pa.string(), nullable=False),
    ]
)
"""Explicit, never inferred: a late null breaks an inferred one (datatrove PR #503)."""
DROPPED_SCHEMA = pa.schema(
    [
        pa.field("id", pa.string(), nullable=False),
        pa.field("stage", pa.string(), nullable=False),
        pa.field("reason", pa.string(), nullable=False),
        pa.field("score", pa.float64()),
        pa.field("n_chars", pa.int64(), nullable=False),
        pa.field("text", pa.large_string()),
    ]
)
ROW_GROUP_ROWS = 4_096
ROW_GROUP_BYTES = 16 << 20
DROPPED_SAMPLES = 100
"""Dropped documents whose text is kept, per reason: those with the smallest ids, whatever the order of the input."""


def part_name(index: int, count: int) -> str:
    """`part-00003-of-00008`: the only place where the number of shards stands in a path."""
    return f"part-{index:05d}-of-{count:05d}"


def find_part(shard: Path) -> Path:
    """The part file of a filtered shard's folder (or the file itself).

    Raises:
        DataError: if there is none, or more than one.
    """
    if shard.is_file():
        return shard
    found = sorted(shard.glob("part-*-of-*.parquet"))
    if len(found) != 1:
        raise DataError(f"shard {shard.name!r} has {len(found)} part files, expected one", advice="Rebuild the filtered shard.")
    return found[0]


def write_part(path: Path, documents: Sequence[Document], footer: Mapping[str, str]) -> None:
    """Write documents sorted by id: zstd 3, page checksums, row groups of at most 4,096 rows and 16 MiB of text."""
    write_sorted(path, sorted(documents, key=lambda document: document.id), len(documents), footer)


def write_sorted(path: Path, documents: Iterable[Document], rows: int, footer: Mapping[str, str]) -> None:
    """Write a part from documents that come in the order of their ids; see `write_part`.

    Args:
        rows: how many they are.
    """
    names = SCHEMA.names
    schema = SCHEMA.with_metadata({f"marin.{key}": value for key, value in {**footer, "rows": str(rows)}.items()})
    with pq.ParquetWriter(path, schema, compression="zstd", compression_level=3, write_page_checksum=True) as writer:
        for group in _row_groups(documents):
            columns = [pa.array([getattr(document, name) for document in group], SCHEMA.field(name).type) for name in names]
            writer.write_table(pa.table(columns, schema=schema), row_group_size=ROW_GROUP_ROWS)


def _row_groups(documents: Iterable[Document]) -> Iterator[Sequence[Document]]:
    group: list[Document] = []
    size = 0
    for document in documents:
        if group and (len(group) == ROW_GROUP_ROWS or size + document.bytes > ROW_GROUP_BYTES):
            yield group
            group, size = [], 0
        group.append(document)
        size += document.bytes
    if group:
        yield group


def digest_row(document: Document) -> bytes:
    """What a document adds to the content digest of its part."""
    return canonical_json([document.id, document.source, document.added, document.created, document.metadata]) + b"\n"


def read_footer(part: Path) -> dict[str, str]:
    """The `marin.…` keys of a part's footer, without the prefix.

    Raises:
        DataError: if the file is no part, or of another schema.
    """
    try:
        metadata = pq.read_schema(part).metadata or {}
    except (OSError, pa.ArrowException) as error:
        raise DataError(f"part {part.name!r} has no readable footer ({error})", advice="Rebuild the filtered shard.") from error
    footer = {key.decode()[6:]: value.decode() for key, value in metadata.items() if key.startswith(b"marin.")}
    if footer.get("schema") != SCHEMA_VERSION:
        raise DataError(
            f"part {part.name!r} has schema {footer.get('schema')!r}, this reader knows {SCHEMA_VERSION!r}",
            advice="Rebuild the filtered shard with this version.",
        )
    return footer


def read_part(part: Path, columns: Sequence[str] = ("id", "text")) -> Iterator[dict[str, list[Any]]]:
    """Columns of a part, one row group at a time, in id order.

    Raises:
        DataError: naming the part, if a page fails its checksum, or rows are missing.
    """
    expected = int(read_footer(part)["rows"])
    rows = 0
    try:
        with pq.ParquetFile(part, page_checksum_verification=True) as file:
            for group in range(file.num_row_groups):
                table = file.read_row_group(group, columns=list(columns))
                rows += table.num_rows
                yield {name: table.column(name).to_pylist() for name in columns}
    except (OSError, pa.ArrowException) as error:
        raise DataError(f"part {part.name!r} is damaged ({error})", advice="Rebuild the filtered shard.") from error
    if rows != expected:
        raise DataError(f"part {part.name!r} has {rows} rows, its footer says {expected}", advice="Rebuild the filtered shard.")


class RejectedFile:
    """Writes rejections as they come: JSON lines in one zstd frame."""

    def __init__(self, path: Path, stage: str) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.counts: Counter[str] = Counter()
        self._stage = stage
        self._file = path.open("wb")
        self._stream: Any = zstandard.ZstdCompressor(level=3).stream_writer(self._file)

    def write(self, rejection: Rejection) -> None:
        """Append one row."""
        self._stream.write(canonical_json({"stage": self._stage} | asdict(rejection)) + b"\n")
        self.counts[rejection.reason] += 1

    def close(self) -> None:
        """End the frame; without it the file is cut."""
        self._stream.close()
        self._file.close()

    def __enter__(self) -> "RejectedFile":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def read_rejected(path: Path) -> list[dict[str, Any]]:
    """Rows of a rejected file."""
    with path.open("rb") as file:
        data = zstandard.ZstdDecompressor().stream_reader(file, read_across_frames=True).read()
    return [json.loads(line) for line in data.splitlines()]


def count_rejected(path: Path) -> int:
    """Number of rows of a rejected file, in bounded memory."""
    with path.open("rb") as file, zstandard.ZstdDecompressor().stream_reader(file, read_across_frames=True) as stream:
        return sum(chunk.count(b"\n") for chunk in iter(lambda: stream.read(1 << 20), b""))


class DroppedRows:
    """Collects valid documents that were filtered out: every id with its reason, and the texts of a few. About 40 bytes a document."""

    def __init__(self, stage: str) -> None:
        self.counts: Counter[str] = Counter()
        self._stage = stage
        self._reasons: dict[str, int] = {}
        self._ids = bytearray()
        self._codes = array("I")
        self._characters = array("q")
        self._scores = array("d")
        self._samples: dict[str, list[tuple[int, str]]] = {}

    def add(self, document: Document, reason: str, score: float | None = None) -> None:
        """Note one dropped document, and the value that decided where there is one."""
        self.counts[reason] += 1
        self._ids += bytes.fromhex(document.id)
        self._codes.append(self._reasons.setdefault(reason, len(self._reasons)))
        self._characters.append(len(document.text))
        self._scores.append(math.nan if score is None else score)
        kept = self._samples.setdefault(reason, [])  # a heap with the largest id on top
        entry = (-int(document.id, 16), document.text)
        if len(kept) < DROPPED_SAMPLES:
            heapq.heappush(kept, entry)
        elif entry[0] > kept[0][0]:
            heapq.heapreplace(kept, entry)

    def samples(self, reason: str) -> list[str]:
        """Texts of the samples of a reason, by id."""
        return [text for _, text in self.sampled(reason)]

    def sampled(self, reason: str) -> list[tuple[str, str]]:
        """Ids and texts of the samples of a reason, by id."""
        return [(f"{-key:032x}", text) for key, text in sorted(self._samples.get(reason, []), reverse=True)]

    def write(self, path: Path) -> None:
        """Write all rows, sorted by id and reason."""
        path.parent.mkdir(parents=True, exist_ok=True)
        texts = {(f"{-key:032x}", reason): text for reason, kept in self._samples.items() for key, text in kept}
        names = sorted(self._reasons)
        ranks = np.array([names.index(reason) for reason in self._reasons], np.int64)
        codes = ranks[np.frombuffer(self._codes, np.uint32)] if self._codes else np.empty(0, np.int64)
        halves = np.frombuffer(bytes(self._ids), ">u8").reshape(-1, 2)
        characters, scores = np.frombuffer(self._characters, np.int64), np.frombuffer(self._scores, np.float64)
        order = np.lexsort((characters, codes, halves[:, 1], halves[:, 0]))
        options = {"compression": "zstd", "compression_level": 3, "write_page_checksum": True}
        with pq.ParquetWriter(path, DROPPED_SCHEMA, **options) as writer:
            for start in range(0, len(order), ROW_GROUP_ROWS):
                rows = order[start : start + ROW_GROUP_ROWS]
                ids = [bytes(self._ids[16 * row : 16 * row + 16]).hex() for row in rows.tolist()]
                reasons = [names[code] for code in codes[rows].tolist()]
                columns: dict[str, Any] = {
                    "id": ids,
                    "stage": [self._stage] * len(ids),
                    "reason": reasons,
                    "score": pa.array(scores[rows], pa.float64(), from_pandas=True),  # NaN is null
                    "n_chars": characters[rows],
                    "text": [texts.get(key) for key in zip(ids, reasons, strict=True)],
                }
                writer.write_table(pa.table(columns, schema=DROPPED_SCHEMA))
