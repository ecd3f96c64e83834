"""Documents that are nearly the same: equal bands → connected components → a keeper → how much of each document its keeper has."""

import os
import tempfile
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from marin_core.data.dedup.components import Components
from marin_core.data.dedup.corpus import Bools, Corpus, key_slice, ranges, repeated
from marin_core.data.dedup.exact import ROWS_AT_ONCE, Copies, Progress
from marin_core.data.dedup.word_hashes import Int64, UInt64, distinct_ngrams

Float64 = npt.NDArray[np.float64]
_KEPT_IN_MEMORY = 64


class Clusters(NamedTuple):
    """Rows of clusters with more than one document, ascending.

    Attributes:
        rows: int64 [R].
        keepers: row of the document that stays for each; a copy's is the row that keeps its very text.
        sizes: documents of the cluster, copies too.
        containment: share of the row's n-grams that its keeper has; 1 for copies, NaN for keepers and where it wasn't measured.
        losers: every row but the keepers, and none of the context.
    """

    rows: Int64
    keepers: Int64
    sizes: Int64
    containment: Float64
    losers: Bools


def find_clusters(
    corpus: Corpus, copies: Copies, ngram_words: int, *, verify: bool, scratch: Path, progress: Progress, rows_at_once: int = ROWS_AT_ONCE
) -> Clusters:
    """Clusters of the corpus; every shard's signatures must be made with one configuration.

    Copies of a text are left out of the search and join the cluster of the text that stays. Memory: one range of one band, one byte a
    document, and about 100 bytes for each document that is in a cluster.
    """
    rows, roots = _connected(corpus, copies, progress, rows_at_once)
    keepers = _keepers(corpus, rows, roots)
    containment = np.full(len(rows), np.nan)
    if verify:
        others = rows != keepers
        containment[others] = _containment(corpus, rows[others], keepers[others], ngram_words, scratch, progress)
    return _with_copies(corpus, rows, keepers, containment, copies)


def _connected(corpus: Corpus, copies: Copies, progress: Progress, rows_at_once: int) -> tuple[Int64, Int64]:
    """Rows that share a band with another one, and the smallest row of each one's component."""
    is_copy = np.zeros(corpus.rows, bool)
    is_copy[copies.rows] = True
    bands = {shard.mapped("keys").shape[0] for shard in corpus.shards}
    components = Components()
    cut = ranges(corpus.rows, rows_at_once)
    total = max(bands, default=0) * len(cut)
    done = 0
    for band in range(max(bands, default=0)):
        for low, high in cut:
            keys, rows = _band(corpus, band, low, high, is_copy)
            order, firsts = repeated(keys)
            if len(firsts):
                sizes = np.diff([*firsts, len(order)])
                together = rows[order]
                centres = np.repeat(together[firsts], sizes)
                components.add(together[together != centres], centres[together != centres])
            done += 1
            progress(done, total, "ranges of bands")
    return components.finish()


def _band(corpus: Corpus, band: int, low: int, high: int | None, is_copy: Bools) -> tuple[UInt64, Int64]:
    """Keys of one band in a range, and the rows that have them, by shard."""
    keys, rows = [np.empty(0, np.uint64)], [np.empty(0, np.int64)]
    for shard in corpus.shards:
        all_keys = shard.mapped("keys")[band]
        piece = key_slice(all_keys, low, high)
        found = shard.mapped("rows")[band][piece].astype(np.int64) + shard.first
        stays = ~is_copy[found]
        keys.append(all_keys[piece][stays])
        rows.append(found[stays])
    return np.concatenate(keys), np.concatenate(rows)


def _keepers(corpus: Corpus, rows: Int64, roots: Int64) -> Int64:
    """The row that stays of each one's component: the smallest of (priority, -characters, id)."""
    upper, lower = corpus.ids(rows)
    order = np.lexsort((lower, upper, -corpus.characters(rows), corpus.priority(rows), roots))
    sorted_roots = roots[order]
    first = np.ones(len(rows), bool)
    first[1:] = sorted_roots[1:] != sorted_roots[:-1]
    keepers = np.empty_like(rows)
    keepers[order] = rows[order][first][np.cumsum(first) - 1]
    return keepers


def _containment(corpus: Corpus, rows: Int64, keepers: Int64, ngram_words: int, scratch: Path, progress: Progress) -> Float64:
    """Share of each row's distinct n-grams that stand in its keeper too.

    The keepers' n-grams go into a file, and each is read where a row asks for it.
    """
    shares = np.zeros(len(rows))
    with tempfile.TemporaryFile(dir=scratch) as file:
        wanted = np.unique(keepers)
        lengths = []
        for _, texts in corpus.texts(wanted):
            grams, bounds = distinct_ngrams(texts, ngram_words)
            file.write(grams.tobytes())
            lengths.append(np.diff(bounds))
        file.flush()
        ends = np.cumsum(np.concatenate([np.empty(0, np.int64), *lengths]))

        @lru_cache(_KEPT_IN_MEMORY)
        def grams_of(keeper: int) -> UInt64:
            index = int(np.searchsorted(wanted, keeper))
            begin = int(ends[index - 1]) if index else 0
            return np.frombuffer(os.pread(file.fileno(), (int(ends[index]) - begin) * 8, begin * 8), np.uint64)

        done = 0
        for found, texts in corpus.texts(rows):
            grams, bounds = distinct_ngrams(texts, ngram_words)
            kept_by = keepers[done : done + len(found)]
            for keeper, mine in _grouped(kept_by):
                shares[done + mine] = _shares([grams[bounds[each] : bounds[each + 1]] for each in mine], grams_of(keeper))
            done += len(found)
            progress(done, len(rows), "documents compared with their keepers")
    return shares


def _grouped(values: Int64) -> Iterator[tuple[int, Int64]]:
    """Each distinct value and where it stands."""
    order = np.argsort(values, kind="stable")
    for places in np.split(order, np.flatnonzero(np.diff(values[order])) + 1):
        yield int(values[places[0]]), places


def _shares(documents: Sequence[UInt64], keeper: UInt64) -> Float64:
    """Share of each document's distinct n-grams that are among the keeper's, which ascend."""
    grams = np.concatenate(documents)
    places = np.minimum(np.searchsorted(keeper, grams), len(keeper) - 1)
    sizes = np.array([len(each) for each in documents])
    shares: Float64 = np.add.reduceat(keeper[places] == grams, np.cumsum(sizes) - sizes, dtype=np.int64) / sizes
    return shares


def _with_copies(corpus: Corpus, rows: Int64, keepers: Int64, containment: Float64, copies: Copies) -> Clusters:
    """Add the copies, and the rows that are in a cluster only as they have copies."""
    alone = np.setdiff1d(copies.keepers, rows)
    rows = np.concatenate([rows, alone, copies.rows])
    cluster = np.concatenate([keepers, alone, np.empty(0, np.int64)])
    order = np.argsort(rows[: len(cluster)])
    of_copies = cluster[order][np.searchsorted(rows[: len(cluster)][order], copies.keepers)]
    cluster = np.concatenate([cluster, of_copies])
    keepers = np.concatenate([keepers, alone, copies.keepers])
    containment = np.concatenate([containment, np.full(len(alone), np.nan), np.ones(len(copies.rows))])
    _, which, counts = np.unique(cluster, return_inverse=True, return_counts=True)
    order = np.argsort(rows)
    rows, keepers = rows[order], keepers[order]
    return Clusters(rows, keepers, counts[which][order], containment[order], (rows != keepers) & ~corpus.in_context(rows))
