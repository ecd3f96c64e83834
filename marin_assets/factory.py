"""Handles become assets: one asset for each artifact, whoever declares it, with everything Dagster can show about it."""

import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import dagster as dg

from marin_assets.automation.cluster import cluster_sensors
from marin_assets.automation.desk import Clock, refuse_collisions, utc_now
from marin_assets.automation.mix import mix_asset, mix_automation
from marin_assets.automation.sensors import lab_sensors
from marin_assets.build import BuildConfig, build_asset
from marin_assets.keys import asset_key
from marin_assets.lab import Lab, default_prefix
from marin_assets.launch.kubernetes import require_places
from marin_assets.metadata import DRIFT, REPRODUCED
from marin_assets.place import LOCAL, default_launcher
from marin_assets.reproduce_job import reproduce_job
from marin_core.artifact import ArtifactGraph, ArtifactId, ArtifactStep, CheckDeclaration
from marin_core.artifact.drift import job_code
from marin_core.experiment import Experiment

FRAMES_PER_ASSET = 10
"""Frames of Dagster's recursion for each asset of a chain, and some to spare."""


@contextmanager
def _without_preview_warnings() -> Iterator[None]:
    """Dagster warns of each use of what may change in its next versions. The lock names one; whoever loads definitions can't do a thing."""
    with warnings.catch_warnings():
        for category in (dg.PreviewWarning, dg.BetaWarning):
            warnings.simplefilter("ignore", category)
        yield


@_without_preview_warnings()
def build_definitions(experiments: Sequence[Experiment], clock: Clock = utc_now) -> dg.Definitions:
    """All assets of some experiments, a backfill job for each family, what publishes their mixes, the sensors, and the lab's resource.

    Args:
        clock: of the mixes' publishers and of the sensors.

    Raises:
        ConfigError: if two experiments declare one `name@version` differently, or mixes that would lie in one place, or a job that
            has no place on this deployment's cluster.
    """
    graph = ArtifactGraph(target for experiment in experiments for target in experiment.targets)
    launcher = default_launcher()
    if launcher != LOCAL:
        require_places(launcher, graph)
    _allow_depth(graph.depth)
    members = {
        experiment.name: {step.id for step in graph.upstream([graph[target.id] for target in experiment.targets])}
        for experiment in experiments
    }
    users: dict[ArtifactId, list[str]] = {}
    for name, ids in sorted(members.items()):
        for artifact in ids:
            users.setdefault(artifact, []).append(name)
    versions = code_versions(graph)
    assets = [artifact_asset(graph, step, versions[step.id], experiments=users[step.id]) for step in graph]
    mixes = refuse_collisions([mix for experiment in experiments for mix in experiment.published], graph)
    publishers = {name: [experiment.name for experiment in experiments if mix in experiment.published] for name, mix in mixes.items()}
    assets += [mix_asset(mix, graph, publishers[name], clock) for name, mix in mixes.items()]
    automation = [mix_automation(mix, graph, clock) for mix in mixes.values()]
    families = dict(zip(family_job_names(graph), family_jobs(graph), strict=True))
    return dg.Definitions(
        assets=assets,
        jobs=[*families.values(), reproduce_job(graph), *(job for job, _, _ in automation)],
        schedules=[schedule for _, schedule, _ in automation],
        sensors=[*(sensor for _, _, sensor in automation), *lab_sensors(graph, families, clock), *cluster_sensors(launcher)],
        resources={"lab": Lab(prefix=default_prefix(), launcher=launcher)},
        executor=dg.in_process_executor,
    )


def _allow_depth(depth: int) -> None:
    """Dagster walks up a chain of assets by recursion when it makes a job of them, and gives up near 1,000 without more room."""
    sys.setrecursionlimit(max(sys.getrecursionlimit(), FRAMES_PER_ASSET * depth))


def code_versions(graph: ArtifactGraph) -> dict[ArtifactId, str]:
    """What Dagster compares to call an asset unsynced: configuration and code of an artifact and of everything upstream."""
    return graph.versions(lambda job: job_code(job).digest)


