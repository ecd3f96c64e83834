"""How evenly each balancer loads experts in the synthetic world of `spec/moe.md` §3, beside the figures printed there; and what it costs.

    python -m benchmarks.balance --json balance.json

In that world scores drift and nothing learns, so a bias is as good as its last batches were typical: figures compare balancers with
each other, and say little about a real router. Costs are CPU time of one layer's call on 8,192 tokens, beside the obvious way to do
the same; rounds of both alternate, and medians count.
"""

import argparse
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.balance_figures import EXPERTS, FIGURES, SEEDS, Figure, steps_of
from benchmarks.balance_world import PER_TOKEN, TOKENS, Array, Balance, Batch, Method, batches, run, summary
from benchmarks.report import Machine, Row, installed_versions, parser, publish
from benchmarks.timing import median, timed
from marin_core.model.config import (
    AuxiliaryLossConfig,
    BalancerConfig,
    LocalQuantilesConfig,
    LossFreeConfig,
    MoEConfig,
    NoBalancerConfig,
    QuantileExactConfig,
    QuantileHistogramConfig,
)
from marin_core.model.moe.balance import BalancerMetrics, BalancerState, make_balancer
from marin_core.model.moe.router import ScoreSpace, score_space, select_experts

SPEC = "spec/moe.md §3.2"
AUXILIARY_STEPS = 200
QUICK_STEPS = 10


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print the tables, and write the rows."""
    options = _options(arguments)
    machine, progress = Machine.now(), Console(stderr=True)
    rows: list[Row] = []
    for experts in EXPERTS[:1] if options.quick else EXPERTS:
        figures = tuple(each for each in FIGURES if each.method in OURS and (each.last <= QUICK_STEPS or not options.quick))
        progress.print(f"E = {experts}: balance, {options.seeds} seeds")
        rows += balance_rows(figures, experts, options.seeds)
        progress.print(f"E = {experts}: costs")
        rows += cost_rows(experts, options.rounds)
    publish("Balancers", rows, machine=machine, versions=installed_versions("jax", "jaxlib", "numpy"), json_file=options.json)


# The balancers in the synthetic world -------------------------------------------------------------------------------


class Ours:
    """A balancer of the model, on one layer whose tokens come from so many contributions, as from devices."""

    def __init__(self, config: BalancerConfig, experts: int, contributions: int = 1) -> None:
        self.config, self.experts, self.contributions = config, experts, contributions
        self.state = make_balancer(_moe(config, experts)).init(1, experts)
        self.metrics: BalancerMetrics = {}

    def step(self, batch: Batch) -> Balance:
        selected, self.state, self.metrics = _route_and_learn(jnp.asarray(batch.scores), self.state, self.config, self.contributions)
        return batch.balance(_as_mask(selected, self.experts))


class SweepsOfOneBatch:
    """The exact solve, so many times on the very batch that is then routed."""

    def __init__(self, experts: int, sweeps: int) -> None:
        self.experts, self.sweeps = experts, sweeps

    def step(self, batch: Batch) -> Balance:
        balancer = Ours(QuantileExactConfig(), self.experts)
        for _ in range(self.sweeps):
            balancer.step(batch)
        return balancer.step(batch)


class OffsetByLoss:
    """The auxiliary loss, which needs something that learns: an offset of each expert's logit, by gradient descent on it alone."""

    RATE = 1.0
    """Of descent on the loss of weight 1."""

    def __init__(self, experts: int) -> None:
        self.offset = jnp.zeros(experts)

    def step(self, batch: Batch) -> Balance:
        gradient, selected = _auxiliary_gradient(self.offset, jnp.asarray(batch.scores))
        self.offset -= self.RATE * gradient
        return batch.balance(_as_mask(selected, len(self.offset)))


def _ours(config: BalancerConfig, contributions: int = 1) -> Callable[[int], Method]:
    return lambda experts: Ours(config, experts, contributions)


OURS: dict[str, Callable[[int], Method]] = {
    "plain": _ours(NoBalancerConfig()),
    "loss_free_1e-3": _ours(LossFreeConfig(step_size=1e-3)),
    "loss_free_1e-2": _ours(LossFreeConfig(step_size=1e-2)),
    "exact": _ours(QuantileExactConfig()),
    "exact_ema": _ours(QuantileExactConfig(ema=0.9)),
    "live_1000": _ours(QuantileHistogramConfig(margin_range="live")),
    "live_10000": _ours(QuantileHistogramConfig(margin_range="live", bins=10_000)),
    "frozen_4": _ours(QuantileHistogramConfig()),
    "frozen_1": _ours(QuantileHistogramConfig(pad=1.0)),
    "local_8": _ours(LocalQuantilesConfig(), 8),
    "local_64": _ours(LocalQuantilesConfig(), 64),
    "same_1": lambda experts: SweepsOfOneBatch(experts, 1),
    "same_3": lambda experts: SweepsOfOneBatch(experts, 3),
    "same_10": lambda experts: SweepsOfOneBatch(experts, 10),
    "aux_loss": OffsetByLoss,
}
"""The methods of `balance_figures` that the model has, and its auxiliary loss, of which nothing is printed."""


