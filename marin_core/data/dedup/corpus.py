"""All shards of several families as one list of rows, read in slices: what every global search works on."""

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from marin_core.data.dedup.arrays import Array, ArrayFolder
from marin_core.data.dedup.signatures import REBUILD, id_halves, open_signatures
from marin_core.data.dedup.word_hashes import Int64, UInt64
from marin_core.data.shard import find_part, read_part
from marin_core.errors import DataError

Bools = npt.NDArray[np.bool_]
_BATCH_CHARACTERS = 1 << 20
_KEY_SPACE = 1 << 64


class ShardFolders(NamedTuple):
    """One shard of a family: partition key, folder of its documents, folder of its signatures where the search needs them."""

    key: str
    documents: Path
    signatures: Path | None = None


@dataclass(frozen=True)
class Family:
    """Documents of one priority.

    Attributes:
        component: name of the family in results.
        context: its documents are never losers, and nothing is written about them.
    """

    component: str
    shards: tuple[ShardFolders, ...]
    context: bool = False


@dataclass(frozen=True)
class Shard:
    """A shard with its place in the corpus.

    Attributes:
        family: position of its family = its priority, 0 first.
        first, rows: its rows of the corpus are [first, first + rows).
        ids: maps the ids of its documents, uint64 [2, rows], ascending.
    """

    family: int
    key: str
    part: Path
    first: int
    rows: int
    signatures: ArrayFolder | None
    ids: Callable[[], Array]

    def mapped(self, name: str) -> Array:
        """One of its signatures' arrays."""
        if self.signatures is None:
            raise TypeError("this search works without signatures")
        return self.signatures.mapped(name)


class Corpus:
    """Rows 0 … N-1: all documents of all families, in the order of families, shards and ids.

    The order of rows is a way to name them and decides nothing: results depend on what the documents say alone.

    Args:
        families: context first, then by priority.
        scratch: folder for files that go away with it.

    Raises:
        DataError: a part is damaged, or signatures belong to other documents.
    """

    def __init__(self, families: Sequence[Family], scratch: Path) -> None:
        self.families = sorted(families, key=lambda family: not family.context)
        self.shards: list[Shard] = []
        for priority, family in enumerate(self.families):
            for folders in family.shards:
                self.shards.append(_open_shard(priority, folders, self.rows, scratch / f"ids-{len(self.shards)}.npy"))
        self._firsts = np.array([shard.first for shard in self.shards] or [0], np.int64)
        self._families = np.array([shard.family for shard in self.shards], np.int64)

    @property
    def rows(self) -> int:
        return self.shards[-1].first + self.shards[-1].rows if self.shards else 0

    def priority(self, rows: Int64) -> Int64:
        """Position of each row's family."""
        priority: Int64 = self._families[np.searchsorted(self._firsts, rows, side="right") - 1]
        return priority

    def source(self, row: int) -> str:
        """Component of a row's family."""
        return self.families[int(self.priority(np.array([row]))[0])].component

    def in_context(self, rows: Int64) -> Bools:
        """Which rows belong to families that only give context."""
        context: Bools = np.array([family.context for family in self.families], bool)[self.priority(rows)]
        return context

    def by_shard(self, rows: Int64) -> Iterator[tuple[Shard, slice]]:
        """The shards that have some of these ascending rows, and the slice of `rows` that each has."""
        bounds = np.searchsorted(rows, [*self._firsts, self.rows])
        for shard, first, last in zip(self.shards, bounds, bounds[1:], strict=False):
            if last > first:
                yield shard, slice(int(first), int(last))

    def ids(self, rows: Int64) -> UInt64:
        """Halves of the ids of some ascending rows: uint64 [2, R]."""
        found = np.empty((2, len(rows)), np.uint64)
        for shard, piece in self.by_shard(rows):
            found[:, piece] = shard.ids()[:, rows[piece] - shard.first]
        return found

    def characters(self, rows: Int64) -> Int64:
        """Lengths of the texts of some ascending rows."""
        found = np.empty(len(rows), np.int64)
        for shard, piece in self.by_shard(rows):
            found[piece] = shard.mapped("characters")[rows[piece] - shard.first]
        return found

    def read(self, rows: Int64, columns: Sequence[str]) -> Iterator[tuple[Int64, dict[str, list[Any]]]]:
        """Columns of some ascending rows; of each part only the row groups that have one are read, one at a time."""
        for shard, piece in self.by_shard(rows):
            for wanted, table in _row_groups(shard.part, rows[piece] - shard.first, columns):
                yield wanted + shard.first, table.to_pydict()

    def texts(self, rows: Int64) -> Iterator[tuple[Int64, list[str]]]:
        """Texts of some ascending rows, about a mebibyte at a time."""
        for found, columns in self.read(rows, ("text",)):
            first = size = 0
            texts = columns["text"]
            for index, text in enumerate(texts):
                size += len(text)
                if size >= _BATCH_CHARACTERS or index + 1 == len(texts):
                    yield found[first : index + 1], texts[first : index + 1]
                    first, size = index + 1, 0


