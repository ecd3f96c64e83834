"""What every layer of one forward pass shares: who may see whom, and rotary angles."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from marin_core.model.config import TransformerConfig


class SequenceContext(NamedTuple):
    """Computed once before the layer scan; S here may be shorter than the model's longest context.

    Nothing here grows with S²: attention builds the part of its mask that it needs where it needs it (`visible_keys`).

    Attributes:
        segment_ids: int32 [B, S].
        lags: bool [B, S, taps]; whether the token j places back exists and is of the same segment (j = 0 is the token itself).
        cos, sin: float32 [S, rope_dims / 2].
        valid: bool [B, S]; a negative segment id marks padding, which is routed nowhere and counted nowhere.
    """

    segment_ids: jax.Array
    lags: jax.Array
    cos: jax.Array
    sin: jax.Array
    valid: jax.Array


def sequence_context(config: TransformerConfig, segment_ids: jax.Array) -> SequenceContext:
    """Build the context of int32 [B, S] segment ids."""
    length = segment_ids.shape[1]
    position = jnp.arange(length, dtype=jnp.int32)
    lags = [segment_ids == _delay(segment_ids, lag, fill=-2) for lag in range(config.short_conv_kernel)]
    lags = [present & (position >= lag)[None, :] for lag, present in enumerate(lags)]
    pair = jnp.arange(config.rope_dims // 2, dtype=jnp.float32)
    angle = position[:, None].astype(jnp.float32) * config.rope_theta ** (-2.0 * pair / config.rope_dims)
    return SequenceContext(
        segment_ids=segment_ids,
        lags=jnp.stack(lags, axis=-1) if lags else jnp.zeros((*segment_ids.shape, 0), bool),
        cos=jnp.cos(angle),
        sin=jnp.sin(angle),
        valid=segment_ids >= 0,
    )


def visible_keys(
    query_segments: jax.Array, key_segments: jax.Array, first_query: jax.Array | int, first_key: jax.Array | int, reach: jax.Array | int
) -> jax.Array:
    """Which keys a query sees: those of its own segment that are not later, and less than `reach` tokens back.

    Args:
        query_segments, key_segments: int32 [B, Q] and [B, N], of consecutive tokens.
        first_query, first_key: int32, positions of the first of each.
        reach: int32, at least 1: a query sees itself.

    Returns:
        bool [B, Q, N].
    """
    queries = first_query + jnp.arange(query_segments.shape[1], dtype=jnp.int32)
    keys = first_key + jnp.arange(key_segments.shape[1], dtype=jnp.int32)
    distance = queries[:, None] - keys[None, :]
    return (query_segments[:, :, None] == key_segments[:, None, :]) & (distance >= 0) & (distance < reach)


def _delay(x: jax.Array, lag: int, fill: int) -> jax.Array:
    """x [B, S] moved `lag` places later; the first `lag` places hold `fill`."""
    return jnp.pad(x, ((0, 0), (lag, 0)), constant_values=fill)[:, : x.shape[1]]


@jax.custom_vjp
def causal_convolution(x: jax.Array, taps: jax.Array, lags: jax.Array) -> jax.Array:
    """Depthwise causal convolution within segments: y[s] = Σ_j taps[j]·x[s − j].

    The gradient is written out, because transposed slices and selects cost XLA:CPU several times the forward pass.

    Args:
        x: [B, S, D].
        taps: float32 [taps, D]; tap j weighs the token j places back.
        lags: bool [B, S, taps] of `SequenceContext`.
    """
    reach = taps.shape[0] - 1
    padded = jnp.pad(x, ((0, 0), (reach, 0), (0, 0)))
    present, weights = lags.astype(x.dtype), taps.astype(x.dtype)
    terms = [_window(padded, reach - lag, x) * present[:, :, lag, None] * weights[lag] for lag in range(reach + 1)]
    return sum(terms[1:], start=terms[0])


def _convolution_forward(x: jax.Array, taps: jax.Array, lags: jax.Array) -> tuple[jax.Array, tuple[jax.Array, jax.Array, jax.Array]]:
    return causal_convolution(x, taps, lags), (x, taps, lags)


def _convolution_backward(saved: tuple[jax.Array, jax.Array, jax.Array], dy: jax.Array) -> tuple[jax.Array, jax.Array, None]:
    x, taps, lags = saved
    # The barrier keeps XLA:CPU from computing what produces x and dy anew for every tap.
    x, dy = jax.lax.optimization_barrier((x, dy))
    reach = taps.shape[0] - 1
    present, weights = lags.astype(x.dtype), taps.astype(x.dtype)
    padded_dy = jnp.pad(dy, ((0, 0), (0, reach), (0, 0)))
    padded_present = jnp.pad(present, ((0, 0), (0, reach), (0, 0)))
    terms = [_window(padded_dy, lag, x) * _window(padded_present, lag, x)[:, :, lag, None] * weights[lag] for lag in range(reach + 1)]
    padded_x = jnp.pad(x, ((0, 0), (reach, 0), (0, 0)))
    d_taps = [
        jnp.sum((_window(padded_x, reach - lag, x) * present[:, :, lag, None] * dy).astype(jnp.float32), axis=(0, 1))
        for lag in range(reach + 1)
    ]
    return sum(terms[1:], start=terms[0]), jnp.stack(d_taps), None


causal_convolution.defvjp(_convolution_forward, _convolution_backward)


def _window(padded: jax.Array, start: int, like: jax.Array) -> jax.Array:
    """As many places of padded [B, S + reach, ...] as `like` has, from `start` on."""
    return jax.lax.slice_in_dim(padded, start, start + like.shape[1], axis=1)


def rotate(x: jax.Array, context: SequenceContext) -> jax.Array:
    """Turn the first 2·cos.shape[1] dimensions of x [B, S, H, K] by their position.

    Pairs are interleaved, (0, 1), (2, 3), …; weights made for split halves need reordering (trap T9).
    """
    dims, rest = 2 * context.cos.shape[-1], x.shape[-1] - 2 * context.cos.shape[-1]
    cos = jnp.pad(jnp.repeat(context.cos, 2, axis=-1), ((0, 0), (0, rest)), constant_values=1.0)[:, None, :].astype(x.dtype)
    sin = jnp.pad(jnp.repeat(context.sin, 2, axis=-1), ((0, 0), (0, rest)))[:, None, :].astype(x.dtype)
    # (x₀, x₁) → (−x₁, x₀) as a product with a constant: exact, and several times quicker on CPU than strided slices and their gradient.
    pairs = np.arange(0, dims, 2)
    swap = np.zeros((x.shape[-1], x.shape[-1]), np.float32)
    swap[pairs + 1, pairs], swap[pairs, pairs + 1] = -1.0, 1.0
    return x * cos + jnp.dot(x, jnp.asarray(swap, x.dtype), precision=jax.lax.Precision.HIGHEST) * sin
