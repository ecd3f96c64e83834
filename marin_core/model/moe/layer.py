"""The mixture-of-experts layer: route, dispatch in latent space, combine, add the shared experts."""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx

from marin_core.model.config import TransformerConfig
from marin_core.model.initializers import matrix, project
from marin_core.model.moe.balance import Balancer
from marin_core.model.moe.dispatch import TransportStatistics, expert_capacity, local_transport
from marin_core.model.moe.experts import RoutedExperts, SharedExperts
from marin_core.model.moe.router import Router, Routing
from marin_core.model.norms import RMSNorm


class LayerStatistics(NamedTuple):
    """What a layer says about its routing; the transformer stacks leaves to [L, …].

    Attributes:
        transport: loads and drops.
        router_z_loss: float32, mean logsumexp² of the router's logits over valid tokens; logged, never trained on.
        margin_min, margin_max: float32, range of un-biased logit − threshold over valid tokens.
        bias_min, bias_max: float32, range of the selection bias.
        router_logits: float32 [T, E], only where asked for.
        observation: what the balancer saw; `()` where none observes.
    """

    transport: TransportStatistics
    router_z_loss: jax.Array
    margin_min: jax.Array
    margin_max: jax.Array
    bias_min: jax.Array
    bias_max: jax.Array
    router_logits: jax.Array | None
    observation: Any


class MoELayer(nnx.Module):
    """Routed experts on the latent width plus shared experts on the full width."""

    def __init__(self, config: TransformerConfig, rngs: nnx.Rngs) -> None:
        self.moe = config.moe
        d, m, std = config.d_model, config.expert_dim, config.init_std
        latent = config.moe.latent_dim is not None
        self.router = Router(config, rngs)
        self.latent_down = matrix(rngs, (d, m), std) if latent else None
        self.latent_norm = RMSNorm(m, config.norm_eps) if latent else None
        self.latent_up = matrix(rngs, (m, d), std) if latent else None
        self.experts = RoutedExperts(config, rngs)
        self.shared = SharedExperts(config, rngs) if config.moe.shared_experts else None

    def __call__(
        self,
        x: jax.Array,
        valid: jax.Array,
        selection_bias: jax.Array,
        balancer: Balancer | None,
        *,
        dropless: bool,
        keep_router_logits: bool,
    ) -> tuple[jax.Array, LayerStatistics]:
        """Apply the layer.

        Args:
            x: [T, D], normalised.
            valid: bool [T].
            selection_bias: float32 [E].
            balancer: observes this layer; None in evaluation, which must not accumulate.
            dropless: drop no assignment; a batch that overflows is dispatched again with room for all tokens at every expert.
            keep_router_logits: return them in the statistics.
        """
        moe, tokens = self.moe, x.shape[0]
        routing = self.router(x, selection_bias)
        transport_with = partial(
            local_transport, self._to_latent(x), routing.selected, routing.weights, valid, self.experts, experts=moe.experts
        )
        y, transport = transport_with(capacity=expert_capacity(tokens, moe.experts, moe.experts_per_token, moe.capacity_factor))
        if dropless:
            # Room for all tokens at every expert costs E/A times the arithmetic, so it is taken only by a batch that needs it.
            y, transport = jax.lax.cond(transport.receiver_dropped > 0, lambda: transport_with(capacity=tokens), lambda: (y, transport))
        if self.latent_up is not None:
            y = project(y, self.latent_up)
        if self.shared is not None:
            y += self.shared(x)
        observation = () if balancer is None else balancer.observe(routing, valid, selection_bias)
        return y, _statistics(routing, transport, valid, selection_bias, observation, keep_router_logits)

    def _to_latent(self, x: jax.Array) -> jax.Array:
        if self.latent_down is None or self.latent_norm is None:
            return x
        return self.latent_norm(project(x, self.latent_down))


def _statistics(
    routing: Routing, transport: TransportStatistics, valid: jax.Array, bias: jax.Array, observation: Any, keep_router_logits: bool
) -> LayerStatistics:
    logits = jax.lax.stop_gradient(routing.logits)
    margins = logits - routing.threshold[:, None]
    partition = jnp.where(valid, jax.nn.logsumexp(logits, axis=-1) ** 2, 0.0)
    return LayerStatistics(
        transport=transport,
        router_z_loss=jnp.sum(partition) / jnp.maximum(jnp.sum(valid), 1),
        margin_min=jnp.min(jnp.where(valid[:, None], margins, jnp.inf)),
        margin_max=jnp.max(jnp.where(valid[:, None], margins, -jnp.inf)),
        bias_min=jnp.min(bias),
        bias_max=jnp.max(bias),
        router_logits=logits if keep_router_logits else None,
        observation=observation,
    )
