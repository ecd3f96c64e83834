"""The Hessian's diagonal for Sophia, estimated after Gauss, Newton and Bartlett (arXiv 2305.14342, algorithm 2).

The other estimator, Hutchinson's, needs a Jacobian-vector product of the gradient, which a loss with its own backward pass doesn't have.
This one needs an ordinary gradient, of the loss on labels that the model itself proposes.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from marin_core.errors import ConfigError

SampledGradient = Callable[[jax.Array], tuple[Any, jax.Array]]
"""PRNG key → (gradient, tokens): the gradient of the mean cross entropy over `tokens` positions (float32 scalar) of the step's batch,
against labels drawn from softmax(logits) with that key."""


class EstimateState(NamedTuple):
    """How many estimates were made (int32): the key of the next is a function of it."""

    estimates: jax.Array


def gauss_newton_bartlett() -> optax.GradientTransformationExtraArgs:
    """tokens·ĝ² for a sampled gradient ĝ, from the extra argument `sampled_gradient` (`SampledGradient`).

    It is called inside the branch that makes an estimate, so that other steps don't pay for it.
    """

    def update(
        updates: Any, state: EstimateState, params: Any = None, *, sampled_gradient: SampledGradient | None = None, **extra: Any
    ) -> tuple[Any, EstimateState]:
        del updates, params, extra
        if sampled_gradient is None:
            raise ConfigError(
                "Sophia estimates the Hessian from a gradient on sampled labels, and this step gives none",
                advice="Call update(…, sampled_gradient=…), or choose another optimizer.",
            )
        key = jax.random.fold_in(jax.random.key(0), state.estimates)
        gradient, tokens = sampled_gradient(key)
        return jax.tree.map(lambda leaf: tokens * jnp.square(leaf), gradient), EstimateState(state.estimates + 1)

    return optax.GradientTransformationExtraArgs(lambda params: EstimateState(jnp.int32(0)), update)
