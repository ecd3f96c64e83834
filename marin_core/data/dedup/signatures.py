"""Signatures of one shard: what a search for duplicates needs to know of its documents, ordered so that any range of keys is one slice.

Arrays beside `signatures.json`, rows counted in the part:
    ids [2, n] uint64: upper and lower half of each document's id, ascending;
    characters [n] uint32.
Near duplicates, for the m documents with an n-gram:
    keys [bands, m] uint64, ascending in each band; rows [bands, m] uint32.
Paragraphs:
    hashes [2, p] uint64: upper and lower half, ascending; places [4, p] uint32: row, start, end, words; words [n] uint32: of each document.
"""

import hashlib
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from marin_core.artifact.canonical import canonical_json
from marin_core.data.dedup.arrays import ArrayFolder, ArrayWriter
from marin_core.data.dedup.config import NearDuplicates, ParagraphHashes, Signatures
from marin_core.data.dedup.minhash import MinHasher
from marin_core.data.dedup.paragraphs import paragraphs
from marin_core.data.dedup.word_hashes import UInt64, hash_words
from marin_core.data.shard import find_part, read_footer, read_part
from marin_core.errors import PreemptedError
from marin_core.report import Report, Reporter, Scalar

LIST_FILE = "signatures.json"
SCHEMA = "signatures/1"
REBUILD = "Build the signatures of this shard anew."
_BATCH_CHARACTERS = 1 << 20
"""Texts that are hashed together: their n-grams fit a core's cache."""

Numbers = npt.NDArray[Any]


def write_signatures(config: Signatures, documents: Path, output: Path, reporter: Reporter) -> Report:
    """Write the signatures of one shard of documents.

    Memory: one band of the shard's documents (12 bytes each), or its paragraphs (32 bytes each), and some texts.

    Args:
        documents: folder of the shard.

    Raises:
        DataError: the part is damaged.
    """
    part = find_part(documents)
    total = int(read_footer(part)["rows"])
    writer = ArrayWriter(output)
    ids = _Ids()
    with ExitStack() as stack:
        kind = _Bands(config, output, stack) if isinstance(config, NearDuplicates) else _Paragraphs(config)
        for first, batch_ids, texts in _batches(part):
            if reporter.stop_requested():
                raise PreemptedError("the signatures were asked to stop", advice="Start them again; they begin anew.")
            ids.add(batch_ids, texts)
            kind.add(first, texts)
            reporter.progress(first + len(texts), total, "documents")
        ids.write(writer)
        counts = kind.write(writer)
    about = {"config": config.model_dump(mode="json"), "documents": ids.count, "ids": ids.digest, "part": part.name, **counts}
    digests = writer.close(LIST_FILE, SCHEMA, about)
    metrics: dict[str, Scalar] = {"documents": ids.count, **counts}
    return Report(metrics=metrics, content_digest=hashlib.sha256(canonical_json({"arrays": digests, "about": about})).hexdigest())


def open_signatures(folder: Path) -> ArrayFolder:
    """The signatures of a shard, checked.

    Raises:
        DataError: a file is missing, cut or changed.
        ConfigError: they were written in another schema.
    """
    return ArrayFolder(folder, LIST_FILE, SCHEMA, REBUILD)


def id_halves(ids: Sequence[str]) -> UInt64:
    """Ids as numbers that sort like them: uint64 [2, n]."""
    return np.ascontiguousarray(np.frombuffer(bytes.fromhex("".join(ids)), ">u8").reshape(-1, 2).T, np.uint64)


def _batches(part: Path) -> Iterator[tuple[int, list[str], list[str]]]:
    """First row, ids and texts of about a mebibyte of documents at a time."""
    row = 0
    for group in read_part(part):
        first = size = 0
        texts = group["text"]
        for index, text in enumerate(texts):
            size += len(text)
            if size >= _BATCH_CHARACTERS or index + 1 == len(texts):
                yield row + first, group["id"][first : index + 1], texts[first : index + 1]
                first, size = index + 1, 0
        row += len(texts)


