"""Router, dispatch and experts against dense references; drops are counted, padding goes nowhere."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from marin_core.model.moe.dispatch import TransportStatistics, expert_capacity, local_transport
from marin_core.model.moe.router import select_experts

T, M, F, E, A = 40, 6, 5, 8, 3
RNG = np.random.default_rng(0)
X = jnp.asarray(RNG.normal(size=(T, M)), jnp.float32)
W1, W2 = (jnp.asarray(RNG.normal(size=shape), jnp.float32) for shape in ((E, M, F), (E, F, M)))
LOGITS = jnp.asarray(RNG.normal(size=(T, E)) + np.linspace(-1, 1, E), jnp.float32)
BIAS = jnp.asarray(RNG.normal(size=E) * 0.5, jnp.float32)
ALL = jnp.ones(T, bool)


def apply(w1: jax.Array, w2: jax.Array, rows: jax.Array, first: int = 0) -> jax.Array:
    assert first == 0
    return jnp.einsum("ecf,efm->ecm", jnp.tanh(jnp.einsum("ecm,emf->ecf", rows, w1)), w2)


experts_fn = partial(apply, W1, W2)


def dense(x: jax.Array, weights: jax.Array, w1: jax.Array, w2: jax.Array, selected: jax.Array) -> jax.Array:
    """Every expert on every token, then the weighted choice."""
    outputs = apply(w1, w2, jnp.broadcast_to(x, (E, *x.shape)))
    chosen = jax.nn.one_hot(selected, E)
    return jnp.einsum("tae,ta,etm->tm", chosen, weights, outputs)


def transport(capacity: int, valid: jax.Array = ALL, x: jax.Array = X) -> tuple[jax.Array, TransportStatistics]:
    routing = select_experts(LOGITS, BIAS, A, 2.5)
    return local_transport(x, routing.selected, routing.weights, valid, experts_fn, experts=E, capacity=capacity)


def test_router_equals_the_float64_reference() -> None:
    routing = select_experts(LOGITS, BIAS, A, 2.5)
    logits, bias = np.asarray(LOGITS, np.float64), np.asarray(BIAS, np.float64)
    order = np.argsort(-(logits + bias), axis=1)
    gates = 1 / (1 + np.exp(-np.take_along_axis(logits, order[:, :A], axis=1)))
    np.testing.assert_array_equal(routing.selected, order[:, :A])
    np.testing.assert_allclose(routing.weights, 2.5 * gates / gates.sum(axis=1, keepdims=True), rtol=1e-6)
    np.testing.assert_allclose(routing.threshold, np.take_along_axis(logits + bias, order[:, A : A + 1], axis=1)[:, 0], rtol=1e-6)


def test_combine_weights_sum_to_the_scale() -> None:
    weights = select_experts(LOGITS, BIAS, A, 2.5).weights
    np.testing.assert_allclose(weights.sum(axis=1), 2.5, rtol=1e-6)


def test_the_selection_bias_gets_no_gradient_and_logits_do() -> None:
    def loss(logits: jax.Array, bias: jax.Array) -> jax.Array:
        routing = select_experts(logits, bias, A, 2.5)
        y, _ = local_transport(X, routing.selected, routing.weights, ALL, experts_fn, experts=E, capacity=T)
        return jnp.sum(y**2)

    d_logits, d_bias = jax.grad(loss, argnums=(0, 1))(LOGITS, BIAS)
    assert np.all(np.asarray(d_bias) == 0)
    assert np.any(np.asarray(d_logits) != 0)


def test_dropless_dispatch_and_its_gradients_equal_the_dense_reference() -> None:
    routing = select_experts(LOGITS, BIAS, A, 2.5)

    def ours(x: jax.Array, weights: jax.Array, w1: jax.Array, w2: jax.Array) -> jax.Array:
        y, _ = local_transport(x, routing.selected, weights, ALL, partial(apply, w1, w2), experts=E, capacity=T)
        return y

    arguments = (X, routing.weights, W1, W2)
    value, pull = jax.vjp(ours, *arguments)
    expected, expected_pull = jax.vjp(lambda x, w, w1, w2: dense(x, w, w1, w2, routing.selected), *arguments)
    np.testing.assert_allclose(value, expected, atol=1e-5)
    dy = jnp.asarray(RNG.normal(size=value.shape), jnp.float32)
    for mine, theirs in zip(pull(dy), expected_pull(dy), strict=True):
        np.testing.assert_allclose(mine, theirs, atol=2e-5)


def test_dropped_assignments_lose_exactly_their_term_and_are_counted() -> None:
    capacity = 8
    routing = select_experts(LOGITS, BIAS, A, 2.5)
    selected, weights = np.asarray(routing.selected), np.asarray(routing.weights)
    kept = np.zeros((T, A), bool)
    used = np.zeros(E, int)
    for token in range(T):
        for choice in range(A):
            expert = selected[token, choice]
            kept[token, choice] = used[expert] < capacity
            used[expert] += 1
    y, statistics = transport(capacity)
    np.testing.assert_allclose(y, dense(X, jnp.asarray(np.where(kept, weights, 0)), W1, W2, routing.selected), atol=1e-5)
    np.testing.assert_array_equal(statistics.load, used)
    assert 0 < int(statistics.receiver_dropped) == int((~kept).sum())
    assert int(statistics.valid_assignments) == T * A == kept.sum() + int(statistics.receiver_dropped) + int(statistics.sender_dropped)
    np.testing.assert_allclose(statistics.dropped_weight_mass, weights[~kept].sum(), rtol=1e-5)


def test_padding_reaches_neither_outputs_nor_gradients_nor_counts() -> None:
    valid = jnp.arange(T) % 4 != 1
    poisoned = jnp.where(valid[:, None], X, jnp.nan)
    value, pull, statistics = jax.vjp(lambda x: transport(T, valid, x), poisoned, has_aux=True)
    clean, clean_pull, _ = jax.vjp(lambda x: transport(T, valid, x), X, has_aux=True)
    np.testing.assert_array_equal(value, clean)
    np.testing.assert_array_equal(value[~valid], 0)
    np.testing.assert_array_equal(pull(jnp.ones_like(value))[0], clean_pull(jnp.ones_like(value))[0])
    assert int(statistics.valid_assignments) == int(statistics.load.sum()) == 30 * A
    assert int(statistics.skipped_padding) == 10 * A
    assert int(statistics.receiver_dropped) == 0


def test_permuting_tokens_permutes_outputs_when_nothing_drops() -> None:
    order = RNG.permutation(T)
    routing = select_experts(LOGITS[order], BIAS, A, 2.5)
    y, _ = local_transport(X[order], routing.selected, routing.weights, ALL, experts_fn, experts=E, capacity=T)
    np.testing.assert_allclose(y, transport(T)[0][order], atol=1e-6)


@pytest.mark.parametrize(("factor", "rows"), [(1.0, 512), (1.15, 592), (1.25, 640), (100.0, 4096)])
def test_capacity_is_the_mean_load_times_the_factor(factor: float, rows: int) -> None:
    assert expert_capacity(4096, 16, 2, factor) == rows
