"""Leaving out updates of unlikely size: the rule of sigmas, with all it remembers as arrays, so that a resumed run decides alike."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from marin_core.errors import ConfigError
from marin_core.train.optimizers.config import SkipSpikes


class SpikeState(NamedTuple):
    """The last steps, in rings of W = `window` places.

    Attributes:
        losses, norms: float32 [W], finite losses and gradient norms; places that nothing was written to yet hold 0.
        seen: int32, steps written so far; the next one goes to place seen mod W.
        skipped_steps: int32, updates left out so far.
    """

    losses: jax.Array
    norms: jax.Array
    seen: jax.Array
    skipped_steps: jax.Array


def no_spikes(config: SkipSpikes) -> SpikeState:
    """The state before the first step."""
    return SpikeState(jnp.zeros(config.window), jnp.zeros(config.window), jnp.int32(0), jnp.int32(0))


def judge(config: SkipSpikes, state: SpikeState, loss: jax.Array | None, norm: jax.Array) -> tuple[jax.Array, SpikeState]:
    """Whether to take the update of a step (bool scalar), by its loss and gradient norm (float32 scalars); the state after it.

    Raises:
        ConfigError: there is no loss to judge.
    """
    if loss is None:
        raise ConfigError("skip_spikes judges a step by its loss, and none was given", advice="Call update(…, value=loss).")
    loss, norm = jnp.float32(loss), jnp.float32(norm)
    finite = jnp.isfinite(loss) & jnp.isfinite(norm)
    filled = jnp.arange(config.window) < state.seen
    ready = state.seen >= config.window // 2
    spike = ready & (_above(config, state.losses, filled, loss) | _above(config, state.norms, filled, norm))
    take = ~jnp.where(finite, spike, config.non_finite)

    def write(ring: jax.Array, value: jax.Array) -> jax.Array:
        return jnp.where(finite, ring.at[state.seen % config.window].set(value), ring)

    counted = state.skipped_steps + (~take).astype(jnp.int32)
    return take, SpikeState(write(state.losses, loss), write(state.norms, norm), state.seen + finite.astype(jnp.int32), counted)


def _above(config: SkipSpikes, ring: jax.Array, filled: jax.Array, value: jax.Array) -> jax.Array:
    """Whether a value lies above mean + sigmas·sd of the places that are filled (sd over n, in two passes)."""
    count = jnp.maximum(jnp.sum(filled), 1)
    mean = jnp.sum(jnp.where(filled, ring, 0)) / count
    variance = jnp.sum(jnp.where(filled, (ring - mean) ** 2, 0)) / count
    return value > mean + config.sigmas * jnp.sqrt(variance)
