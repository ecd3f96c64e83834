"""The quantile balancer: exact where it must be, convergent in one step, and safe against bad input."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
import pytest

from marin_core.model.config import MoEConfig, NoBalancerConfig, QuantileHistogramConfig
from marin_core.model.moe.balance import BalancerState, QuantileHistogram, make_balancer
from marin_core.model.moe.router import select_experts

Array = npt.NDArray[Any]
E, A, T = 16, 2, 2048
BALANCER = QuantileHistogram(QuantileHistogramConfig(), A)


def skewed_logits(seed: int, tokens: int = T) -> jax.Array:
    rng = np.random.default_rng(seed)
    return jnp.asarray(rng.normal(size=(tokens, E)) + np.linspace(-1.5, 1.5, E), jnp.float32)


@partial(jax.jit, static_argnums=(2, 3))
def observe(logits: jax.Array, bias: jax.Array, balancer: QuantileHistogram, per_token: int, valid: jax.Array | None = None) -> Any:
    routing = select_experts(logits, bias, per_token, 2.5)
    valid = jnp.ones(logits.shape[0], bool) if valid is None else valid
    load = jnp.bincount(routing.selected.reshape(-1), length=logits.shape[1])
    return balancer.observe(routing, valid, bias), load


def solve(logits: jax.Array, state: BalancerState, valid: jax.Array | None = None) -> tuple[BalancerState, Array, dict[str, jax.Array]]:
    """One step of one layer: (next state, load under the present bias, metrics)."""
    histogram, load = observe(logits, BALANCER.bias(state, 1, E)[0], BALANCER, A, valid)
    count = jnp.int32(logits.shape[0]) if valid is None else jnp.sum(valid, dtype=jnp.int32)
    after, metrics = BALANCER.update(state, histogram[None], count)
    return after, np.asarray(load), metrics


def spread(load: Array) -> float:
    return float(load.std() / load.mean())


def test_a_few_updates_balance_a_skewed_router() -> None:
    logits, state, spreads = skewed_logits(0), BALANCER.init(1, E), []
    for _ in range(6):
        state, load, metrics = solve(logits, state)
        spreads.append(spread(load))
        assert int(metrics["saturated_experts"][0]) == 0
    assert spreads[0] > 0.7
    assert spreads[1] < 0.3
    assert spreads[-1] < 0.05


def test_histogram_beta_is_the_exact_order_statistic_within_a_bin() -> None:
    logits = skewed_logits(1)
    state, _, _ = solve(logits, BALANCER.init(1, E))
    margins = np.sort(np.asarray(logits - select_experts(logits, jnp.zeros(E), A, 2.5).threshold[:, None]), axis=0)[::-1]
    rank = T * A // E
    width = 2 * BALANCER.pad / BALANCER.bins
    gap = margins[rank - 2] - margins[rank]
    assert np.all(np.abs(np.asarray(state["pending_beta"][0]) - margins[rank - 1]) <= width + gap)


def test_histogram_over_micro_batches_equals_the_joint_batch() -> None:
    logits, bias = skewed_logits(2), jnp.linspace(-1, 1, E)
    joint, _ = observe(logits, bias, BALANCER, A)
    parts = [observe(part, bias, BALANCER, A)[0] for part in jnp.split(logits, 4)]
    np.testing.assert_array_equal(joint, sum(parts))
    assert joint.dtype == jnp.int32


def test_bias_is_zero_mean() -> None:
    state, _, _ = solve(skewed_logits(3), BALANCER.init(1, E))
    bias = BALANCER.bias(state, 1, E)
    assert float(jnp.max(jnp.abs(bias))) > 0.1
    assert abs(float(bias.sum())) < 1e-5


def test_no_gradient_reaches_the_state() -> None:
    state, _, _ = solve(skewed_logits(3), BALANCER.init(1, E))
    gradient = jax.grad(lambda s: jnp.sum(BALANCER.bias(s, 1, E) * jnp.arange(E)))(state)
    np.testing.assert_array_equal(gradient["pending_beta"], 0)


def test_masked_tokens_change_nothing() -> None:
    logits = skewed_logits(4)
    valid = jnp.arange(T) < T // 2
    state, _, _ = solve(logits, BALANCER.init(1, E), valid)
    half, _, _ = solve(logits[: T // 2], BALANCER.init(1, E))
    np.testing.assert_array_equal(state["pending_beta"], half["pending_beta"])


def test_an_empty_batch_keeps_the_bias() -> None:
    state, _, _ = solve(skewed_logits(5), BALANCER.init(1, E))
    kept, _, metrics = solve(skewed_logits(6), state, jnp.zeros(T, bool))
    np.testing.assert_array_equal(kept["pending_beta"], state["pending_beta"])
    assert int(metrics["saturated_experts"][0]) == 0


@pytest.mark.parametrize("poison", [np.nan, np.inf, -np.inf])
def test_one_poisoned_token_does_not_move_the_bias(poison: float) -> None:
    logits = skewed_logits(7)
    clean, _, _ = solve(logits, BALANCER.init(1, E))
    poisoned, _, _ = solve(logits.at[5, 3].set(poison), BALANCER.init(1, E))
    assert np.all(np.isfinite(np.asarray(poisoned["pending_beta"])))
    np.testing.assert_allclose(poisoned["pending_beta"], clean["pending_beta"], atol=0.05)


def test_an_expert_out_of_range_is_reported_and_the_range_reopens() -> None:
    logits = skewed_logits(8).at[:, 0].add(30.0)
    state, counts = BALANCER.init(1, E), []
    for _ in range(12):
        state, load, metrics = solve(logits, state)
        counts.append(int(metrics["saturated_experts"][0]))
    assert counts[0] > 0
    assert counts[-1] == 0
    assert spread(load) < 0.15


def test_no_balancer_leaves_selection_alone() -> None:
    balancer = make_balancer(MoEConfig(experts=E, experts_per_token=A, expert_width=8, balancer=NoBalancerConfig()))
    state = balancer.init(2, E)
    np.testing.assert_array_equal(balancer.bias(state, 2, E), np.zeros((2, E)))
    assert balancer.update(state, (), jnp.int32(T)) == (state, {})


def test_the_synthetic_world_gives_the_documented_spread() -> None:
    """`spec/moe.md` §3.2, E = 64: plain top-k 1.1187 ± 0.0760; histogram of 1000 bins, frozen, pad 4, after one update 0.2680 ± 0.0461."""
    experts, per_token, tokens, topics, dim = 64, 8, 8192, 64, 32
    balancer = QuantileHistogram(QuantileHistogramConfig(), per_token)
    plain, balanced = [], []
    for seed in range(1000, 1005):
        rng = np.random.default_rng(seed)
        popularity = rng.normal(size=experts)
        affinity = rng.normal(size=(topics, experts)) * 0.7
        weight = rng.normal(size=(dim, experts)) / np.sqrt(dim)
        share = np.arange(1, topics + 1) ** -0.8
        state = balancer.init(1, experts)
        loads = []
        for _ in range(2):
            topic = np.repeat(rng.choice(topics, size=tokens // 256, p=share / share.sum()), 256)
            scores = np.float32(popularity + affinity[topic] + rng.normal(size=(tokens, dim)) @ weight)
            histogram, load = observe(jnp.asarray(scores), balancer.bias(state, 1, experts)[0], balancer, per_token)
            state, _ = balancer.update(state, histogram[None], jnp.int32(tokens))
            loads.append(spread(np.asarray(load)))
            popularity = popularity + rng.normal(size=experts) * 0.01
        plain.append(loads[0])
        balanced.append(loads[1])
    assert np.mean(balanced) == pytest.approx(0.2680, abs=0.002)
    assert np.std(balanced) == pytest.approx(0.0461, abs=0.002)
    assert np.mean(plain) == pytest.approx(1.1187, abs=0.15)
