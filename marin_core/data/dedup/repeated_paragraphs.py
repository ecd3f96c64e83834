"""Paragraphs that several documents have, or one document several times: the first by the keeper rule keeps its own."""

import heapq
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from marin_core.data.dedup.corpus import Corpus, Shard, key_slice, ranges, repeated
from marin_core.data.dedup.exact import ROWS_AT_ONCE, Copies, Progress
from marin_core.data.dedup.word_hashes import Int64, UInt64

SPAN = np.dtype([("row", "<u4"), ("start", "<u4"), ("end", "<u4"), ("words", "<u4"), ("high", "<u8"), ("low", "<u8")])
MOST_FREQUENT = 20

Spans = npt.NDArray[Any]


class Frequent(NamedTuple):
    """A paragraph that occurs often: how often, its hash, and where the one that stays is."""

    times: int
    hash: str
    row: int
    start: int
    end: int


class RepeatedParagraphs:
    """What is to be cut out of each shard; kept in a file a shard until it is asked for."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._frequent: list[Frequent] = []

    def add(self, shard: Shard, spans: Spans) -> None:
        with self._file(shard).open("ab") as file:
            file.write(spans.tobytes())

    def spans(self, shard: Shard) -> Spans:
        """Spans of a shard, by row and place."""
        path = self._file(shard)
        spans = np.fromfile(path, SPAN) if path.exists() else np.empty(0, SPAN)
        return spans[np.lexsort((spans["start"], spans["row"]))]

    def note(self, paragraph: Frequent) -> None:
        """Remember it if it is among the most frequent."""
        heapq.heappush(self._frequent, paragraph)
        if len(self._frequent) > MOST_FREQUENT:
            heapq.heappop(self._frequent)

    def frequent(self) -> list[Frequent]:
        """The most frequent ones, ordered by frequency and hash."""
        return sorted(self._frequent, reverse=True)

    def _file(self, shard: Shard) -> Path:
        return self._folder / f"spans-{shard.first}"


def find_repeated_paragraphs(
    corpus: Corpus, copies: Copies, scratch: Path, progress: Progress, rows_at_once: int = ROWS_AT_ONCE
) -> RepeatedParagraphs:
    """All paragraphs but the ones that stay; memory holds one range of hashes, one byte a document, and the spans of one shard."""
    is_copy = np.zeros(corpus.rows, bool)
    is_copy[copies.rows] = True
    found = RepeatedParagraphs(scratch)
    total = sum(shard.mapped("hashes").shape[1] for shard in corpus.shards)
    cut = ranges(total, rows_at_once)
    for done, (low, high) in enumerate(cut, start=1):
        halves, places = _range(corpus, low, high)
        order, firsts = repeated(*halves)
        if len(firsts):
            halves, places = halves[:, order], places[:, order]
            order, firsts = _keepers_first(corpus, places, firsts, is_copy)
            _collect(corpus, halves[:, order], places[:, order], firsts, found)
        progress(done, len(cut), "ranges of hashes")
    return found


def _range(corpus: Corpus, low: int, high: int | None) -> tuple[UInt64, Int64]:
    """Hashes [2, p] and places [4, p] (row of the corpus, start, end, words) of a range."""
    halves, places = [np.empty((2, 0), np.uint64)], [np.empty((4, 0), np.int64)]
    for shard in corpus.shards:
        hashes = shard.mapped("hashes")
        piece = key_slice(hashes[0], low, high)
        halves.append(np.array(hashes[:, piece]))
        place = shard.mapped("places")[:, piece].astype(np.int64)
        place[0] += shard.first
        places.append(place)
    return np.concatenate(halves, axis=1), np.concatenate(places, axis=1)


def _keepers_first(corpus: Corpus, places: Int64, firsts: Int64, is_copy: npt.NDArray[np.bool_]) -> tuple[Int64, Int64]:
    """An order of grouped paragraphs in which each group begins with the one that stays."""
    rows, which = np.unique(places[0], return_inverse=True)
    upper, lower = corpus.ids(rows)
    group = np.repeat(np.arange(len(firsts)), np.diff([*firsts, places.shape[1]]))
    keys = (places[1], is_copy[places[0]], lower[which], upper[which], -corpus.characters(rows)[which], corpus.priority(places[0]), group)
    return np.lexsort(keys), firsts


def _collect(corpus: Corpus, halves: UInt64, places: Int64, firsts: Int64, found: RepeatedParagraphs) -> None:
    """Note every paragraph but the first of each group, shard by shard."""
    loses = np.ones(places.shape[1], bool)
    loses[firsts] = False
    sizes = np.diff([*firsts, places.shape[1]])
    for each in np.lexsort((halves[1][firsts], halves[0][firsts], sizes))[-MOST_FREQUENT:].tolist():
        first = int(firsts[each])
        row, start, end = (int(value) for value in places[:3, first])
        found.note(Frequent(int(sizes[each]), _hash(halves[:, first]), row, start, end))
    loses &= ~corpus.in_context(places[0])
    by_row = np.flatnonzero(loses)[np.argsort(places[0][loses], kind="stable")]
    for shard, piece in corpus.by_shard(places[0][by_row]):
        mine = by_row[piece]
        spans = np.empty(len(mine), SPAN)
        for name, values in zip(("row", "start", "end", "words"), places[:, mine], strict=True):
            spans[name] = values - (shard.first if name == "row" else 0)
        spans["high"], spans["low"] = halves[:, mine]
        found.add(shard, spans)


def spans_of_rows(spans: Spans, first: int, last: int) -> Iterator[list[dict[str, Any]]]:
    """Spans of each of the rows [first, last) of a shard."""
    bounds = np.searchsorted(spans["row"], np.arange(first, last + 1))
    for begin, end in pairwise(bounds):
        yield [
            {"start": int(span["start"]), "end": int(span["end"]), "hash": _hash((span["high"], span["low"]))} for span in spans[begin:end]
        ]


def _hash(halves: Any) -> str:
    return f"{int(halves[0]):016x}{int(halves[1]):016x}"
