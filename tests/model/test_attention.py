"""Attention against a float64 NumPy reference that is written position by position."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
import pytest
from flax import nnx

from marin_core.model.attention import Attention
from marin_core.model.config import TransformerConfig, moe_tiny
from marin_core.model.context import causal_convolution, sequence_context

Array = npt.NDArray[Any]
CONFIG = moe_tiny(d_model=16, heads=4, head_dim=8, local_kv_heads=2, global_kv_heads=1, window=3, max_sequence_length=10)
QUICK: dict[str, Any] = {"xla_backend_optimization_level": 0}
SEGMENTS = np.asarray([[0] * 10, [0, 0, 0, 0, 1, 1, 1, 1, 2, 2]], np.int32)


def reference(config: TransformerConfig, weights: dict[str, Array], x: Array, segments: Array, *, is_global: bool) -> Array:
    """The layer for one sequence x [S, D] in float64."""
    w = {name: value.astype(np.float64) for name, value in weights.items()}
    length, heads, width = x.shape[0], config.heads, config.head_dim
    keys = np.zeros((length, config.kv_heads * width))
    for s in range(length):
        for lag in range(min(config.short_conv_kernel, s + 1)):
            if segments[s - lag] == segments[s]:
                keys[s] += w["key_taps"][lag] * (x[s - lag] @ w["w_k"])

    def head(vector: Array, index: int, position: int, mult: float) -> Array:
        part = vector[index * width : (index + 1) * width]
        part = mult * part / np.sqrt(np.mean(part**2) + config.qk_norm_eps)
        if not is_global:
            part = part.copy()
            for pair in range(config.rope_dims // 2):
                angle = position * config.rope_theta ** (-2 * pair / config.rope_dims)
                turn = np.asarray([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
                part[2 * pair : 2 * pair + 2] = turn @ part[2 * pair : 2 * pair + 2]
        return np.asarray(part)

    kv_heads = config.global_kv_heads if is_global else config.local_kv_heads
    out = np.zeros((length, heads * width))
    for s in range(length):
        reach = length if is_global else config.window
        seen = [t for t in range(s + 1) if segments[t] == segments[s] and s - t < reach]
        for h in range(heads):
            g = h // (heads // kv_heads)
            query = head(x[s] @ w["w_q"], h, s, config.qk_mult)
            scores = np.asarray([query @ head(keys[t], g, t, 1.0) for t in seen]) / np.sqrt(width)
            share = np.exp(scores - scores.max())
            values = np.stack([(x[t] @ w["w_v"])[g * width : (g + 1) * width] for t in seen])
            y, own = share / share.sum() @ values, values[-1]
            y = y - own * (y @ own) / (own @ own + 1e-6)
            out[s, h * width : (h + 1) * width] = y * 2 / (1 + np.exp(-(x[s] @ w["head_gate"])[h]))
    return np.asarray(out @ w["w_o"])


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
    weights = {name: np.asarray(getattr(layer, name)[...]) for name in ("head_gate", "key_taps", "w_q", "w_k", "w_v", "w_o")}
    graphdef, state = nnx.split(layer)
    apply = jax.jit(lambda s, x, g: nnx.merge(graphdef, s)(x, g, sequence_context(CONFIG, jnp.asarray(SEGMENTS))), compiler_options=QUICK)
    ours = apply(state, x, is_global)
    for row in range(2):
        expected = reference(CONFIG, weights, x[row].astype(np.float64), SEGMENTS[row], is_global=is_global)
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
