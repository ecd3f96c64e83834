"""A training that draws its pictures so often that a browser can catch it at work."""

from dataclasses import replace

from marin_core import experiment as lab
from marin_core.artifact.step import StepContext
from marin_core.experiment.jobs import TrainJob
from tests.integration.experiments.small import data

STEPS = 100

_run = lab.train_lm(
    "checkpoints/live",
    "v1",
    data,
    model=lab.moe_tiny(vocab_size=300, layers=2),
    optimizer=lab.AdamW(learning_rate=3e-3, schedule=lab.Wsd(warmup_steps=5)),
    num_steps=STEPS,
    global_batch_size=8,
    checkpoints=lab.CheckpointPolicy(permanent_every_steps=STEPS),
)


def _config(ctx: StepContext) -> TrainJob:
    """Pictures every second, which is a setting of the job and not of the experiment."""
    config = _run.build_config(ctx)
    assert isinstance(config, TrainJob)
    return config.changed(train=config.train.changed(plot_every_seconds=1.0))


run = replace(_run, build_config=_config)
EXPERIMENT = lab.experiment("live", run, question="Can a training be watched?", hypothesis="Yes.")
