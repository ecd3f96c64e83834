"""Documents with the same text, anywhere in the corpus: equal texts have equal ids."""

import json
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from marin_core.data.dedup.corpus import Corpus, key_slice, ranges, repeated
from marin_core.data.dedup.word_hashes import Int64

ROWS_AT_ONCE = 1 << 22
"""Rows whose keys lie in memory together: 100 MiB of them, and twice that while they are sorted."""

Progress = Callable[[int, int, str], None]
"""Told what is done, of how much, in which unit; raises when the job is asked to stop."""


class Copies(NamedTuple):
    """Rows whose text another row keeps, ascending, and which row that is."""

    rows: Int64
    keepers: Int64


def find_copies(corpus: Corpus, progress: Progress, rows_at_once: int = ROWS_AT_ONCE) -> Copies:
    """All but one of the rows with the same text.

    Of equal texts the one of the first family stays, within it the one with the smallest (source, unit, offset). One pass over the
    ids for each range of them, so memory holds a range and the copies (16 bytes each).
    """
    cut = ranges(corpus.rows, rows_at_once)
    found = [(np.empty(0, np.int64), np.empty(0, np.int64))]
    for done, (low, high) in enumerate(cut, start=1):
        halves, rows = [np.empty((2, 0), np.uint64)], [np.empty(0, np.int64)]
        for shard in corpus.shards:
            ids = shard.ids()
            piece = key_slice(ids[0], low, high)
            halves.append(np.array(ids[:, piece]))
            rows.append(np.arange(shard.first + piece.start, shard.first + piece.stop))
        upper, lower = np.concatenate(halves, axis=1)
        order, firsts = repeated(upper, lower)
        found.append(_losers(corpus, np.concatenate(rows)[order], firsts))
        progress(done, len(cut), "ranges of ids")
    rows_found, keepers = (np.concatenate(each) for each in zip(*found, strict=True))
    order = np.argsort(rows_found)
    return Copies(rows_found[order], keepers[order])


def _losers(corpus: Corpus, rows: Int64, firsts: Int64) -> tuple[Int64, Int64]:
    """Of groups of rows with equal text: every row but the keeper, and its keeper."""
    if not len(firsts):
        return rows, rows
    sizes = np.diff([*firsts, len(rows)])
    priority = corpus.priority(rows)
    best = priority == np.repeat(np.minimum.reduceat(priority, firsts), sizes)
    group = np.repeat(np.arange(len(firsts)), sizes)
    keepers = np.empty(len(firsts), np.int64)
    keepers[group[best][::-1]] = rows[best][::-1]
    tied = best & np.repeat(np.add.reduceat(best.astype(np.int64), firsts) > 1, sizes)
    places = _places(corpus, np.sort(rows[tied]))
    chosen: dict[int, tuple[Any, int]] = {}
    for number, row in zip(group[tied].tolist(), rows[tied].tolist(), strict=True):
        chosen[number] = min(chosen.get(number, (places[row], row)), (places[row], row))
    for number, (_, row) in chosen.items():
        keepers[number] = row
    keeper = np.repeat(keepers, sizes)
    loses = rows != keeper
    return rows[loses], keeper[loses]


def _places(corpus: Corpus, rows: Int64) -> dict[int, tuple[str, str, int]]:
    """Source, unit and offset of some rows."""
    places = {}
    for found, columns in corpus.read(rows, ("source", "metadata")):
        for row, source, metadata in zip(found.tolist(), columns["source"], columns["metadata"], strict=True):
            where = json.loads(metadata)
            places[row] = (source, str(where.get("unit", "")), int(where.get("offset", 0)))
    return places
