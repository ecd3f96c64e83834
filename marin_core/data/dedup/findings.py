"""What a search for duplicates has found, as columns of attribute files and as tables for people."""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from marin_core.data.dedup.config import DropNearDuplicates
from marin_core.data.dedup.corpus import Corpus, Shard
from marin_core.data.dedup.exact import Copies
from marin_core.data.dedup.near import Clusters
from marin_core.data.dedup.plots import plot_sizes
from marin_core.data.dedup.repeated_paragraphs import RepeatedParagraphs, Spans, spans_of_rows
from marin_core.data.dedup.word_hashes import Int64
from marin_core.data.documents import sample_of
from marin_core.report import Report, Scalar

PLOT_FILE = "cluster_sizes.png"
LARGEST = 10
SPANS = pa.list_(pa.struct([pa.field("start", pa.int32()), pa.field("end", pa.int32()), pa.field("hash", pa.string())]))
"""Characters `[start, end)`, and the xxh3-128 of the paragraph with its white space folded."""

Values = dict[str, Sequence[Any]]


class Findings(Protocol):
    """What a search has found, shard by shard.

    Attributes:
        columns: name → Arrow type.
    """

    columns: Mapping[str, pa.DataType]

    def open(self, shard: Shard) -> "ShardFindings":
        """What was found in one shard."""

    def report(self, corpus: Corpus) -> Report:
        """Metrics and tables, once every shard is written."""


class ShardFindings(Protocol):
    """What was found in one shard."""

    def values(self, ids: Sequence[str], first: int) -> Values:
        """A value of each column for the rows that begin at `first`."""


class ExactFindings:
    """`dup_of`: the id of the equal text that stays elsewhere; `dup_of_source`: the family that keeps it."""

    columns: Mapping[str, pa.DataType] = {"dup_of": pa.string(), "dup_of_source": pa.string()}

    def __init__(self, corpus: Corpus, copies: Copies) -> None:
        self._rows = copies.rows
        self._tally = _Tally(corpus, copies.keepers)

    def open(self, shard: Shard) -> ShardFindings:
        return _ExactShard(shard, self._rows, self._tally)

    def report(self, corpus: Corpus) -> Report:
        return self._tally.report({})


class _ExactShard:
    def __init__(self, shard: Shard, rows: Int64, tally: "_Tally") -> None:
        self._piece = _Piece(shard, rows)
        self._shard = shard
        self._tally = tally

    def values(self, ids: Sequence[str], first: int) -> Values:
        self._tally.documents[self._shard.family] += len(ids)
        places, marked = self._piece.within(first, len(ids))
        self._tally.lose(self._shard, np.arange(marked.start, marked.stop))
        return {
            "dup_of": _scattered(len(ids), None, places, [ids[place] for place in places]),
            "dup_of_source": _scattered(len(ids), None, places, self._tally.kept_by(marked)),
        }


