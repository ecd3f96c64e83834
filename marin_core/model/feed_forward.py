"""The gated feed-forward network that every token passes: a dense block's own, or the shared experts of a mixture."""

from typing import Literal

import jax
from flax import nnx

from marin_core.model.initializers import matrix, project


class FeedForward(nnx.Module):
    """D → F → D: down(act(gate(x)) · up(x)); SwiGLU or GeGLU. Several shared experts are one of their summed width: the sum is the same."""

    def __init__(self, d_model: int, width: int, activation: Literal["silu", "gelu"], std: float, rngs: nnx.Rngs) -> None:
        self.activation = jax.nn.silu if activation == "silu" else jax.nn.gelu
        self.w_gate = matrix(rngs, (d_model, width), std)
        self.w_up = matrix(rngs, (d_model, width), std)
        self.w_down = matrix(rngs, (width, d_model), std)

    def __call__(self, x: jax.Array) -> jax.Array:
        """x [..., D] → [..., D]."""
        return project(self.activation(project(x, self.w_gate)) * project(x, self.w_up), self.w_down)
