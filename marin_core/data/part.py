"""Files of one part of a token cache: plain zarr3 arrays, document ids, and `part.json`, which is written last."""

import json
from array import array
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import google_crc32c
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
import tensorstore as ts
import xxhash
from pydantic import Field

from marin_core.config import Config
from marin_core.data.files import write_json
from marin_core.errors import ConfigError, DataError

PART_FILE = "part.json"
PART_SCHEMA = "cache-part/1"
IDS_FILE = "ids.parquet"
SHARD_TOKENS = 1 << 26
"""Tokens of one file: 128 or 256 MiB raw. Bytes are written by whole files, since a plain append rewrites the file."""
SHARD_OFFSETS = 1 << 22
ID_ROWS = 1 << 16
"""Documents whose ids are written together; ten million tiny documents must not be held in memory as text."""
CHUNK = 1 << 15
"""Items that are compressed and check-summed together: the best batched reads measured (spec: data §6.2)."""

Tokens = npt.NDArray[np.uint16] | npt.NDArray[np.uint32]
IDS_SCHEMA = pa.schema(
    [
        pa.field(name, kind, nullable=False)
        for name, kind in [("id", pa.string()), ("shard", pa.string()), ("tokens", pa.int64()), ("bytes", pa.int64())]
    ]
)


class PartTokenizer(Config):
    """Which tokenizer made the ids."""

    digest: str
    probe_digest: str
    vocab_size: int = Field(ge=1)
    library: str


class PartPolicy(Config):
    """Where BOS and EOS stand; always as ids, never as text."""

    bos: Literal["prepend", "none"]
    eos: Literal["append", "none"]


class PartFile(Config):
    """One file of the part."""

    path: str
    size: int = Field(ge=0)
    crc32c: str


class PartInfo(Config):
    """What `part.json` says.

    Attributes:
        part: its name, the shard's key or a label such as `held_out`.
        dtype: of the stored ids.
        split: which documents of the shards it has.
        shards: the filtered parts that were read, in order.
        tokens, documents, bytes: totals; bytes are UTF-8 bytes of text.
        min_id, max_id: smallest and largest id (0 in an empty part).
        digest: xxh3-128 of all ids as little-endian uint32.
        multiset_digest: sum mod 2^128 of each document's digest; equal under any re-sharding.
        licenses, policies: of the raw units behind it.
    """

    part: str
    dtype: Literal["uint16", "uint32"]
    tokenizer: PartTokenizer
    bos_id: int
    eos_id: int
    pad_id: int
    policy: PartPolicy
    special_text: Literal["plain"] = "plain"
    long_document_characters: int
    split: str
    held_out_per_10000: int
    shards: tuple[str, ...]
    documents: int = Field(ge=0)
    tokens: int = Field(ge=0)
    bytes: int = Field(ge=0)
    min_id: int = Field(ge=0)
    max_id: int = Field(ge=0)
    digest: str
    multiset_digest: str
    licenses: tuple[str, ...]
    policies: tuple[str, ...]
    files: tuple[PartFile, ...]


def read_info(part: Path) -> PartInfo:
    """Read and check `part.json`.

    Raises:
        DataError: if it is missing or broken.
        ConfigError: if it was written in another schema; names both.
    """
    path = part / PART_FILE
    try:
        content = json.loads(path.read_bytes())
        schema = content.pop("schema")
    except (OSError, ValueError, KeyError, AttributeError) as error:
        raise DataError(f"cache part {part.name!r} has no readable {PART_FILE} ({error})", advice="Rebuild the part.") from error
    if schema != PART_SCHEMA:
        raise ConfigError(
            f"cache part {part.name!r} has schema {schema!r}, this reader knows {PART_SCHEMA!r}",
            advice="Rebuild the part with this version, or read it with the version that wrote it.",
        )
    return PartInfo.from_json(content)


def write_info(part: Path, info: PartInfo) -> None:
    """Write `part.json`, the last file of a part."""
    write_json(part / PART_FILE, {"schema": PART_SCHEMA} | info.model_dump(mode="json"))


