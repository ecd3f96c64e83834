"""Balancers: exact where they must be, convergent in one step, the same on any number of devices, and safe against bad input."""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

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
from marin_core.model.mesh import AXES, make_mesh, over_shards
from marin_core.model.moe.balance import Balancer, BalancerState, QuantileHistogram, make_balancer
from marin_core.model.moe.router import Routing, ScoreSpace, score_space, select_experts

Array = npt.NDArray[Any]
E, A, T = 16, 2, 2048
QUICKLY = {"xla_backend_optimization_level": 0}

CONFIGS: dict[str, BalancerConfig] = {
    "histogram": QuantileHistogramConfig(),
    "histogram_sigmoid": QuantileHistogramConfig(score_space="sigmoid", pad=1.0),
    "histogram_live": QuantileHistogramConfig(margin_range="live", bins=10_000),
    "histogram_ema": QuantileHistogramConfig(ema=0.75),
    "exact": QuantileExactConfig(),
    "exact_ema": QuantileExactConfig(ema=0.75),
    "local": LocalQuantilesConfig(),
    "loss_free": LossFreeConfig(step_size=0.01),
    "aux_loss": AuxiliaryLossConfig(),
    "none": NoBalancerConfig(),
}
QUANTILES = [name for name in CONFIGS if name.startswith(("histogram", "exact", "local"))]
WITH_STATE = [*QUANTILES, "loss_free"]


def moe(config: BalancerConfig) -> MoEConfig:
    return MoEConfig(experts=E, experts_per_token=A, expert_width=8, balancer=config)


BALANCERS: dict[str, Balancer] = {name: make_balancer(moe(config)) for name, config in CONFIGS.items()}


def skewed_logits(seed: int, tokens: int = T) -> jax.Array:
    rng = np.random.default_rng(seed)
    return jnp.asarray(rng.normal(size=(tokens, E)) + np.linspace(-1.5, 1.5, E), jnp.float32)


class Step(NamedTuple):
    """What one step of one layer did; `observed` has leaves [L = 1, N, …]."""

    state: BalancerState
    metrics: dict[str, jax.Array]
    routing: Routing
    bias: jax.Array
    load: jax.Array
    observed: Any


@partial(jax.jit, static_argnums=(0, 4), compiler_options=QUICKLY)
def _run_step(name: str, logits: jax.Array, state: BalancerState, valid: jax.Array, contributions: int) -> Step:
    balancer = BALANCERS[name]
    bias = balancer.bias(state, 1, E)[0]
    routing = select_experts(logits, bias, A, 2.5, score_space(CONFIGS[name]))
    parts = jax.tree.map(lambda leaf: leaf.reshape(contributions, -1, *leaf.shape[1:]), (routing, valid))
    observed = jax.lax.map(lambda part: balancer.observe(part[0], part[1], bias), parts)
    observed = jax.tree.map(lambda leaf: leaf[None], observed)
    after, metrics = balancer.update(state, observed, jnp.sum(valid, dtype=jnp.int32))
    load = jnp.bincount(jnp.where(valid[:, None], routing.selected, E).reshape(-1), length=E)
    return Step(after, metrics, routing, bias, load, observed)


def step(name: str, logits: jax.Array, state: BalancerState | None = None, valid: jax.Array | None = None, contributions: int = 1) -> Step:
    state = BALANCERS[name].init(1, E) if state is None else state
    valid = jnp.ones(logits.shape[0], bool) if valid is None else valid
    found: Step = _run_step(name, logits, state, valid, contributions)
    return found


def beta(found: Step) -> Array:
    return np.asarray(found.state["pending_beta"][0])


def spread(load: Any) -> float:
    return float(np.std(load) / np.mean(load))


def margins_of(found: Step) -> Array:
    """float32 [T, E], largest first."""
    return np.sort(np.asarray(found.routing.margins), axis=0)[::-1]


# Balance ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["histogram", "histogram_sigmoid", "histogram_live", "exact", "local"])
def test_a_few_solves_balance_a_skewed_router(name: str) -> None:
    state, spreads = BALANCERS[name].init(1, E), []
    for _ in range(6):
        found = step(name, skewed_logits(0), state)
        state = found.state
        spreads.append(spread(found.load))
    assert spreads[0] > 0.7
    assert spreads[1] < 0.4
    assert spreads[-1] < 0.06


