"""The naive ways to bring tokens to experts, as peers of the transports: one-hot products, and `ragged_dot`."""

import jax
import jax.numpy as jnp

from marin_core.model.moe.dispatch import Experts
from marin_core.model.moe.experts import ExpertWeights


def one_hot_dispatch(
    x: jax.Array, selected: jax.Array, weights: jax.Array, experts_fn: Experts, *, experts: int, capacity: int, axis: str | None = None
) -> tuple[jax.Array, jax.Array]:
    """Dispatch and combine as products with a [T, E, C] mask (arXiv 2006.16668), between devices with two all-to-alls.

    Args:
        x: [T, M].
        selected: int32 [T, A].
        weights: float32 [T, A].
        experts_fn: this device's experts.
        experts: E.
        capacity: C, rows that one device may send to an expert.
        axis: that experts are spread over; None: they are all here.

    Returns:
        y [T, M], and the share of this device's combine weight that was dropped, float32.
    """
    chosen = jax.nn.one_hot(selected, experts, dtype=jnp.int32)  # [T, A, E]
    before = (jnp.cumsum(chosen.reshape(-1, experts), axis=0) - 1).reshape(chosen.shape)
    rank = jnp.sum(chosen * before, axis=-1)  # [T, A]
    # A rank past the end has no slot: its row of the one-hot is all 0.
    slot = jnp.einsum("tae,tac->taec", chosen.astype(x.dtype), jax.nn.one_hot(rank, capacity, dtype=x.dtype))
    combine = jnp.einsum("taec,ta->tec", slot, weights)
    rows = jnp.einsum("taec,tm->ecm", slot, x)
    if axis is not None:
        rows = jax.lax.all_to_all(rows, axis, split_axis=0, concat_axis=1, tiled=True)
    rows = experts_fn(rows)
    if axis is not None:
        rows = jax.lax.all_to_all(rows, axis, split_axis=1, concat_axis=0, tiled=True)
    dropped = jnp.sum(jnp.where(rank >= capacity, weights, 0)) / jnp.sum(weights)
    return jnp.einsum("tec,ecm->tm", combine, rows), dropped


def ragged_dot_dispatch(
    x: jax.Array, selected: jax.Array, weights: jax.Array, experts: ExpertWeights, *, count: int
) -> tuple[jax.Array, jax.Array]:
    """Sort by expert and multiply group by group: dropless, on one device."""
    per_token = selected.shape[1]
    order = jnp.argsort(selected.reshape(-1))
    sizes = jnp.bincount(selected.reshape(-1), length=count).astype(jnp.int32)
    rows = x[order // per_token]
    hidden = jax.nn.silu(jax.lax.ragged_dot(rows, experts.gate, sizes)) * jax.lax.ragged_dot(rows, experts.up, sizes)
    results = jax.lax.ragged_dot(hidden, experts.down, sizes) * weights.reshape(-1)[order, None]
    return jnp.zeros_like(x).at[order // per_token].add(results), jnp.float32(0)
