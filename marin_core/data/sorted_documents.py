"""Documents in the order of their ids, however many there are: what doesn't fit into memory waits in sorted runs on disk."""

import heapq
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from marin_core.data.documents import Document
from marin_core.data.limits import MIB
from marin_core.data.shard import SCHEMA

MEMORY_BYTES = 256 * MIB
"""Held before a run is written."""
DOCUMENT_BYTES = 700
"""What a document costs beside its text and metadata: the object, its id and source, its place in a list."""
RUN_ROWS = 1_024
RUN_BYTES = 4 * MIB


class SortedDocuments:
    """Takes documents in any order and gives them by id. A context manager: its runs go when it does.

    Args:
        folder: where runs may be written.
        memory_bytes: what is held in memory, about.
    """

    def __init__(self, folder: Path, memory_bytes: int = MEMORY_BYTES) -> None:
        self._folder = folder
        self._memory_bytes = memory_bytes
        self._held: list[Document] = []
        self._held_bytes = 0
        self._place: Path | None = None
        self._runs: list[Path] = []
        self._count = 0

    def add(self, document: Document) -> None:
        """Take one document; its id must be new."""
        self._held.append(document)
        self._held_bytes += sys.getsizeof(document.text) + sys.getsizeof(document.metadata) + DOCUMENT_BYTES
        self._count += 1
        if self._held_bytes > self._memory_bytes:
            self._write_run()

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Document]:
        self._held.sort(key=_identity)
        return heapq.merge(*(_read_run(run) for run in self._runs), iter(self._held), key=_identity)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._place is not None:
            shutil.rmtree(self._place, ignore_errors=True)

    def _write_run(self) -> None:
        if self._place is None:
            self._place = Path(tempfile.mkdtemp(prefix=".sorting-", dir=self._folder))
        path = self._place / f"{len(self._runs):05d}"
        options = pa.ipc.IpcWriteOptions(compression="zstd")
        self._held.sort(key=_identity)
        with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, SCHEMA, options=options) as writer:
            for rows in _batches(self._held):
                columns = [pa.array([getattr(row, field.name) for row in rows], field.type) for field in SCHEMA]
                writer.write_batch(pa.record_batch(columns, schema=SCHEMA))
        self._runs.append(path)
        self._held = []
        self._held_bytes = 0


def _identity(document: Document) -> str:
    return document.id


def _batches(documents: Sequence[Document]) -> Iterator[Sequence[Document]]:
    start, size = 0, 0
    for index, document in enumerate(documents):
        if index > start and (index - start == RUN_ROWS or size + document.bytes > RUN_BYTES):
            yield documents[start:index]
            start, size = index, 0
        size += document.bytes
    yield documents[start:]


def _read_run(path: Path) -> Iterator[Document]:
    with pa.OSFile(str(path), "rb") as file, pa.ipc.open_stream(file) as reader:
        for batch in reader:
            for row in batch.to_pylist():
                yield Document(**row, bytes=len(row["text"].encode()))


RECENT_IDS = 1 << 18
_Ids = tuple[npt.NDArray[np.uint64], npt.NDArray[np.uint64]]


class SeenIds:
    """A set of document ids in about 16 bytes each, where a set of texts takes 150.

    New ids stand in a set; once that is full they become a sorted array, and arrays of like size are merged.
    """

    def __init__(self, recent: int = RECENT_IDS) -> None:
        self._most = recent
        self._recent: set[bytes] = set()
        self._arrays: list[_Ids] = []

    def add(self, identity: str) -> bool:
        """Add an id (32 hex digits); False if it was there."""
        key = bytes.fromhex(identity)
        if key in self._recent or any(_stands_in(key, array) for array in self._arrays):
            return False
        self._recent.add(key)
        if len(self._recent) >= self._most:
            self._pack()
        return True

    def _pack(self) -> None:
        pairs = np.frombuffer(b"".join(self._recent), dtype=">u8").astype(np.uint64).reshape(-1, 2)
        self._recent = set()
        while self._arrays and len(self._arrays[-1][0]) <= 2 * len(pairs):
            pairs = np.concatenate([np.stack(self._arrays.pop(), axis=1), pairs])
        pairs = pairs[np.argsort(pairs[:, 0], kind="stable")]
        self._arrays.append((np.ascontiguousarray(pairs[:, 0]), np.ascontiguousarray(pairs[:, 1])))


def _stands_in(key: bytes, array: _Ids) -> bool:
    """Whether a key is one of those in (upper halves, ascending, and lower halves), uint64 [ids] each."""
    high, low = array
    upper = np.uint64(int.from_bytes(key[:8], "big"))
    lower = int.from_bytes(key[8:], "big")
    at = int(high.searchsorted(upper))
    while at < len(high) and high[at] == upper:
        if int(low[at]) == lower:
            return True
        at += 1
    return False
