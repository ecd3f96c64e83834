"""Balancers that look at loads alone, and none at all."""

from typing import Any

import jax
import jax.numpy as jnp

from marin_core.model.config import AuxiliaryLossConfig, LossFreeConfig
from marin_core.model.moe.balance.interface import BalancerMetrics, BalancerState
from marin_core.model.moe.router import Routing


class NoBalancer:
    """Plain top-k."""

    def init(self, layers: int, experts: int) -> BalancerState:
        return {}

    def bias(self, state: BalancerState, layers: int, experts: int) -> jax.Array:
        return jnp.zeros((layers, experts), jnp.float32)

    def observe(self, routing: Routing, valid: jax.Array, bias: jax.Array) -> Any:
        return ()

    def loss(self, routing: Routing, valid: jax.Array) -> jax.Array:
        return jnp.float32(0)

    def update(self, state: BalancerState, observed: Any, valid_tokens: jax.Array) -> tuple[BalancerState, BalancerMetrics]:
        return state, {}


class AuxiliaryLoss(NoBalancer):
    """Plain top-k with a loss that grows with imbalance: weight·E·Σ f_e·P_e (Switch, arXiv 2101.03961, eq. 4).

    f_e is the share of tokens that chose expert e, P_e the mean probability that softmax gives it. Both are taken over the tokens of
    all devices; f has no gradient. With A experts a token Σ f_e = A, so perfect balance costs weight·A, as marin #8506 logs it.
    """

    def __init__(self, config: AuxiliaryLossConfig) -> None:
        self.weight = config.weight

    def loss(self, routing: Routing, valid: jax.Array) -> jax.Array:
        experts = routing.logits.shape[1]
        tokens = jnp.maximum(jnp.sum(valid), 1).astype(jnp.float32)
        # Masked before softmax as well: its derivative at NaN is NaN, and 0·NaN would reach the router's weight.
        probability = jax.nn.softmax(jnp.where(valid[:, None], routing.logits, 0.0), axis=-1)
        mean_probability = jnp.sum(jnp.where(valid[:, None], probability, 0.0), axis=0) / tokens
        share = _load(routing, valid).astype(jnp.float32) / tokens
        return self.weight * experts * jnp.sum(jax.lax.stop_gradient(share) * mean_probability)


class LossFree:
    """An integrator: each step the bias of an expert below the mean load rises by `step_size`, of one above it falls (arXiv 2408.15664).

    State: `bias` float32 [L, E], centred after each step so that it stays small and fine-grained.
    """

    def __init__(self, config: LossFreeConfig) -> None:
        self.step_size = config.step_size

    def init(self, layers: int, experts: int) -> BalancerState:
        return {"bias": jnp.zeros((layers, experts), jnp.float32)}

    def bias(self, state: BalancerState, layers: int, experts: int) -> jax.Array:
        return jax.lax.stop_gradient(state["bias"])

    def observe(self, routing: Routing, valid: jax.Array, bias: jax.Array) -> jax.Array:
        """int32 [E]: assignments of valid tokens to each expert."""
        return _load(routing, valid)

    def loss(self, routing: Routing, valid: jax.Array) -> jax.Array:
        return jnp.float32(0)

    def update(self, state: BalancerState, observed: jax.Array, valid_tokens: jax.Array) -> tuple[BalancerState, BalancerMetrics]:
        load = jnp.sum(observed, axis=1).astype(jnp.float32)
        moved = state["bias"] + self.step_size * jnp.sign(jnp.mean(load, axis=-1, keepdims=True) - load)
        centred = moved - jnp.mean(moved, axis=-1, keepdims=True)
        return {"bias": jnp.where(valid_tokens > 0, centred, state["bias"])}, {}


def _load(routing: Routing, valid: jax.Array) -> jax.Array:
    """int32 [E]. A sum of one-hot rows would take hundreds of times as long (trap T2)."""
    experts = routing.logits.shape[1]
    # Padding counts for a cell past the end, which bincount drops.
    chosen = jnp.where(valid[:, None], routing.selected, experts)
    return jnp.bincount(chosen.reshape(-1), length=experts).astype(jnp.int32)
