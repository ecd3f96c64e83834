"""The handle of a training run."""

from marin_core.artifact.step import ArtifactStep, CheckDeclaration, Resources, StepContext
from marin_core.errors import ConfigError
from marin_core.experiment.data import mixture_components
from marin_core.experiment.jobs import MixtureJob, TrainJob
from marin_core.model.config import TransformerConfig
from marin_core.train.config import OptimizerConfig, TrackerConfig, TrainConfig

TRAINING_POOL = "training"
"""Dagster concurrency pool of training jobs: two trainings don't share one machine."""


def train_lm(
    name: str,
    version: str,
    data: ArtifactStep,
    *,
    model: TransformerConfig,
    optimizer: OptimizerConfig,
    num_steps: int,
    global_batch_size: int,
    checkpoint_every_steps: int,
    temporary_checkpoint_every_steps: int | None = None,
    seed: int = 0,
    tracker: TrackerConfig | None = None,
    resources: Resources | None = None,
    description: str = "",
) -> ArtifactStep:
    """A training run with its permanent checkpoints, metrics and plots.

    Args:
        data: handle of a mixture; its sequence length is the model's context.
        num_steps: optimizer steps.
        global_batch_size: sequences in a step.
        checkpoint_every_steps: interval of permanent checkpoints, each of which can be evaluated.
        temporary_checkpoint_every_steps: interval of rolling checkpoints, from which a lost run resumes.
    """
    mixed = data.symbolic_config
    if not isinstance(mixed, MixtureJob):
        raise ConfigError(f"{name}@{version} trains on {data.id}, which is no mixture", advice="Wrap its caches in mixture(…).")
    components = mixture_components(data)
    config = TrainConfig(
        model=model,
        optimizer=optimizer,
        num_steps=num_steps,
        global_batch_size=global_batch_size,
        sequence_length=mixed.mixture.sequence_length,
        checkpoint_every_steps=checkpoint_every_steps,
        temporary_checkpoint_every_steps=temporary_checkpoint_every_steps or checkpoint_every_steps,
        seed=seed,
        tracker=tracker or TrackerConfig(),
    )

    def build_config(ctx: StepContext) -> TrainJob:
        return TrainJob(
            mixture=ctx.address(data),
            components={component: ctx.members(cache) for component, cache in components.items()},
            run_name=f"{name}-{version}".replace("/", "-"),
            train=config,
        )

    return ArtifactStep(
        name,
        version,
        job="train",
        build_config=build_config,
        deps=(data, *components.values()),
        resources=resources or Resources(cpus=2, pool=TRAINING_POOL),
        kinds=("jax", "flax", "orbax"),
        owner="team:training",
        checks=(
            CheckDeclaration("loss_fell", "The mean loss of the last steps is below that of the first."),
            *([CheckDeclaration("experts_in_use", "Every expert of every layer gets tokens at the end.")] if model.moe else []),
        ),
        description=description or f"Training run over {data.name}, {num_steps} steps.",
    )


def checkpoint_key(step: int) -> str:
    """Partition key of a checkpoint."""
    return f"step-{step:06d}"


def checkpoint_keys(run: ArtifactStep) -> tuple[str, ...]:
    """Partition keys of the permanent checkpoints that a run will have."""
    job = run.symbolic_config
    if not isinstance(job, TrainJob):
        raise ConfigError(f"{run.id} is no training run", advice="Give the handle that train_lm(…) returned.")
    return tuple(checkpoint_key(step) for step in job.train.checkpoint_steps)
