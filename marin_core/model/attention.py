"""Causal attention over a sliding window or the whole context, chosen by a traced scalar so that all layers share one program."""

from functools import partial

import jax
import jax.numpy as jnp
from flax import nnx

from marin_core.model.config import TransformerConfig
from marin_core.model.context import SequenceContext, causal_convolution, rotate, visible_keys
from marin_core.model.initializers import matrix, project, zeros
from marin_core.model.norms import RMSNorm, rms_normalize


def identity_taps(kernel: int, width: int) -> nnx.Param[jax.Array]:
    """Taps [kernel, width] of a convolution that starts as the identity."""
    return nnx.Param(jnp.zeros((kernel, width), jnp.float32).at[0].set(1.0))


class Attention(nnx.Module):
    """Grouped-query attention with QK-norm, rotary positions, self-value exclusion, head gates and a short convolution on keys."""

    def __init__(self, config: TransformerConfig, rngs: nnx.Rngs) -> None:
        self.config = config
        d, heads, kv = config.d_model, config.heads * config.head_dim, config.kv_heads * config.head_dim
        self.w_q = matrix(rngs, (d, heads), config.init_std)
        self.w_k = matrix(rngs, (d, kv), config.init_std)
        self.w_v = matrix(rngs, (d, kv), config.init_std)
        self.w_o = matrix(rngs, (heads, d), config.init_std)
        self.query_norm = RMSNorm(config.head_dim, config.qk_norm_eps) if config.qk_norm_gain else None
        self.key_norm = RMSNorm(config.head_dim, config.qk_norm_eps) if config.qk_norm_gain else None
        self.head_gate = zeros((d, config.heads)) if config.head_gate else None
        self.key_taps = identity_taps(config.short_conv_kernel, kv) if config.short_conv_kernel else None

    def __call__(self, x: jax.Array, is_global: jax.Array, context: SequenceContext) -> jax.Array:
        """Attend.

        Args:
            x: [B, S, D], normalised.
            is_global: bool scalar; False = sliding window.
            context: of the same B and S.

        Returns:
            [B, S, D].
        """
        c = self.config
        batch, length, _ = x.shape
        q, k, v = self._heads(x, is_global, context)
        own_v = self._shared(v, is_global)
        if c.attention_block is None or c.attention_block >= length:
            reach = jnp.where(is_global, length, c.window)
            visible = visible_keys(context.segment_ids, context.segment_ids, 0, 0, reach)
            y = attend(q, self._shared(k, is_global), own_v, visible, c.attention_soft_cap)
        else:
            y = self._attend_in_blocks(q, k, v, is_global, context.segment_ids, c.attention_block)
        if c.xsa:
            y = exclude_own_value(y, own_v)
        if self.head_gate is not None:
            y *= 2 * jax.nn.sigmoid(project(x, self.head_gate))[..., None]
        return project(y.reshape(batch, length, c.heads * c.head_dim), self.w_o)

    def _heads(self, x: jax.Array, is_global: jax.Array, context: SequenceContext) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Queries [B, S, H, K], keys and values [B, S, G, K] of x [B, S, D], normalised and turned."""
        c = self.config
        batch, length, _ = x.shape
        k = project(x, self.w_k)
        if self.key_taps is not None:
            k = causal_convolution(k, self.key_taps[...], context.lags)
        q = project(x, self.w_q).reshape(batch, length, c.heads, c.head_dim)
        k = k.reshape(batch, length, c.kv_heads, c.head_dim)
        v = project(x, self.w_v).reshape(batch, length, c.kv_heads, c.head_dim)
        if c.qk_norm:
            q = c.qk_mult * (rms_normalize(q, c.qk_norm_eps) if self.query_norm is None else self.query_norm(q))
            k = rms_normalize(k, c.qk_norm_eps) if self.key_norm is None else self.key_norm(k)
        positioned = jnp.logical_or(~is_global, c.global_rope)
        return jnp.where(positioned, rotate(q, context), q), jnp.where(positioned, rotate(k, context), k), v

    def _shared(self, kv: jax.Array, is_global: jax.Array) -> jax.Array:
        """The heads of kv [B, S, G, K] that this layer's query heads share, evenly: local layers all, global ones the first of them.

        Where the two differ each is repeated to [B, S, H, K], because one program has to hold both.
        """
        c = self.config
        if c.local_kv_heads == c.global_kv_heads:
            return kv

        def repeated(heads: int) -> jax.Array:
            return jnp.repeat(kv[:, :, :heads], c.heads // heads, axis=2)

        spread: jax.Array = jax.lax.cond(is_global, partial(repeated, c.global_kv_heads), partial(repeated, c.local_kv_heads))
        return spread

    def _attend_in_blocks(
        self, q: jax.Array, k: jax.Array, v: jax.Array, is_global: jax.Array, segment_ids: jax.Array, block: int
    ) -> jax.Array:
        """`attend_in_blocks` with the heads and the reach of this layer; only the branch that it takes is computed."""
        c, length = self.config, q.shape[1]

        def branch(kv_heads: int, reach: int) -> jax.Array:
            shared_k, shared_v = k[:, :, :kv_heads], v[:, :, :kv_heads]
            return attend_in_blocks(q, shared_k, shared_v, segment_ids, block=block, reach=reach, soft_cap=c.attention_soft_cap)

        whole, windowed = partial(branch, c.global_kv_heads, length), partial(branch, c.local_kv_heads, min(c.window, length))
        if all(c.global_layers) or (c.window >= length and c.local_kv_heads == c.global_kv_heads):
            return whole()
        y: jax.Array = jax.lax.cond(is_global, whole, windowed)
        return y


def attend(q: jax.Array, k: jax.Array, v: jax.Array, visible: jax.Array, soft_cap: float | None = None) -> jax.Array:
    """Softmax attention with scores in float32.

    Args:
        q: [B, Q, H, K].
        k, v: [B, N, G, K]; each is shared by H/G consecutive query heads.
        visible: bool [B, Q, N]; a query that sees no key gets the mean of all values.
        soft_cap: scores s become soft_cap·tanh(s/soft_cap).

    Returns:
        [B, Q, H, K].
    """
    batch, queries, heads, width = q.shape
    keys, groups = k.shape[1], k.shape[2]
    # Heads go before positions, so that each product is a plain batched matrix product: other layouts cost XLA:CPU twice the time.
    # The queries of one group are rows of one product, so shared keys are never copied.
    q, k, v = (jnp.swapaxes(x, 1, 2) for x in (q, k, v))
    rows = q.reshape(batch, groups, heads // groups * queries, width)
    scores = jnp.matmul(rows, jnp.swapaxes(k, 2, 3), preferred_element_type=jnp.float32) * width**-0.5
    if soft_cap is not None:
        scores = soft_cap * jnp.tanh(scores / soft_cap)
    scores = jnp.where(visible[:, None], scores.reshape(batch, heads, queries, keys), -1e30)
    # Weights are divided by their sum after the product with values, which has K columns where they have N.
    exponents = jnp.exp(scores - jax.lax.stop_gradient(jnp.max(scores, axis=-1, keepdims=True)))
    total = jnp.sum(exponents, axis=-1, keepdims=True)
    y = jnp.matmul(exponents.astype(v.dtype).reshape(batch, groups, -1, keys), v, preferred_element_type=jnp.float32)
    return jnp.swapaxes((y.reshape(batch, heads, queries, width) / total).astype(v.dtype), 1, 2)


def attend_in_blocks(
    q: jax.Array, k: jax.Array, v: jax.Array, segment_ids: jax.Array, *, block: int, reach: int, soft_cap: float | None = None
) -> jax.Array:
    """`attend` with the scores of `block` queries at a time, computed again in the backward pass; S² of nothing ever exists.

    Where `reach` is short a block is offered only the keys that one of its queries may see. Gradients of keys and values are summed
    over blocks in float32.

    Args:
        q: [B, S, H, K].
        k, v: [B, S, G, K].
        segment_ids: int32 [B, S].
        block: queries.
        reach: tokens that a query sees at most, itself included.
        soft_cap: as in `attend`.

    Returns:
        [B, S, H, K].
    """
    batch, length, heads, width = q.shape
    blocks, span = -(-length // block), min(length, reach - 1 + block)
    padding = blocks * block - length
    padded_q = jnp.pad(q, ((0, 0), (0, padding), (0, 0), (0, 0))).reshape(batch, blocks, block, heads, width)
    query_segments = jnp.pad(segment_ids, ((0, 0), (0, padding))).reshape(batch, blocks, block)
    # What a scan closes over collects its gradient in its own type, one rounding a block.
    wide_k, wide_v = k.astype(jnp.float32), v.astype(jnp.float32)

    def body(_: None, inputs: tuple[jax.Array, jax.Array, jax.Array]) -> tuple[None, jax.Array]:
        index, block_q, block_segments = inputs
        first_query = index * block
        first_key = jnp.clip(first_query + block - span, 0, length - span)
        keys, values, key_segments = (jax.lax.dynamic_slice_in_dim(x, first_key, span, axis=1) for x in (wide_k, wide_v, segment_ids))
        visible = visible_keys(block_segments, key_segments, first_query, first_key, reach)
        return None, attend(block_q, keys.astype(k.dtype), values.astype(v.dtype), visible, soft_cap)

    inputs = (jnp.arange(blocks, dtype=jnp.int32), jnp.swapaxes(padded_q, 0, 1), jnp.swapaxes(query_segments, 0, 1))
    _, y = jax.lax.scan(jax.checkpoint(body, prevent_cse=False), None, inputs)
    return jnp.swapaxes(y, 0, 1).reshape(batch, blocks * block, heads, width)[:, :length]


def exclude_own_value(y: jax.Array, v: jax.Array) -> jax.Array:
    """Exclusive self-attention (XSA): y − v·(y·v)/(‖v‖² + 1e-6) per head; y [B, S, H, K], v [B, S, G, K] shared by H/G heads each."""
    grouped = (*v.shape[:3], y.shape[2] // v.shape[2], v.shape[3])
    wide_y, wide_v = y.astype(jnp.float32).reshape(grouped), v.astype(jnp.float32)[..., None, :]
    share = jnp.sum(wide_y * wide_v, axis=-1, keepdims=True) / (jnp.sum(wide_v * wide_v, axis=-1, keepdims=True) + 1e-6)
    return (wide_y - share * wide_v).astype(y.dtype).reshape(y.shape)