class NearFindings:
    """`keeper`, `keeper_source`: the document of the cluster that stays; `cluster_size`, 1 = alone; `containment`; `loser`."""

    columns: Mapping[str, pa.DataType] = {
        "keeper": pa.string(),
        "keeper_source": pa.string(),
        "cluster_size": pa.int32(),
        "containment": pa.float64(),
        "loser": pa.bool_(),
    }

    def __init__(self, corpus: Corpus, clusters: Clusters, output: Path) -> None:
        self._clusters = clusters
        self._output = output
        self._tally = _Tally(corpus, clusters.keepers)
        rows, which = np.unique(clusters.keepers, return_inverse=True)
        self._keeper_ids = corpus.ids(rows)
        self._which = which

    def open(self, shard: Shard) -> ShardFindings:
        return _NearShard(shard, self._clusters, self._keeper_ids, self._which, self._tally)

    def report(self, corpus: Corpus) -> Report:
        clusters = self._clusters
        stays = clusters.rows == clusters.keepers
        sizes = clusters.sizes[stays]
        verified = int((clusters.losers & (clusters.containment >= DropNearDuplicates().min_containment)).sum())
        plot_sizes(sizes, self._output / PLOT_FILE)
        metrics: dict[str, Scalar] = {
            "clusters": int(stays.sum()),
            "largest_cluster": int(sizes.max(initial=0)),
            "verified_losers": verified,
        }
        report = self._tally.report(metrics)
        tables = {**report.tables, "cluster_sizes": _size_table(sizes), "largest_clusters": self._largest(corpus)}
        return Report(metrics=report.metrics, tables=tables, plots={"cluster_histogram": self._output / PLOT_FILE})

    def _largest(self, corpus: Corpus) -> list[dict[str, Scalar]]:
        clusters = self._clusters
        stays = np.flatnonzero(clusters.rows == clusters.keepers)
        upper, lower = self._keeper_ids[:, self._which[stays]]
        chosen = np.sort(stays[np.lexsort((lower, upper, -clusters.sizes[stays]))[:LARGEST]])
        rows = []
        for found, columns in corpus.read(clusters.rows[chosen], ("id", "text")):
            for row, identity, text in zip(found.tolist(), columns["id"], columns["text"], strict=True):
                size = int(clusters.sizes[np.searchsorted(clusters.rows, row)])
                rows.append({"documents": size, "keeper": identity, "family": corpus.source(row), "text": sample_of(text)})
        return sorted(rows, key=lambda row: (-int(row["documents"]), row["keeper"]))


class _NearShard:
    def __init__(self, shard: Shard, clusters: Clusters, keeper_ids: Any, which: Int64, tally: "_Tally") -> None:
        self._piece = _Piece(shard, clusters.rows)
        self._clusters = clusters
        self._keeper_ids = keeper_ids
        self._which = which
        self._shard = shard
        self._tally = tally

    def values(self, ids: Sequence[str], first: int) -> Values:
        count = len(ids)
        self._tally.documents[self._shard.family] += count
        places, marked = self._piece.within(first, count)
        clusters = self._clusters
        losers = clusters.losers[marked]
        self._tally.lose(self._shard, marked.start + np.flatnonzero(losers))
        upper, lower = (half.tolist() for half in self._keeper_ids[:, self._which[marked]])
        shares = [None if np.isnan(share) else share for share in clusters.containment[marked].tolist()]
        return {
            "keeper": _scattered(count, None, places, [f"{high:016x}{low:016x}" for high, low in zip(upper, lower, strict=True)]),
            "keeper_source": _scattered(count, None, places, self._tally.kept_by(marked)),
            "cluster_size": _scattered(count, 1, places, clusters.sizes[marked].tolist()),
            "containment": _scattered(count, None, places, shares),
            "loser": _scattered(count, False, places, losers.tolist()),
        }


class ParagraphFindings:
    """`spans`: what is to be cut out; `words_left`: of the document without them."""

    columns: Mapping[str, pa.DataType] = {"spans": SPANS, "words_left": pa.int32()}

    def __init__(self, corpus: Corpus, found: RepeatedParagraphs) -> None:
        self._found = found
        self._totals: list[Counter[str]] = [Counter() for _ in corpus.families]

    def open(self, shard: Shard) -> ShardFindings:
        return _ParagraphShard(shard, self._found.spans(shard), self._totals[shard.family])

    def report(self, corpus: Corpus) -> Report:
        names = ("documents", "with_repeated", "repeated", "words", "repeated_words")
        families: list[dict[str, Scalar]] = [
            {"family": family.component, **{name: total[name] for name in names}}
            for family, total in zip(corpus.families, self._totals, strict=True)
            if not family.context
        ]
        metrics: dict[str, Scalar] = {name: sum(int(row[name]) for row in families) for name in ("documents", "repeated", "repeated_words")}
        return Report(metrics=metrics, tables={"families": families, "most_frequent": self._most_frequent(corpus)})

    def _most_frequent(self, corpus: Corpus) -> list[dict[str, Scalar]]:
        frequent = self._found.frequent()
        rows = np.unique(np.array([paragraph.row for paragraph in frequent], np.int64))
        texts: dict[int, str] = {}
        for found, columns in corpus.read(rows, ("text",)):
            for row, text in zip(found.tolist(), columns["text"], strict=True):
                texts |= {index: sample_of(text[each.start : each.end]) for index, each in enumerate(frequent) if each.row == row}
        return [{"times": each.times, "hash": each.hash, "text": texts[index]} for index, each in enumerate(frequent)]


