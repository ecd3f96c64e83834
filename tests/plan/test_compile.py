"""Real programs, compiled for eight virtual devices: the reader finds what was written, and what the partitioner adds."""

from collections import Counter

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from marin_core.errors import ConfigError
from marin_core.model.mesh import AXES, make_mesh
from marin_core.plan.compile import compile_step, use_cpu_devices
from marin_core.plan.compiled import CompiledStep
from marin_core.plan.hlo import Collective

RACKS, NEAR = 2, 4
MESH = {"rack": RACKS, "expert": NEAR}
ROWS, WIDTH = 64, 16
LOCAL = ROWS // (RACKS * NEAR) * WIDTH * 4
"""Bytes of one device's float32 rows."""


def exchange(x: jax.Array) -> jax.Array:
    """One of each kind, x [T, D] on one device; the last runs in a loop of 5."""
    x = jax.lax.all_to_all(x.reshape(NEAR, -1, WIDTH), "expert", 0, 0, tiled=True).reshape(x.shape)
    x = jax.lax.ppermute(x, "rack", [(0, 1), (1, 0)])
    whole = jnp.sin(jax.lax.all_gather(x, "expert", tiled=True))
    x = jax.lax.psum_scatter(whole, "expert", tiled=True)
    summed: jax.Array = jax.lax.fori_loop(0, 5, lambda turn, x: jnp.cos(jax.lax.psum(x, "rack")), x)
    return summed


def compiled(dtype: str) -> CompiledStep:
    mesh = make_mesh(RACKS, NEAR)
    mapped = jax.shard_map(exchange, mesh=mesh, in_specs=P(AXES), out_specs=P(AXES), check_vma=False)
    rows = jax.ShapeDtypeStruct((ROWS, WIDTH), jnp.dtype(dtype), sharding=NamedSharding(mesh, P(AXES)))
    return compile_step(lambda: jax.jit(mapped, donate_argnums=0).lower(rows), MESH)


def by_kind(step: CompiledStep) -> dict[str, Collective]:
    assert set(Counter(each.kind for each in step.collectives).values()) == {1}
    return {each.kind: each for each in step.collectives}


@pytest.mark.parametrize(("dtype", "width"), [("float32", 4), ("bfloat16", 2)])
def test_a_program_is_read_as_it_was_written(dtype: str, width: int) -> None:
    step = compiled(dtype)
    found = by_kind(step)
    local = LOCAL * width // 4
    assert {kind: (each.operand_bytes, each.crossing.axes, each.executions) for kind, each in found.items()} == {
        "all-to-all": (local, ("expert",), 1),
        "collective-permute": (local, ("rack",), 1),
        "all-gather": (local, ("expert",), 1),
        "reduce-scatter": (local * NEAR, ("expert",), 1),
        "all-reduce": (local, ("rack",), 5),
    }
    assert {kind for kind, each in found.items() if each.in_loop} == {"all-reduce"}
    assert found["all-gather"].result_bytes == local * NEAR
    assert all(each.known_count and not each.conditional for each in found.values())


def test_memory_is_that_of_one_device() -> None:
    memory = compiled("float32").memory
    assert (memory.argument_bytes, memory.output_bytes) == (LOCAL, LOCAL)
    assert memory.temporary_bytes >= LOCAL * NEAR  # the gathered rows
    assert memory.peak_bytes == memory.argument_bytes + memory.output_bytes - memory.aliased_bytes + memory.temporary_bytes


def test_what_the_partitioner_adds_is_found() -> None:
    """Data-parallel sums over racks and gathered weights within them, of a step that names no collective."""
    mesh = make_mesh(RACKS, NEAR)

    def step(weights: jax.Array, x: jax.Array) -> jax.Array:
        def loss(weights: jax.Array) -> jax.Array:
            return jnp.sum(jnp.tanh(x @ weights) ** 2)

        new = weights - jax.grad(loss)(weights)
        placed: jax.Array = jax.lax.with_sharding_constraint(new, NamedSharding(mesh, P(None, "expert")))
        return placed

    def lower() -> jax.stages.Lowered:
        weights = jax.ShapeDtypeStruct((WIDTH, 32), jnp.float32, sharding=NamedSharding(mesh, P(None, "expert")))
        rows = jax.ShapeDtypeStruct((ROWS, WIDTH), jnp.float32, sharding=NamedSharding(mesh, P(AXES)))
        return jax.jit(step).lower(weights, rows)

    found = compile_step(lower, MESH).collectives
    sums = [each for each in found if each.crossing.crosses("rack")]
    assert sums
    assert {each.kind for each in sums} <= {"all-reduce", "reduce-scatter"}
    assert all("transpose(" in each.source for each in sums)
    assert any(each.kind == "all-gather" and each.crossing.axes == ("expert",) for each in found)


def test_more_devices_than_this_process_has_are_refused_with_the_way_out() -> None:
    use_cpu_devices(RACKS * NEAR)  # it has these
    with pytest.raises(ConfigError, match="704 devices") as caught:
        use_cpu_devices(704)
    assert "python -m marin_core.plan" in caught.value.advice
