"""MuonH and AdamH: Muon's and Adam's directions, walked on spheres (marin #8435)."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from marin_core.model.mesh import EXPERT, mesh_size, parameter_spec
from marin_core.train.optimizers.adam import adam_of, count_false, finite_leaves, guarded_update, keep_moments
from marin_core.train.optimizers.config import MuonH
from marin_core.train.optimizers.hyperball import hyperball, sphere_norm
from marin_core.train.optimizers.newton_schulz import orthogonalize


class SphereState(NamedTuple):
    """What both remember about their spheres.

    Attributes:
        radius: float32 norms at the start, a tree like the parameters, each of a parameter's rank (`sphere_norm`).
        skipped_leaves: int32, updates of single parameters left out so far.
        sphere_norm_drift: float32, largest |norm/radius − 1| at the last update.
    """

    radius: Any
    skipped_leaves: jax.Array
    sphere_norm_drift: jax.Array


class MuonHState(NamedTuple):
    """Momentum, of the parameters' shapes, and spheres."""

    momentum: Any
    spheres: SphereState


class AdamHState(NamedTuple):
    """Adam's count and moments, and spheres."""

    adam: optax.ScaleByAdamState
    spheres: SphereState


def scale_by_muonh(config: MuonH) -> optax.GradientTransformationExtraArgs:
    """Move matrices in the orthogonalised direction of their Nesterov momentum.

    m ← μ·m + g; u ← g + μ·m; X ← Newton–Schulz(u), matrix by matrix; then `hyperball` with the rate `learning_rates["muonh"]`.
    """

    def init(params: Any) -> MuonHState:
        momentum = optax.tree.zeros_like(params, dtype=jnp.dtype(config.first_moment_dtype))
        return MuonHState(momentum, _initial_spheres(config, params))

    def update(gradient: Any, state: MuonHState, params: Any = None, *, learning_rates: Any, **extra: Any) -> tuple[Any, MuonHState]:
        del extra
        finite = finite_leaves(gradient)
        momentum = jax.tree.map(lambda m, g: config.momentum * m.astype(jnp.float32) + g, state.momentum, gradient)

        def direction(keys: tuple[Any, ...], g: jax.Array, m: jax.Array) -> jax.Array:
            return orthogonalize(g + config.momentum * m, parameter_spec(keys, g, mesh_size(EXPERT)))

        directions = jax.tree_util.tree_map_with_path(direction, gradient, momentum)
        updates, kept, spheres = _walk(config, learning_rates["muonh"], params, directions, finite, state.spheres)
        momentum = jax.tree.map(lambda ok, new, old: jnp.where(ok, new.astype(old.dtype), old), kept, momentum, state.momentum)
        return updates, MuonHState(momentum, spheres)

    return optax.GradientTransformationExtraArgs(init, update)


def scale_by_adamh(config: MuonH) -> optax.GradientTransformationExtraArgs:
    """Move the head in Adam's direction by `hyperball`, with the rate `learning_rates["adamh"]`."""
    adam = adam_of(config)

    def init(params: Any) -> AdamHState:
        return AdamHState(adam.init(params), _initial_spheres(config, params))

    def update(gradient: Any, state: AdamHState, params: Any = None, *, learning_rates: Any, **extra: Any) -> tuple[Any, AdamHState]:
        del extra
        finite = finite_leaves(gradient)
        directions, after = guarded_update(adam, gradient, state.adam, finite)
        updates, kept, spheres = _walk(config, learning_rates["adamh"], params, directions, finite, state.spheres)
        return updates, AdamHState(keep_moments(kept, after, state.adam), spheres)

    return optax.GradientTransformationExtraArgs(init, update)


def _initial_spheres(config: MuonH, params: Any) -> SphereState:
    radius = jax.tree_util.tree_map_with_path(lambda keys, p: sphere_norm(keys, p, config.sphere), params)
    return SphereState(radius, jnp.int32(0), jnp.float32(0))


def _walk(
    config: MuonH, learning_rate: jax.Array, params: Any, directions: Any, finite: Any, spheres: SphereState
) -> tuple[Any, Any, SphereState]:
    """Updates, a bool a leaf whether it moved, and the spheres after it. A leaf without a finite gradient or a sound step stays."""

    def step(keys: tuple[Any, ...], p: jax.Array, u: jax.Array, ok: jax.Array, radius: jax.Array) -> tuple[jax.Array, ...]:
        move = hyperball(keys, p, u, learning_rate, config.sphere, radius if config.radius == "init" else None)
        kept = move.sound & ok
        drift = jnp.where(radius > 0, jnp.abs(move.norm / jnp.maximum(radius, 1e-30) - 1), 0)
        return jnp.where(kept, move.update, 0.0), kept, jnp.max(drift)

    moves = jax.tree_util.tree_map_with_path(step, params, directions, finite, spheres.radius)
    updates, kept, drifts = jax.tree.transpose(jax.tree.structure(params), jax.tree.structure((0, 0, 0)), moves)
    # A tied head leaves AdamH without parameters.
    drift = jnp.max(jnp.stack([jnp.float32(0), *jax.tree.leaves(drifts)]))
    return updates, kept, SphereState(spheres.radius, spheres.skipped_leaves + count_false(kept), drift)