class _ParagraphShard:
    def __init__(self, shard: Shard, spans: Spans, total: Counter[str]) -> None:
        self._spans = spans
        self._words = shard.mapped("words")
        self._total = total

    def values(self, ids: Sequence[str], first: int) -> Values:
        last = first + len(ids)
        piece = self._spans[np.searchsorted(self._spans["row"], first) : np.searchsorted(self._spans["row"], last)]
        repeated = np.bincount(piece["row"] - first, piece["words"], len(ids)).astype(np.int64)
        words = np.array(self._words[first:last], np.int64)
        self._total.update(
            documents=len(ids),
            with_repeated=len(np.unique(piece["row"])),
            repeated=len(piece),
            words=int(words.sum()),
            repeated_words=int(repeated.sum()),
        )
        return {"spans": list(spans_of_rows(piece, first, last)), "words_left": (words - repeated).tolist()}


class _Piece:
    """The marked rows of one shard."""

    def __init__(self, shard: Shard, rows: Int64) -> None:
        self._rows = rows
        self._shard = shard

    def within(self, first: int, count: int) -> tuple[list[int], slice]:
        """Of `count` rows of the shard from `first` on, those that are marked: places among them, and which of all marked rows they are."""
        base = self._shard.first + first
        begin, end = np.searchsorted(self._rows, [base, base + count]).tolist()
        return (self._rows[begin:end] - base).tolist(), slice(begin, end)


def _scattered(count: int, default: Any, places: Sequence[int], values: Sequence[Any]) -> list[Any]:
    """A column that has some values at some places and the default elsewhere."""
    column = [default] * count
    for place, value in zip(places, values, strict=True):
        column[place] = value
    return column


class _Tally:
    """How many documents of each family lose against one of which family.

    Attributes:
        documents: of each family.
    """

    def __init__(self, corpus: Corpus, keepers: Int64) -> None:
        self._families = corpus.families
        self._kept_by = corpus.priority(keepers)
        self._lost: dict[int, Counter[int]] = defaultdict(Counter)
        self.documents: Counter[int] = Counter()

    def kept_by(self, marked: slice) -> list[str]:
        """Names of the families that keep the texts of some marked rows."""
        return [self._families[number].component for number in self._kept_by[marked].tolist()]

    def lose(self, shard: Shard, marked: Int64) -> None:
        """Count marked rows of a shard that are not to stay."""
        self._lost[shard.family].update(self._kept_by[marked].tolist())

    def report(self, metrics: Mapping[str, Scalar]) -> Report:
        families: list[dict[str, Scalar]] = []
        pairs: list[dict[str, Scalar]] = []
        for number, family in enumerate(self._families):
            if not family.context:
                documents, lost = self.documents[number], self._lost[number]
                losers = lost.total()
                share = round(losers / max(1, documents), 6)
                families.append({"family": family.component, "documents": documents, "losers": losers, "share": share})
                for other, count in sorted(lost.items()):
                    pairs.append({"family": family.component, "kept_by": self._families[other].component, "documents": count})
        documents, losers = self.documents.total(), sum(lost.total() for lost in self._lost.values())
        totals: dict[str, Scalar] = {"documents": documents, "losers": losers, "losers_share": losers / max(1, documents)}
        return Report(metrics={**totals, **metrics}, tables={"families": families, "kept_by": pairs})


def _size_table(sizes: Int64) -> list[dict[str, Scalar]]:
    """Clusters by size, in powers of two."""
    rows: list[dict[str, Scalar]] = []
    low = 2
    while low <= sizes.max(initial=0):
        inside = sizes[(sizes >= low) & (sizes < 2 * low)]
        if len(inside):
            label = f"{low}" if low == 2 and inside.max() == 2 else f"{low} to {2 * low - 1}"
            rows.append({"size": label, "clusters": len(inside), "documents": int(inside.sum())})
        low *= 2
    return rows