def create_array(path: Path, dtype: str, length: int, shard: int) -> Any:
    """A new zarr3 array of shape [length], in files of `shard` items.

    Fill values are stored, so that a missing chunk is an error and never reads as zeros; crc32c on every chunk, because without it
    a flipped byte returned wrong tokens.
    """
    little = {"name": "bytes", "configuration": {"endian": "little"}}
    sharding = {
        "chunk_shape": [CHUNK],
        "codecs": [little, {"name": "zstd", "configuration": {"level": 1}}, {"name": "crc32c"}],
        "index_codecs": [little, {"name": "crc32c"}],
        "index_location": "end",
    }
    metadata = {
        "shape": [length],
        "data_type": dtype,
        "fill_value": 0,
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [shard]}},
        "codecs": [{"name": "sharding_indexed", "configuration": sharding}],
    }
    return ts.open(_open_spec(path) | {"metadata": metadata}, create=True, delete_existing=True).result()


def open_array(path: Path, context: Any) -> Any:
    """Open an array for reading; raises ValueError if it is missing or broken."""
    return ts.open(_open_spec(path), context=context, read=True, open=True).result()


def _open_spec(path: Path) -> dict[str, Any]:
    return {
        "driver": "zarr3",
        "kvstore": {"driver": "file", "path": str(path.absolute())},
        "store_data_equal_to_fill_value": True,
        "fill_missing_data_reads": False,
        "recheck_cached_data": "open",
        "recheck_cached_metadata": "open",
    }


class PartWriter:
    """Writes the arrays of one part, documents as they come; holds at most one file of tokens in memory.

    A context manager: one that isn't finished must be closed before another writes to the same folder.
    """

    def __init__(self, folder: Path, dtype: Literal["uint16", "uint32"], shard_tokens: int = SHARD_TOKENS) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.dtype = dtype
        self.tokens = 0
        self.bytes = 0
        self.min_id: int | None = None
        self.max_id = 0
        self._folder = folder
        self._shard_tokens = shard_tokens
        self._buffer = np.empty(1 << 20, dtype)
        self._held = 0
        self._written = 0
        self._array: Any = None
        self._offsets = array("q", [0])
        self._rows: dict[str, list[Any]] = {name: [] for name in IDS_SCHEMA.names}
        self._ids = pq.ParquetWriter(folder / IDS_FILE, IDS_SCHEMA, compression="zstd", write_page_checksum=True)
        self._digest = xxhash.xxh3_128()
        self._multiset = 0

    def __enter__(self) -> "PartWriter":
        return self

    def __exit__(self, *_: object) -> None:
        self._ids.close()

    @property
    def documents(self) -> int:
        """Documents added so far."""
        return len(self._offsets) - 1

    def add(self, identity: str, shard: str, ids: npt.NDArray[np.uint32], text_bytes: int) -> None:
        """Append one document; ids uint32 [tokens], BOS and EOS included."""
        self.extend([identity], [shard], ids, np.array([len(ids)]), [text_bytes])

    def extend(
        self,
        identities: Sequence[str],
        shards: Sequence[str],
        ids: npt.NDArray[np.uint32],
        lengths: npt.NDArray[np.int64],
        text_bytes: Sequence[int],
    ) -> None:
        """Append documents: their ids one after the other, uint32 [tokens], and the tokens of each, int64 [documents], none of them 0."""
        if len(ids) == 0:
            return
        raw = memoryview(ids.astype("<u4", copy=False)).cast("B")
        ends = np.cumsum(lengths)
        self._digest.update(raw)
        for begin, end in pairwise([0, *(ends * 4).tolist()]):
            self._multiset += xxhash.xxh3_128_intdigest(raw[begin:end])
        self._multiset %= 2**128
        low, high = int(ids.min()), int(ids.max())
        self.min_id = low if self.min_id is None else min(self.min_id, low)
        self.max_id = max(self.max_id, high)
        self._offsets.extend((ends + self.tokens).tolist())
        self.tokens += len(ids)
        self.bytes += sum(text_bytes)
        for name, values in zip(self._rows, (identities, shards, lengths.tolist(), text_bytes), strict=True):
            self._rows[name] += values
        while len(self._rows["id"]) >= ID_ROWS:
            self._write_ids(ID_ROWS)
        self._store(ids)

    def _store(self, ids: npt.NDArray[np.uint32]) -> None:
        start = 0
        while start < len(ids):
            taken = min(len(ids) - start, self._shard_tokens - self._held)
            self._reserve(self._held + taken)
            self._buffer[self._held : self._held + taken] = ids[start : start + taken]
            self._held += taken
            start += taken
            if self._held == self._shard_tokens:
                self._flush()

    def _write_ids(self, count: int) -> None:
        """Write the first rows that are held as one row group, so that the file doesn't depend on how documents were batched."""
        columns = [pa.array(self._rows[field.name][:count], field.type) for field in IDS_SCHEMA]
        self._ids.write_table(pa.table(columns, schema=IDS_SCHEMA))
        for values in self._rows.values():
            del values[:count]

    def _reserve(self, length: int) -> None:
        if length > len(self._buffer):
            grown = np.empty(min(self._shard_tokens, max(length, 2 * len(self._buffer))), self.dtype)
            grown[: self._held] = self._buffer[: self._held]
            self._buffer = grown

    def _flush(self) -> None:
        """Write what is held as one whole file; the array's shape is always exactly what has been written."""
        end = self._written + self._held
        if self._array is None:
            self._array = create_array(self._folder / "tokens", self.dtype, end, self._shard_tokens)
        else:
            self._array = self._array.resize(exclusive_max=[end]).result()
        if self._held:
            # The buffer is given away, since a copy of a whole file would be the peak of a job's memory.
            self._array[self._written : end].write(self._buffer[: self._held], can_reference_source_data_indefinitely=True).result()
            self._buffer = np.empty(1 << 20, self.dtype)
        self._written, self._held = end, 0

    def finish(self) -> tuple[str, str]:
        """Write what remains; returns (digest, multiset digest)."""
        if self._held or self._array is None:
            self._flush()
        offsets = create_array(self._folder / "offsets", "int64", len(self._offsets), SHARD_OFFSETS)
        offsets[:].write(np.frombuffer(self._offsets, np.int64)).result()
        if self._rows["id"]:
            self._write_ids(len(self._rows["id"]))
        self._ids.close()
        return self._digest.hexdigest(), f"{self._multiset:032x}"


