"""The routed experts: many small SwiGLU networks, each for the tokens that chose it."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx

from marin_core.model.config import MoEConfig
from marin_core.model.initializers import matrix


class ExpertWeights(NamedTuple):
    """Weights of E experts, or of those that a device holds: gate and up [E, M, F], down [E, F, M]; float32."""

    gate: jax.Array
    up: jax.Array
    down: jax.Array


class RoutedExperts(nnx.Module):
    """E SwiGLU networks M → F → M."""

    def __init__(self, moe: MoEConfig, width: int, std: float, rngs: nnx.Rngs) -> None:
        self.w_gate = matrix(rngs, (moe.experts, width, moe.expert_width), std)
        self.w_up = matrix(rngs, (moe.experts, width, moe.expert_width), std)
        self.w_down = matrix(rngs, (moe.experts, moe.expert_width, width), std)

    @property
    def weights(self) -> ExpertWeights:
        return ExpertWeights(self.w_gate[...], self.w_up[...], self.w_down[...])


@jax.named_scope("experts")
def apply_experts(weights: ExpertWeights, rows: jax.Array, first_expert: int = 0) -> jax.Array:
    """Rows [E, C, M] → [E, C, M] in their type; each expert sees only its own rows.

    The weights may be of more experts; those from `first_expert` on are used.
    """
    chosen = slice(first_expert, first_expert + rows.shape[0])
    gate_weight, up_weight, down_weight = (weight[chosen].astype(rows.dtype) for weight in weights)
    gate = jnp.einsum("ecm,emf->ecf", rows, gate_weight)
    up = jnp.einsum("ecm,emf->ecf", rows, up_weight)
    return jnp.einsum("ecf,efm->ecm", jax.nn.silu(gate) * up, down_weight)
