import math
import time
import tracemalloc
from collections import Counter, defaultdict
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from marin_core.errors import ConfigError, DataError
from marin_core.evaluate.ngram import DISCOUNT_RANGE, NgramModel

BOS, EOS, VOCAB = 0, 1, 12
Gram = tuple[int, ...]


def stream(seed: int, documents: int, length: int = 20, skew: float = 1.6) -> npt.NDArray[np.uint16]:
    generator = np.random.default_rng(seed)
    parts = [[BOS, *((generator.zipf(skew, generator.integers(0, length)) - 1) % (VOCAB - 2) + 2), EOS] for _ in range(documents)]
    return np.concatenate([np.array(part, np.uint16) for part in parts])


class Reference:
    """The formula at the top of `ngram.py`, word by word, with dictionaries."""

    def __init__(self, tokens: list[int], order: int, discount: float | None = None) -> None:
        documents: list[list[int]] = [[]]
        for token in tokens:
            documents[-1].append(token)
            if token == EOS:
                documents.append([])
        raw: dict[int, Counter[Gram]] = {k: Counter() for k in range(1, order + 1)}
        starts: dict[int, Counter[Gram]] = {k: Counter() for k in range(1, order + 1)}
        for document in documents:
            for k in range(1, order + 1):
                for begin in range(len(document) - k + 1):
                    if begin + k - 1 >= 1:  # the first token of a document is never predicted
                        gram = tuple(document[begin : begin + k])
                        raw[k][gram] += 1
                        starts[k][gram] += begin == 0
        self.a: dict[int, Counter[Gram]] = {order: raw[order]}
        for k in range(order - 1, 0, -1):
            left: dict[Gram, set[int]] = defaultdict(set)
            for gram in raw[k + 1]:
                left[gram[1:]].add(gram[0])
            self.a[k] = Counter({gram: len(left[gram]) + starts[k][gram] for gram in raw[k]})
        low, high = DISCOUNT_RANGE
        self.d = {}
        for k, counts in self.a.items():
            once, twice = (sum(count == value for count in counts.values()) for value in (1, 2))
            self.d[k] = discount or (min(max(once / (once + 2 * twice), low), high) if once else low)
        self.order = order

    def probability(self, context: Gram, token: int) -> float:
        k = len(context) + 1
        followers = {gram: count for gram, count in self.a[k].items() if gram[:-1] == context}
        below = 1 / VOCAB if k == 1 else self.probability(context[1:], token)
        if not followers:
            return below
        total = sum(followers.values())
        return max(followers.get((*context, token), 0) - self.d[k], 0) / total + self.d[k] * len(followers) / total * below


@pytest.mark.parametrize("order", [1, 2, 3, 4])
@pytest.mark.parametrize("discount", [None, 0.6])
def test_equals_the_formula(order: int, discount: float | None) -> None:
    tokens, other = stream(order, 25), stream(99, 8, skew=1.2)
    model = NgramModel.fit(tokens, VOCAB, order, eos_id=EOS, discount=discount)
    reference = Reference(tokens.tolist(), order, discount)
    logprobs = model.logprobs(other)
    assert logprobs.dtype == np.float64
    assert logprobs[0] == 0
    start = 0
    for at, token in enumerate(other.tolist()):
        context = tuple(other.tolist()[max(start, at - order + 1) : at])
        if at:
            assert logprobs[at] == pytest.approx(math.log(reference.probability(context, token)), rel=1e-12)
        if token == EOS:
            start = at + 1


@pytest.mark.parametrize("order", [1, 2, 3])
def test_sums_to_one_after_any_context_seen_or_not(order: int) -> None:
    generator = np.random.default_rng(0)
    model = NgramModel.fit(stream(4, 6), VOCAB, order, eos_id=EOS)
    contexts = [generator.integers(2, VOCAB, generator.integers(1, 5)).tolist() for _ in range(40)]
    for context in [*contexts, [BOS], [BOS, 11, 11]]:
        rows = np.array([[*context, token] for token in range(VOCAB)], np.int32)
        scores = model.score(rows, np.zeros_like(rows))
        assert math.fsum(np.exp(scores.logprobs[:, -1].astype(np.float64))) == pytest.approx(1, abs=1e-6)
        exact = [math.exp(model.logprobs(row, np.zeros(len(row)))[-1]) for row in rows]
        assert math.fsum(exact) == pytest.approx(1, abs=1e-12)


@pytest.mark.parametrize("seed", range(5))
def test_greedy_is_the_arg_max_over_the_vocabulary(seed: int) -> None:
    model = NgramModel.fit(stream(seed, 12, length=8), VOCAB, 3, eos_id=EOS)
    generator = np.random.default_rng(seed)
    for _ in range(60):
        context = generator.integers(0, VOCAB, generator.integers(1, 4))
        rows = np.array([[*context, token] for token in range(VOCAB)], np.int32)
        scores = model.score(rows, np.zeros_like(rows))
        exact = np.array([model.logprobs(row, np.zeros(len(row)))[-1] for row in rows])
        assert scores.greedy[:, -1].sum() == 1
        assert exact[scores.greedy[:, -1]][0] == exact.max()


