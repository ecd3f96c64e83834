"""Find text of evaluations in the documents of one shard: an attribute part that names every example that a document holds."""

import hashlib
import heapq
import json
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from marin_core.data.attributes.files import AttributeWriter
from marin_core.data.decontaminate.config import CONTAMINATED_OVERLAP, MIN_GRAMS, NOTED_OVERLAP, clean_check
from marin_core.data.decontaminate.index import ContaminationIndex
from marin_core.data.dedup.word_hashes import Int64, document_ngrams, hash_words
from marin_core.data.documents import sample_of
from marin_core.data.shard import find_part, read_footer, read_part
from marin_core.errors import PreemptedError
from marin_core.report import Check, Report, Reporter, Scalar

ATTRIBUTE = "contamination"
COLUMN = f"{ATTRIBUTE}.matches"
MATCHES = pa.list_(
    pa.struct(
        [
            pa.field("eval", pa.string()),
            pa.field("example", pa.string()),
            pa.field("overlap", pa.float64()),
            pa.field("start", pa.int32()),
        ]
    )
)
"""Evaluation, example, share of the example's n-grams that the document has, and the character where the first of them begins."""
WORST = 20
_BATCH_CHARACTERS = 1 << 20


class Match(NamedTuple):
    """An example that a document holds; `example` is its place in the index."""

    example: int
    overlap: float
    start: int


def find_contamination(index: ContaminationIndex, documents: Path, output: Path, reporter: Reporter) -> Report:
    """Write `part-NNNNN-of-MMMMM.parquet` with the column `contamination.matches`; nothing is dropped here.

    A check for each evaluation says whether a document has at least half of one of its examples.

    Args:
        documents: folder of a shard.

    Raises:
        DataError: the part is damaged.
    """
    part = find_part(documents)
    total = int(read_footer(part)["rows"])
    found = _Found(index)
    digest = hashlib.sha256()
    with AttributeWriter(output / part.name, {COLUMN: MATCHES}, {"stage": ATTRIBUTE}) as writer:
        for group in read_part(part):
            if reporter.stop_requested():
                raise PreemptedError("the search for evaluations was asked to stop", advice="Start it again; it begins anew.")
            column: list[list[dict[str, Any]]] = []
            for identity, text, matches in zip(group["id"], group["text"], find_matches(index, group["text"]), strict=True):
                column.append([_row(index, match) for match in matches])
                found.add(identity, text, matches)
            digest.update(json.dumps([group["id"], column]).encode())
            writer.write(group["id"], {COLUMN: column})
            reporter.progress(writer.rows, total, "documents")
    return found.report(digest.hexdigest())


def find_matches(index: ContaminationIndex, texts: Sequence[str]) -> Iterator[list[Match]]:
    """What each text has of the evaluations: examples of which it has at least a fifth, the largest overlap first.

    The whole stream of words is searched, so neither layout nor how much other text there is makes a difference (marin #6852). Of an
    example's passages the one with the largest overlap counts.
    """
    for batch in _batches(texts):
        words = hash_words(batch)
        places, grams = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
        for length in index.lengths:
            found, where = document_ngrams(words, length)
            hits, gram = index.hits(found)
            places.append(where[hits])
            grams.append(gram)
        place, gram = np.concatenate(places), np.concatenate(grams)
        order = np.argsort(place, kind="stable")
        place, gram = place[order], gram[order]
        bounds = np.searchsorted(place, words.bounds)
        for first, last in zip(bounds.tolist(), bounds[1:].tolist(), strict=False):
            yield _matches(index, gram[first:last], words.starts[place[first:last]]) if last > first else []


def _matches(index: ContaminationIndex, grams: Int64, starts: Int64) -> list[Match]:
    """Matches of one document, from the n-grams that were found in it and where each begins, in the document's order."""
    distinct, firsts = np.unique(grams, return_index=True)
    passages, which = index.passages(distinct)
    order = np.argsort(passages, kind="stable")
    passages, starts = passages[order], starts[firsts[which[order]]]
    found, begins, counts = np.unique(passages, return_index=True, return_counts=True)
    earliest = np.minimum.reduceat(starts, begins)
    total = index.passage_grams[found]
    overlap = counts / total
    noted = (overlap >= NOTED_OVERLAP) & (counts >= np.minimum(MIN_GRAMS, total))
    best: dict[int, Match] = {}
    for example, share, start in zip(
        index.passage_example[found[noted]].tolist(), overlap[noted].tolist(), earliest[noted].tolist(), strict=True
    ):
        if example not in best or (-share, start) < (-best[example].overlap, best[example].start):
            best[example] = Match(example, share, start)
    return sorted(best.values(), key=lambda match: (-match.overlap, match.example))


def _batches(texts: Sequence[str]) -> Iterator[Sequence[str]]:
    first = size = 0
    for place, text in enumerate(texts):
        size += len(text)
        if size >= _BATCH_CHARACTERS or place + 1 == len(texts):
            yield texts[first : place + 1]
            first, size = place + 1, 0


def _row(index: ContaminationIndex, match: Match) -> dict[str, Any]:
    return {
        "eval": index.example_eval[match.example],
        "example": index.example_name[match.example],
        "overlap": match.overlap,
        "start": match.start,
    }


class _Found:
    """What the report says of a shard."""

    def __init__(self, index: ContaminationIndex) -> None:
        self._index = index
        self._documents = 0
        self._contaminated = 0
        self._per_eval: Counter[str] = Counter()
        self._examples: dict[str, set[int]] = defaultdict(set)
        self._worst: list[tuple[float, str, int, str]] = []

    def add(self, identity: str, text: str, matches: Sequence[Match]) -> None:
        """Note the matches of a document, largest overlap first."""
        self._documents += 1
        held = [match for match in matches if match.overlap >= CONTAMINATED_OVERLAP]
        self._contaminated += bool(held)
        self._per_eval.update({self._index.example_eval[match.example] for match in held})
        for match in held:
            self._examples[self._index.example_eval[match.example]].add(match.example)
        for match in matches[:WORST]:
            heapq.heappush(self._worst, (match.overlap, identity, match.example, sample_of(text[match.start :])))
            if len(self._worst) > WORST:
                heapq.heappop(self._worst)

    def report(self, digest: str) -> Report:
        evals = self._index.evals
        per_eval: list[dict[str, Scalar]] = [
            {"eval": name, "documents": self._per_eval[name], "examples_found": len(self._examples[name])} for name in evals
        ]
        worst: list[dict[str, Scalar]] = [
            {
                "overlap": round(overlap, 4),
                "eval": self._index.example_eval[example],
                "example": self._index.example_name[example],
                "document": identity,
                "text": text,
                "example_text": sample_of(self._index.example_text[example]),
            }
            for overlap, identity, example, text in sorted(self._worst, key=lambda row: (-row[0], row[1], row[2]))
        ]
        metrics: dict[str, Scalar] = {"documents": self._documents, "contaminated": self._contaminated}
        metrics |= {f"contaminated/{name}": self._per_eval[name] for name in evals}
        return Report(
            metrics=metrics, tables={"evals": per_eval, "worst": worst}, checks=[self._check(name) for name in evals], content_digest=digest
        )

    def _check(self, name: str) -> Check:
        count = self._per_eval[name]
        return Check(
            clean_check(name),
            count == 0,
            f"{count} of {self._documents} documents hold at least {CONTAMINATED_OVERLAP:.0%} of an example of {name}",
            {"documents": self._documents, "contaminated": count, "examples_found": len(self._examples[name])},
        )
