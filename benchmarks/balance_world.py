"""A synthetic world of router scores, and balancers on it in plain float64 NumPy: the reference of `spec/moe.md` §3, without JAX.

Scores have popular experts, one topic for each sequence of 256 tokens, token noise, and a slow drift; nothing learns. A bias found on
one batch routes the next one, so how evenly experts are loaded is limited by how much batches differ.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

PER_TOKEN = 8
TOKENS = 8192
SEQUENCE, TOPICS, WIDTH = 256, 64, 32
CAPACITY_FACTOR = 1.15
POOLS = 64
"""Groups of experts that share a capacity, like the experts of one device."""


def batches(seed: int, experts: int, tokens: int = TOKENS, affinity: float = 0.7) -> Iterator[Array]:
    """Scores float32 [T, E] of one step after another; affinity 0 makes tokens independent."""
    rng = np.random.default_rng(seed)
    popularity = rng.normal(size=experts)
    topics = rng.normal(size=(TOPICS, experts)) * affinity
    projection = rng.normal(size=(WIDTH, experts)) / np.sqrt(WIDTH)
    share = np.arange(1, TOPICS + 1) ** -0.8
    share /= share.sum()
    while True:
        topic = np.repeat(rng.choice(TOPICS, size=tokens // SEQUENCE, p=share), SEQUENCE)
        noise = rng.normal(size=(tokens, WIDTH)) @ projection
        yield (popularity + topics[topic] + noise).astype(np.float32)
        popularity = popularity + rng.normal(size=experts) * 0.01


class Balance(NamedTuple):
    """How evenly one batch was spread over experts.

    Attributes:
        cv: standard deviation of loads over their mean.
        max_violation: the largest load over the mean, minus 1.
        least: the smallest load over the mean.
        drop: share of assignments beyond 1.15 × the mean load of an expert.
        pooled: the same for 64 groups of neighbouring experts that share their capacity.
        keep: gates of the chosen experts, as a share of those of plain top-k.
    """

    cv: float
    max_violation: float
    least: float
    drop: float
    pooled: float
    keep: float


def balance_of(load: Array, gates: float, plain_gates: float) -> Balance:
    """The figures of a load int [E] and of sums of gates, Σ sigmoid(score) over chosen experts."""
    total = load.sum()
    mean = total / len(load)
    return Balance(
        cv=float(load.std() / mean),
        max_violation=float(load.max() / mean - 1),
        least=float(load.min() / mean),
        drop=_drop(load, total),
        pooled=_drop(load.reshape(POOLS, -1).sum(axis=1), total),
        keep=gates / plain_gates,
    )


def _drop(load: Array, total: int) -> float:
    capacity = np.ceil(CAPACITY_FACTOR * total / len(load))
    return float(np.maximum(load - capacity, 0).sum() / total)


class Batch:
    """Scores float32 [T, E] and what several methods need of them."""

    def __init__(self, scores: Array) -> None:
        self.scores = scores
        self.gates = sigmoid(scores.astype(np.float64))
        self.plain_gates = float(self.gates[route(scores, 0.0)[0]].sum())

    def balance(self, chosen: Array) -> Balance:
        """Of a choice bool [T, E]."""
        return balance_of(chosen.sum(axis=0), float(self.gates[chosen].sum()), self.plain_gates)


class Method(Protocol):
    """A way to choose experts that learns from batch to batch."""

    def step(self, batch: Batch) -> Balance:
        """Route a batch with what is known, then learn from it."""


def run(methods: Mapping[str, Method], scores: Iterator[Array], steps: Mapping[str, int]) -> dict[str, Array]:
    """For each method, figures float64 [steps, 6] in the order of `Balance`; all methods see the same batches, some see fewer."""
    figures: dict[str, list[Balance]] = {name: [] for name in methods}
    for number, each in zip(range(max(steps[name] for name in methods)), scores, strict=False):
        batch = Batch(each)
        for name, method in methods.items():
            if number < steps[name]:
                figures[name].append(method.step(batch))
    return {name: np.asarray(rows) for name, rows in figures.items()}


def summary(figures: Sequence[Array], first: int, last: int) -> tuple[Balance, Balance]:
    """Mean and population standard deviation over seeds of the mean over steps [first, last)."""
    means = np.asarray([each[first:last].mean(axis=0) for each in figures])
    return Balance(*means.mean(axis=0)), Balance(*means.std(axis=0))


# Methods ------------------------------------------------------------------------------------------------------------


def sigmoid(x: Array) -> Array:
    return np.asarray(1 / (1 + np.exp(-x)))


def route(scores: Array, bias: Array | float) -> tuple[Array, Array]:
    """The chosen experts bool [T, E], where scores tie the first of them as in JAX's top-k, and each token's threshold [T, 1]."""
    biased = scores + bias
    threshold = np.partition(biased, -PER_TOKEN - 1, axis=1)[:, -PER_TOKEN - 1, None]
    chosen = biased > threshold
    short = np.flatnonzero(chosen.sum(axis=1) < PER_TOKEN)
    ties = biased[short] == threshold[short]
    chosen[short] |= ties & (ties.cumsum(axis=1) <= PER_TOKEN - chosen[short].sum(axis=1, keepdims=True))
    return chosen, threshold


def target(tokens: int, experts: int) -> float:
    return tokens * PER_TOKEN / experts


def largest(margins: Array, rank: int) -> Array:
    """The rank-th largest (from 1) of each column."""
    ordered: Array = np.partition(margins, -rank, axis=0)
    return np.asarray(ordered[-rank])


class Plain:
    """Top-k."""

    def step(self, batch: Batch) -> Balance:
        return batch.balance(route(batch.scores, 0.0)[0])


class Exact:
    """β is an order statistic of all margins, smoothed by `ema`."""

    def __init__(self, experts: int, ema: float = 0.0) -> None:
        self.ema = ema
        self.beta: Array | None = None
        self.bias: Array = np.zeros(experts)

    def step(self, batch: Batch) -> Balance:
        chosen, threshold = route(batch.scores, self.bias)
        beta = self.solve(batch.scores - threshold)
        self.beta = beta if self.beta is None else self.ema * self.beta + (1 - self.ema) * beta
        self.bias = self.beta.mean() - self.beta
        return batch.balance(chosen)

    def solve(self, margins: Array) -> Array:
        return largest(margins, max(1, round(target(*margins.shape))))


class Local(Exact):
    """β is the mean of the order statistics of contiguous shards."""

    def __init__(self, experts: int, shards: int) -> None:
        super().__init__(experts)
        self.shards = shards

    def solve(self, margins: Array) -> Array:
        shards = np.split(margins, self.shards)
        return np.mean([largest(each, max(1, int(target(*each.shape)))) for each in shards], axis=0)


class Histogram(Exact):
    """β from counts in bins, on a range frozen `pad` beyond the bias, or, without one, on that of the margins.

    Margins and edges are float32, as in the model: many margins are exactly −bias, and on the first step an edge lies there.
    """

    def __init__(self, experts: int, bins: int, pad: float | None) -> None:
        super().__init__(experts)
        self.bins = bins
        self.pad = pad

    def solve(self, margins: Array) -> Array:
        tokens, experts = margins.shape
        margins = margins.astype(np.float32)
        low, high = margins.min(), margins.max()
        if self.pad is not None:
            low, high = np.float32(-self.bias.max() - self.pad), np.float32(-self.bias.min() + self.pad)
        width = (high - low) / np.float32(self.bins)
        index = np.clip(np.floor((margins - low) / width), 0, self.bins - 1).astype(np.int64)
        cells = np.bincount((np.arange(experts) * self.bins + index).ravel(), minlength=experts * self.bins)
        counts = cells.reshape(experts, self.bins)
        reached = counts[:, ::-1].cumsum(axis=1)[:, ::-1]
        last = (reached >= target(tokens, experts)).sum(axis=1) - 1
        here = np.arange(experts), last
        part = (reached[here] - target(tokens, experts)) / np.maximum(counts[here], 1)
        beta: Array = low + last * width + width * part
        return beta


class Integrator:
    """DeepSeek's: a bias on sigmoid scores that moves by `step_size` towards the mean load.

    In float32 throughout, and the load is of scores above the threshold: a tie counts for neither. Another rounding makes another run,
    since a step in the other direction changes all that follow.
    """

    def __init__(self, experts: int, step_size: float) -> None:
        self.step_size = np.float32(step_size)
        self.bias: Array = np.zeros(experts, np.float32)

    def step(self, batch: Batch) -> Balance:
        gates = sigmoid(batch.scores)
        chosen, threshold = route(gates, self.bias)
        load = (gates + self.bias > threshold).sum(axis=0)
        self.bias = self.bias + self.step_size * np.sign(load.mean() - load).astype(np.float32)
        return batch.balance(chosen)


class SameBatch:
    """Exact sweeps on the very batch that is routed: a bound that no causal method has."""

    def __init__(self, sweeps: int) -> None:
        self.sweeps = sweeps

    def step(self, batch: Batch) -> Balance:
        solver = Exact(batch.scores.shape[1])
        for _ in range(self.sweeps):
            solver.step(batch)
        return batch.balance(route(batch.scores, solver.bias)[0])


class ExpertChoice:
    """Each expert takes the same number of tokens: even by construction, but it looks into the future."""

    def step(self, batch: Batch) -> Balance:
        tokens, experts = batch.scores.shape
        threshold = largest(batch.scores, int(target(tokens, experts)))
        return batch.balance(batch.scores >= threshold)