def list_files(part: Path) -> tuple[PartFile, ...]:
    """All files of a part but `part.json`, sorted, with size and crc32c. A hidden folder belongs to whoever keeps the part."""
    files = []
    for path in sorted(path for path in part.rglob("*") if path.is_file() and path.name != PART_FILE):
        if path.relative_to(part).parts[0].startswith("."):
            continue
        checksum: Any = google_crc32c.Checksum()  # type: ignore[no-untyped-call]
        with path.open("rb") as file:
            for chunk in iter(lambda f=file: f.read(1 << 20), b""):  # type: ignore[misc]
                checksum.update(chunk)
        files.append(PartFile(path=path.relative_to(part).as_posix(), size=path.stat().st_size, crc32c=checksum.hexdigest().decode()))
    return tuple(files)


def same_tokens(parts: Mapping[str, PartInfo]) -> None:
    """Refuse parts that can't stand in one stream.

    Raises:
        ConfigError: naming two parts and both values, if tokenizer, special ids or policy differ.
    """
    first: tuple[str, PartInfo] | None = None
    for name, info in parts.items():
        if first is None:
            first = name, info
            continue
        for field, ours, theirs in _identity_fields(first[1], info):
            if ours != theirs:
                raise ConfigError(
                    f"{field} differs: {ours!r} in {first[0]!r}, {theirs!r} in {name!r}",
                    advice="Tokenize all of them with one tokenizer and one BOS/EOS policy.",
                )


def _identity_fields(a: PartInfo, b: PartInfo) -> Sequence[tuple[str, object, object]]:
    return [
        ("tokenizer digest", a.tokenizer.digest, b.tokenizer.digest),
        ("tokenizer probe digest", a.tokenizer.probe_digest, b.tokenizer.probe_digest),
        ("bos_id", a.bos_id, b.bos_id),
        ("eos_id", a.eos_id, b.eos_id),
        ("policy", (a.policy.bos, a.policy.eos), (b.policy.bos, b.policy.eos)),
    ]