def ranges(items: int, at_once: int) -> list[tuple[int, int | None]]:
    """Cuts the 64-bit keys of so many items into ranges [low, high) with about `at_once` items each; None = to the end."""
    count = max(1, -(-items // at_once))
    edges = [index * _KEY_SPACE // count for index in range(count)]
    return list(zip(edges, [*edges[1:], None], strict=True))


def key_slice(keys: Array, low: int, high: int | None) -> slice:
    """Where the keys of a range stand among ascending keys."""
    first, last = np.searchsorted(keys, np.array([low, high or 0], np.uint64))
    return slice(int(first), len(keys) if high is None else int(last))


def repeated(*keys: UInt64) -> tuple[Int64, Int64]:
    """Groups of items whose keys occur more than once.

    Args:
        keys: halves of the keys, the more significant first; uint64 [n] each.

    Returns:
        Positions of the items, group by group and ascending within each, int64 [k]; and where the groups begin, int64 [g].
    """
    order = np.argsort(keys[0], kind="stable")
    for rest in range(1, len(keys)):
        # Only where the first half repeats can the second decide; that is nearly nowhere.
        order = order[_beside_equal(keys[0][order])] if rest == 1 else order
        order = order[np.lexsort([half[order] for half in keys[rest::-1]])]
    together = [half[order] for half in keys]
    same = np.ones(max(0, len(order) - 1), bool)
    for half in together:
        same &= half[1:] == half[:-1]
    in_group = np.zeros(len(order), bool)
    in_group[1:] = same
    begins = ~in_group
    in_group[:-1] |= same
    return order[in_group], np.flatnonzero(begins[in_group])


def _beside_equal(values: UInt64) -> Bools:
    same = values[1:] == values[:-1]
    mask = np.zeros(len(values), bool)
    mask[1:] = same
    mask[:-1] |= same
    return mask


def _open_shard(priority: int, folders: ShardFolders, first: int, ids_file: Path) -> Shard:
    """Read the ids of a part, and see that its signatures are about them."""
    part = find_part(folders.documents)
    digest = hashlib.sha256()
    halves = [np.empty((2, 0), np.uint64)]
    for group in read_part(part, ("id",)):
        digest.update("".join(group["id"]).encode())
        halves.append(id_halves(group["id"]))
    ids = np.concatenate(halves, axis=1)
    rows = ids.shape[1]
    if folders.signatures is None:
        np.save(ids_file, ids)
        return Shard(priority, folders.key, part, first, rows, None, lambda: np.load(ids_file, mmap_mode="r" if rows else None))
    signatures = open_signatures(folders.signatures)
    if signatures.about["ids"] != digest.hexdigest():
        raise DataError(f"signatures {folders.key} are out of step with {part.name}: they are of other documents", advice=REBUILD)
    return Shard(priority, folders.key, part, first, rows, signatures, lambda: signatures.mapped("ids"))


def _row_groups(part: Path, rows: Int64, columns: Sequence[str]) -> Iterator[tuple[Int64, pa.Table]]:
    """The wanted rows of each row group that has some of them."""
    try:
        with pq.ParquetFile(part, page_checksum_verification=True) as file:
            first = 0
            for group in range(file.num_row_groups):
                last = first + file.metadata.row_group(group).num_rows
                wanted = rows[np.searchsorted(rows, first) : np.searchsorted(rows, last)]
                if len(wanted):
                    yield wanted, file.read_row_group(group, columns=list(columns)).take(pa.array(wanted - first))
                first = last
    except (OSError, pa.ArrowException) as error:
        raise DataError(f"part {part.name!r} is damaged ({error})", advice="Rebuild the shard.") from error
