"""The mesh that a model runs on: racks are data-parallel replicas of each other, experts are spread over the devices of a rack.

The mesh is the ambient one of `jax.set_mesh`. Without one, everything below means one device. Axes are of the type Auto: XLA places
what the model leaves open, and only balancers and transports are written for one device at a time (`over_shards`).
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, Sharding, SingleDeviceSharding
from jax.sharding import PartitionSpec as P

from marin_core.errors import ConfigError

RACK, EXPERT = "rack", "expert"
AXES = (RACK, EXPERT)
"""Mesh axes, the outer first: tokens are spread over both, experts and other matrices over the second alone."""


def make_mesh(racks: int, devices_per_rack: int, devices: Sequence[Any] | None = None) -> Mesh:
    """A mesh of the first racks·devices_per_rack devices.

    Raises:
        ConfigError: there are fewer.
    """
    count = racks * devices_per_rack
    found = list(jax.devices() if devices is None else devices)
    if len(found) < count:
        raise ConfigError(
            f"A mesh of {racks}×{devices_per_rack} needs {count} devices, here are {len(found)}",
            advice="Choose a smaller mesh, or give JAX more devices (JAX_NUM_CPU_DEVICES on a CPU).",
        )
    return Mesh(np.asarray(found[:count]).reshape(racks, devices_per_rack), AXES, axis_types=(AxisType.Auto,) * 2)


def mesh_size(axis: str) -> int:
    """Devices along an axis of the ambient mesh; 1 without one."""
    return int(jax.sharding.get_abstract_mesh().shape.get(axis, 1))


def has_mesh() -> bool:
    """Whether the ambient mesh has the axes of `make_mesh`."""
    return set(AXES) <= set(jax.sharding.get_abstract_mesh().axis_names)


def token_axes() -> tuple[str, ...]:
    """Axes that the tokens at hand are spread over: both, within `over_racks` those of one rack, and none without a mesh."""
    mesh = jax.sharding.get_abstract_mesh()
    kinds = dict(zip(mesh.axis_names, mesh.axis_types, strict=True))
    return tuple(axis for axis in AXES if kinds.get(axis) == AxisType.Auto)


def spread_tokens(x: jax.Array) -> jax.Array:
    """Keep x [B, …] (or [T, …]) spread over the devices by its first dimension."""
    return jax.lax.with_sharding_constraint(x, P(token_axes())) if token_axes() else x


def over_shards[**A, R](function: Callable[A, R], in_specs: Any, out_specs: Any) -> Callable[A, R]:
    """Run a function on every device's own part of its arguments; without a mesh, on the whole. P(AXES) means spread like tokens."""
    axes = token_axes()
    if not axes:
        return function

    def here(spec: P) -> P:
        return P(*(axes if part == AXES else part for part in spec))

    specs = jax.tree.map(here, (in_specs, out_specs), is_leaf=lambda spec: isinstance(spec, P))
    mapped: Callable[A, R] = jax.shard_map(function, in_specs=specs[0], out_specs=specs[1], axis_names=set(axes), check_vma=False)
    return mapped


def over_racks[**A, R](function: Callable[A, R], in_specs: Any, out_specs: Any) -> Callable[A, R]:
    """Run a function in every rack on its own part of the arguments; without several racks, on the whole.

    What is computed inside stays inside a rack by construction: only what the function itself sums over `RACK` crosses.
    """
    if mesh_size(RACK) == 1:
        return function
    mapped: Callable[A, R] = jax.shard_map(function, in_specs=in_specs, out_specs=out_specs, axis_names={RACK}, check_vma=False)
    return mapped


def parameter_spec(path: tuple[Any, ...], leaf: Any, devices: int) -> P:
    """Where a parameter lies: experts by the expert, other matrices by one dimension (the widest that divides), all else everywhere.

    Leaves of `blocks` have a leading layer axis, which is never spread. The embedding lies everywhere: its sharded gather sends tokens
    between racks (`spec/moe.md` §5).
    """
    names = [str(getattr(key, "key", getattr(key, "name", key))) for key in path]
    shape = leaf.shape
    first = 1 if "blocks" in names else 0
    if "experts" in names:
        return P(None, EXPERT) if shape[1] % devices == 0 else P()
    if {"embedding", "balancer_state"} & set(names) or len(shape) - first < 2:
        return P()
    best = max(range(first, len(shape)), key=lambda axis: (shape[axis] % devices == 0, shape[axis]))
    if shape[best] % devices:
        return P()
    return P(*[None] * best, EXPERT)


def parameter_sharding(mesh: Mesh | None, path: tuple[Any, ...], leaf: Any) -> Sharding:
    """Where a leaf of a training state lies; optimizer moments have the paths of their parameters and lie like them."""
    if mesh is None:
        return SingleDeviceSharding(jax.devices()[0])
    return NamedSharding(mesh, parameter_spec(path, leaf, mesh.shape[EXPERT]))


def batch_sharding(mesh: Mesh | None) -> Sharding:
    """Where a batch lies: its sequences spread over all devices."""
    return SingleDeviceSharding(jax.devices()[0]) if mesh is None else NamedSharding(mesh, P(AXES))
