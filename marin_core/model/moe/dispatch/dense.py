"""Every device sees all tokens of its rack and runs its own experts on all of them: nothing can drop.

The reference for the other transports, and what evaluation takes where experts are spread. It moves N·T·M values to each device and does
E/A times the arithmetic (25.8 GB a layer and device at the size of a large run): for small ones.
"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp

from marin_core.model.moe.dispatch.interface import Experts, TransportStatistics, count
from marin_core.model.moe.dispatch.rows import load_of


@dataclass(frozen=True)
class DenseTransport:
    """All-gather, every local expert on every token, a weighted sum, and a reduce-scatter; `axis` has N `devices`."""

    experts: int
    devices: int
    axis: str

    def __call__(
        self, x: jax.Array, selected: jax.Array, weights: jax.Array, valid: jax.Array, experts_fn: Experts, step: jax.Array
    ) -> tuple[jax.Array, TransportStatistics]:
        here = self.experts // self.devices
        # Before the gather: another device's padding may hold anything, and anything times 0 is not 0.
        clean = jnp.where(valid[:, None], x, 0)
        expert, load = load_of(selected, valid, self.experts)
        weights = weights.astype(jnp.float32)
        tokens, experts, shares = (jax.lax.all_gather(each, self.axis, tiled=True) for each in (clean, expert, weights))
        mine = jax.lax.axis_index(self.axis) * here + jnp.arange(here, dtype=jnp.int32)
        share = jnp.sum(jnp.where(experts[..., None] == mine, shares[..., None], 0), axis=1)  # [N·T, E/N]
        rows = experts_fn(jnp.broadcast_to(tokens, (here, *tokens.shape)))
        part = jnp.einsum("te,etm->tm", share, rows.astype(jnp.float32), precision=jax.lax.Precision.HIGHEST)
        y = jax.lax.psum_scatter(part, self.axis, scatter_dimension=0, tiled=True)
        sent = jnp.broadcast_to(valid[:, None], selected.shape)
        return y.astype(x.dtype), count(load, weights, valid, sent, sent)
