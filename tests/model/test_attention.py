"""Attention against the float64 reference, in blocks against whole, and what it costs in memory."""

import re
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from marin_core.model.attention import Attention, attend, attend_in_blocks, exclude_own_value
from marin_core.model.context import causal_convolution, sequence_context, visible_keys
from marin_core.model.mesh import make_mesh, spread_tokens
from marin_core.model.presets import moe_tiny
from tests.model import reference

CONFIG = moe_tiny(d_model=16, heads=4, head_dim=8, local_kv_heads=2, global_kv_heads=1, window=3, max_sequence_length=10)
QUICK: dict[str, Any] = {"xla_backend_optimization_level": 0}
SEGMENTS = np.asarray([[0] * 10, [0, 0, 0, 0, 1, 1, 1, 1, 2, 2]], np.int32)


@pytest.fixture(scope="module")
def layer() -> Attention:
    module = Attention(CONFIG, nnx.Rngs(0))
    rng = np.random.default_rng(0)
    for name in ("head_gate", "key_taps", "w_q", "w_k", "w_v", "w_o"):
        variable = getattr(module, name)
        variable[...] = jnp.asarray(rng.normal(size=variable[...].shape) * 0.3, jnp.float32)
    return module


@pytest.mark.parametrize("is_global", [False, True])
def test_attention_equals_the_float64_reference(layer: Attention, is_global: bool) -> None:
    x = np.random.default_rng(1).normal(size=(2, 10, 16)).astype(np.float32)
    weights = {name: np.asarray(getattr(layer, name)[...], np.float64) for name in ("head_gate", "key_taps", "w_q", "w_k", "w_v", "w_o")}
    graphdef, state = nnx.split(layer)
    apply = jax.jit(lambda s, x, g: nnx.merge(graphdef, s)(x, g, sequence_context(CONFIG, jnp.asarray(SEGMENTS))), compiler_options=QUICK)
    ours = apply(state, x, is_global)
    for row in range(2):
        expected = reference.attention(CONFIG, weights, x[row].astype(np.float64), SEGMENTS[row], is_global=is_global)
        np.testing.assert_allclose(np.asarray(ours[row]), expected, atol=2e-6)


def test_the_written_out_gradient_of_the_convolution_is_the_automatic_one() -> None:
    rng = np.random.default_rng(0)
    x, taps, dy = (jnp.asarray(rng.normal(size=shape), jnp.float32) for shape in ((2, 10, 6), (4, 6), (2, 10, 6)))
    lags = sequence_context(CONFIG, jnp.asarray(SEGMENTS)).lags

    def plain(x: jax.Array, taps: jax.Array) -> jax.Array:
        shifted = [jnp.pad(x, ((0, 0), (lag, 0), (0, 0)))[:, : x.shape[1]] for lag in range(4)]
        return sum((shifted[lag] * lags[:, :, lag, None] * taps[lag] for lag in range(1, 4)), start=shifted[0] * taps[0])

    value, pull = jax.vjp(lambda x, taps: causal_convolution(x, taps, lags), x, taps)
    expected, expected_pull = jax.vjp(plain, x, taps)
    np.testing.assert_allclose(value, expected, atol=1e-6)
    for ours, theirs in zip(pull(dy), expected_pull(dy), strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-5)


