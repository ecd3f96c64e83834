"""The decoder-only transformer: embed, scan one block over the layers, norm, project to the vocabulary."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx

from marin_core.model.attention import Attention, identity_taps
from marin_core.model.config import TransformerConfig
from marin_core.model.context import SequenceContext, causal_convolution, sequence_context
from marin_core.model.feed_forward import FeedForward
from marin_core.model.initializers import matrix
from marin_core.model.mesh import spread_tokens
from marin_core.model.moe.balance import Balancer
from marin_core.model.moe.layer import LayerStatistics, MoELayer
from marin_core.model.norms import GatedNorm, RMSNorm

Params = dict[str, Any]
"""Nested dict of float32 arrays: the trained parameters, with blocks stacked on a leading L axis."""


class Block(nnx.Module):
    """One pre-norm block: x + attention(norm(x)), then x + feed_forward(norm(x)); a branch may end in a convolution or a norm."""

    def __init__(self, config: TransformerConfig, rngs: nnx.Rngs) -> None:
        kernel, d = config.short_conv_kernel, config.d_model
        self.attention_norm = GatedNorm(config, rngs)
        self.attention = Attention(config, rngs)
        self.attention_taps = identity_taps(kernel, d) if kernel else None
        self.attention_post_norm = RMSNorm(d, config.norm_eps) if config.post_norms else None
        self.feed_forward_norm = GatedNorm(config, rngs)
        self.feed_forward: MoELayer | FeedForward
        if config.moe is not None:
            self.feed_forward = MoELayer(config, config.moe, rngs)
        else:
            self.feed_forward = FeedForward(d, config.feed_forward_width or 0, config.activation, config.init_std, rngs)
        self.feed_forward_taps = identity_taps(kernel, d) if kernel else None
        self.feed_forward_post_norm = RMSNorm(d, config.norm_eps) if config.post_norms else None

    def __call__(
        self, x: jax.Array, layer: "LayerInputs", context: SequenceContext, step: jax.Array, balancer: Balancer | None, **options: bool
    ) -> tuple[jax.Array, LayerStatistics | None]:
        """x [B, S, D] → [B, S, D]; `layer` holds this layer's traced scalars and selection bias."""
        with jax.named_scope("attention"):  # names of parts, for profiles
            y = self.attention(self.attention_norm(x), layer.is_global, context)
            x += _finish(y, self.attention_taps, self.attention_post_norm, context)
        statistics = None
        with jax.named_scope("feed_forward"):
            y = self.feed_forward_norm(x)
            if isinstance(self.feed_forward, MoELayer):
                rows, valid = y.reshape(-1, x.shape[-1]), context.valid.reshape(-1)
                rows, statistics = self.feed_forward(rows, valid, layer.selection_bias, step, balancer, **options)
                y = rows.reshape(x.shape)
            else:
                y = self.feed_forward(y)
            x += _finish(y, self.feed_forward_taps, self.feed_forward_post_norm, context)
        return spread_tokens(x), statistics


def _finish(y: jax.Array, taps: nnx.Param[jax.Array] | None, norm: RMSNorm | None, context: SequenceContext) -> jax.Array:
    """The end of a branch y [B, S, D]."""
    if taps is not None:
        y = causal_convolution(y, taps[...], context.lags)
    return y if norm is None else norm(y)


def _recomputed[**A, R](config: TransformerConfig, body: Callable[A, R]) -> Callable[A, R]:
    """A block that keeps as little for the backward pass as the configuration says.

    In a loop nothing can be merged across its steps anyway; without one XLA must be kept from undoing it.
    """
    if config.recompute == "nothing":
        return body
    policy = jax.checkpoint_policies.dots_with_no_batch_dims_saveable if config.recompute == "all_but_projections" else None
    return jax.checkpoint(body, prevent_cse=not config.scan_layers, policy=policy)


class LayerInputs(NamedTuple):
    """What differs between layers besides parameters, stacked over L: is_global bool [L], selection_bias float32 [L, E]."""

    is_global: jax.Array
    selection_bias: jax.Array


