"""The mixture-of-experts layer: route, dispatch in latent space, combine, add the shared experts."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jax.sharding import PartitionSpec as P

from marin_core.model.config import MoEConfig, TransformerConfig
from marin_core.model.feed_forward import FeedForward
from marin_core.model.initializers import matrix, project
from marin_core.model.mesh import AXES, EXPERT, RACK, mesh_size, over_shards, token_axes
from marin_core.model.moe.balance import Balancer
from marin_core.model.moe.dispatch import TransportStatistics, make_transport
from marin_core.model.moe.experts import ExpertWeights, RoutedExperts, apply_experts
from marin_core.model.moe.router import Router, Routing
from marin_core.model.norms import RMSNorm

Reduce = Callable[[jax.Array], jax.Array]


class LayerStatistics(NamedTuple):
    """What a layer says about its routing; the transformer stacks leaves to [L, …].

    Attributes:
        transport: loads and drops of all tokens.
        router_z: float32, Σ logsumexp² of the router's logits over valid tokens; logged, never trained on.
        balance_loss: float32, the balancer's part of the loss; 0 for all but `aux_loss`.
        margin_min, margin_max: float32, range of un-biased score − threshold over valid tokens.
        bias_min, bias_max: float32, range of the selection bias.
        router_logits: float32 [T, E], only where asked for.
        observation: what the balancer saw, leaves [N, …] with one entry for each of N devices; `()` where none observes.
    """

    transport: TransportStatistics
    router_z: jax.Array
    balance_loss: jax.Array
    margin_min: jax.Array
    margin_max: jax.Array
    bias_min: jax.Array
    bias_max: jax.Array
    router_logits: jax.Array | None
    observation: Any


def merge_micro_batches(statistics: LayerStatistics) -> LayerStatistics:
    """Statistics of a whole step, leaves [L, …], from those of its micro-batches, leaves [micro-batch, L, …]."""

    def gather(leaf: jax.Array) -> jax.Array:
        """[micro-batch, L, N, …] → [L, N · micro-batch, …]: the axis that lies spread over devices stays the outer one."""
        moved = jnp.moveaxis(leaf, 0, 2)
        return moved.reshape(moved.shape[0], -1, *moved.shape[3:])

    reduced = _reduce(statistics, *(partial(reduce, axis=0) for reduce in (jnp.sum, jnp.mean, jnp.min, jnp.max)))
    return reduced._replace(observation=jax.tree.map(gather, statistics.observation))


def merge_racks(statistics: LayerStatistics) -> LayerStatistics:
    """Statistics of all racks, from within `over_racks`; observations stay what each rack's devices saw."""
    return _reduce(statistics, *(partial(reduce, axis_name=RACK) for reduce in (jax.lax.psum, jax.lax.pmean, jax.lax.pmin, jax.lax.pmax)))


def _reduce(statistics: LayerStatistics, total: Reduce, mean: Reduce, least: Reduce, largest: Reduce) -> LayerStatistics:
    return LayerStatistics(
        transport=jax.tree.map(total, statistics.transport),
        router_z=total(statistics.router_z),
        balance_loss=mean(statistics.balance_loss),
        margin_min=least(statistics.margin_min),
        margin_max=largest(statistics.margin_max),
        bias_min=least(statistics.bias_min),
        bias_max=largest(statistics.bias_max),
        router_logits=None,
        observation=statistics.observation,
    )


