"""Balancers: keep experts equally loaded by a selection bias that lives outside the trained parameters.

A balancer observes each layer and micro-batch with leaves that add, and updates its state once an optimizer step. All methods are pure.
"""

from typing import Any, Protocol

import jax
import jax.numpy as jnp

from marin_core.model.config import MoEConfig, QuantileHistogramConfig
from marin_core.model.moe.router import Routing

BalancerState = dict[str, jax.Array]


class Balancer(Protocol):
    """How a selection bias comes about; L layers, E experts, A experts a token."""

    def init(self, layers: int, experts: int) -> BalancerState:
        """A state of float32 leaves."""

    def bias(self, state: BalancerState, layers: int, experts: int) -> jax.Array:
        """float32 [L, E] added to logits for selection; sums to 0 over experts."""

    def observe(self, routing: Routing, valid: jax.Array, bias: jax.Array) -> Any:
        """What one layer contributes: leaves that add over micro-batches and shards. valid is bool [T], bias float32 [E]."""

    def update(self, state: BalancerState, observed: Any, valid_tokens: jax.Array) -> tuple[BalancerState, dict[str, jax.Array]]:
        """The state of the next step from observations summed over the step and stacked [L, …], and metrics of int32 or float32 [L]."""


def make_balancer(moe: MoEConfig) -> Balancer:
    """The balancer that a configuration names."""
    if isinstance(moe.balancer, QuantileHistogramConfig):
        return QuantileHistogram(moe.balancer, moe.experts_per_token)
    return NoBalancer()


class NoBalancer:
    """Plain top-k."""

    def init(self, layers: int, experts: int) -> BalancerState:
        return {}

    def bias(self, state: BalancerState, layers: int, experts: int) -> jax.Array:
        return jnp.zeros((layers, experts), jnp.float32)

    def observe(self, routing: Routing, valid: jax.Array, bias: jax.Array) -> Any:
        return ()

    def update(self, state: BalancerState, observed: Any, valid_tokens: jax.Array) -> tuple[BalancerState, dict[str, jax.Array]]:
        return state, {}


class QuantileHistogram:
    """Solve for the bias once a step: β_e is the margin that the target share A/E of tokens reaches (arXiv 2502.15451; `spec/moe.md` §2.4).

    A margin is a token's un-biased logit for an expert minus the token's threshold. Margins are counted in `bins` bins on a range
    frozen from the bias in force, so counts of micro-batches and shards add exactly and no minimum or maximum needs to travel.
    State: `pending_beta` float32 [L, E], found on one step and applied on the next.
    """

    def __init__(self, config: QuantileHistogramConfig, experts_per_token: int) -> None:
        self.bins = config.bins
        self.pad = config.pad
        self.experts_per_token = experts_per_token

    def init(self, layers: int, experts: int) -> BalancerState:
        return {"pending_beta": jnp.zeros((layers, experts), jnp.float32)}

    def bias(self, state: BalancerState, layers: int, experts: int) -> jax.Array:
        beta = jax.lax.stop_gradient(state["pending_beta"])
        return jnp.mean(beta, axis=-1, keepdims=True) - beta

    def observe(self, routing: Routing, valid: jax.Array, bias: jax.Array) -> jax.Array:
        """int32 [E, bins]: for each expert, how many valid tokens have their margin in each bin."""
        margins = jax.lax.stop_gradient(routing.logits - routing.threshold[:, None])
        experts = margins.shape[1]
        low, width = self._range(bias)
        counted = valid[:, None] & jnp.isfinite(margins)
        position = jnp.floor((jnp.where(counted, margins, low) - low) / width)
        bin_index = jnp.clip(position, 0, self.bins - 1).astype(jnp.int32)
        # Margins that don't count go to a cell past the end, which bincount drops (trap T5).
        cell = jnp.where(counted, jnp.arange(experts, dtype=jnp.int32) * self.bins + bin_index, experts * self.bins)
        return jnp.bincount(cell.reshape(-1), length=experts * self.bins).astype(jnp.int32).reshape(experts, self.bins)

    def update(self, state: BalancerState, observed: jax.Array, valid_tokens: jax.Array) -> tuple[BalancerState, dict[str, jax.Array]]:
        layers, experts, bins = observed.shape
        low, width = self._range(self.bias(state, layers, experts))  # [L, 1] each
        target = valid_tokens.astype(jnp.float32) * (self.experts_per_token / experts)
        # Cumulate in int32: counts of a large run are not exact in float32 (trap T8).
        reached = jax.lax.cumsum(observed, axis=2, reverse=True)
        last = jnp.maximum(jnp.sum(reached >= target, axis=-1, dtype=jnp.int32) - 1, 0)  # [L, E]
        surplus = jnp.take_along_axis(reached, last[..., None], axis=-1)[..., 0].astype(jnp.float32) - target
        inside = jnp.take_along_axis(observed, last[..., None], axis=-1)[..., 0]
        beta = low + last * width + width * surplus / jnp.maximum(inside, 1)
        solved = (reached[..., 0] > 0) & (valid_tokens > 0)
        beta = jnp.where(solved, beta, state["pending_beta"])
        saturated = solved & ((last == 0) | (last == bins - 1))
        return {"pending_beta": beta}, {"saturated_experts": jnp.sum(saturated, axis=-1, dtype=jnp.int32)}

    def _range(self, bias: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Lower end and bin width of the histogram for a bias [..., E]; margins of expert e concentrate at −bias[e]."""
        keepdims = bias.ndim > 1
        low = -jnp.max(bias, axis=-1, keepdims=keepdims) - self.pad
        high = -jnp.min(bias, axis=-1, keepdims=keepdims) + self.pad
        return low, (high - low) / self.bins