def heads(queries: int, keys: int, groups: int, dtype: Any = jnp.float32) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Random q [2, Q, 4, 8] and k, v [2, N, G, 8]."""
    rng = np.random.default_rng(4)
    shapes = ((2, queries, 4, 8), (2, keys, groups, 8), (2, keys, groups, 8))
    q, k, v = (jnp.asarray(rng.normal(size=shape), dtype) for shape in shapes)
    return q, k, v


def test_shared_heads_are_the_same_as_repeated_ones() -> None:
    q, k, v = heads(10, 10, groups=2)
    visible = visible_keys(jnp.asarray(SEGMENTS), jnp.asarray(SEGMENTS), 0, 0, 10)
    repeated_k, repeated_v = jnp.repeat(k, 2, axis=2), jnp.repeat(v, 2, axis=2)
    apply, exclude = jax.jit(attend, compiler_options=QUICK), jax.jit(exclude_own_value, compiler_options=QUICK)
    np.testing.assert_allclose(apply(q, k, v, visible), apply(q, repeated_k, repeated_v, visible), atol=1e-6)
    np.testing.assert_allclose(exclude(q, v), exclude(q, repeated_v), atol=1e-6)


@pytest.mark.parametrize("first_query", [0, 3, 8])
def test_a_part_of_the_mask_is_cut_from_the_whole(first_query: int) -> None:
    segments = jnp.asarray(SEGMENTS)
    whole = visible_keys(segments, segments, 0, 0, 3)
    part = visible_keys(segments[:, first_query : first_query + 2], segments[:, 1:9], first_query, 1, 3)
    np.testing.assert_array_equal(part, whole[:, first_query : first_query + 2, 1:9])
    np.testing.assert_array_equal(whole[1, 5], [t in (4, 5) for t in range(10)])


@pytest.mark.parametrize(("block", "reach", "soft_cap"), [(4, 10, 2.0), (3, 3, None), (5, 1, None), (1, 10, None)])
def test_blocks_change_neither_values_nor_gradients(block: int, reach: int, soft_cap: float | None) -> None:
    """Blocks that divide the sequence or not, windows narrower and wider than a block, segments that end inside one."""
    q, k, v = heads(10, 10, groups=2)
    segments, dy = jnp.asarray(SEGMENTS), jnp.asarray(np.random.default_rng(6).normal(size=q.shape), jnp.float32)

    def whole(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
        return attend(q, k, v, visible_keys(segments, segments, 0, 0, reach), soft_cap)

    def in_blocks(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
        return attend_in_blocks(q, k, v, segments, block=block, reach=reach, soft_cap=soft_cap)

    def value_and_gradients(function: Any) -> tuple[jax.Array, ...]:
        value, pull = jax.vjp(function, q, k, v)
        return (value, *pull(dy))

    ours, theirs = jax.jit(lambda: (value_and_gradients(in_blocks), value_and_gradients(whole)), compiler_options=QUICK)()
    for found, expected in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(found, expected, atol=5e-6)


def test_gradients_of_keys_are_summed_over_blocks_in_float32() -> None:
    """512 blocks that each add a little to one key: sums in bfloat16 would stop growing."""
    length = 512
    q, k, v = heads(length, length, groups=4, dtype=jnp.bfloat16)
    segments = jnp.zeros((2, length), jnp.int32)

    def total(v: jax.Array, block: int) -> jax.Array:
        return jnp.sum(attend_in_blocks(0 * q, k, v, segments, block=block, reach=length).astype(jnp.float32))

    gradient = jax.jit(jax.grad(total), static_argnums=1, compiler_options=QUICK)(v, 1).astype(jnp.float32)[0, 0, 0, 0]
    # Equal weights: query s gives each key it sees 1/(s + 1).
    assert float(gradient) == pytest.approx(np.sum(1 / np.arange(1, length + 1)), rel=0.01)


@pytest.mark.parametrize(("reach", "keys"), [(1024, 1024), (96, 127)])
def test_no_array_grows_with_the_square_of_the_sequence(reach: int, keys: int) -> None:
    """Forward and backward: the largest thing is one block's scores, over no more keys than its queries can see."""
    length, block = 1024, 32
    q, k, v = (jax.ShapeDtypeStruct((1, length, 2, 4), jnp.float32),) * 3
    segments = jax.ShapeDtypeStruct((1, length), jnp.int32)

    def total(q: jax.Array, k: jax.Array, v: jax.Array, segments: jax.Array) -> jax.Array:
        return jnp.sum(attend_in_blocks(q, k, v, segments, block=block, reach=reach) ** 2)

    jaxpr = jax.make_jaxpr(jax.grad(total, argnums=(0, 1, 2)))(q, k, v, segments)
    sizes = {variable.aval.size for equation in every_equation(jaxpr.jaxpr) for variable in equation.outvars}
    assert max(sizes) == max(2 * block * keys, length * 2 * 4)


def every_equation(jaxpr: Any) -> Iterator[Any]:
    """The equations of a jaxpr and of all that it calls."""
    for equation in jaxpr.eqns:
        yield equation
        for value in jax.tree.leaves(list(equation.params.values()), is_leaf=lambda leaf: hasattr(leaf, "eqns") or hasattr(leaf, "jaxpr")):
            inner = getattr(value, "jaxpr", value)
            if hasattr(inner, "eqns"):
                yield from every_equation(inner)


def test_blocks_need_no_communication_where_sequences_are_spread_over_devices() -> None:
    q, k, v = (jnp.ones((8, 16, 4, 8)) for _ in range(3))
    segments = jnp.zeros((8, 16), jnp.int32)

    def total(*inputs: jax.Array) -> tuple[jax.Array, ...]:
        def of(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
            return attend_in_blocks(q, k, v, spread_tokens(segments), block=4, reach=6)

        y, pull = jax.vjp(of, *(spread_tokens(x) for x in inputs))
        return tuple(spread_tokens(x) for x in (y, *pull(y)))

    with jax.set_mesh(make_mesh(2, 4)):
        text = str(jax.jit(total, compiler_options=QUICK).lower(q, k, v).compile().as_text())
    assert "while(" in text
    assert not re.findall(r"(?:all-\w+|reduce-scatter|collective-\w+)(?:-start)?\(", text)
