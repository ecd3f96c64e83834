"""Bring tokens to experts and back on one device: sort by expert, gather into capacity-padded rows, weigh and sum.

Backward passes of both gathers are gathers too (custom gradients): a scatter would serialise (trap T2). `ragged_dot` is not used because
XLA:CPU turns it into E dense products (trap T3).
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

Experts = Callable[[jax.Array], jax.Array]


class TransportStatistics(NamedTuple):
    """What happened to the assignments (token → expert pairs) of one layer; all leaves add over shards and micro-batches.

    kept + sender_dropped + receiver_dropped = valid_assignments = valid tokens · A.

    Attributes:
        load: int32 [E], assignments wanted per expert, before drops.
        valid_assignments, sender_dropped, receiver_dropped, skipped_padding: int32.
        dropped_weight_mass: float32, combine weight of dropped assignments (each token has `combine_scale` in all).
    """

    load: jax.Array
    valid_assignments: jax.Array
    sender_dropped: jax.Array
    receiver_dropped: jax.Array
    skipped_padding: jax.Array
    dropped_weight_mass: jax.Array


class Plan(NamedTuple):
    """Where assignments go; R = E·C rows, N = T·A assignments (assignment a is choice a mod A of token a div A).

    Attributes:
        assignment: int32 [E, C], the assignment in each row.
        filled: bool [E, C].
        row: int32 [T, A], the row of each assignment.
        kept: bool [T, A].
        load: int32 [E].
    """

    assignment: jax.Array
    filled: jax.Array
    row: jax.Array
    kept: jax.Array
    load: jax.Array


def local_transport(
    x: jax.Array, selected: jax.Array, weights: jax.Array, valid: jax.Array, experts_fn: Experts, *, experts: int, capacity: int
) -> tuple[jax.Array, TransportStatistics]:
    """Pass tokens through their experts when all experts are on this device.

    A drop removes one assignment; the weights of the token's other experts are not rescaled.

    Args:
        x: [T, M] tokens.
        selected: int32 [T, A] distinct experts of each token.
        weights: float32 [T, A].
        valid: bool [T]; tokens that are False go nowhere, get 0, and their x may hold anything.
        experts_fn: [E, C, M] rows → the same shape.
        experts: E.
        capacity: C; T or more never drops.

    Returns:
        y [T, M] = Σ weights · expert(x), and statistics.
    """
    plan = make_plan(selected, valid, experts, capacity)
    rows = gather_rows(x, plan)
    y = combine_rows(experts_fn(rows), weights.astype(jnp.float32), plan)
    wanted = jnp.sum(plan.load)
    lost = valid[:, None] & ~plan.kept
    statistics = TransportStatistics(
        load=plan.load,
        valid_assignments=wanted,
        sender_dropped=jnp.int32(0),
        receiver_dropped=jnp.sum(lost, dtype=jnp.int32),
        skipped_padding=jnp.int32(selected.size) - wanted,
        dropped_weight_mass=jnp.sum(jax.lax.stop_gradient(jnp.where(lost, weights, 0.0))),
    )
    return y, statistics


def make_plan(selected: jax.Array, valid: jax.Array, experts: int, capacity: int) -> Plan:
    """Give the first C assignments of each expert, in token order, a row."""
    tokens, per_token = selected.shape
    count = tokens * per_token
    expert = jnp.where(valid[:, None], selected, experts).reshape(count).astype(jnp.int32)
    index = jnp.arange(count, dtype=jnp.int32)
    order = jnp.argsort(expert, stable=True).astype(jnp.int32)
    load = jnp.bincount(expert, length=experts + 1).astype(jnp.int32)
    start = jnp.cumsum(load) - load
    place = jnp.zeros(count, jnp.int32).at[order].set(index, unique_indices=True)
    rank = place - start[expert]
    kept = (rank < capacity) & (expert < experts)
    slot = jnp.arange(capacity, dtype=jnp.int32)
    filled = slot < load[:experts, None]
    source = jnp.minimum(start[:experts, None] + slot, count - 1)
    return Plan(
        assignment=jnp.where(filled, order[source], 0),
        filled=filled,
        row=jnp.where(kept, expert * capacity + rank, 0).reshape(tokens, per_token),
        kept=kept.reshape(tokens, per_token),
        load=load[:experts],
    )


def _take(x: jax.Array, index: jax.Array) -> jax.Array:
    return x.at[index].get(mode="promise_in_bounds")


@jax.custom_vjp
def gather_rows(x: jax.Array, plan: Plan) -> jax.Array:
    """Rows [E, C, M] of tokens x [T, M]; unfilled rows are 0."""
    per_token = plan.row.shape[1]
    return jnp.where(plan.filled[..., None], _take(x, plan.assignment // per_token), 0)


def _gather_rows_forward(x: jax.Array, plan: Plan) -> tuple[jax.Array, Plan]:
    return gather_rows(x, plan), plan


def _gather_rows_backward(plan: Plan, d_rows: jax.Array) -> tuple[jax.Array, None]:
    flat = d_rows.reshape(-1, d_rows.shape[-1])
    return jnp.sum(jnp.where(plan.kept[..., None], _take(flat, plan.row), 0), axis=1), None


gather_rows.defvjp(_gather_rows_forward, _gather_rows_backward)


@jax.custom_vjp
def combine_rows(rows: jax.Array, weights: jax.Array, plan: Plan) -> jax.Array:
    """y [T, M] = Σ over a token's kept assignments of weight · row, summed in float32; rows [E, C, M], weights float32 [T, A]."""
    flat = rows.reshape(-1, rows.shape[-1])
    picked = _take(flat, plan.row).astype(jnp.float32)
    return jnp.sum(jnp.where(plan.kept[..., None], weights[..., None] * picked, 0), axis=1).astype(rows.dtype)


def _combine_rows_forward(rows: jax.Array, weights: jax.Array, plan: Plan) -> tuple[jax.Array, tuple[jax.Array, jax.Array, Plan]]:
    return combine_rows(rows, weights, plan), (rows, weights, plan)


def _combine_rows_backward(saved: tuple[jax.Array, jax.Array, Plan], dy: jax.Array) -> tuple[jax.Array, jax.Array, None]:
    rows, weights, plan = saved
    per_token = plan.row.shape[1]
    row_weight = _take(weights.reshape(-1), plan.assignment)
    d_rows = jnp.where(plan.filled[..., None], row_weight[..., None] * _take(dy, plan.assignment // per_token), 0).astype(rows.dtype)
    picked = _take(rows.reshape(-1, rows.shape[-1]), plan.row).astype(jnp.float32)
    d_weights = jnp.where(plan.kept, jnp.sum(picked * dy[:, None].astype(jnp.float32), axis=-1), 0)
    return d_rows, d_weights, None


combine_rows.defvjp(_combine_rows_forward, _combine_rows_backward)


def expert_capacity(tokens: int, experts: int, experts_per_token: int, capacity_factor: float) -> int:
    """Rows an expert accepts: ceil(capacity_factor · mean load), rounded up to 8, never more than all tokens."""
    rows = -(-round(capacity_factor * tokens * experts_per_token * 1_000_000) // (experts * 1_000_000))
    return min(tokens, -(-rows // 8) * 8)