class _Ids:
    """Ids and lengths of the documents."""

    def __init__(self) -> None:
        self._halves = [np.empty((2, 0), np.uint64)]
        self._characters = [np.empty(0, np.uint32)]
        self._digest = hashlib.sha256()
        self.count = 0

    @property
    def digest(self) -> str:
        """The same as `marin.ids` of an attribute file of these documents."""
        return self._digest.hexdigest()

    def add(self, ids: Sequence[str], texts: Sequence[str]) -> None:
        self._halves.append(id_halves(ids))
        self._characters.append(np.array([len(text) for text in texts], np.uint32))
        self._digest.update("".join(ids).encode())
        self.count += len(ids)

    def write(self, writer: ArrayWriter) -> None:
        writer.write("ids", np.concatenate(self._halves, axis=1))
        writer.write("characters", np.concatenate(self._characters))


class _Bands:
    """Band keys: kept in unnamed files until they are sorted, so that memory holds one band and nothing is left behind by a kill."""

    def __init__(self, config: NearDuplicates, folder: Path, stack: ExitStack) -> None:
        self._hasher = MinHasher(config)
        self._files: list[IO[bytes]] = []
        for _ in range(config.bands):
            self._files.append(stack.enter_context(tempfile.TemporaryFile(dir=folder)))  # noqa: SIM115  # the stack closes it
        self._rows = [np.empty(0, np.uint32)]
        self._documents = 0

    def add(self, first: int, texts: Sequence[str]) -> None:
        keys, present = self._hasher.keys(texts)
        for file, band in zip(self._files, keys, strict=True):
            file.write(band.tobytes())
        self._rows.append((present + first).astype(np.uint32))
        self._documents += len(texts)

    def write(self, writer: ArrayWriter) -> dict[str, int]:
        rows = np.concatenate(self._rows)
        shape = (len(self._files), len(rows))
        writer.write_pieces("keys", np.uint64, shape, self._sorted(lambda keys, order: keys[order]))
        writer.write_pieces("rows", np.uint32, shape, self._sorted(lambda _, order: rows[order]))
        return {"signed": len(rows), "too_short": self._documents - len(rows)}

    def _sorted(self, pick: Callable[[UInt64, Numbers], Numbers]) -> Iterator[Numbers]:
        for file in self._files:
            file.seek(0)
            keys = np.frombuffer(file.read(), np.uint64)
            yield pick(keys, np.argsort(keys, kind="stable"))


class _Paragraphs:
    """Hashes and places of paragraphs."""

    def __init__(self, config: ParagraphHashes) -> None:
        self._config = config
        self._hashes = [np.empty((2, 0), np.uint64)]
        self._places = [np.empty((4, 0), np.uint32)]
        self._words = [np.empty(0, np.uint32)]

    def add(self, first: int, texts: Sequence[str]) -> None:
        words = hash_words(texts)
        self._words.append(np.diff(words.bounds).astype(np.uint32))
        for index, text in enumerate(texts):
            found = list(paragraphs(text, self._config.min_characters))
            if found:
                starts = words.starts[words.bounds[index] : words.bounds[index + 1]]
                edges = np.array([(each.start, each.end) for each in found]).T
                counts = np.diff(np.searchsorted(starts, edges), axis=0)
                self._hashes.append(np.array([(each.high, each.low) for each in found], np.uint64).T)
                row = np.full((1, len(found)), first + index)
                self._places.append(np.concatenate([row, edges, counts]).astype(np.uint32))

    def write(self, writer: ArrayWriter) -> dict[str, int]:
        hashes, places = np.concatenate(self._hashes, axis=1), np.concatenate(self._places, axis=1)
        order = np.lexsort((hashes[1], hashes[0]))
        writer.write("hashes", hashes[:, order])
        writer.write("places", places[:, order])
        writer.write("words", np.concatenate(self._words))
        return {"paragraphs": hashes.shape[1]}
