"""An n-gram model over token ids: the baseline that a neural model trained on the same tokens has to beat.

Interpolated Kneser–Ney smoothing with one absolute discount per order (Kneser & Ney 1995; interpolated form of
Chen & Goodman 1998, TR-10-98, §2.7 and §3.5; starts of documents as in KenLM, Heafield et al. 2013). With h' = h without its
first token, V the vocabulary size, and k the length of hw:

    p_k(w | h) = max(a(hw) − D_k, 0) / a(h·)  +  D_k · n(h·) / a(h·) · p_{k−1}(w | h'),        p_0(w) = 1 / V

    a(hw) = occurrences of hw, where k is the model's order;
          = distinct tokens before hw + occurrences of hw at a document's start, in lower orders
    a(h·) = Σ_w a(hw),   n(h·) = number of distinct w after h,   D_k = n1 / (n1 + 2 n2)  (Ney, Essen & Kneser 1994)

where n1 and n2 are the numbers of k-grams with a = 1 and a = 2. A context that was never seen is shortened. n-grams never
cross from one document into the next, and a document's first token (BOS) is never predicted.
"""

import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from marin_core.errors import ConfigError, DataError
from marin_core.evaluate.language_model import Scores

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

SEQUENCE_LENGTH = 4096
"""Longest sequence scored at once. No context is longer than `order − 1`, so longer windows would change nothing."""

LARGEST_VOCABULARY = 65_536
DISCOUNT_RANGE = (0.1, 0.9)
"""Estimated discounts are kept in here, so that in a tiny corpus too every token stays possible and seen ones stay likely."""


class Order(NamedTuple):
    """The k-grams of one order; G = number of distinct k-grams, C = of distinct contexts.

    A k-gram is packed in an int64, the first token in the highest bits; a context likewise (0 for k = 1).

    Attributes:
        keys: int64 [G], rising.
        probability: float64 [G], p_k(last token | the others).
        contexts: int64 [C], rising.
        backoff: float64 [C], the share D_k · n / a that goes to the lower order.
        best: int64 [C], the most probable next token, the lowest id among equals.
    """

    keys: Ints
    probability: Floats
    contexts: Ints
    backoff: Floats
    best: Ints