@pytest.mark.parametrize("name", ["histogram", "histogram_sigmoid", "histogram_live"])
def test_histogram_beta_is_the_exact_order_statistic_within_a_bin(name: str) -> None:
    found = step(name, skewed_logits(1), step(name, skewed_logits(2)).state)
    margins = margins_of(found)
    rank = T * A // E
    balancer = BALANCERS[name]
    assert isinstance(balancer, QuantileHistogram)
    reach = margins[0].max() - margins[-1].min() if balancer.live else float(jnp.ptp(found.bias)) + 2 * balancer.pad
    gap = margins[rank - 2] - margins[rank]
    assert np.all(np.abs(beta(found) - margins[rank - 1]) <= reach / balancer.bins + gap)


@given(seed=st.integers(0, 2**16), scale=st.sampled_from([0.01, 1.0, 3.0]), kept=st.sampled_from([1.0, 0.7, 0.02]), poison=st.booleans())
@settings(max_examples=40, deadline=None)
def test_the_bin_of_beta_holds_the_margin_that_the_target_load_reaches(seed: int, scale: float, kept: float, poison: bool) -> None:
    rng = np.random.default_rng(seed)
    logits, valid = rng.normal(size=(64, E)).astype(np.float32) * scale, rng.random(64) < kept
    logits[~valid] = np.nan if poison else 100.0
    found = step("histogram", jnp.asarray(logits), valid=jnp.asarray(valid))
    margins = np.clip(np.asarray(found.routing.margins)[valid], -4.0, 4.0)  # the range of a bias of 0
    target = len(margins) * A / E
    if not len(margins):
        np.testing.assert_array_equal(beta(found), 0)
        return
    width = 8.0 / 1000
    assert np.all(np.sum(margins >= beta(found) - width * 1.01, axis=0) >= target)
    assert np.all(np.sum(margins > beta(found) + width * 1.01, axis=0) < target)


@pytest.mark.parametrize(("valid_tokens", "rank"), [(68, 8), (76, 10), (3, 1)])  # 68·2/16 = 8.5 and 76·2/16 = 9.5 go to the even one
def test_exact_beta_is_the_margin_of_the_rounded_rank(valid_tokens: int, rank: int) -> None:
    valid = np.random.default_rng(3).permutation(80) < valid_tokens
    found = step("exact", skewed_logits(3, 80), valid=jnp.asarray(valid))
    margins = np.sort(np.asarray(found.routing.margins)[valid], axis=0)[::-1]
    np.testing.assert_array_equal(beta(found), margins[rank - 1])


def test_beta_rests_while_the_target_load_falls_on_tokens_next_in_line() -> None:
    """`spec/moe.md` §2.5: a token whose first unchosen expert is e has its margin for e exactly at −bias, so the law has an atom there."""
    found = step("exact", skewed_logits(4), step("exact", skewed_logits(3)).state)
    next_in_line = np.argsort(-np.asarray(found.routing.scores + found.bias), axis=1)[:, A]
    margin = np.asarray(found.routing.margins)[np.arange(T), next_in_line]
    np.testing.assert_allclose(margin, -np.asarray(found.bias)[next_in_line], atol=1e-6)
    load, atom, moved = np.asarray(found.load), np.bincount(next_in_line, minlength=E), beta(found) + np.asarray(found.bias)
    rests = (load < T * A / E) & (load + atom >= T * A / E)
    assert 0 < rests.sum() < E
    np.testing.assert_allclose(moved[rests], 0, atol=1e-6)
    assert np.all(moved[load >= T * A / E] > 0)
    assert np.all(moved[load + atom < T * A / E] < 0)


def test_smoothing_starts_with_the_first_solve() -> None:
    plain, smooth = step("exact", skewed_logits(5)), step("exact_ema", skewed_logits(5))
    np.testing.assert_array_equal(beta(plain), beta(smooth))
    plain_next, smooth_next = (step(name, skewed_logits(6), each.state) for name, each in (("exact", plain), ("exact_ema", smooth)))
    old = -np.asarray(smooth_next.bias)
    np.testing.assert_allclose(beta(smooth_next), 0.75 * old + 0.25 * beta(plain_next), atol=1e-6)


# Devices and micro-batches ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["histogram", "histogram_sigmoid"])
def test_histogram_over_micro_batches_equals_the_joint_batch(name: str) -> None:
    state = step(name, skewed_logits(7)).state
    joint, parts = step(name, skewed_logits(8), state), step(name, skewed_logits(8), state, contributions=4)
    np.testing.assert_array_equal(joint.observed["counts"][:, 0], parts.observed["counts"].sum(axis=1))
    np.testing.assert_array_equal(beta(joint), beta(parts))
    assert joint.observed["counts"].dtype == jnp.int32


