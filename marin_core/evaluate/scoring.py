"""Score token sequences of any length with a model that takes padded batches of few shapes."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from marin_core.errors import ConfigError
from marin_core.evaluate.language_model import LanguageModel, Scores

SMALLEST_BUCKET = 64


class Window(NamedTuple):
    """A part of a sequence that fits the model.

    Attributes:
        tokens: int32 [n], n ≤ the model's sequence length.
        start: where the window begins in its sequence.
        first: tokens[first:] are scored here; what is before is context. At least 1.
    """

    tokens: npt.NDArray[np.int32]
    start: int
    first: int


def cut(tokens: npt.NDArray[np.int32], sequence_length: int, overlap: float) -> Iterator[Window]:
    """Cut a sequence in windows so that every token but the first is scored exactly once.

    The first window begins at the first token (BOS). Each later one re-reads the last max(1, ⌊overlap × sequence_length⌋)
    tokens of what was scored as context, and scores only what is new.

    Args:
        tokens: int32 [n].
        sequence_length: longest window, at least 2.
        overlap: share of a window that is context, 0 ≤ overlap < 1.
    """
    context = min(max(1, int(overlap * sequence_length)), sequence_length - 1)
    scored = 1
    while scored < len(tokens):
        start = scored - context if scored > 1 else 0
        end = min(start + sequence_length, len(tokens))
        yield Window(tokens[start:end], start, scored - start)
        scored = end


def length_buckets(sequence_length: int, wished: Sequence[int] = ()) -> tuple[int, ...]:
    """The lengths that batches are padded to, rising, the last one the model's sequence length.

    Raises:
        ConfigError: a wished bucket is longer than the model's sequence length.
    """
    if sequence_length < 2:
        raise ConfigError(f"the model's sequence length is {sequence_length}", advice="Scoring needs a sequence length of at least 2.")
    if not wished:
        wished = []
        bucket = SMALLEST_BUCKET
        while bucket < sequence_length:
            wished.append(bucket)
            bucket *= 2
    if max(wished, default=0) > sequence_length:
        raise ConfigError(
            f"length bucket {max(wished)} is longer than the model's sequence length {sequence_length}",
            advice="Remove the bucket, or leave length_buckets empty.",
        )
    return tuple(sorted({*wished, sequence_length}))


def score_windows(model: LanguageModel, windows: Sequence[Window], batch_size: int, buckets: Sequence[int]) -> list[Scores]:
    """Score windows in batches of shape [batch_size, one of `buckets`], so that a compiler sees at most `len(buckets)` shapes.

    Windows are sorted by length; padding is at the end, in a segment of its own.

    Returns:
        Scores of shape [n] for each window, in the order given; entries before `first` mean nothing.
    """
    scores: list[Scores | None] = [None] * len(windows)
    by_bucket: dict[int, list[int]] = {bucket: [] for bucket in buckets}
    for index in sorted(range(len(windows)), key=lambda index: len(windows[index].tokens)):
        by_bucket[next(bucket for bucket in buckets if bucket >= len(windows[index].tokens))].append(index)
    for bucket, members in by_bucket.items():
        for begin in range(0, len(members), batch_size):
            rows = members[begin : begin + batch_size]
            tokens = np.zeros((batch_size, bucket), np.int32)
            segment_ids = np.ones((batch_size, bucket), np.int32)
            for row, index in enumerate(rows):
                n = len(windows[index].tokens)
                tokens[row, :n] = windows[index].tokens
                segment_ids[row, :n] = 0
            batch = model.score(tokens, segment_ids)
            logprobs, greedy = np.asarray(batch.logprobs), np.asarray(batch.greedy)
            for row, index in enumerate(rows):
                n = len(windows[index].tokens)
                scores[index] = Scores(logprobs[row, :n], greedy[row, :n])
    return [score for score in scores if score is not None]
