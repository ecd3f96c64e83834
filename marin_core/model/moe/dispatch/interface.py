"""What a transport is, and what it tells about a layer's drops."""

from typing import NamedTuple, Protocol

import jax
import jax.numpy as jnp


class TransportStatistics(NamedTuple):
    """What happened to the assignments (token → expert pairs) of one layer; all leaves add over shards and micro-batches.

    kept + sender_dropped + receiver_dropped = valid_assignments = valid tokens · A. Each device counts the assignments of its own tokens,
    wherever they were dropped.

    Attributes:
        load: int32 [E], assignments wanted per expert, before drops.
        valid_assignments, sender_dropped, receiver_dropped, skipped_padding: int32. A sender drops what its pool for a destination
            can't hold; a receiver drops what an expert's rows can't hold.
        dropped_weight_mass: float32, combine weight of dropped assignments (each token has `combine_scale` in all).
    """

    load: jax.Array
    valid_assignments: jax.Array
    sender_dropped: jax.Array
    receiver_dropped: jax.Array
    skipped_padding: jax.Array
    dropped_weight_mass: jax.Array


class Experts(Protocol):
    """The experts of one device.

    Rows [G, R, M] of its G experts from the `first` on → the same shape; R is any static number. Without `first`, G is all of them.
    """

    def __call__(self, rows: jax.Array, first: int = 0, /) -> jax.Array: ...


class Transport(Protocol):
    """How the tokens of one device reach their experts, which may be on other devices of its rack, and come back."""

    def __call__(
        self, x: jax.Array, selected: jax.Array, weights: jax.Array, valid: jax.Array, experts_fn: Experts, step: jax.Array
    ) -> tuple[jax.Array, TransportStatistics]:
        """Compute y = Σ weight · expert(x) over each token's experts.

        A drop removes one assignment; the weights of the token's other experts are not rescaled.

        Args:
            x: [T, M], this device's tokens.
            selected: int32 [T, A], distinct experts of each token, of all E.
            weights: float32 [T, A].
            valid: bool [T]; tokens that are False go nowhere, get 0, and their x may hold anything.
            experts_fn: this device's E/N experts.
            step: int32 scalar; whatever must drop starts at another place each step.

        Returns:
            y [T, M], and what happened to this device's assignments.
        """


def count(load: jax.Array, weights: jax.Array, valid: jax.Array, sent: jax.Array, arrived: jax.Array) -> TransportStatistics:
    """The statistics of a device from the fate of each of its assignments.

    Args:
        load: int32 [E].
        weights: float32 [T, A].
        valid: bool [T].
        sent: bool [T, A], false for padding and for what the sender dropped.
        arrived: bool [T, A], at an expert; implies `sent`.
    """
    wanted = jnp.sum(load)
    lost = valid[:, None] & ~arrived
    return TransportStatistics(
        load=load,
        valid_assignments=wanted,
        sender_dropped=jnp.sum(valid[:, None] & ~sent, dtype=jnp.int32),
        receiver_dropped=jnp.sum(sent & ~arrived, dtype=jnp.int32),
        skipped_padding=jnp.int32(arrived.size) - wanted,
        dropped_weight_mass=jnp.sum(jax.lax.stop_gradient(jnp.where(lost, weights, 0.0))),
    )
