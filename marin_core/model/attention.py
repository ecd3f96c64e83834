"""Causal attention over a sliding window or the whole context, chosen by a traced scalar so that all layers share one program."""

import jax
import jax.numpy as jnp
from flax import nnx

from marin_core.model.config import TransformerConfig
from marin_core.model.context import SequenceContext, causal_convolution, rotate
from marin_core.model.initializers import matrix, project, zeros
from marin_core.model.norms import rms_normalize


def identity_taps(kernel: int, width: int) -> nnx.Param[jax.Array]:
    """Taps [kernel, width] of a convolution that starts as the identity."""
    return nnx.Param(jnp.zeros((kernel, width), jnp.float32).at[0].set(1.0))


class Attention(nnx.Module):
    """Grouped-query attention with QK-norm, partial rotary positions, self-value exclusion, head gates and a short convolution on keys."""

    def __init__(self, config: TransformerConfig, rngs: nnx.Rngs) -> None:
        self.config = config
        d, heads, kv = config.d_model, config.heads * config.head_dim, config.kv_heads * config.head_dim
        self.w_q = matrix(rngs, (d, heads), config.init_std)
        self.w_k = matrix(rngs, (d, kv), config.init_std)
        self.w_v = matrix(rngs, (d, kv), config.init_std)
        self.w_o = matrix(rngs, (heads, d), config.init_std)
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
        k = project(x, self.w_k)
        if self.key_taps is not None:
            k = causal_convolution(k, self.key_taps[...], context.lags)
        q = project(x, self.w_q).reshape(batch, length, c.heads, c.head_dim)
        k = k.reshape(batch, length, c.kv_heads, c.head_dim)
        v = project(x, self.w_v).reshape(batch, length, c.kv_heads, c.head_dim)
        if c.qk_norm:
            q = c.qk_mult * rms_normalize(q, c.qk_norm_eps)
            k = rms_normalize(k, c.qk_norm_eps)
        positioned = jnp.logical_or(~is_global, c.global_rope)
        q = jnp.where(positioned, rotate(q, context), q)
        k = jnp.where(positioned, rotate(k, context), k)
        k, v = self._repeat(k, is_global), self._repeat(v, is_global)
        y = attend(q, k, v, self._mask(is_global, context))
        if c.xsa:
            y = exclude_own_value(y, v)
        if self.head_gate is not None:
            y *= 2 * jax.nn.sigmoid(project(x, self.head_gate))[..., None]
        return project(y.reshape(batch, length, c.heads * c.head_dim), self.w_o)

    def _repeat(self, kv: jax.Array, is_global: jax.Array) -> jax.Array:
        """[B, S, G, K] → [B, S, H, K]: local layers share each stored head, global layers only the first `global_kv_heads`."""

        def spread(heads: int) -> jax.Array:
            return jnp.repeat(kv[:, :, :heads], self.config.heads // heads, axis=2)

        if self.config.local_kv_heads == self.config.global_kv_heads:
            return spread(self.config.local_kv_heads)
        spread_kv: jax.Array = jax.lax.cond(
            is_global, lambda: spread(self.config.global_kv_heads), lambda: spread(self.config.local_kv_heads)
        )
        return spread_kv

    def _mask(self, is_global: jax.Array, context: SequenceContext) -> jax.Array:
        """bool [B, S, S]; which keys a query sees in this layer."""
        reach = jnp.where(is_global, context.distance.shape[0], self.config.window)
        return context.visible & (context.distance < reach)


def attend(q: jax.Array, k: jax.Array, v: jax.Array, mask: jax.Array) -> jax.Array:
    """Softmax attention with scores in float32; q, k, v [B, S, H, K], mask bool [B, S, S] whose diagonal is True → [B, S, H, K]."""
    # Heads go before positions, so that each product is a plain batched matrix product: other layouts cost XLA:CPU twice the time.
    q, k, v = (jnp.swapaxes(x, 1, 2) for x in (q, k, v))
    scores = jnp.matmul(q, jnp.swapaxes(k, 2, 3), preferred_element_type=jnp.float32) * q.shape[-1] ** -0.5
    scores = jnp.where(mask[:, None], scores, -1e30)
    weights = jax.nn.softmax(scores, axis=-1).astype(v.dtype)
    return jnp.swapaxes(jnp.matmul(weights, v), 1, 2)


def exclude_own_value(y: jax.Array, v: jax.Array) -> jax.Array:
    """Exclusive self-attention (XSA): y − v·(y·v)/(‖v‖² + 1e-6) per head; y, v [B, S, H, K]."""
    wide_y, wide_v = y.astype(jnp.float32), v.astype(jnp.float32)
    share = jnp.sum(wide_y * wide_v, axis=-1, keepdims=True) / (jnp.sum(wide_v * wide_v, axis=-1, keepdims=True) + 1e-6)
    return (wide_y - share * wide_v).astype(y.dtype)
