"""Bits per byte of held-out documents: a loss that models with different tokenizers can be compared by."""

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from marin_core.errors import DataError, PreemptedError
from marin_core.evaluate.documents import EncodedDocument
from marin_core.evaluate.language_model import LanguageModel
from marin_core.evaluate.scoring import Window, cut, length_buckets, score_windows
from marin_core.report import Reporter, SilentReporter

WINDOWS_AT_ONCE = 64
"""Batches of windows that are held in memory and sorted by length together."""


class DocumentScore(NamedTuple):
    """What one document cost.

    Attributes:
        id: the document's id.
        nats: −Σ ln p over all tokens but BOS; EOS is included.
        tokens: number of tokens in that sum.
        bytes: UTF-8 bytes of the text.
        nonfinite: tokens whose log probability was NaN or infinite; they make `nats` NaN or infinite.
    """

    id: str
    nats: float
    tokens: int
    bytes: int
    nonfinite: int


class Interval(NamedTuple):
    """A bootstrap interval; low ≤ value ≤ high unless the value isn't finite."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class BitsPerByte:
    """Bits per byte of a set of documents.

    Attributes:
        bits_per_byte: the ratio of totals, and its 95 % interval over documents.
        resamples: float64 [bootstrap_samples], the bootstrap values behind the interval.
        documents: per document, sorted by id.
    """

    bits_per_byte: Interval
    resamples: npt.NDArray[np.float64]
    documents: tuple[DocumentScore, ...]

    @property
    def nats(self) -> float:
        return math.fsum(document.nats for document in self.documents) if self.nonfinite == 0 else math.nan

    @property
    def tokens(self) -> int:
        return sum(document.tokens for document in self.documents)

    @property
    def bytes(self) -> int:
        return sum(document.bytes for document in self.documents)

    @property
    def nonfinite(self) -> int:
        return sum(document.nonfinite for document in self.documents)


def bits_per_byte(
    model: LanguageModel,
    documents: Iterable[EncodedDocument],
    *,
    batch_size: int = 16,
    buckets: Sequence[int] = (),
    window_overlap: float = 0.5,
    bootstrap_samples: int = 1000,
    seed: int = 0,
    reporter: Reporter | None = None,
) -> BitsPerByte:
    """Σ nats over all tokens including EOS, divided by UTF-8 bytes × ln 2.

    Every document is scored alone, with its BOS as first context and never predicted. One longer than the model's sequence
    length is cut in windows that score each token once (`scoring.cut`). Neither batch size nor buckets change the sum beyond
    the model's own rounding. Memory doesn't grow with the documents but for their `DocumentScore`s.

    Raises:
        DataError: there are no documents, or two have the same id.
        PreemptedError: the reporter asks to stop.
    """
    scores = score_documents(
        model, documents, batch_size=batch_size, buckets=buckets, window_overlap=window_overlap, reporter=reporter or SilentReporter()
    )
    return summarize(scores, bootstrap_samples, seed)


def score_documents(
    model: LanguageModel,
    documents: Iterable[EncodedDocument],
    *,
    batch_size: int,
    buckets: Sequence[int],
    window_overlap: float,
    reporter: Reporter,
) -> Iterator[DocumentScore]:
    """Score documents as a stream, in their order."""
    shapes = length_buckets(model.sequence_length, buckets)
    waiting: list[tuple[EncodedDocument, list[Window]]] = []
    windows = done = 0
    for document in documents:
        waiting.append((document, list(cut(document.tokens, model.sequence_length, window_overlap))))
        windows += len(waiting[-1][1])
        if windows >= batch_size * WINDOWS_AT_ONCE:
            yield from _score(model, waiting, batch_size, shapes)
            done += len(waiting)
            waiting, windows = [], 0
            reporter.progress(done, done, "documents")
            if reporter.stop_requested():
                raise PreemptedError("asked to stop while scoring held-out documents", advice="Start the evaluation again.")
    yield from _score(model, waiting, batch_size, shapes)
    reporter.progress(done + len(waiting), done + len(waiting), "documents")


def _score(
    model: LanguageModel, waiting: Sequence[tuple[EncodedDocument, list[Window]]], batch_size: int, shapes: Sequence[int]
) -> Iterator[DocumentScore]:
    windows = [window for _, members in waiting for window in members]
    scores = iter(score_windows(model, windows, batch_size, shapes))
    for document, members in waiting:
        parts = [next(scores).logprobs[window.first :].astype(np.float64) for window in members]
        logprobs = np.concatenate(parts) if parts else np.zeros(0)
        nonfinite = int(np.count_nonzero(~np.isfinite(logprobs)))
        nats = math.nan if nonfinite else -math.fsum(logprobs)
        yield DocumentScore(document.id, nats, len(logprobs), document.bytes, nonfinite)


def summarize(documents: Iterable[DocumentScore], bootstrap_samples: int, seed: int | Sequence[int]) -> BitsPerByte:
    """Ratio of totals with a percentile bootstrap over documents (Efron & Tibshirani 1993, ch. 13).

    The interval is widened to the estimate where the percentiles of very few documents miss it.

    Raises:
        DataError: there are no documents, or two have the same id.
    """
    scores = tuple(sorted(documents))
    if not scores:
        raise DataError("there are no held-out documents", advice="Choose a larger held-out share, or more documents.")
    for first, second in itertools.pairwise(scores):
        if first.id == second.id:
            raise DataError(f"held-out document {first.id!r} occurs twice", advice="Make the ids of a domain unique.")
    nats = np.array([score.nats for score in scores])
    size = np.array([score.bytes for score in scores], np.float64) * math.log(2)
    if size.sum() == 0:
        raise DataError("the held-out documents have no bytes", advice="Drop empty documents when the held-out set is chosen.")
    value = math.fsum(nats) / math.fsum(size) if np.isfinite(nats).all() else math.nan
    resamples = _bootstrap(nats, size, bootstrap_samples, seed)
    return BitsPerByte(interval(value, resamples), resamples, scores)


def interval(value: float, resamples: npt.NDArray[np.float64]) -> Interval:
    """The 2.5 % and 97.5 % percentiles of the resamples around a value."""
    low, high = np.percentile(resamples, [2.5, 97.5])
    return Interval(value, min(float(low), value), max(float(high), value))


def _bootstrap(
    nats: npt.NDArray[np.float64], size: npt.NDArray[np.float64], samples: int, seed: int | Sequence[int], cells: int = 4_000_000
) -> npt.NDArray[np.float64]:
    """float64 [samples]: Σ nats / Σ size of documents drawn with replacement, in blocks of at most about `cells` draws."""
    generator = np.random.default_rng(seed)
    block = max(1, cells // len(nats))
    parts = []
    for begin in range(0, samples, block):
        drawn = generator.integers(0, len(nats), (min(block, samples - begin), len(nats)))
        totals = size[drawn].sum(axis=1)
        parts.append(np.divide(nats[drawn].sum(axis=1), totals, out=np.full(len(drawn), math.nan), where=totals > 0))
    return np.concatenate(parts)