class MoELayer(nnx.Module):
    """Routed experts on the latent width plus shared experts on the full width."""

    def __init__(self, config: TransformerConfig, moe: MoEConfig, rngs: nnx.Rngs) -> None:
        self.moe = moe
        d, m, std = config.d_model, config.expert_dim, config.init_std
        latent = moe.latent_dim is not None
        self.router = Router(moe, d, std, rngs)
        self.latent_down = matrix(rngs, (d, m), std) if latent else None
        self.latent_norm = RMSNorm(m, config.norm_eps) if latent else None
        self.latent_up = matrix(rngs, (m, d), std) if latent else None
        self.experts = RoutedExperts(moe, m, std, rngs)
        shared_width = moe.shared_experts * moe.shared_width
        self.shared = FeedForward(d, shared_width, config.activation, std, rngs) if shared_width else None

    def __call__(
        self,
        x: jax.Array,
        valid: jax.Array,
        selection_bias: jax.Array,
        step: jax.Array,
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
            step: int32 scalar; transports that must drop start at another place each step.
            balancer: observes this layer; None in evaluation, which must not accumulate.
            dropless: drop no assignment.
            keep_router_logits: return them in the statistics.
        """
        with jax.named_scope("routing"):
            routing = self.router(x, selection_bias)
        y, transport = self._dispatch(self._to_latent(x), routing, valid, step, dropless=dropless)
        if self.latent_up is not None:
            y = project(y, self.latent_up)
        if self.shared is not None:
            y += self.shared(x)
        with jax.named_scope("routing"):
            observation, balance_loss = _observe(balancer, routing, valid, selection_bias)
            statistics = _statistics(routing, transport, valid, selection_bias, observation, balance_loss, keep_router_logits)
        return y, statistics

    def _to_latent(self, x: jax.Array) -> jax.Array:
        if self.latent_down is None or self.latent_norm is None:
            return x
        return self.latent_norm(project(x, self.latent_down))

    def _dispatch(
        self, x: jax.Array, routing: Routing, valid: jax.Array, step: jax.Array, *, dropless: bool
    ) -> tuple[jax.Array, TransportStatistics]:
        """x [T, M] through each token's experts → [T, M], on every device for its own tokens; statistics of all devices together."""
        expert_devices = mesh_size(EXPERT)
        tokens = x.shape[0] // math.prod(map(mesh_size, token_axes()))
        transport = make_transport(self.moe, tokens=tokens, expert_devices=expert_devices, axis=EXPERT, dropless=dropless)

        def here(
            x: jax.Array, selected: jax.Array, weights: jax.Array, valid: jax.Array, experts: ExpertWeights, step: jax.Array
        ) -> tuple[jax.Array, TransportStatistics]:
            with jax.named_scope("dispatch"):
                y, statistics = transport(x, selected, weights, valid, partial(apply_experts, experts), step)
            return y, jax.tree.map(lambda leaf: leaf[None], statistics)

        spread = over_shards(here, in_specs=(P(AXES), P(AXES), P(AXES), P(AXES), P(EXPERT), P()), out_specs=(P(AXES), P(AXES)))
        y, statistics = spread(x, routing.selected, routing.weights, valid, self.experts.weights, step)
        return y, jax.tree.map(lambda leaf: jnp.sum(leaf, axis=0), statistics)


def _observe(balancer: Balancer | None, routing: Routing, valid: jax.Array, bias: jax.Array) -> tuple[Any, jax.Array]:
    """What the balancer sees on each device, leaves [N, …], and its part of the loss."""
    if balancer is None:
        return (), jnp.float32(0)

    def here(routing: Routing, valid: jax.Array, bias: jax.Array) -> Any:
        return jax.tree.map(lambda leaf: leaf[None], balancer.observe(routing, valid, bias))

    spread = over_shards(here, in_specs=(P(AXES), P(AXES), P()), out_specs=P(AXES))
    return spread(jax.lax.stop_gradient(routing), valid, jax.lax.stop_gradient(bias)), balancer.loss(routing, valid)


def _statistics(
    routing: Routing,
    transport: TransportStatistics,
    valid: jax.Array,
    bias: jax.Array,
    observation: Any,
    balance_loss: jax.Array,
    keep_router_logits: bool,
) -> LayerStatistics:
    logits = jax.lax.stop_gradient(routing.logits)
    margins = jax.lax.stop_gradient(routing.margins)
    partition = jnp.where(valid, jax.nn.logsumexp(logits, axis=-1) ** 2, 0.0)
    return LayerStatistics(
        transport=transport,
        router_z=jnp.sum(partition),
        balance_loss=balance_loss,
        margin_min=jnp.min(jnp.where(valid[:, None], margins, jnp.inf)),
        margin_max=jnp.max(jnp.where(valid[:, None], margins, -jnp.inf)),
        bias_min=jnp.min(bias),
        bias_max=jnp.max(bias),
        router_logits=logits if keep_router_logits else None,
        observation=observation,
    )