def test_exact_quantile_over_micro_batches_equals_the_joint_batch() -> None:
    np.testing.assert_array_equal(beta(step("exact", skewed_logits(8))), beta(step("exact", skewed_logits(8), contributions=4)))


def test_live_ranges_of_micro_batches_meet_within_a_bin() -> None:
    logits = skewed_logits(9) * jnp.repeat(jnp.asarray([1.0, 3.0, 0.2, 1.0]), T // 4)[:, None]
    valid = jnp.arange(T) < 3 * T // 4  # the last micro-batch is empty
    found, exact = (step(name, logits, valid=valid, contributions=4) for name in ("histogram_live", "exact"))
    low, high = np.asarray(found.observed["low"][0, :3]), np.asarray(found.observed["high"][0, :3])
    assert len(set(low)) == len(set(high)) == 3
    assert np.all(np.abs(beta(found) - beta(exact)) <= 2 * (high.max() - low.min()) / 10_000 + 0.02)


def topical_logits(experts: int = E) -> jax.Array:
    """Tokens sorted by topic, so that each of 8 devices has a topic of its own."""
    rng = np.random.default_rng(0)
    affinity = rng.normal(size=(8, experts))
    return jnp.asarray(rng.normal(size=(T, experts)) + affinity[np.repeat(np.arange(8), T // 8)], jnp.float32)


@pytest.mark.parametrize(
    ("name", "shape"), [("histogram", (1, 8)), ("histogram", (2, 4)), ("histogram_sigmoid", (2, 4)), ("histogram_live", (2, 4))]
)
def test_histogram_over_devices_equals_one_device_cell_for_cell(name: str, shape: tuple[int, int]) -> None:
    logits, bias = topical_logits(), jnp.linspace(-0.5, 0.5, E)
    space = score_space(CONFIGS[name])

    def observe(logits: jax.Array, bias: jax.Array) -> Any:
        routing = select_experts(logits, bias, A, 2.5, space)
        return jax.tree.map(lambda leaf: leaf[None], BALANCERS[name].observe(routing, jnp.ones(logits.shape[0], bool), bias))

    alone = jax.jit(observe, compiler_options=QUICKLY)(logits, bias)
    with jax.set_mesh(make_mesh(*shape)):
        spread_out = jax.jit(
            lambda logits, bias: over_shards(observe, in_specs=(P(AXES), P()), out_specs=P(AXES))(logits, bias), compiler_options=QUICKLY
        )(logits, bias)
    assert spread_out["counts"].shape == (8, E, alone["counts"].shape[-1])
    np.testing.assert_array_equal(alone["counts"][0], np.sum(spread_out["counts"], axis=0))
    for end in set(alone) - {"counts"}:
        np.testing.assert_array_equal(spread_out[end], np.full(8, alone[end][0]))


def test_a_step_reduces_the_counts_of_all_layers_at_once_and_nothing_else() -> None:
    mesh, layers, balancer = make_mesh(2, 4), 3, BALANCERS["histogram"]
    counts = jax.ShapeDtypeStruct((layers, 8, E, 1000), jnp.int32, sharding=NamedSharding(mesh, P(None, AXES)))
    everywhere = NamedSharding(mesh, P())
    state = {"pending_beta": jax.ShapeDtypeStruct((layers, E), jnp.float32, sharding=everywhere)}
    tokens = jax.ShapeDtypeStruct((), jnp.int32, sharding=everywhere)
    with jax.set_mesh(mesh):
        update = jax.jit(balancer.update, out_shardings=everywhere, compiler_options=QUICKLY)
        text = str(update.lower(state, {"counts": counts}, tokens).compile().as_text())
    kinds = ("all-reduce", "all-gather", "all-to-all", "reduce-scatter", "collective-permute")
    collectives = [line for line in text.splitlines() if any(f" {kind}(" in line or f" {kind}-start(" in line for kind in kinds)]
    assert len(collectives) == 1
    assert f"s32[{layers},{E},1000]" in collectives[0]
    assert " all-reduce" in collectives[0]


def test_counts_above_two_to_the_24_are_exact() -> None:
    """One token decides between two bins; float32 would not see it (trap T8)."""
    half = 2**24
    counts = jnp.zeros((1, 1, 2, 1000), jnp.int32).at[..., 600].set(half).at[..., 300].set(1).at[..., 100].set(half)
    balancer = make_balancer(MoEConfig(experts=2, experts_per_token=1, expert_width=8))
    update = jax.jit(balancer.update, compiler_options=QUICKLY)
    state, _ = update(balancer.init(1, 2), {"counts": counts}, jnp.int32(2 * half + 2))
    low, width = -4.0, 8.0 / 1000
    found = np.asarray(state["pending_beta"])
    assert np.all((low + 300 * width - 1e-5 <= found) & (found <= low + 301 * width + 1e-5))


# The state ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CONFIGS)
def test_state_is_float32_leaves_that_survive_flattening_by_path(name: str) -> None:
    before = BALANCERS[name].init(3, E)
    state = step(name, skewed_logits(10)).state
    assert before.keys() == state.keys()
    paths, structure = jax.tree_util.tree_flatten_with_path(state)
    assert all(leaf.dtype == jnp.float32 and leaf.shape == (1, E) for _, leaf in paths)
    by_name = {jax.tree_util.keystr(path): leaf for path, leaf in paths}
    rebuilt = jax.tree.unflatten(structure, [by_name[jax.tree_util.keystr(path)] for path, _ in paths])
    np.testing.assert_array_equal(BALANCERS[name].bias(rebuilt, 1, E), BALANCERS[name].bias(state, 1, E))


@pytest.mark.parametrize("name", CONFIGS)
def test_bias_is_float32_and_sums_to_zero(name: str) -> None:
    bias = BALANCERS[name].bias(step(name, skewed_logits(11)).state, 1, E)
    assert bias.dtype == jnp.float32
    assert (float(jnp.max(jnp.abs(bias))) > 0.005) == (name in WITH_STATE)
    assert abs(float(bias.sum())) < 1e-5


@pytest.mark.parametrize("name", WITH_STATE)
def test_no_gradient_reaches_the_state(name: str) -> None:
    state = step(name, skewed_logits(12)).state
    logits = skewed_logits(13, 32)

    def loss(state: BalancerState) -> jax.Array:
        bias = BALANCERS[name].bias(state, 1, E)
        routing = select_experts(logits, bias[0], A, 2.5, score_space(CONFIGS[name]))
        return jnp.sum(bias * jnp.arange(E)) + jnp.sum(routing.weights**2) + jnp.sum(routing.margins)

    for leaf in jax.tree.leaves(jax.jit(jax.grad(loss), compiler_options=QUICKLY)(state)):
        np.testing.assert_array_equal(leaf, 0)


@pytest.mark.parametrize("space", ["logits", "sigmoid"])
def test_router_gradient_with_the_bias_is_that_of_plain_logits_given_the_same_choice(space: ScoreSpace) -> None:
    rng = np.random.default_rng(0)
    x, weight, pull = (jnp.asarray(rng.normal(size=shape), jnp.float32) for shape in ((64, 12), (12, E), (64, A)))
    bias = jnp.linspace(-0.4, 0.4, E)

    def with_bias(weight: jax.Array, bias: jax.Array) -> tuple[jax.Array, jax.Array]:
        routing = select_experts(x @ weight, bias, A, 2.5, space)
        return jnp.sum(pull * routing.weights), routing.selected

    def given_the_choice(weight: jax.Array, chosen: jax.Array) -> jax.Array:
        gates = jax.nn.sigmoid(jnp.take_along_axis(x @ weight, chosen, axis=1))
        weights = gates * (2.5 / (jnp.sum(gates, axis=-1, keepdims=True) + 1e-9))
        return jnp.sum(pull * weights)

    gradient = jax.jit(jax.grad(with_bias, has_aux=True), compiler_options=QUICKLY)
    found, chosen = gradient(weight, bias)
    assert np.any(np.asarray(chosen) != np.asarray(gradient(weight, jnp.zeros(E))[1]))
    assert float(jnp.max(jnp.abs(found))) > 0
    np.testing.assert_array_equal(found, jax.jit(jax.grad(given_the_choice), compiler_options=QUICKLY)(weight, chosen))


# Bad input ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["histogram", "histogram_live", "exact", "local", "loss_free"])
@pytest.mark.parametrize("filling", [np.nan, 1e30])
def test_padding_changes_nothing(name: str, filling: float) -> None:
    logits, valid = skewed_logits(14), jnp.arange(T) < T // 2
    padded = step(name, jnp.where(valid[:, None], logits, filling), valid=valid)
    half = step(name, logits[: T // 2])
    for leaf, expected in zip(jax.tree.leaves(padded.state), jax.tree.leaves(half.state), strict=True):
        np.testing.assert_array_equal(leaf, expected)


@pytest.mark.parametrize("name", CONFIGS)
def test_an_empty_batch_keeps_the_state(name: str) -> None:
    state = step(name, skewed_logits(15)).state
    kept = step(name, skewed_logits(16), state, jnp.zeros(T, bool))
    for leaf, expected in zip(jax.tree.leaves(kept.state), jax.tree.leaves(state), strict=True):
        np.testing.assert_array_equal(leaf, expected)
    assert all(int(metric[0]) == 0 for metric in kept.metrics.values())


@pytest.mark.parametrize("poison", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("name", QUANTILES)
def test_one_poisoned_token_does_not_move_the_bias(name: str, poison: float) -> None:
    logits = skewed_logits(17)
    clean, poisoned = step(name, logits), step(name, logits.at[5, 3].set(poison))
    np.testing.assert_allclose(beta(poisoned), beta(clean), atol=0.05)


@pytest.mark.parametrize("name", QUANTILES)
def test_an_expert_without_a_finite_margin_keeps_its_bias(name: str) -> None:
    before = step(name, skewed_logits(18))
    after = step(name, skewed_logits(19).at[:, 3].set(jnp.nan), before.state)
    np.testing.assert_allclose(beta(after)[3], -np.asarray(BALANCERS[name].bias(before.state, 1, E))[0, 3], atol=1e-6)
    assert np.all(np.isfinite(beta(after)))


def test_an_outlier_does_not_move_a_frozen_range() -> None:
    logits = skewed_logits(20)
    clean, outlier = step("histogram", logits), step("histogram", logits.at[5, 3].set(1e6))
    np.testing.assert_allclose(beta(outlier), beta(clean), atol=0.05)


def test_an_expert_out_of_range_is_reported_and_the_range_reopens() -> None:
    logits = skewed_logits(21).at[:, 0].add(30.0)
    state, counts = BALANCERS["histogram"].init(1, E), []
    for _ in range(12):
        found = step("histogram", logits, state)
        state = found.state
        counts.append(int(found.metrics["saturated_experts"][0]))
    assert counts[0] > 0
    assert counts[-1] == 0
    assert spread(found.load) < 0.15


# Local quantiles ----------------------------------------------------------------------------------------------------


def test_local_quantiles_are_averaged_by_valid_tokens() -> None:
    valid = jnp.asarray(np.repeat([True, False, True, False], [1024, 384, 128, 512]))  # 512, 512, 128 and 0 of a contribution's 512
    found = step("local", skewed_logits(22), valid=valid, contributions=4)
    margins = np.asarray(found.routing.margins)
    first, second, third = (
        np.sort(margins[rows], axis=0)[::-1][rank - 1]
        for rows, rank in ((slice(0, 512), 64), (slice(512, 1024), 64), (slice(1408, 1536), 16))
    )
    np.testing.assert_allclose(beta(found), (512 * first + 512 * second + 128 * third) / 1152, rtol=1e-5, atol=1e-6)


def test_local_quantiles_are_not_the_quantile_of_all_tokens() -> None:
    exact, local, histogram = (step(name, topical_logits(), contributions=4) for name in ("exact", "local", "histogram"))
    assert np.max(np.abs(beta(local) - beta(exact))) > 0.1
    assert np.max(np.abs(beta(histogram) - beta(exact))) < 0.03


# Loads --------------------------------------------------------------------------------------------------------------


def test_loss_free_bias_moves_by_its_step_towards_the_mean_load() -> None:
    before = step("loss_free", skewed_logits(23))
    moved = np.asarray(before.state["bias"][0])
    direction = np.sign(T * A / E - np.asarray(before.load))
    np.testing.assert_allclose(moved, 0.01 * (direction - direction.mean()), atol=1e-7)
    np.testing.assert_array_equal(before.observed[0, 0], before.load)
    parts = step("loss_free", skewed_logits(23), contributions=4)
    np.testing.assert_array_equal(parts.state["bias"], before.state["bias"])


def test_loss_free_balances_in_hundreds_of_steps() -> None:
    logits, state = skewed_logits(24), BALANCERS["loss_free"].init(1, E)
    first = step("loss_free", logits, state)
    for _ in range(150):
        state = step("loss_free", logits, state).state
    assert spread(first.load) > 0.7
    assert spread(step("loss_free", logits, state).load) < 0.1


def test_sigmoid_scores_are_chosen_and_their_weights_are_not_biased() -> None:
    logits, bias = skewed_logits(25, 64), jnp.linspace(0.5, -0.5, E)
    routing = select_experts(logits, bias, A, 2.5, "sigmoid")
    biased = 1 / (1 + np.exp(-np.asarray(logits, np.float64))) + np.asarray(bias, np.float64)
    order = np.argsort(-biased, axis=1)
    np.testing.assert_array_equal(routing.selected, order[:, :A])
    np.testing.assert_allclose(routing.threshold, np.take_along_axis(biased, order[:, A : A + 1], axis=1)[:, 0], rtol=1e-6)
    np.testing.assert_allclose(routing.margins + routing.threshold[:, None], jax.nn.sigmoid(logits), atol=1e-6)
    gates = np.take_along_axis(biased - np.asarray(bias, np.float64), order[:, :A], axis=1)
    np.testing.assert_allclose(routing.weights, 2.5 * gates / gates.sum(axis=1, keepdims=True), rtol=1e-5)


def auxiliary_loss(logits: jax.Array, valid: jax.Array | None = None) -> jax.Array:
    routing = select_experts(logits, jnp.zeros(E), A, 2.5)
    return BALANCERS["aux_loss"].loss(routing, jnp.ones(logits.shape[0], bool) if valid is None else valid)


def test_auxiliary_loss_of_perfect_balance_is_its_weight_times_the_experts_of_a_token() -> None:
    turns = jnp.eye(E)[jnp.arange(64) % E] + jnp.eye(E)[(jnp.arange(64) + 1) % E]
    loss = jax.jit(auxiliary_loss, compiler_options=QUICKLY)
    assert float(loss(turns)) == pytest.approx(0.01 * A, rel=1e-5)
    assert float(loss(jnp.tile(turns[:1] * 10, (64, 1)))) == pytest.approx(0.01 * E, rel=1e-2)


def test_auxiliary_loss_has_the_gradient_of_probabilities_alone() -> None:
    """d/dz_te = weight·E/T·p_te·(f_e − Σ f·p_t); padding, even NaN, gets 0."""
    valid = jnp.arange(64) < 48
    logits = jnp.where(valid[:, None], skewed_logits(26, 64), jnp.nan)
    gradient = np.asarray(jax.jit(jax.grad(auxiliary_loss), compiler_options=QUICKLY)(logits, valid))
    seen = np.asarray(logits[:48], np.float64)
    p = np.exp(seen) / np.exp(seen).sum(axis=1, keepdims=True)
    f = np.bincount(np.argsort(-seen, axis=1)[:, :A].ravel(), minlength=E) / 48
    np.testing.assert_allclose(gradient[:48], 0.01 * E / 48 * p * (f - (p @ f)[:, None]), rtol=1e-4, atol=1e-9)
    np.testing.assert_array_equal(gradient[48:], 0)


def test_auxiliary_loss_sees_the_tokens_of_all_devices() -> None:
    logits = topical_logits()
    mesh = make_mesh(2, 4)
    with jax.set_mesh(mesh):
        spread_out = jax.jit(jax.value_and_grad(auxiliary_loss), compiler_options=QUICKLY)(
            jax.device_put(logits, NamedSharding(mesh, P(AXES)))
        )
    alone = jax.jit(jax.value_and_grad(auxiliary_loss), compiler_options=QUICKLY)(logits)
    np.testing.assert_allclose(spread_out[0], alone[0], rtol=1e-5)
    np.testing.assert_allclose(spread_out[1], alone[1], rtol=1e-4, atol=1e-9)


@pytest.mark.parametrize("name", [name for name in CONFIGS if name != "aux_loss"])
def test_only_the_auxiliary_loss_adds_to_the_loss(name: str) -> None:
    routing = select_experts(skewed_logits(27, 32), jnp.zeros(E), A, 2.5)
    assert float(BALANCERS[name].loss(routing, jnp.ones(32, bool))) == 0


def test_no_balancer_leaves_selection_alone() -> None:
    balancer = make_balancer(moe(NoBalancerConfig()))
    state = balancer.init(2, E)
    np.testing.assert_array_equal(balancer.bias(state, 2, E), np.zeros((2, E)))
    assert balancer.update(state, (), jnp.int32(T)) == (state, {})
    assert make_balancer(None).init(2, E) == {}