def artifact_asset(graph: ArtifactGraph, step: ArtifactStep, code_version: str, experiments: Sequence[str] = ()) -> dg.AssetsDefinition:
    """The asset of one artifact or family."""

    key = asset_key(step.id)
    partitions = dg.StaticPartitionsDefinition(list(step.partitions)) if step.partitions else None
    checks = [
        CheckDeclaration(DRIFT, "It would be built today as it was built.", blocking=step.on_drift == "fail"),
        *step.checks,
        CheckDeclaration(REPRODUCED, "Built again, it came out the same. Execute this check alone to try it."),
    ]

    @dg.multi_asset(  # of one asset: a check that has no result yet may stay without one only here
        name=key.to_python_identifier(),
        specs=[
            dg.AssetSpec(
                key,
                deps=[dg.AssetDep(asset_key(dep.id), partition_mapping=_mapping(step, dep)) for dep in step.deps],
                description=step.description,
                group_name=step.stage,
                kinds=set(step.kinds),
                owners=[step.owner],
                code_version=code_version,
                tags={
                    "marin/name": step.name.split("/")[-1],
                    "marin/version": step.version,
                    **{f"experiment/{name}": "true" for name in experiments},
                },
                metadata={
                    "artifact": str(step.id),
                    "fingerprint": graph.fingerprint(step),
                    "config": dg.MetadataValue.json(step.own_identity["config"]),
                    "experiments": ", ".join(experiments),
                },
            )
        ],
        check_specs=[
            dg.AssetCheckSpec(check.name, asset=key, description=check.description, blocking=check.blocking, partitions_def=partitions)
            for check in checks
        ],
        can_subset=True,
        partitions_def=partitions,
        pool=step.resources.pool,
        op_tags={"marin/job": step.job},
    )
    def artifact(context: dg.AssetExecutionContext, config: BuildConfig, lab: Lab) -> Iterator[Any]:
        yield from build_asset(context, config, lab, graph, step, code_version)

    return artifact


def family_jobs(graph: ArtifactGraph) -> list[Any]:
    """A partitioned job for each family, for `dagster job backfill` and for sensors."""
    return [
        dg.define_asset_job(name, selection=[asset_key(family)], description=f"Build partitions of {family}: {graph[family].description}")
        for family, name in family_job_names(graph).items()
    ]


def family_job_names(graph: ArtifactGraph) -> dict[ArtifactId, str]:
    """The job of each family, named after what it does: `filter_python_code`.

    Where two versions of one family are declared, both jobs carry the version: `filter_python_code_v1`, `filter_python_code_v2`. Where
    `documents/python_code` is made by the same job as `filtered/python_code`, it is `filter_documents_python_code`.
    """
    named: dict[str, list[ArtifactStep]] = {}
    for step in graph:
        if step.partitions:
            named.setdefault("_".join([step.job, *step.name.split("/")[1:]]), []).append(step)
    return {step.id: _job_name(name, step, steps) for name, steps in named.items() for step in steps}


def _job_name(name: str, step: ArtifactStep, namesakes: Sequence[ArtifactStep]) -> str:
    """A short name if only one family wants it; among several, it is that of the one whose stage is called like the job."""
    names = {each.name for each in namesakes}
    called_alike = {each.name for each in namesakes if each.stage.startswith(step.job)}
    if len(names) > 1 and called_alike != {step.name}:
        name = "_".join([step.job, *step.name.split("/")])
    versions = sum(each.name == step.name for each in namesakes)
    return name if versions == 1 else f"{name}_{step.version.replace('.', '_')}"


def _mapping(step: ArtifactStep, dep: ArtifactStep) -> dg.PartitionMapping | None:
    if not dep.partitions:
        return None
    if dep is step.base:
        return dg.StaticPartitionMapping({key: key for key in dep.partitions})
    if dep.partitions == step.partitions:
        return dg.IdentityPartitionMapping()
    left_out = step.left_out(dep)
    if left_out:
        return dg.SpecificPartitionsPartitionMapping([key for key in dep.partitions if key not in left_out])
    return dg.AllPartitionMapping()
