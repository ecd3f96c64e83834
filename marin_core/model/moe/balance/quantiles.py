"""Quantile balancing: solve for the bias once a step instead of nudging it (arXiv 2502.15451, kexue.fm/archives/11619; `spec/moe.md` §2).

Routing every token to A experts and the same number of tokens to every expert is a linear program. Its dual has a threshold α_i for each
token, the score of its first expert that is not chosen, and a price β_e for each expert: the margin score − α that just the share A/E
of all tokens reaches. Top-k of score − β is the balanced routing. One step of the solve takes α from routing under the bias in force,
finds β, and leaves it for the next step: bias = mean(β) − β.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from marin_core.model.config import LocalQuantilesConfig, QuantileExactConfig
from marin_core.model.moe.balance.interface import BalancerMetrics, BalancerState
from marin_core.model.moe.router import Routing


class QuantileSolver:
    """What quantile balancers share: β found on one step is applied on the next, smoothed where asked for.

    State: `pending_beta` float32 [L, E]; with smoothing also `found` float32 [L, E], 1 where there is a β to smooth with.
    """

    def __init__(self, experts_per_token: int, ema: float = 0.0) -> None:
        self.experts_per_token = experts_per_token
        self.ema = ema

    def init(self, layers: int, experts: int) -> BalancerState:
        names = ("pending_beta", "found") if self.ema else ("pending_beta",)
        return {name: jnp.zeros((layers, experts), jnp.float32) for name in names}

    def bias(self, state: BalancerState, layers: int, experts: int) -> jax.Array:
        beta = jax.lax.stop_gradient(state["pending_beta"])
        return jnp.mean(beta, axis=-1, keepdims=True) - beta

    def loss(self, routing: Routing, valid: jax.Array) -> jax.Array:
        return jnp.float32(0)

    def _advance(self, state: BalancerState, beta: jax.Array, solved: jax.Array) -> BalancerState:
        """The next state from β [L, E], which is looked at only where `solved` [L, E]."""
        # Thresholds were taken under the centred bias, so an old β compares with the new ones only after centring.
        old = -self.bias(state, *beta.shape)
        if self.ema:
            beta = jnp.where(state["found"] > 0, self.ema * old + (1 - self.ema) * beta, beta)
        moved = jnp.where(solved, beta, old)
        any_solved = jnp.any(solved, axis=-1, keepdims=True)
        after = {"pending_beta": jnp.where(any_solved, moved, state["pending_beta"])}
        if self.ema:
            after["found"] = jnp.where(solved, 1.0, state["found"])
        return after


class QuantileExact(QuantileSolver):
    """β is the r-th largest of all margins, r = round(valid tokens·A/E), half to even. It gathers them: for tests and small runs."""

    def __init__(self, config: QuantileExactConfig, experts_per_token: int) -> None:
        super().__init__(experts_per_token, config.ema)

    def observe(self, routing: Routing, valid: jax.Array, bias: jax.Array) -> jax.Array:
        """float32 [E, T]: margins; −inf for those that don't count, which are so the last of all."""
        return _ranked_margins(routing, valid)

    def update(self, state: BalancerState, observed: jax.Array, valid_tokens: jax.Array) -> tuple[BalancerState, BalancerMetrics]:
        layers, contributions, experts, tokens = observed.shape
        margins = jnp.moveaxis(observed, 1, 2).reshape(layers, experts, contributions * tokens)
        target = target_load(valid_tokens, self.experts_per_token, experts)
        round_up = (target.rest > 0.5) | ((target.rest == 0.5) & (target.whole % 2 == 1))
        rank = jnp.maximum(target.whole + round_up, 1)
        beta = _nth_largest(margins, rank, self.experts_per_token)
        return self._advance(state, beta, jnp.isfinite(beta) & (valid_tokens > 0)), {}


class LocalQuantiles(QuantileSolver):
    """β is the mean over contributions of each one's own quantile, weighted by its valid tokens (marin #7279); for comparison.

    It is not the quantile of all tokens: where a device sees few topics its experts' margins are not those of others, and below E/A valid
    tokens a device's quantile is its largest margin.
    """

    def __init__(self, config: LocalQuantilesConfig, experts_per_token: int) -> None:
        super().__init__(experts_per_token)

    def observe(self, routing: Routing, valid: jax.Array, bias: jax.Array) -> dict[str, jax.Array]:
        """float32 [E]: the ⌊valid·A/E⌋-th largest margin (the first if that is 0), and its weight, 0 where there is none."""
        margins = _ranked_margins(routing, valid)
        tokens = jnp.sum(valid, dtype=jnp.int32)
        target = target_load(tokens, self.experts_per_token, margins.shape[0])
        beta = _nth_largest(margins, jnp.maximum(target.whole, 1), self.experts_per_token)
        found = jnp.isfinite(beta)
        return {"beta": jnp.where(found, beta, 0.0), "weight": jnp.where(found, tokens.astype(jnp.float32), 0.0)}

    def update(
        self, state: BalancerState, observed: dict[str, jax.Array], valid_tokens: jax.Array
    ) -> tuple[BalancerState, BalancerMetrics]:
        weight = jnp.sum(observed["weight"], axis=1)
        total = jnp.sum(observed["beta"] * observed["weight"], axis=1)
        return self._advance(state, total / jnp.maximum(weight, 1.0), weight > 0), {}


class TargetLoad(NamedTuple):
    """Tokens·A/E, exactly: `whole` int32 plus `rest` float32 in [0, 1)."""

    whole: jax.Array
    rest: jax.Array


def target_load(tokens: jax.Array, experts_per_token: int, experts: int) -> TargetLoad:
    """The load of each expert in balance. tokens·A must stay below 2³¹; float32 would round it from 2²⁴ on (trap T8)."""
    whole, rest = jnp.divmod(tokens * jnp.int32(experts_per_token), jnp.int32(experts))
    return TargetLoad(whole, rest.astype(jnp.float32) / experts)


def counted_margins(routing: Routing, valid: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Margins float32 [T, E] without gradient, and which of them count, bool [T, E].

    One that is not finite says nothing, and would destroy a quantile or a range (trap T5).
    """
    margins = jax.lax.stop_gradient(routing.margins)
    return margins, valid[:, None] & jnp.isfinite(margins)


def _ranked_margins(routing: Routing, valid: jax.Array) -> jax.Array:
    """float32 [E, T], with −inf in place of margins that don't count."""
    margins, counted = counted_margins(routing, valid)
    return jnp.where(counted, margins, -jnp.inf).T


def _nth_largest(margins: jax.Array, rank: jax.Array, experts_per_token: int) -> jax.Array:
    """The rank-th largest (from 1) along the last axis of [..., E, T], where rank is at most the target load of T tokens, rounded up."""
    experts, tokens = margins.shape[-2:]
    most = max(1, -(-tokens * experts_per_token // experts))
    # With the barrier XLA:CPU finds the largest instead of sorting all (trap T1).
    largest, _ = jax.lax.optimization_barrier(jax.lax.top_k(margins, most))
    nth: jax.Array = jax.lax.dynamic_index_in_dim(largest, rank - 1, axis=-1, keepdims=False)
    return nth
