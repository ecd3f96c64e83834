"""Which experts a token goes to, and with what weight."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx

from marin_core.model.config import TransformerConfig
from marin_core.model.initializers import matrix


class Routing(NamedTuple):
    """The router's decision for one layer.

    Attributes:
        logits: float32 [T, E], without the selection bias.
        selected: int32 [T, A], distinct experts, best biased logit first.
        weights: float32 [T, A], summing to `combine_scale`; the gradient flows through the un-biased logits only.
        threshold: float32 [T], the biased logit of the first expert that was not chosen (α of `spec/moe.md` §2.1).
    """

    logits: jax.Array
    selected: jax.Array
    weights: jax.Array
    threshold: jax.Array


class Router(nnx.Module):
    """A linear map D → E on the full-width token, accumulated in float32 whatever the activations' type is.

    With a bfloat16 product, 80 of 324 saved vectors of a large run changed the order of their 8 experts (marin #8435).
    """

    def __init__(self, config: TransformerConfig, rngs: nnx.Rngs) -> None:
        self.moe = config.moe
        self.weight = matrix(rngs, (config.d_model, config.moe.experts), config.init_std)

    def __call__(self, x: jax.Array, selection_bias: jax.Array) -> Routing:
        """Route tokens x [T, D] under a float32 [E] selection bias."""
        logits = jnp.dot(x.astype(jnp.float32), self.weight[...], precision=jax.lax.Precision.HIGHEST)
        return select_experts(logits, selection_bias, self.moe.experts_per_token, self.moe.combine_scale)


def select_experts(logits: jax.Array, selection_bias: jax.Array, experts_per_token: int, combine_scale: float) -> Routing:
    """Choose by biased logits, weigh by un-biased ones: sigmoid(logit), rescaled to sum to `combine_scale`.

    Args:
        logits: float32 [T, E].
        selection_bias: float32 [E]; it never gets a gradient.
    """
    k = experts_per_token
    biased = jax.lax.stop_gradient(logits + selection_bias)
    # Without the barrier XLA:CPU turns top-k followed by a column slice into a full sort, 4 to 13 times slower (trap T1).
    values, indices = jax.lax.optimization_barrier(jax.lax.top_k(biased, k + 1))  # type: ignore[no-untyped-call]
    selected = indices[:, :k]
    # A comparison instead of a gather: its gradient is a sum, not a scatter.
    chosen = selected[:, :, None] == jnp.arange(logits.shape[1], dtype=selected.dtype)
    gates = jax.nn.sigmoid(jnp.sum(jnp.where(chosen, logits[:, None, :], 0.0), axis=-1))
    weights = gates * (combine_scale / (jnp.sum(gates, axis=-1, keepdims=True) + 1e-9))
    return Routing(logits, selected, weights, values[:, k])
