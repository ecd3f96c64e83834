"""The code location of `benchmarks.orchestration`: a family of trivial partitions that a run worker makes by itself."""

import os

import dagster as dg

from marin_assets.factory import build_definitions
from marin_core.artifact import ArtifactStep
from marin_core.artifact.step import Resources
from marin_core.experiment import Experiment, experiment
from marin_core.experiment.jobs import SummaryJob

EXECUTOR_VARIABLE = "BENCHMARK_EXECUTOR"
PARTITIONS_VARIABLE = "BENCHMARK_PARTITIONS"
EXECUTORS = {"in process": dg.in_process_executor, "multiprocess": dg.multiprocess_executor}
"""How a run worker executes its step: ours, and Dagster's own default for a job."""


def trivial_family(partitions: int) -> ArtifactStep:
    """So many partitions, each an empty table."""
    return ArtifactStep(
        "trivial/parts",
        "v1",
        job="summary",
        build_config=lambda ctx: SummaryJob(of=(), metrics=("*",)),
        partitions=tuple(f"{number:05d}" for number in range(partitions)),
        resources=Resources(inline=True),
    )


def small_lab(partitions: int) -> Experiment:
    """The experiment around the family."""
    return experiment("benchmark", trivial_family(partitions), question="What does a partition cost?", hypothesis="A run worker's start.")


def location(partitions: int, executor: str) -> dg.Definitions:
    """What the factory makes of it, with one of the executors."""
    found = build_definitions([small_lab(partitions)])
    return dg.Definitions(assets=found.assets, resources=found.resources, executor=EXECUTORS[executor])


if EXECUTOR_VARIABLE in os.environ:
    defs = location(int(os.environ[PARTITIONS_VARIABLE]), os.environ[EXECUTOR_VARIABLE])