def _moe(config: BalancerConfig, experts: int) -> MoEConfig:
    return MoEConfig(experts=experts, experts_per_token=PER_TOKEN, expert_width=1, balancer=config)


@partial(jax.jit, static_argnums=(2, 3))
def _route_and_learn(
    scores: jax.Array, state: BalancerState, config: BalancerConfig, contributions: int
) -> tuple[jax.Array, BalancerState, BalancerMetrics]:
    """Selected experts int32 [T, A], and the next state, of scores float32 [T, E]."""
    tokens, experts = scores.shape
    balancer = make_balancer(_moe(config, experts))
    bias = balancer.bias(state, 1, experts)[0]
    routing = select_experts(scores, bias, PER_TOKEN, 2.5, score_space(config))
    parts = jax.tree.map(lambda leaf: leaf.reshape(contributions, -1, *leaf.shape[1:]), (routing, jnp.ones(tokens, bool)))
    observed = jax.lax.map(lambda part: balancer.observe(part[0], part[1], bias), parts)
    after, metrics = balancer.update(state, jax.tree.map(lambda leaf: leaf[None], observed), jnp.int32(tokens))
    return routing.selected, after, metrics


@jax.jit
def _auxiliary_gradient(offset: jax.Array, scores: jax.Array) -> tuple[jax.Array, jax.Array]:
    balancer = make_balancer(_moe(AuxiliaryLossConfig(weight=1.0), scores.shape[1]))

    def loss(offset: jax.Array) -> tuple[jax.Array, jax.Array]:
        routing = select_experts(scores + offset, jnp.zeros_like(offset), PER_TOKEN, 2.5)
        return balancer.loss(routing, jnp.ones(scores.shape[0], bool)), routing.selected

    found: tuple[jax.Array, jax.Array] = jax.grad(loss, has_aux=True)(offset)
    return found


def _as_mask(selected: jax.Array, experts: int) -> Array:
    """bool [T, E] of int [T, A]."""
    mask = np.zeros((selected.shape[0], experts), bool)
    np.put_along_axis(mask, np.asarray(selected), True, axis=1)
    return mask


# Rows ---------------------------------------------------------------------------------------------------------------


def balance_rows(figures: Sequence[Figure], experts: int, seeds: int) -> list[Row]:
    """Print the table of all balancers, and give its coefficients of variation as rows."""
    last = min(AUXILIARY_STEPS, max(figure.last for figure in figures))
    shown = [*figures, Figure(f"auxiliary loss, {last} steps", "aux_loss", last - 5, last, {}, seeds=2)]
    found = _measure(shown, experts, seeds)
    table = Table(
        title=f"E = {experts}, {TOKENS:,} tokens, {seeds} seeds (2 of runs above 60 steps); below each row what {SPEC} prints",
        title_justify="left",
    )
    table.add_column("balancer", overflow="fold")
    for column in ("CV", "±", "MaxVio", "min", "drop", "pooled", "keep"):
        table.add_column(column, justify="right", no_wrap=True)
    rows = []
    for figure in shown:
        mean, deviation = summary(found[figure.method], figure.first, figure.last)
        _add(table, figure, experts, mean, deviation)
        rows.append(_row(figure, experts, mean, seeds))
    Console().print(table)
    return rows


def _measure(figures: Sequence[Figure], experts: int, seeds: int) -> dict[str, list[Array]]:
    """For each method what its runs gave, one for each of the seeds that its figures are of."""
    found: dict[str, list[Array]] = {figure.method: [] for figure in figures}
    for number, seed in enumerate(SEEDS[:seeds]):
        wanted = tuple(figure for figure in figures if figure.seeds > number)
        steps = {figure.method: steps_of(figure.method, wanted) for figure in wanted}
        for name, rows in run({name: OURS[name](experts) for name in steps}, batches(seed, experts), steps).items():
            found[name].append(rows)
    return found


def _add(table: Table, figure: Figure, experts: int, mean: Balance, deviation: Balance) -> None:
    values = (mean.cv, deviation.cv, mean.max_violation, mean.least, mean.drop, mean.pooled, mean.keep)
    table.add_row(figure.name, *(f"{value:.4f}" for value in values))
    if experts in figure.printed:
        table.add_row("", *figure.printed[experts], style="dim")


def _row(figure: Figure, experts: int, mean: Balance, seeds: int) -> Row:
    """The coefficient of variation beside the printed one, where that is of the same worlds."""
    measure = f"E = {experts}: {figure.name}, CV"
    if experts not in figure.printed:
        return Row(measure, mean.cv, None, SPEC, "of the mean load", reason=f"{SPEC} has no such figure")
    if seeds < figure.seeds:
        return Row(measure, mean.cv, None, SPEC, "of the mean load", reason=f"{SPEC} has that of more worlds than {seeds}")
    return Row(measure, mean.cv, float(figure.printed[experts].cv), SPEC, "of the mean load")


