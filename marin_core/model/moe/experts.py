"""SwiGLU experts: many small ones for chosen tokens, a few shared ones for all."""

import jax
import jax.numpy as jnp
from flax import nnx

from marin_core.model.config import TransformerConfig
from marin_core.model.initializers import matrix, project


class RoutedExperts(nnx.Module):
    """E SwiGLU networks M → F → M, applied to capacity-padded rows as batched products."""

    def __init__(self, config: TransformerConfig, rngs: nnx.Rngs) -> None:
        moe, m = config.moe, config.expert_dim
        self.w_gate = matrix(rngs, (moe.experts, m, moe.expert_width), config.init_std)
        self.w_up = matrix(rngs, (moe.experts, m, moe.expert_width), config.init_std)
        self.w_down = matrix(rngs, (moe.experts, moe.expert_width, m), config.init_std)

    def __call__(self, rows: jax.Array) -> jax.Array:
        """Rows [E, C, M] → [E, C, M]; each expert sees only its own rows."""
        gate = jnp.einsum("ecm,emf->ecf", rows, self.w_gate[...].astype(rows.dtype))
        up = jnp.einsum("ecm,emf->ecf", rows, self.w_up[...].astype(rows.dtype))
        return jnp.einsum("ecf,efm->ecm", jax.nn.silu(gate) * up, self.w_down[...].astype(rows.dtype))


class SharedExperts(nnx.Module):
    """The shared experts of a layer as one SwiGLU of their summed width: the sum of their outputs is the same."""

    def __init__(self, config: TransformerConfig, rngs: nnx.Rngs) -> None:
        d, width = config.d_model, config.moe.shared_experts * config.moe.shared_width
        self.w_gate = matrix(rngs, (d, width), config.init_std)
        self.w_up = matrix(rngs, (d, width), config.init_std)
        self.w_down = matrix(rngs, (width, d), config.init_std)

    def __call__(self, x: jax.Array) -> jax.Array:
        """x [..., D] → [..., D]."""
        return project(jax.nn.silu(project(x, self.w_gate)) * project(x, self.w_up), self.w_down)
