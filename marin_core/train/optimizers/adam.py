"""Adam's direction, which MuonH's head and gates follow, with a guard: one parameter's bad gradient doesn't spoil its moments for ever."""

from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import optax

from marin_core.train.optimizers.config import MuonH
from marin_core.train.optimizers.groups import is_decayed


class GuardedAdamState(NamedTuple):
    """Adam's count and moments, and the updates of single parameters that were left out (int32)."""

    adam: optax.ScaleByAdamState
    skipped_leaves: jax.Array


def adam_of(config: MuonH) -> optax.GradientTransformation:
    """Adam with the moments that the configuration asks for."""
    return optax.scale_by_adam(config.b1, config.b2, config.eps, mu_dtype=config.first_moment_dtype)


def finite_leaves(gradient: Any) -> Any:
    """A bool scalar a leaf: whether all of it is finite."""
    return jax.tree.map(lambda leaf: jnp.all(jnp.isfinite(leaf)), gradient)


def guarded_update(
    adam: optax.GradientTransformation, gradient: Any, state: optax.ScaleByAdamState, finite: Any
) -> tuple[Any, optax.ScaleByAdamState]:
    """Adam's direction and state, as if a leaf that isn't finite had no gradient; `keep_moments` then leaves its moments alone."""
    clean = jax.tree.map(lambda ok, leaf: jnp.where(ok, leaf, jnp.zeros_like(leaf)), finite, gradient)
    direction, after = adam.update(clean, state)
    return direction, cast(optax.ScaleByAdamState, after)


def keep_moments(kept: Any, new: optax.ScaleByAdamState, old: optax.ScaleByAdamState) -> optax.ScaleByAdamState:
    """The new state, but with the old moments of leaves whose bool in `kept` is False; the count is common to all."""

    def choose(ok: jax.Array, after: jax.Array, before: jax.Array) -> jax.Array:
        return jnp.where(ok, after, before)

    return new._replace(mu=jax.tree.map(choose, kept, new.mu, old.mu), nu=jax.tree.map(choose, kept, new.nu, old.nu))


def count_false(flags: Any) -> jax.Array:
    """How many bool leaves of a tree are False: int32."""
    return sum((1 - flag.astype(jnp.int32) for flag in jax.tree.leaves(flags)), start=jnp.int32(0))


def guarded_adam(config: MuonH, num_steps: int) -> optax.GradientTransformationExtraArgs:
    """Adam's direction, plus λ·w for the weights w of head gates and routers; λ = gate_decay·max(1 − count/num_steps, 0).

    The count is Adam's own, of updates before this one, so that decay needs no state and resumes exactly (marin #8818, #8833).
    A leaf whose gradient isn't finite stays where it is, and is counted.
    """
    adam = adam_of(config)

    def update(gradient: Any, state: GuardedAdamState, params: Any = None, **extra: Any) -> tuple[Any, GuardedAdamState]:
        del extra
        finite = finite_leaves(gradient)
        direction, after = guarded_update(adam, gradient, state.adam, finite)
        if config.gate_decay > 0:
            share = jnp.maximum(1 - state.adam.count.astype(jnp.float32) / num_steps, 0)

            def decayed(keys: tuple[Any, ...], leaf: jax.Array, weight: jax.Array) -> jax.Array:
                return leaf + config.gate_decay * share * weight if is_decayed(config, keys) else leaf

            direction = jax.tree_util.tree_map_with_path(decayed, direction, params)
        direction = jax.tree.map(lambda ok, leaf: jnp.where(ok, leaf, jnp.zeros_like(leaf)), finite, direction)
        return direction, GuardedAdamState(keep_moments(finite, after, state.adam), state.skipped_leaves + count_false(finite))

    return optax.GradientTransformationExtraArgs(lambda params: GuardedAdamState(adam.init(params), jnp.int32(0)), update)
