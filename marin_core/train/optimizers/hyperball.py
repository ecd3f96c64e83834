"""Steps on a sphere: a parameter keeps its norm, and the learning rate is the length of a step over the radius (marin #8435).

A norm that was counted wrongly over devices has collapsed a run (marin #8073: parameter norm 150.7 → 21.4 in one update). So sums of
squares are written out, over an intermediate pinned to where the parameter lies, and a guard measures the sphere again after the step.
"""

from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp

from marin_core.model.mesh import EXPERT, has_mesh, mesh_size, parameter_spec
from marin_core.train.optimizers.groups import LAYERS, Kind, kind_of, path_of

TOLERANCE = 1e-2
"""Largest relative error of a sphere's norm behind an update that is still taken: far above float32, far below a wrong norm."""

Sphere = Literal["per_layer", "per_expert"]


class Move(NamedTuple):
    """A step on spheres.

    Attributes:
        update: float32, what is added to the parameter; zeros where `sound` is False.
        norm: float32 norms before the step, of the shape of `radius`.
        sound: bool scalar, whether all is finite and every sphere keeps its norm.
    """

    update: jax.Array
    norm: jax.Array
    sound: jax.Array


def sphere_axes(keys: tuple[Any, ...], ndim: int, sphere: Sphere) -> tuple[int, ...]:
    """Axes that one sphere's norm runs over: all but the layers, or with `per_expert` all but layers and experts."""
    first = 1 if path_of(keys).startswith(LAYERS) else 0
    return tuple(range(2 if sphere == "per_expert" and kind_of(keys) is Kind.EXPERTS else first, ndim))


def pinned(keys: tuple[Any, ...], x: jax.Array) -> jax.Array:
    """x, lying like the parameter of this path."""
    return jax.lax.with_sharding_constraint(x, parameter_spec(keys, x, mesh_size(EXPERT))) if has_mesh() else x


def sphere_norm(keys: tuple[Any, ...], x: jax.Array, sphere: Sphere) -> jax.Array:
    """float32 norms of the spheres of a parameter x; summed axes stay, with size 1."""
    squares = pinned(keys, jnp.square(x.astype(jnp.float32)))
    return jnp.sqrt(jnp.sum(squares, axis=sphere_axes(keys, x.ndim, sphere), keepdims=True))


def hyperball(
    keys: tuple[Any, ...], p: jax.Array, u: jax.Array, learning_rate: jax.Array, sphere: Sphere, radius: jax.Array | None = None
) -> Move:
    """Move p against the direction u and back onto its sphere: v = p − η·u·r/‖u‖, p' = v·r/‖v‖.

    The length of u doesn't matter, and ‖p' − p‖ ≤ r·√(2 − 2·√(1 − η²)) for η < 1. Where u is 0 nothing moves.

    Args:
        p: parameter, float32.
        u: direction, of the shape of p.
        learning_rate: η, float32 scalar.
        radius: float32 norms to have; None = those of p.
    """
    u = pinned(keys, u.astype(jnp.float32))
    norm, length = sphere_norm(keys, p, sphere), sphere_norm(keys, u, sphere)
    wanted = norm if radius is None else radius
    v = pinned(keys, p - learning_rate * u * (wanted / jnp.maximum(length, 1e-10)))
    moved = pinned(keys, v * (wanted / jnp.maximum(sphere_norm(keys, v, sphere), 1e-10)))
    moved = jnp.where(length > 0, moved, p)
    error = jnp.abs(sphere_norm(keys, moved, sphere) - wanted)
    # Written so that a NaN anywhere fails; a sphere that doesn't move may stay as far off as it is.
    sound = jnp.all((error <= TOLERANCE * wanted) | (length == 0)) & jnp.all(jnp.isfinite(norm) & jnp.isfinite(length))
    return Move(jnp.where(sound, moved - p, 0.0), norm, sound)
