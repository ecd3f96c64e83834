"""The synthetic world of `spec/moe.md` §3: a NumPy reference gives the printed figures, and the balancers of the model agree with it."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from benchmarks.balance import OURS, Ours
from benchmarks.balance_figures import FIGURES, SEEDS, Figure, disagreements, steps_of
from benchmarks.balance_world import (
    PER_TOKEN,
    TOKENS,
    Array,
    Batch,
    Exact,
    ExpertChoice,
    Histogram,
    Integrator,
    Local,
    Method,
    Plain,
    SameBatch,
    batches,
    route,
    run,
    summary,
)
from marin_core.model.config import LocalQuantilesConfig, MoEConfig, QuantileExactConfig, QuantileHistogramConfig
from marin_core.model.mesh import AXES, make_mesh, over_shards
from marin_core.model.moe.balance import make_balancer
from marin_core.model.moe.router import select_experts

REFERENCE: dict[str, Callable[[int], Method]] = {
    "plain": lambda experts: Plain(),
    "loss_free_1e-3": lambda experts: Integrator(experts, 1e-3),
    "loss_free_1e-2": lambda experts: Integrator(experts, 1e-2),
    "exact": Exact,
    "exact_ema": lambda experts: Exact(experts, ema=0.9),
    "live_1000": lambda experts: Histogram(experts, 1000, None),
    "live_10000": lambda experts: Histogram(experts, 10_000, None),
    "frozen_4": lambda experts: Histogram(experts, 1000, 4.0),
    "frozen_1": lambda experts: Histogram(experts, 1000, 1.0),
    "local_8": lambda experts: Local(experts, 8),
    "local_64": lambda experts: Local(experts, 64),
    "same_1": lambda experts: SameBatch(1),
    "same_3": lambda experts: SameBatch(3),
    "same_10": lambda experts: SameBatch(10),
    "expert_choice": lambda experts: ExpertChoice(),
}
EARLY = tuple(figure for figure in FIGURES if figure.last <= 5 and figure.method != "expert_choice")
MIDDLE = tuple(figure for figure in FIGURES if figure.last <= 60)
LONG = tuple(figure for figure in FIGURES if figure.last > 60)


def measured(make: dict[str, Callable[[int], Method]], figures: tuple[Figure, ...], experts: int) -> dict[str, list[Array]]:
    """For each method that figures need, what its runs gave, one for each seed."""
    found: dict[str, list[Array]] = {figure.method: [] for figure in figures}
    steps = {name: steps_of(name, figures) for name in found}
    for seed in list(SEEDS)[: max(figure.seeds for figure in figures)]:
        for name, rows in run({name: make[name](experts) for name in found}, batches(seed, experts), steps).items():
            found[name].append(rows)
    return found


def check_reference(figures: tuple[Figure, ...], experts: int) -> None:
    found = measured(REFERENCE, figures, experts)
    wrong = {
        figure.name: differences
        for figure in figures
        if (differences := disagreements(*summary(found[figure.method], figure.first, figure.last), figure.printed[experts]))
    }
    assert wrong == {}


def check_ours(figures: tuple[Figure, ...], experts: int) -> None:
    """The coefficient of variation within 3 standard deviations of its mean over seeds."""
    found = measured(OURS, figures, experts)
    for figure in figures:
        mean, deviation = summary(found[figure.method], figure.first, figure.last)
        printed = figure.printed[experts]
        spread = float(printed.cv_deviation or deviation.cv)
        assert abs(mean.cv - float(printed.cv)) <= 3 * spread / len(SEEDS) ** 0.5, (figure.name, mean.cv)
        if printed.drop:
            assert abs(mean.drop - float(printed.drop)) <= 0.003, (figure.name, mean.drop)


def test_the_reference_gives_the_printed_figures_of_the_first_steps() -> None:
    check_reference(EARLY, 64)


def test_the_synthetic_world_gives_the_documented_spread() -> None:
    check_ours(EARLY, 64)


@pytest.mark.long
@pytest.mark.parametrize("experts", [64, 384])
def test_the_reference_gives_the_printed_figures(experts: int) -> None:
    check_reference(MIDDLE, experts)


@pytest.mark.long
@pytest.mark.parametrize("experts", [64, 384])
def test_the_reference_gives_the_printed_figures_of_the_integrator(experts: int) -> None:
    check_reference(LONG, experts)


@pytest.mark.long
@pytest.mark.parametrize("experts", [64, 384])
def test_the_balancers_give_the_documented_spread(experts: int) -> None:
    check_ours(tuple(figure for figure in MIDDLE if figure.method in OURS), experts)


def test_the_balancers_follow_the_reference_step_by_step() -> None:
    """Not only on average: on the same batches, loads differ by what float32 decides differently."""
    names = ("plain", "exact", "frozen_4", "local_8", "loss_free_1e-2")
    steps = dict.fromkeys(names, 4)
    reference = run({name: REFERENCE[name](64) for name in names}, batches(1000, 64), steps)
    ours = run({name: OURS[name](64) for name in names}, batches(1000, 64), steps)
    for name in names:
        np.testing.assert_allclose(ours[name], reference[name], atol=0.01, err_msg=name)


def test_a_narrow_range_saturates_as_many_experts_as_documented() -> None:
    """`spec/moe.md` §3.2: with pad 1 the first solve finds 31 % of 64 experts out of range, the second 1.6 %, the third none."""
    balancer, saturated = Ours(QuantileHistogramConfig(pad=1.0), 64), []
    for _, scores in zip(range(3), batches(1000, 64), strict=False):
        balancer.step(Batch(scores))
        saturated.append(int(balancer.metrics["saturated_experts"][0]))
    assert saturated == [20, 1, 0]


# Eight devices, each with a topic of its own (§3.4) -------------------------------------------------------------------


def sorted_by_topic(experts: int) -> Array:
    rng = np.random.default_rng(0)
    affinity = rng.normal(size=(8, experts)) * 0.7
    noise = rng.normal(size=(TOKENS, experts))
    return (noise + rng.normal(size=experts) + affinity[np.repeat(np.arange(8), TOKENS // 8)]).astype(np.float32)


def observe_and_solve(config: Any, scores: Array, devices: int) -> tuple[Any, Array]:
    """Observations of 1 or 8 devices, leaves [N, …], and β after one sweep from a bias of 0."""
    experts = scores.shape[1]
    balancer = make_balancer(MoEConfig(experts=experts, experts_per_token=PER_TOKEN, expert_width=1, balancer=config))
    state, bias = balancer.init(1, experts), jnp.zeros(experts)

    def here(scores: jax.Array) -> Any:
        routing = select_experts(scores, bias, PER_TOKEN, 2.5)
        return jax.tree.map(lambda leaf: leaf[None], balancer.observe(routing, jnp.ones(scores.shape[0], bool), bias))

    def solve(scores: jax.Array) -> tuple[Any, jax.Array]:
        observed = over_shards(here, in_specs=P(AXES), out_specs=P(AXES))(scores)
        after, _ = balancer.update(state, jax.tree.map(lambda leaf: leaf[None], observed), jnp.int32(scores.shape[0]))
        return observed, after["pending_beta"][0]

    if devices == 1:
        observed, beta = jax.jit(solve)(jnp.asarray(scores))
    else:
        with jax.set_mesh(make_mesh(2, devices // 2)):
            observed, beta = jax.jit(solve)(jnp.asarray(scores))
    return observed, np.asarray(beta, np.float64)


@pytest.mark.parametrize(
    ("experts", "histogram_error", "local_error", "printed"),
    [
        (64, 0.0012, 0.477, (".0753", ".0752", ".160")),
        pytest.param(384, 0.0013, 1.100, (".0810", ".0810", ".412"), marks=pytest.mark.long),
    ],
)
def test_devices_with_topics_of_their_own_solve_as_one(
    experts: int, histogram_error: float, local_error: float, printed: tuple[str, str, str]
) -> None:
    scores = sorted_by_topic(experts)
    fine = QuantileHistogramConfig(bins=10_000, margin_range="live")
    alone, _ = observe_and_solve(fine, scores, 1)
    observed, histogram = observe_and_solve(fine, scores, 8)
    _, exact = observe_and_solve(QuantileExactConfig(), scores, 8)
    _, local = observe_and_solve(LocalQuantilesConfig(), scores, 8)
    np.testing.assert_array_equal(np.sum(observed["counts"], axis=0), alone["counts"][0])
    assert np.max(np.abs(histogram - exact)) == pytest.approx(histogram_error, abs=1e-4)
    assert np.max(np.abs(local - exact)) == pytest.approx(local_error, abs=1e-3)
    batch = Batch(scores)
    for beta, text in zip((exact, histogram, local), printed, strict=True):
        cv = batch.balance(route(scores, beta.mean() - beta)[0]).cv
        assert cv == pytest.approx(float(text), abs=1.01 * 10 ** -len(text.partition(".")[2]))


def test_an_offset_for_each_expert_is_balanced_by_the_auxiliary_loss() -> None:
    """In this world no router learns, so the loss gets something that does."""
    figures = run({"aux_loss": OURS["aux_loss"](64)}, batches(1000, 64), {"aux_loss": 20})["aux_loss"]
    assert figures[0, 0] > 1.0
    assert figures[-5:, 0].mean() < 0.5