def test_positions_of_other_segments_are_not_seen() -> None:
    model = NgramModel.fit(stream(1, 30), VOCAB, 3, eos_id=EOS)
    first, second = [BOS, 3, 4, EOS], [BOS, 2, 2, 5, EOS]
    packed = model.score(np.array([first + second], np.int32), np.array([[0] * 4 + [1] * 5], np.int32))
    alone = model.score(np.array([second], np.int32), np.zeros((1, 5), np.int32))
    assert packed.logprobs[0, 5:].tolist() == alone.logprobs[0, 1:].tolist()
    assert packed.greedy[0, 5:].tolist() == alone.greedy[0, 1:].tolist()


def test_order_of_training_documents_does_not_matter() -> None:
    tokens = stream(5, 20)
    ends = np.flatnonzero(tokens == EOS) + 1
    parts = np.split(tokens, ends)[:-1]
    shuffled = np.concatenate(parts[::-1])
    held_out = stream(6, 5)
    ours, theirs = (NgramModel.fit(text, VOCAB, 3, eos_id=EOS).logprobs(held_out) for text in (tokens, shuffled))
    assert ours.tolist() == theirs.tolist()


def test_saved_model_is_the_same_and_saving_is_deterministic(tmp_path: Path) -> None:
    model = NgramModel.fit(stream(2, 20), VOCAB, 3, eos_id=EOS)
    model.save(tmp_path / "a.npz")
    loaded = NgramModel.load(tmp_path / "a.npz")
    loaded.save(tmp_path / "b.npz")
    assert (tmp_path / "a.npz").read_bytes() == (tmp_path / "b.npz").read_bytes()
    assert loaded.logprobs(stream(3, 5)).tolist() == model.logprobs(stream(3, 5)).tolist()
    (tmp_path / "cut.npz").write_bytes((tmp_path / "a.npz").read_bytes()[:300])
    np.savez(tmp_path / "pickled.npz", header=np.array([{"a": 1}], object))
    for name in ("cut.npz", "pickled.npz", "missing.npz"):
        with pytest.raises(DataError, match="is not an n-gram model"):
            NgramModel.load(tmp_path / name)


def test_bad_input_is_refused() -> None:
    tokens = stream(2, 20)
    with pytest.raises(DataError, match="token id 11 is outside"):
        NgramModel.fit(np.array([BOS, 11, EOS]), 11, 2, eos_id=EOS)
    with pytest.raises(ConfigError, match="Use an order of 1 to 3"):
        NgramModel.fit(tokens, 65_536, 4, eos_id=EOS)
    with pytest.raises(ConfigError, match="vocabulary"):
        NgramModel.fit(tokens, 65_537, 2, eos_id=EOS)
    for nothing in ([], [EOS], [BOS]):
        with pytest.raises(DataError, match="nothing to predict"):
            NgramModel.fit(np.array(nothing, np.int32), VOCAB, 3, eos_id=EOS)


def test_largest_vocabulary_and_shortest_documents_work() -> None:
    model = NgramModel.fit(np.array([0, 65_535, 1, 0, 1]), 65_536, 3, eos_id=1)
    assert np.isfinite(model.logprobs(np.array([0, 65_535, 1, 0, 7, 65_535, 65_534, 1]))).all()
    assert len(model.logprobs(np.zeros(0, np.int32))) == 0


def test_longer_orders_and_more_tokens_predict_better() -> None:
    """A cycle of period 8 with noise is learned by a bigram model, not by a unigram one."""
    generator = np.random.default_rng(0)
    parts = []
    for _ in range(400):
        body = [(start % 8) + 2 if generator.random() > 0.05 else int(generator.integers(2, 12)) for start in range(20)]
        parts += [BOS, *body, EOS]
    tokens = np.array(parts)
    losses = [-NgramModel.fit(tokens[:8000], VOCAB, order, eos_id=EOS).logprobs(tokens[8000:]).mean() for order in (1, 2, 3)]
    assert losses[1] < losses[0] / 2
    assert losses[2] < losses[1]


@pytest.mark.slow
def test_five_million_tokens_take_a_few_cpu_seconds_and_linear_memory(tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    tokens = ((generator.zipf(1.2, 5_000_000) - 1) % 8_190 + 2).astype(np.uint16)
    tokens[::500], tokens[499::500] = BOS, EOS
    start = time.process_time()
    tracemalloc.start()
    model = NgramModel.fit(tokens, 8_192, 3, eos_id=EOS)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert time.process_time() - start < 15
    assert peak < 200 * len(tokens)
    assert np.isfinite(model.logprobs(tokens[:100_000])).all()
