"""All experts on this device: sort by expert, gather into capacity-padded rows, weigh and sum.

`ragged_dot` is not used because XLA:CPU turns it into E dense products (trap T3).
"""

from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp

from marin_core.model.config import MoEConfig
from marin_core.model.moe.dispatch.interface import Experts, TransportStatistics, count
from marin_core.model.moe.dispatch.rows import Plan, combine_rows, gather_rows, load_of, rank_by_group


@dataclass(frozen=True)
class LocalTransport:
    """`local_transport` with the capacity of a configuration."""

    moe: MoEConfig
    tokens: int
    dropless: bool

    def __call__(
        self, x: jax.Array, selected: jax.Array, weights: jax.Array, valid: jax.Array, experts_fn: Experts, step: jax.Array
    ) -> tuple[jax.Array, TransportStatistics]:
        moe = self.moe
        transport_with = partial(local_transport, x, selected, weights, valid, experts_fn, experts=moe.experts)
        y, statistics = transport_with(capacity=expert_capacity(self.tokens, moe.experts, moe.experts_per_token, moe.capacity_factor))
        if self.dropless:
            # Room for all tokens at every expert costs E/A times the arithmetic, so it is taken only by a batch that needs it.
            fits = statistics.receiver_dropped == 0
            y, statistics = jax.lax.cond(fits, lambda: (y, statistics), lambda: transport_with(capacity=self.tokens))
        return y, statistics


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
    plan, load = make_plan(selected, valid, experts, capacity)
    rows = experts_fn(gather_rows(x, plan))
    y = combine_rows(rows, weights.astype(jnp.float32), plan).astype(x.dtype)
    sent = jnp.broadcast_to(valid[:, None], plan.kept.shape)
    return y, count(load, weights, valid, sent, plan.kept)


def make_plan(selected: jax.Array, valid: jax.Array, experts: int, capacity: int) -> tuple[Plan, jax.Array]:
    """Give the first C assignments of each expert, in token order, a row; and int32 [E], the assignments of each expert."""
    expert, load = load_of(selected, valid, experts)
    ranking = rank_by_group(expert, load)
    kept = (ranking.rank < capacity) & (expert < experts)
    slot = jnp.arange(capacity, dtype=jnp.int32)
    filled = slot < load[:, None]
    plan = Plan(
        assignment=jnp.where(filled, ranking.at(ranking.start[:, None] + slot), 0),
        filled=filled,
        row=jnp.where(kept, expert * capacity + ranking.rank, 0),
        kept=kept,
    )
    return plan, load


def expert_capacity(tokens: int, experts: int, experts_per_token: int, capacity_factor: float) -> int:
    """Rows an expert accepts: ceil(capacity_factor · mean load), rounded up to 8, never more than all tokens."""
    rows = share_rows(tokens * experts_per_token, experts, capacity_factor)
    return min(tokens, -(-rows // 8) * 8)


def share_rows(rows: int, parts: int, capacity_factor: float) -> int:
    """ceil(capacity_factor · rows / parts), exact for factors of up to six decimals, whose products with floats would not be."""
    return -(-round(capacity_factor * 1_000_000) * rows // (parts * 1_000_000))
