"""The handle of a plan: what a training run would need on a fleet, before anything is spent on it."""

from marin_core.artifact.step import ArtifactStep, CheckDeclaration, Resources, StepContext
from marin_core.errors import ConfigError
from marin_core.experiment.jobs import TrainJob
from marin_core.hardware import FleetConfig, MeshShape
from marin_core.plan.config import CHECKS, PlanConfig
from marin_core.train.config import TrainConfig


def plan(
    name: str,
    version: str,
    run: ArtifactStep | TrainConfig,
    *,
    mesh: str,
    device: str,
    total_tokens: int | None = None,
    price_per_device_hour: float | None = None,
    resources: Resources | None = None,
    description: str = "",
) -> ArtifactStep:
    """A run's whole training step, compiled for a fleet that isn't here: memory, traffic, least time, cost.

    It reads nothing, so it can be materialized before the run's data exists.

    Args:
        run: handle of a training run, or its configuration.
        mesh: racks × devices used in each, like `11x64`.
        device: name of a device profile of `marin_core.hardware`.
        total_tokens: token budget; None = all steps of the run.
        price_per_device_hour: in any currency; without it the plan has no cost.
    """
    fleet = FleetConfig(mesh=MeshShape.parse(mesh), device=device, price_per_device_hour=price_per_device_hour)
    config = PlanConfig(train=_train_config(run), fleet=fleet, total_tokens=total_tokens)

    def build_config(ctx: StepContext) -> PlanConfig:
        return config

    return ArtifactStep(
        name,
        version,
        job="plan",
        build_config=build_config,
        resources=resources or Resources(cpus=2),
        kinds=("jax", "xla"),
        owner="team:training",
        checks=tuple(CheckDeclaration(check, claim) for check, claim in CHECKS.items()),
        description=description or f"Plan of a training step on {fleet.mesh.devices} {device} in {fleet.mesh.racks} racks.",
    )


def _train_config(run: ArtifactStep | TrainConfig) -> TrainConfig:
    if isinstance(run, TrainConfig):
        return run
    job = run.symbolic_config
    if not isinstance(job, TrainJob):
        raise ConfigError(f"{run.id} is no training run", advice="Give the handle that train_lm(…) returned, or a TrainConfig.")
    return job.train
