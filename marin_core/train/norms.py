"""Norms of parameters, gradients and updates, leaf by leaf and layer by layer, computed inside the step."""

from typing import Any

import jax
import jax.numpy as jnp

from marin_core.model.mesh import EXPERT, has_mesh, mesh_size, parameter_spec
from marin_core.model.transformer import Params
from marin_core.train.metrics import GRADIENT, LAYERS, PARAMETER, PER_EXPERT, ROUTED_EXPERTS, ROUTER, UPDATE

Norms = dict[str, jax.Array]
"""Name → float32 norm: scalar, or [L] for what is stacked over layers, or [L, E] for `PER_EXPERT`."""


def layer_norms(params: Params, gradient: Params, updates: Params) -> Norms:
    """Norms of every leaf of three equal trees, and of groups of gradients.

    A sharded norm once counted shards several times and collapsed a training (marin #8073). Here squares are summed in float32, on
    arrays that are pinned to where their parameter lies, so that each element is counted where it is kept, and once.
    """
    norms: Norms = {}
    for prefix, tree in ((PARAMETER, params), (UPDATE, updates)):
        norms |= {prefix + name: jnp.sqrt(_of_layer(name, squares)) for name, squares in _squares(tree).items()}
    squares = _squares(gradient)
    norms |= {GRADIENT + name: jnp.sqrt(_of_layer(name, leaf)) for name, leaf in squares.items()}
    return norms | _groups(squares)


def _squares(tree: Params) -> Norms:
    """Path → sum of squares, float32: scalar; [L] of a leaf of `blocks`; [L, E] of the experts' weights."""
    return {_name(path): _sum_of_squares(path, leaf) for path, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]}


def _sum_of_squares(path: tuple[Any, ...], leaf: jax.Array) -> jax.Array:
    squares = jnp.square(leaf.astype(jnp.float32))
    if has_mesh():
        squares = jax.lax.with_sharding_constraint(squares, parameter_spec(path, leaf, mesh_size(EXPERT)))
    return jnp.sum(squares, axis=tuple(range(_kept_axes(_name(path)), leaf.ndim)))


def _kept_axes(name: str) -> int:
    parts = name.split("/")
    return ("blocks" in parts) + ("experts" in parts)


def _of_layer(name: str, squares: jax.Array) -> jax.Array:
    return jnp.sum(squares, axis=1) if _kept_axes(name) == 2 else squares


def _groups(squares: Norms) -> Norms:
    """Gradient norms of leaves together."""
    layers = [_of_layer(name, leaf) for name, leaf in squares.items() if _kept_axes(name)]
    norms = {LAYERS: jnp.sqrt(sum(layers, jnp.float32(0)))}
    experts = [leaf for name, leaf in squares.items() if _kept_axes(name) == 2]
    if experts:
        together = sum(experts, jnp.float32(0))
        router = [leaf for name, leaf in squares.items() if "router" in name.split("/")]
        norms[PER_EXPERT] = jnp.sqrt(together)
        norms[ROUTED_EXPERTS] = jnp.sqrt(jnp.sum(together, axis=1))
        norms[ROUTER] = jnp.sqrt(sum(router, jnp.float32(0)))
    return norms


def _name(path: tuple[Any, ...]) -> str:
    return jax.tree_util.keystr(path, simple=True, separator="/")
