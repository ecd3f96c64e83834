"""RMS norms, and the gate that follows those on the full width."""

import jax
import jax.numpy as jnp
from flax import nnx

from marin_core.model.config import TransformerConfig
from marin_core.model.initializers import matrix, ones, project


def rms_normalize(x: jax.Array, eps: float) -> jax.Array:
    """x [..., D] divided by its root mean square over D; computed in float32, returned in the type of x."""
    wide = x.astype(jnp.float32)
    return (wide * jax.lax.rsqrt(jnp.mean(wide * wide, axis=-1, keepdims=True) + eps)).astype(x.dtype)


class RMSNorm(nnx.Module):
    """RMS norm with a learned gain [D]."""

    def __init__(self, width: int, eps: float) -> None:
        self.gain = ones((width,))
        self.eps = eps

    def __call__(self, x: jax.Array) -> jax.Array:
        return rms_normalize(x, self.eps) * self.gain[...].astype(x.dtype)


class GatedNorm(nnx.Module):
    """RMSNorm followed by a low-rank gate: y = RMSNorm(x); y·sigmoid(silu(y·W_down)·W_up). Rank 0 leaves the gate out."""

    def __init__(self, config: TransformerConfig, rngs: nnx.Rngs) -> None:
        rank, width = config.gated_norm_rank, config.d_model
        self.norm = RMSNorm(width, config.norm_eps)
        self.w_down = matrix(rngs, (width, rank), config.init_std) if rank else None
        self.w_up = matrix(rngs, (rank, width), config.init_std) if rank else None

    def __call__(self, x: jax.Array) -> jax.Array:
        y = self.norm(x)
        if self.w_down is None or self.w_up is None:
            return y
        return y * jax.nn.sigmoid(project(jax.nn.silu(project(y, self.w_down)), self.w_up))
