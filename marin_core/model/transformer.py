"""The decoder-only transformer: embed, scan one block over the layers, norm, project to the vocabulary."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx

from marin_core.model.attention import Attention, identity_taps
from marin_core.model.config import TransformerConfig
from marin_core.model.context import SequenceContext, causal_convolution, sequence_context
from marin_core.model.initializers import matrix
from marin_core.model.moe.balance import Balancer
from marin_core.model.moe.layer import LayerStatistics, MoELayer
from marin_core.model.norms import GatedNorm

Params = dict[str, Any]
"""Nested dict of float32 arrays: the trained parameters, with blocks stacked on a leading L axis."""


class Block(nnx.Module):
    """One pre-norm block: x + attention(norm(x)), then x + moe(norm(x))."""

    def __init__(self, config: TransformerConfig, rngs: nnx.Rngs) -> None:
        kernel, d = config.short_conv_kernel, config.d_model
        self.attention_norm = GatedNorm(config, rngs)
        self.attention = Attention(config, rngs)
        self.attention_taps = identity_taps(kernel, d) if kernel else None
        self.moe_norm = GatedNorm(config, rngs)
        self.moe = MoELayer(config, rngs)
        self.moe_taps = identity_taps(kernel, d) if kernel else None

    def __call__(
        self, x: jax.Array, layer: "LayerInputs", context: SequenceContext, balancer: Balancer | None, **options: bool
    ) -> tuple[jax.Array, LayerStatistics]:
        """x [B, S, D] → [B, S, D]; `layer` holds this layer's traced scalars and selection bias."""
        y = self.attention(self.attention_norm(x), layer.is_global, context)
        x += y if self.attention_taps is None else causal_convolution(y, self.attention_taps[...], context.lags)
        rows = self.moe_norm(x).reshape(-1, x.shape[-1])
        y, statistics = self.moe(rows, context.valid.reshape(-1), layer.selection_bias, balancer, **options)
        y = y.reshape(x.shape)
        x += y if self.moe_taps is None else causal_convolution(y, self.moe_taps[...], context.lags)
        return x, statistics


class LayerInputs(NamedTuple):
    """What differs between layers besides parameters, stacked over L: is_global bool [L], selection_bias float32 [L, E]."""

    is_global: jax.Array
    selection_bias: jax.Array


class Transformer(nnx.Module):
    """The model. Parameters are float32; activations have `config.compute_dtype`."""

    def __init__(self, config: TransformerConfig, *, rngs: nnx.Rngs) -> None:
        self.config = config
        self.embedding = matrix(rngs, (config.vocab_size, config.d_model), config.init_std)
        self.embedding_norm = GatedNorm(config, rngs)
        make_blocks = nnx.split_rngs(splits=config.layers)(nnx.vmap(lambda layer_rngs: Block(config, layer_rngs)))
        self.blocks = make_blocks(rngs)  # type: ignore[no-untyped-call]
        self.final_norm = GatedNorm(config, rngs)
        self.head = matrix(rngs, (config.d_model, config.vocab_size), config.init_std)

    def __call__(
        self,
        tokens: jax.Array,
        segment_ids: jax.Array,
        selection_bias: jax.Array,
        balancer: Balancer | None = None,
        *,
        dropless: bool = False,
        keep_router_logits: bool = False,
    ) -> tuple[jax.Array, LayerStatistics]:
        """Compute the states from which the next token is predicted.

        Args:
            tokens: int32 [B, S], S ≤ max_sequence_length.
            segment_ids: int32 [B, S]; tokens see only their own segment; negative = padding.
            selection_bias: float32 [L, E], from the balancer; zeros = plain top-k.
            balancer: observes every layer (training); None accumulates nothing (evaluation).
            dropless: never drop an assignment (evaluation).
            keep_router_logits: return float32 [L, T, E] logits in the statistics.

        Returns:
            Hidden states [B, S, D], normalised, and statistics stacked over L.
        """
        config = self.config
        context = sequence_context(config, segment_ids)
        x = self.embedding[...].at[tokens].get(mode="clip").astype(config.compute_dtype)
        x = self.embedding_norm(x)
        graphdef, stacked = nnx.split(self.blocks)
        layers = LayerInputs(jnp.asarray(config.global_layers), selection_bias)

        def body(x: jax.Array, inputs: tuple[Any, LayerInputs]) -> tuple[jax.Array, LayerStatistics]:
            parameters, layer = inputs
            block = nnx.merge(graphdef, parameters)
            return block(x, layer, context, balancer, dropless=dropless, keep_router_logits=keep_router_logits)

        # The backward pass recomputes each block: storing its insides costs more in memory traffic than it saves in arithmetic.
        x, statistics = jax.lax.scan(jax.checkpoint(body, prevent_cse=False), x, (stacked, layers))
        return self.final_norm(x), statistics

    def logits(self, hidden: jax.Array) -> jax.Array:
        """Hidden states [..., D] → float32 [..., V]."""
        return project_to_vocabulary(hidden, self.head[...])


def project_to_vocabulary(hidden: jax.Array, head: jax.Array) -> jax.Array:
    """hidden [..., D] · head float32 [D, V] → float32 [..., V]."""
    return jnp.einsum("...d,dv->...v", hidden, head.astype(hidden.dtype), preferred_element_type=jnp.float32)


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