@dataclass(frozen=True)
class NgramModel:
    """A smoothed n-gram model; also a `LanguageModel`.

    Attributes:
        vocab_size: token ids are below it.
        eos_id: ends a document.
        discounts: D_1 … D_order.
        orders: the k-grams of k = 1 … order.
    """

    vocab_size: int
    eos_id: int
    discounts: tuple[float, ...]
    orders: tuple[Order, ...]

    @property
    def order(self) -> int:
        return len(self.orders)

    @property
    def sequence_length(self) -> int:
        return SEQUENCE_LENGTH

    @classmethod
    def fit(cls, tokens: npt.NDArray[Any], vocab_size: int, order: int = 3, *, eos_id: int, discount: float | None = None) -> Self:
        """Count and smooth. Time O(T log T) for T tokens, memory O(T).

        Args:
            tokens: integers [T], documents one after the other, each ending with EOS.
            vocab_size: at most 65,536.
            order: longest n-gram; order × bits of a token id must not exceed 63.
            eos_id: the id that ends a document.
            discount: of every order; None = estimated.

        Raises:
            ConfigError: the order doesn't fit in 63 bits, or the vocabulary is too large.
            DataError: a token id is outside the vocabulary, or there is nothing to predict.
        """
        bits = _bits(vocab_size, order)
        ids = np.asarray(tokens).astype(np.int64)
        if ids.size and not (ids.min() >= 0 and ids.max() < vocab_size):
            bad = ids[(ids < 0) | (ids >= vocab_size)][0]
            raise DataError(f"token id {bad} is outside the vocabulary of {vocab_size}", advice="Use the cache of this tokenizer.")
        counts = _adjusted_counts(ids, _depths(ids == eos_id), order, bits)
        if not len(counts[0][0]):
            raise DataError("the training tokens hold nothing to predict", advice="Give documents of at least two tokens.")
        discounts = tuple(discount or _estimated_discount(count) for _, count in counts)
        orders: list[Order] = []
        for (keys, count), d in zip(counts, discounts, strict=True):
            orders.append(_smooth(keys, count, d, orders, bits, vocab_size))
        return cls(vocab_size, eos_id, discounts, tuple(orders))

    def logprobs(self, tokens: npt.NDArray[Any], segment_ids: npt.NDArray[Any] | None = None) -> Floats:
        """float64 [T], natural log p of each token given what its segment holds before it; entry 0 is 0 by definition.

        Args:
            tokens: integers [T].
            segment_ids: integers [T]; None = a segment ends with each EOS.
        """
        logprobs, _ = self._score(np.asarray(tokens)[None], None if segment_ids is None else np.asarray(segment_ids)[None])
        return logprobs.ravel()

    def score(self, tokens: npt.NDArray[np.int32], segment_ids: npt.NDArray[np.int32]) -> Scores:
        """Score int32 [B, S] tokens; see `LanguageModel.score`."""
        logprobs, greedy = self._score(tokens, segment_ids)
        return Scores(logprobs.astype(np.float32), greedy)

    def _score(self, tokens: npt.NDArray[Any], segment_ids: npt.NDArray[Any] | None) -> tuple[Floats, npt.NDArray[np.bool_]]:
        """float64 and bool [B, S]."""
        ids = tokens.astype(np.int64)
        if segment_ids is None:
            segment_ids = np.cumsum(ids == self.eos_id, axis=1) - (ids == self.eos_id)
        ends = np.ones(ids.shape, np.bool_)
        ends[:, :-1] = segment_ids[:, 1:] != segment_ids[:, :-1]
        depths = _depths(ends.ravel())
        ids = ids.ravel()
        if ids.size and not (ids.min() >= 0 and ids.max() < self.vocab_size):
            raise DataError(
                f"a token id is outside the vocabulary of {self.vocab_size}", advice="Score text encoded by the same tokenizer."
            )
        bits = _bits(self.vocab_size, self.order)
        probability = _lookup_unigram(self.orders[0], ids, self.vocab_size)
        best = np.full(len(ids), self.orders[0].best[0])
        for k, order in enumerate(self.orders[1:], start=2):
            at = np.flatnonzero(depths >= k - 1)
            keys = _pack(ids, k, bits)[at - (k - 1)]
            known, context = _find(order.contexts, keys >> bits)
            at, keys, context = at[known], keys[known], context[known]
            seen, gram = _find(order.keys, keys)
            probability[at] = np.where(seen, order.probability[gram], probability[at] * order.backoff[context])
            best[at] = order.best[context]
        logprobs = np.log(probability).reshape(tokens.shape)
        greedy = (best == ids).reshape(tokens.shape)
        logprobs[:, :1] = 0
        greedy[:, :1] = False
        return logprobs, greedy

    def save(self, path: Path) -> None:
        """Write an uncompressed .npz without pickled objects; equal models give equal bytes."""
        arrays: dict[str, npt.NDArray[Any]] = {
            "header": np.array([self.vocab_size, self.eos_id, self.order], np.int64),
            "discounts": np.array(self.discounts, np.float64),
        }
        for k, order in enumerate(self.orders, start=1):
            arrays |= {f"{name}_{k}": array for name, array in order._asdict().items()}
        with path.open("wb") as file:
            np.savez(file, allow_pickle=False, **arrays)

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read what `save` wrote.

        Raises:
            DataError: the file is missing or damaged.
        """
        try:
            with np.load(path, allow_pickle=False) as arrays:
                vocab_size, eos_id, order = (int(value) for value in arrays["header"])
                orders = tuple(Order(*(arrays[f"{name}_{k}"] for name in Order._fields)) for k in range(1, order + 1))
                return cls(vocab_size, eos_id, tuple(arrays["discounts"].tolist()), orders)
        except (OSError, EOFError, KeyError, ValueError, zipfile.BadZipFile) as error:
            raise DataError(f"{path.name} is not an n-gram model: {error}", advice="Build the n-gram baseline again.") from error


def _bits(vocab_size: int, order: int) -> int:
    """Bits that a token id takes in a packed n-gram."""
    if not 2 <= vocab_size <= LARGEST_VOCABULARY:
        raise ConfigError(
            f"an n-gram model needs a vocabulary of 2 to {LARGEST_VOCABULARY}, not {vocab_size}", advice="Use a smaller tokenizer."
        )
    bits = (vocab_size - 1).bit_length()
    if order < 1 or order * bits > 63:
        raise ConfigError(
            f"order {order} with a vocabulary of {vocab_size} needs {order * bits} bits", advice=f"Use an order of 1 to {63 // bits}."
        )
    return bits


def _depths(ends: npt.NDArray[np.bool_]) -> Ints:
    """int64 [T], tokens before each one in its own segment; `ends` marks the last token of each segment."""
    positions = np.arange(len(ends))
    starts = np.zeros(len(ends), np.int64)
    starts[1:] = np.where(ends[:-1], positions[1:], 0)
    return positions - np.maximum.accumulate(starts)


def _pack(ids: Ints, k: int, bits: int) -> Ints:
    """int64 [T − k + 1], the k-gram that begins at each position."""
    keys = np.zeros(max(0, len(ids) - k + 1), np.int64)
    for offset in range(k):
        keys = (keys << bits) | ids[offset : offset + len(keys)]
    return keys


def _adjusted_counts(ids: Ints, depths: Ints, order: int, bits: int) -> list[tuple[Ints, Ints]]:
    """(keys, a) of each order, keys rising; see the formula at the top."""
    counts: list[tuple[Ints, Ints]] = []
    longer: Ints = np.zeros(0, np.int64)
    for k in range(order, 0, -1):
        if k == order:
            at = np.flatnonzero(depths >= max(1, k - 1))
        elif k > 1:
            at = np.flatnonzero(depths == k - 1)
        else:  # A document's first token is never predicted, and so no event.
            at = np.zeros(0, np.int64)
        events = np.concatenate([_pack(ids, k, bits)[at - (k - 1)], longer & ((1 << (k * bits)) - 1)])
        keys, count = np.unique(events, return_counts=True)
        counts.append((keys, count))
        longer = keys
    return counts[::-1]


def _estimated_discount(count: Ints) -> float:
    once, twice = (int(np.count_nonzero(count == value)) for value in (1, 2))
    low, high = DISCOUNT_RANGE
    return min(max(once / (once + 2 * twice), low), high) if once else low


def _smooth(keys: Ints, count: Ints, discount: float, lower: list[Order], bits: int, vocab_size: int) -> Order:
    """One order, given all lower ones."""
    contexts, first, group, followers = np.unique(keys >> bits, return_index=True, return_inverse=True, return_counts=True)
    if not len(keys):
        none = np.zeros(0)
        return Order(keys, none, contexts, none, keys)
    total = np.add.reduceat(count, first)
    backoff = discount * followers / total
    k = len(lower) + 1
    if k == 1:
        below = np.full(len(keys), 1 / vocab_size)
        best_below, best_below_probability = np.zeros(1, np.int64), np.array([1 / vocab_size])
    else:
        # What follows a context also follows its shorter form, so that both lookups succeed.
        below = lower[-1].probability[np.searchsorted(lower[-1].keys, keys & ((1 << ((k - 1) * bits)) - 1))]
        shorter = np.searchsorted(lower[-1].contexts, contexts & ((1 << ((k - 2) * bits)) - 1))
        best_below = lower[-1].best[shorter]
        best_below_probability = _probability_of_best(lower, shorter, best_below, bits, vocab_size)
    probability = np.maximum(count - discount, 0) / total[group] + backoff[group] * below
    top = np.maximum.reduceat(probability, first)
    ids = keys & ((1 << bits) - 1)
    candidates = np.where(probability == top[group], ids, vocab_size)
    best = np.minimum.reduceat(candidates, first)
    # A token that never followed here can still be the most probable one, by the share of the lower order.
    passed_on = backoff * best_below_probability
    best = np.where(passed_on > top, best_below, np.where(passed_on == top, np.minimum(best, best_below), best))
    return Order(keys, probability, contexts, backoff, best)


def _probability_of_best(lower: list[Order], shorter: Ints, best: Ints, bits: int, vocab_size: int) -> Floats:
    """float64 [C], p_{k−1} of the most probable token after each of the contexts with index `shorter` in the last of `lower`."""
    contexts = lower[-1].contexts[shorter]
    probability = _lookup_unigram(lower[0], best, vocab_size)
    for j, order in enumerate(lower[1:], start=2):
        context = contexts & ((1 << ((j - 1) * bits)) - 1)
        seen, gram = _find(order.keys, (context << bits) | best)
        backoff = order.backoff[np.searchsorted(order.contexts, context)]
        probability = np.where(seen, order.probability[gram], probability * backoff)
    return probability


def _lookup_unigram(order: Order, ids: Ints, vocab_size: int) -> Floats:
    seen, at = _find(order.keys, ids)
    return np.where(seen, order.probability[at], order.backoff[0] / vocab_size)


def _find(keys: Ints, wanted: Ints) -> tuple[npt.NDArray[np.bool_], Ints]:
    """(whether each wanted key is in the rising `keys`, where; 0 if not)."""
    if not len(keys):
        return np.zeros(len(wanted), np.bool_), np.zeros(len(wanted), np.int64)
    at = np.searchsorted(keys, wanted)
    at[at == len(keys)] = 0
    seen = keys[at] == wanted
    return seen, np.where(seen, at, 0)