def cost_rows(experts: int, rounds: int) -> list[Row]:
    """CPU time of the parts of a balancer, beside the obvious way to do each."""
    scores = jnp.asarray(next(batches(SEEDS[0], experts)))
    bias, valid = jnp.linspace(-0.5, 0.5, experts), jnp.ones(TOKENS, bool)
    routing = jax.jit(_choose)(scores, bias)
    histogram, exact = (make_balancer(_moe(each, experts)) for each in (QuantileHistogramConfig(), QuantileExactConfig()))
    state = histogram.init(1, experts)
    observed, gathered = (jax.tree.map(lambda leaf: leaf[None, None], each.observe(routing, valid, bias)) for each in (histogram, exact))
    tokens = jnp.int32(TOKENS)

    def solve(seen: Any) -> Any:
        return exact.update(state, seen, tokens)

    def observe(routing: Any) -> Any:
        return histogram.observe(routing, valid, bias)

    pairs: list[tuple[str, Callable[[], Any], str, Callable[[], Any]]] = [
        (
            "choose experts",
            _call(_choose, scores, bias),
            "top-k and slice without the barrier (trap T1)",
            _call(_slice_top_k, scores, bias),
        ),
        (
            "loads",
            _call(partial(_load_by_count, experts=experts), routing.selected),
            "sum of one-hot rows (trap T2)",
            _call(partial(_load_by_one_hot, experts=experts), routing.selected),
        ),
        ("exact β", _call(solve, gathered), "sort of all margins", _call(_beta_by_sort, routing.margins)),
        ("observe in a histogram", _call(observe, routing), "sort of all margins", _call(_beta_by_sort, routing.margins)),
        (
            "β from a histogram",
            _call(lambda seen: histogram.update(state, seen, tokens), observed),
            "sort of all margins",
            _call(_beta_by_sort, routing.margins),
        ),
        ("sigmoid scores", _call(partial(_choose, space="sigmoid"), scores, bias), "scores as they are", _call(_choose, scores, bias)),
    ]
    return [_cost(f"E = {experts}: {name}", ours, peer_name, peer, rounds) for name, ours, peer_name, peer in pairs]


def _cost(measure: str, ours: Callable[[], Any], peer_name: str, peer: Callable[[], Any], rounds: int) -> Row:
    ours(), peer()  # compile
    timings = [(timed(ours)[1], timed(peer)[1]) for _ in range(rounds)]
    milliseconds = [median(each).cpu_seconds * 1e3 for each in zip(*timings, strict=True)]
    return Row(f"{measure}, CPU", milliseconds[0], milliseconds[1], peer_name, "ms")


def _call(function: Callable[..., Any], *arguments: Any) -> Callable[[], Any]:
    compiled = jax.jit(function)
    return lambda: jax.block_until_ready(compiled(*arguments))


def _choose(scores: jax.Array, bias: jax.Array, space: ScoreSpace = "logits") -> Any:
    return select_experts(scores, bias, PER_TOKEN, 2.5, space)


def _slice_top_k(scores: jax.Array, bias: jax.Array) -> Any:
    """`select_experts` without the barrier."""
    values, indices = jax.lax.top_k(scores + bias, PER_TOKEN + 1)
    selected = indices[:, :PER_TOKEN]
    chosen = selected[:, :, None] == jnp.arange(scores.shape[1], dtype=selected.dtype)
    gates = jax.nn.sigmoid(jnp.sum(jnp.where(chosen, scores[:, None, :], 0.0), axis=-1))
    return selected, gates * (2.5 / (jnp.sum(gates, axis=-1, keepdims=True) + 1e-9)), values[:, PER_TOKEN]


def _load_by_count(selected: jax.Array, experts: int) -> jax.Array:
    return jnp.bincount(selected.reshape(-1), length=experts)


def _load_by_one_hot(selected: jax.Array, experts: int) -> jax.Array:
    return jnp.sum(jax.nn.one_hot(selected, experts, dtype=jnp.int32), axis=(0, 1))


def _beta_by_sort(margins: jax.Array) -> jax.Array:
    tokens, experts = margins.shape
    return jnp.sort(margins, axis=0)[tokens - round(tokens * PER_TOKEN / experts)]


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    made = parser(__doc__ or "")
    made.add_argument(
        "--seeds", type=int, default=5, choices=range(1, 6), metavar="N", help="worlds of each balancer (default 5, the most)"
    )
    made.add_argument("--rounds", type=int, default=15, metavar="N", help="how often each cost is measured (default 15)")
    made.add_argument("--quick", action="store_true", help="64 experts and the figures of the first 10 steps alone")
    return made.parse_args(arguments)


if __name__ == "__main__":
    main()
