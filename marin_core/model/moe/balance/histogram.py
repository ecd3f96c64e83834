"""The default balancer: the quantile of all tokens from counts, which add over devices and micro-batches without loss."""

from typing import Any

import jax
import jax.numpy as jnp

from marin_core.model.config import QuantileHistogramConfig
from marin_core.model.mesh import AXES, has_mesh
from marin_core.model.moe.balance.interface import BalancerMetrics, BalancerState
from marin_core.model.moe.balance.quantiles import QuantileSolver, counted_margins, target_load
from marin_core.model.moe.router import Routing

NARROWEST_RANGE = 1e-6
"""Of a live range, in units of the scores: when all margins are the same, bins still have a width."""


class QuantileHistogram(QuantileSolver):
    """Count margins in bins, sum the counts of all devices and micro-batches, read β off the sum (`spec/moe.md` §2.4).

    The range of the bins is *frozen*: it follows from the bias in force, margins of expert e concentrate at −bias_e, so counts of
    all contributions mean the same and their sum, one int32 reduction of [L, E, bins] a step, is the only communication. An expert
    whose β lies in an end bin is saturated; as the range follows β, it opens by `pad` on the next step.

    A *live* range is that of the margins themselves. It takes two scalar reductions in each layer and micro-batch, and one outlier
    makes all bins wide (trap T5): Marin's estimator, with `bins` = 10,000.
    """

    def __init__(self, config: QuantileHistogramConfig, experts_per_token: int) -> None:
        super().__init__(experts_per_token, config.ema)
        self.bins = config.bins
        self.pad = config.pad or (1.0 if config.score_space == "sigmoid" else 4.0)
        self.live = config.margin_range == "live"

    def observe(self, routing: Routing, valid: jax.Array, bias: jax.Array) -> dict[str, jax.Array]:
        """`counts` int32 [E, bins]: how many tokens have their margin for an expert in a bin; `low`, `high` float32 of a live range."""
        margins, counted = counted_margins(routing, valid)
        if not self.live:
            return {"counts": self._count(margins, counted, *self._frozen_range(bias))}
        low = jnp.min(jnp.where(counted, margins, jnp.inf))
        high = jnp.max(jnp.where(counted, margins, -jnp.inf))
        if has_mesh():
            low, high = jax.lax.pmin(low, AXES), jax.lax.pmax(high, AXES)
        return {"counts": self._count(margins, counted, *_never_empty(low, high)), "low": low, "high": high}

    def update(
        self, state: BalancerState, observed: dict[str, jax.Array], valid_tokens: jax.Array
    ) -> tuple[BalancerState, BalancerMetrics]:
        if self.live:
            reached, low, high = self._reached_on_the_joint_range(**observed)
        else:
            counts = jnp.sum(observed["counts"], axis=1)  # the only communication of a step
            reached = _count_from_above(counts)
            low, high = self._frozen_range(self.bias(state, *counts.shape[:2]))
        beta, last_bin = self._invert(reached, low, high, valid_tokens)
        solved = (reached[..., 0] > 0) & (valid_tokens > 0)
        saturated = solved & ((last_bin == 0) | (last_bin == self.bins - 1))
        return self._advance(state, beta, solved), {"saturated_experts": jnp.sum(saturated, axis=-1, dtype=jnp.int32)}

    def _frozen_range(self, bias: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Ends of the histogram, scalars for a bias [E] and [L] for [L, E]."""
        return -jnp.max(bias, axis=-1) - self.pad, -jnp.min(bias, axis=-1) + self.pad

    def _count(self, margins: jax.Array, counted: jax.Array, low: jax.Array, high: jax.Array) -> jax.Array:
        """int32 [E, bins] of margins [T, E]; those beyond the range go to its end bins."""
        experts = margins.shape[1]
        position = jnp.floor((jnp.where(counted, margins, low) - low) / ((high - low) / self.bins))
        bin_index = jnp.clip(position, 0, self.bins - 1).astype(jnp.int32)
        # Margins that don't count go to a cell past the end, which bincount drops.
        cell = jnp.where(counted, jnp.arange(experts, dtype=jnp.int32) * self.bins + bin_index, experts * self.bins)
        return jnp.bincount(cell.reshape(-1), length=experts * self.bins).astype(jnp.int32).reshape(experts, self.bins)

    def _invert(self, reached: jax.Array, low: jax.Array, high: jax.Array, valid_tokens: jax.Array) -> tuple[jax.Array, jax.Array]:
        """β [L, E] and its bin [L, E]: the last bin that the target load still reaches, and linearly within it.

        Args:
            reached: int32 [L, E, bins], margins in a bin and in all above it.
            low, high: float32 [L], the range.
            valid_tokens: int32 scalar.
        """
        target = target_load(valid_tokens, self.experts_per_token, reached.shape[1])
        enough = reached >= target.whole + (target.rest > 0)
        last = jnp.maximum(jnp.sum(enough, axis=-1, dtype=jnp.int32) - 1, 0)
        from_here = jnp.take_along_axis(reached, last[..., None], axis=-1)[..., 0]
        from_next = jnp.take_along_axis(jnp.pad(reached, ((0, 0), (0, 0), (0, 1))), last[..., None] + 1, axis=-1)[..., 0]
        surplus = (from_here - target.whole).astype(jnp.float32) - target.rest
        # Below 0 where so many margins of an expert don't count that the target load isn't reached at all.
        part = jnp.clip(surplus / jnp.maximum(from_here - from_next, 1), 0.0, 1.0)
        width = ((high - low) / self.bins)[:, None]
        return low[:, None] + width * (last + part), last

    def _reached_on_the_joint_range(self, counts: jax.Array, low: jax.Array, high: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        """`reached` [L, E, bins] of contributions with ranges of their own, and their common range.

        Each contribution's counts [L, N, E, bins] are read at its edge that is nearest to the common one: exact where all ranges are the
        same, as on the devices of one micro-batch, and half a bin off at most where micro-batches differ.
        """
        joint_low, joint_high = _never_empty(jnp.min(low, axis=1), jnp.max(high, axis=1))
        steps = jnp.arange(self.bins, dtype=jnp.float32)
        edges = joint_low[:, None, None] + ((joint_high - joint_low) / self.bins)[:, None, None] * steps
        own_low, own_high = _never_empty(low, high)
        own_edge = jnp.round((edges - own_low[..., None]) / ((own_high - own_low) / self.bins)[..., None])
        index = jnp.clip(own_edge, 0, self.bins).astype(jnp.int32)[:, :, None, :]
        reached = jnp.pad(_count_from_above(counts), ((0, 0), (0, 0), (0, 0), (0, 1)))
        return jnp.sum(jnp.take_along_axis(reached, index, axis=-1), axis=1), joint_low, joint_high


def _count_from_above(counts: Any) -> jax.Array:
    """Counts of a bin and of all above it. In int32: those of a large run are not exact in float32 (trap T8)."""
    return jax.lax.cumsum(counts, axis=counts.ndim - 1, reverse=True)


def _never_empty(low: jax.Array, high: jax.Array) -> tuple[jax.Array, jax.Array]:
    """A range that has a width, also where no margin counts and its ends are +inf and −inf."""
    found = low <= high
    low = jnp.where(found, low, 0.0)
    return low, jnp.maximum(jnp.where(found, high, 1.0), low + NARROWEST_RANGE)
