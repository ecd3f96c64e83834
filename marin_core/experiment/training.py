"""The handle of a training run."""

from dataclasses import dataclass

from marin_core.artifact.step import ArtifactStep, CheckDeclaration, Resources, StepContext
from marin_core.errors import ConfigError
from marin_core.experiment.jobs import AdoptJob, MixtureJob, TrainJob
from marin_core.experiment.tokens import mixture_components
from marin_core.model.config import TransformerConfig
from marin_core.train.checkpoint.config import CheckpointPolicy
from marin_core.train.config import Fork, MeshConfig, RollBack, StartFrom, TrackerConfig, TrainConfig
from marin_core.train.health.config import HealthConfig
from marin_core.train.optimizers.config import Optimizer
from marin_core.train.schedules import BatchSchedule

TRAINING_POOL = "training"
"""Dagster concurrency pool of training jobs: two trainings don't share one machine."""


@dataclass(frozen=True)
class ForkedRun:
    """A run at one of its checkpoints, where another leaves it."""

    run: ArtifactStep
    step: int


def fork(run: ArtifactStep, *, step: int) -> ForkedRun:
    """Where a run is left to try a change (docs/how-to/cut-over.md): `train_lm(…, fork=fork(run, step=N))` goes on with it from there.

    Args:
        run: a training run; or what `adopted(…)` returns for a hand-off of one that goes on.
        step: of a checkpoint that the run keeps or holds; completed updates.

    Raises:
        ConfigError: it is no training run, or ends before that step.
    """
    job = run.symbolic_config
    if not isinstance(job, AdoptJob) and step > _training(run).num_steps:
        raise ConfigError(f"{run.id} has no step {step}: it ends at {_training(run).num_steps}", advice="Fork at a checkpoint that it has.")
    return ForkedRun(run, step)


def train_lm(
    name: str,
    version: str,
    data: ArtifactStep,
    *,
    model: TransformerConfig,
    optimizer: Optimizer,
    num_steps: int,
    global_batch_size: int,
    checkpoints: CheckpointPolicy,
    start_from: ArtifactStep | None = None,
    start_step: int | None = None,
    keep_optimizer: bool = False,
    fork: ForkedRun | None = None,
    batch_schedule: BatchSchedule | None = None,
    micro_batches: int = 1,
    roll_back: RollBack | None = None,
    mesh: MeshConfig | None = None,
    offload_optimizer_state: bool = False,
    health: HealthConfig | None = None,
    seed: int = 0,
    tracker: TrackerConfig | None = None,
    resources: Resources | None = None,
    description: str = "",
) -> ArtifactStep:
    """A training run with its permanent checkpoints, metrics and plots.

    Args:
        data: handle of a mixture; its sequence length is the model's context.
        start_from: a run whose checkpoint this one begins with: mid-training, a cooldown, a longer context. Data, schedule and step are
            this run's own.
        start_step: which of its permanent checkpoints; None = the last.
        keep_optimizer: take over the moments too.
        fork: a run that this one goes on with from a checkpoint, with the same steps, schedule and order of data: a change in mid-run.
        batch_schedule: batches that change over the run.
        micro_batches: parts of a step that run one after the other, to save memory.
        roll_back: what to do about a spike that lasts.
        mesh: devices; None = one. Several processes need `resources=Resources(processes=…)`.
        offload_optimizer_state: keep moments in the memory of the host between steps.
        health: thresholds of the alerts.
        num_steps: optimizer steps.
        global_batch_size: sequences in a step.
        checkpoints: permanent ones, each of which can be evaluated, and rolling ones, from which a lost run resumes.
    """
    mixed = data.symbolic_config
    if not isinstance(mixed, MixtureJob):
        raise ConfigError(f"{name}@{version} trains on {data.id}, which is no mixture", advice="Wrap its caches in mixture(…).")
    components = mixture_components(data)
    earlier = fork.run if fork is not None else start_from
    config = TrainConfig(
        model=model,
        optimizer=optimizer,
        num_steps=num_steps,
        global_batch_size=global_batch_size,
        sequence_length=mixed.mixture.sequence_length,
        checkpoints=checkpoints,
        start_from=_start(name, version, start_from, start_step, keep=keep_optimizer),
        fork=None if fork is None else Fork(step=fork.step),
        batch_schedule=batch_schedule,
        micro_batches=micro_batches,
        roll_back=roll_back,
        mesh=mesh,
        offload_optimizer_state=offload_optimizer_state,
        health=health or HealthConfig(),
        seed=seed,
        tracker=tracker or TrackerConfig(),
    )

    def build_config(ctx: StepContext) -> TrainJob:
        return TrainJob(
            mixture=ctx.address(data),
            components={component: ctx.members(cache) for component, cache in components.items()},
            run_name=f"{name}-{version}".replace("/", "-"),
            earlier_run=None if earlier is None else ctx.address(earlier),
            train=config,
        )

    return ArtifactStep(
        name,
        version,
        job="train",
        build_config=build_config,
        deps=(data, *components.values(), *([] if earlier is None else [earlier])),
        leaves_out=data.leaves_out,
        resources=resources or Resources(cpus=2, pool=TRAINING_POOL),
        kinds=("jax", "flax", "orbax"),
        owner="team:training",
        checks=(
            CheckDeclaration("healthy", "No alert was raised that wakes somebody."),
            CheckDeclaration("loss_fell", "The mean loss of the last steps is below that of the first."),
            *([CheckDeclaration("experts_in_use", "Every expert of every layer gets tokens at the end.")] if model.moe else []),
        ),
        description=description or f"Training run over {data.name}, {num_steps} steps.",
    )


def _start(name: str, version: str, run: ArtifactStep | None, step: int | None, *, keep: bool) -> StartFrom | None:
    if run is None:
        return None
    kept = _training(run).checkpoint_steps
    if step is not None and step not in kept:
        raise ConfigError(
            f"{name}@{version} starts from step {step} of {run.id}, which keeps checkpoints of steps {', '.join(map(str, kept))}",
            advice="Choose one of those as start_step.",
        )
    return StartFrom(step=kept[-1] if step is None else step, optimizer="kept" if keep else "fresh")


def _training(run: ArtifactStep) -> TrainConfig:
    job = run.symbolic_config
    if not isinstance(job, TrainJob):
        raise ConfigError(f"{run.id} is no training run", advice="Give the handle that train_lm(…) returned.")
    return job.train


def checkpoint_key(step: int) -> str:
    """Partition key of a checkpoint."""
    return f"step-{step:06d}"


def checkpoint_keys(run: ArtifactStep) -> tuple[str, ...]:
    """Partition keys of the permanent checkpoints that a run will have."""
    return tuple(checkpoint_key(step) for step in _training(run).checkpoint_steps)
