"""Make a plan: lower and compile the real training step for the fleet's mesh on virtual CPU devices, and report."""

from collections.abc import Callable

import jax

from marin_core.hardware import MeshShape
from marin_core.model.config import PooledWavesConfig, RaggedConfig
from marin_core.model.mesh import make_mesh
from marin_core.plan.compile import compile_step
from marin_core.plan.compiled import CompiledStep
from marin_core.plan.config import PlanConfig
from marin_core.plan.report import PlanReport, make_report
from marin_core.train.config import TrainConfig
from marin_core.train.step import abstract_batch, abstract_state, make_train_step


def lower_train_step(config: TrainConfig, shape: MeshShape) -> jax.stages.Lowered:
    """Lower the whole training step, optimizer and balancer included, from shapes alone."""
    mesh = make_mesh(shape.racks, shape.devices_per_rack)
    with jax.set_mesh(mesh):
        step = make_train_step(config, mesh)
        lowered: jax.stages.Lowered = step.lower(abstract_state(config, mesh), abstract_batch(config, mesh))  # type: ignore[attr-defined]
    return lowered


def make_plan(config: PlanConfig, log: Callable[[str], None]) -> tuple[PlanReport, CompiledStep]:
    """Compile the step of a plan and report on it; its second part says how long that took.

    Must run where `use_cpu_devices` has given JAX the fleet's number of devices.
    """
    compiled = compile_step(lambda: lower_train_step(_compilable(config.train), config.fleet.mesh), config.fleet.mesh.axes, log)
    return make_report(config, compiled), compiled


def _compilable(config: TrainConfig) -> TrainConfig:
    """The run with a transport that XLA:CPU can compile: `ragged` becomes pools of the same capacity in one wave (trap T3)."""
    moe = config.model.moe
    if moe is None or not isinstance(moe.transport, RaggedConfig):
        return config
    return config.changed(model=config.model.changed(moe=moe.changed(transport=PooledWavesConfig(waves=1))))