class Transformer(nnx.Module):
    """The model. Parameters are float32; activations have `config.compute_dtype`."""

    def __init__(self, config: TransformerConfig, *, rngs: nnx.Rngs) -> None:
        self.config = config
        self.embedding = matrix(rngs, (config.vocab_size, config.d_model), config.init_std)
        self.embedding_norm = GatedNorm(config, rngs) if config.embedding_norm else None
        make_blocks = nnx.split_rngs(splits=config.layers)(nnx.vmap(lambda layer_rngs: Block(config, layer_rngs)))
        self.blocks = make_blocks(rngs)  # type: ignore[no-untyped-call]
        self.final_norm = GatedNorm(config, rngs)
        self.output = None if config.tied_head else matrix(rngs, (config.d_model, config.vocab_size), config.init_std)

    @property
    def head(self) -> jax.Array:
        """float32 [D, V]."""
        return self.embedding[...].T if self.output is None else self.output[...]

    def __call__(
        self,
        tokens: jax.Array,
        segment_ids: jax.Array,
        selection_bias: jax.Array,
        balancer: Balancer | None = None,
        step: jax.Array | int = 0,
        *,
        dropless: bool = False,
        keep_router_logits: bool = False,
    ) -> tuple[jax.Array, LayerStatistics | None]:
        """Compute the states from which the next token is predicted.

        Args:
            tokens: int32 [B, S], S ≤ max_sequence_length.
            segment_ids: int32 [B, S]; tokens see only their own segment; negative = padding.
            selection_bias: float32 [L, E], from the balancer; zeros = plain top-k.
            balancer: observes every layer (training); None accumulates nothing (evaluation).
            step: int32, completed updates: transports that must drop start at another place each step.
            dropless: never drop an assignment (evaluation).
            keep_router_logits: return float32 [L, T, E] logits in the statistics.

        Returns:
            Hidden states [B, S, D], normalised, and statistics stacked over L; None of a dense model.
        """
        config = self.config
        context = sequence_context(config, segment_ids)
        x = spread_tokens(self.embedding[...].at[tokens].get(mode="clip").astype(config.compute_dtype))
        if config.embedding_scale:
            x *= jnp.asarray(config.d_model**0.5, x.dtype)
        if self.embedding_norm is not None:
            x = self.embedding_norm(x)
        step = jnp.asarray(step, jnp.int32)
        graphdef, stacked = nnx.split(self.blocks)
        layers = LayerInputs(jnp.asarray(config.global_layers), selection_bias)

        def body(x: jax.Array, inputs: tuple[Any, LayerInputs]) -> tuple[jax.Array, LayerStatistics | None]:
            parameters, layer = inputs
            block = nnx.merge(graphdef, parameters)
            return block(x, layer, context, step, balancer, dropless=dropless, keep_router_logits=keep_router_logits)

        x, statistics = jax.lax.scan(_recomputed(config, body), x, (stacked, layers), unroll=1 if config.scan_layers else config.layers)
        return self.final_norm(x), statistics

    def logits(self, hidden: jax.Array) -> jax.Array:
        """Hidden states [..., D] → float32 [..., V]."""
        return project_to_vocabulary(hidden, self.head, self.config.logit_soft_cap)


def project_to_vocabulary(hidden: jax.Array, head: jax.Array, soft_cap: float | None = None) -> jax.Array:
    """hidden [..., D] · head float32 [D, V] → float32 [..., V], held within ±soft_cap by a tanh where there is one."""
    logits = jnp.einsum("...d,dv->...v", hidden, head.astype(hidden.dtype), preferred_element_type=jnp.float32)
    return logits if soft_cap is None else soft_cap * jnp.tanh(logits / soft_cap)


class SplitTransformer:
    """The model as a pure function of its parameters, for jitted code that must not pay NNX's Python cost each step."""

    def __init__(self, config: TransformerConfig) -> None:
        self.config = config
        self._graphdef, self._abstract = nnx.split(nnx.eval_shape(lambda: Transformer(config, rngs=nnx.Rngs(0))))

    def init(self, key: jax.Array) -> Params:
        """Fresh parameters from a PRNG key."""
        model = Transformer(self.config, rngs=nnx.Rngs(key))
        return nnx.to_pure_dict(nnx.state(model))

    def bind(self, params: Params) -> Transformer:
        """The module with these parameters."""
        state = jax.tree.map(lambda leaf: leaf, self._abstract)
        nnx.replace_by_pure_dict(state, params)
        return nnx.merge(self._graphdef, state)
