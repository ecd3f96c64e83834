"""Which experts a token goes to, and with what weight."""

from functools import partial
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jax.sharding import PartitionSpec as P

from marin_core.model.config import BalancerConfig, MoEConfig
from marin_core.model.initializers import matrix
from marin_core.model.mesh import AXES, over_shards

ScoreSpace = Literal["logits", "sigmoid"]


class Routing(NamedTuple):
    """The router's decision for one layer.

    Attributes:
        logits: float32 [T, E], without the selection bias.
        scores: float32 [T, E], what the bias is added to for selection: the logits, or their sigmoids; no gradient.
        selected: int32 [T, A], distinct experts, best biased score first.
        weights: float32 [T, A], summing to `combine_scale`; the gradient flows through the un-biased logits only.
        threshold: float32 [T], the biased score of the first expert that was not chosen (α of `spec/moe.md` §2.1).
    """

    logits: jax.Array
    scores: jax.Array
    selected: jax.Array
    weights: jax.Array
    threshold: jax.Array

    @property
    def margins(self) -> jax.Array:
        """float32 [T, E]: un-biased score minus the token's threshold, which quantile balancers solve on."""
        return self.scores - self.threshold[:, None]


class Router(nnx.Module):
    """A linear map D → E on the full-width token, by default accumulated in float32 whatever the activations' type is.

    With a bfloat16 product, 80 of 324 saved vectors of a large run changed the order of their 8 experts (marin #8435).
    """

    def __init__(self, moe: MoEConfig, d_model: int, std: float, rngs: nnx.Rngs) -> None:
        self.moe = moe
        self.weight = matrix(rngs, (d_model, moe.experts), std)

    def __call__(self, x: jax.Array, selection_bias: jax.Array) -> Routing:
        """Route tokens x [T, D] under a float32 [E] selection bias."""
        if self.moe.router_dtype == "bfloat16":
            logits = jnp.dot(x.astype(jnp.bfloat16), self.weight[...].astype(jnp.bfloat16)).astype(jnp.float32)
        else:
            logits = jnp.dot(x.astype(jnp.float32), self.weight[...], precision=jax.lax.Precision.HIGHEST)
        select = partial(
            select_experts,
            experts_per_token=self.moe.experts_per_token,
            combine_scale=self.moe.combine_scale,
            space=score_space(self.moe.balancer),
        )
        # XLA doesn't split a top-k over devices: left to it, every device gathers the logits of all.
        routing = over_shards(select, in_specs=(P(AXES), P()), out_specs=P(AXES))(logits, selection_bias)
        return force_balance(routing, self.moe.combine_scale) if self.moe.forced_balance else routing


def score_space(balancer: BalancerConfig) -> ScoreSpace:
    """Where a balancer's bias acts; for balancers without a bias it makes no difference."""
    return getattr(balancer, "score_space", "logits")


def select_experts(
    logits: jax.Array, selection_bias: jax.Array, experts_per_token: int, combine_scale: float, space: ScoreSpace = "logits"
) -> Routing:
    """Choose by biased scores, weigh by un-biased logits: sigmoid(logit), rescaled to sum to `combine_scale`.

    Args:
        logits: float32 [T, E].
        selection_bias: float32 [E]; it never gets a gradient.
        experts_per_token: A.
        combine_scale: sum of a token's weights.
        space: where the bias is added.
    """
    k = experts_per_token
    scores = jax.lax.stop_gradient(jax.nn.sigmoid(logits) if space == "sigmoid" else logits)
    biased = scores + jax.lax.stop_gradient(selection_bias)
    # Without the barrier XLA:CPU turns top-k followed by a column slice into a full sort, 4 to 13 times slower (trap T1).
    values, indices = jax.lax.optimization_barrier(jax.lax.top_k(biased, k + 1))
    selected = indices[:, :k]
    # A comparison instead of a gather: its gradient is a sum, not a scatter.
    chosen = selected[:, :, None] == jnp.arange(logits.shape[1], dtype=selected.dtype)
    gates = jax.nn.sigmoid(jnp.sum(jnp.where(chosen, logits[:, None, :], 0.0), axis=-1))
    weights = gates * (combine_scale / (jnp.sum(gates, axis=-1, keepdims=True) + 1e-9))
    return Routing(logits, scores, selected, weights, values[:, k])


def force_balance(routing: Routing, combine_scale: float) -> Routing:
    """The same decision with experts handed out in turn and equal weights: every expert gets the mean load."""
    tokens, per_token = routing.selected.shape
    turn = jnp.arange(tokens * per_token, dtype=jnp.int32).reshape(tokens, per_token)
    return routing._replace(selected=turn % routing.logits.shape[1], weights=jnp.full_like(routing.weights, combine_scale / per_token))
