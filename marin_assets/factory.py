"""Handles become assets: one asset for each artifact, whoever declares it, with everything Dagster can show about it."""

import sys
from collections.abc import Iterator, Sequence
from typing import Any

import dagster as dg

from marin_assets.build import BuildConfig, build_asset
from marin_assets.keys import asset_key
from marin_assets.lab import Lab, default_prefix
from marin_assets.metadata import DRIFT, REPRODUCED
from marin_assets.reproduce_job import reproduce_job
from marin_core.artifact import ArtifactGraph, ArtifactId, ArtifactStep, CheckDeclaration
from marin_core.artifact.drift import job_code
from marin_core.experiment import Experiment

FRAMES_PER_ASSET = 10
"""Frames of Dagster's recursion for each asset of a chain, and some to spare."""


def build_definitions(experiments: Sequence[Experiment]) -> dg.Definitions:
    """All assets of some experiments, a backfill job for each family, and the lab's resource.

    Raises:
        ConfigError: if two experiments declare one `name@version` differently.
    """
    graph = ArtifactGraph(target for experiment in experiments for target in experiment.targets)
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
    return dg.Definitions(
        assets=assets,
        jobs=[*family_jobs(graph), reproduce_job(graph)],
        resources={"lab": Lab(prefix=default_prefix())},
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
    """A partitioned job for each family, for `dagster job backfill`, named after what it does: `filter_python_code`.

    Where two versions of one family are declared, both jobs carry the version: `filter_python_code_v1`, `filter_python_code_v2`.
    """
    named: dict[str, list[ArtifactStep]] = {}
    for step in graph:
        if step.partitions:
            named.setdefault("_".join([step.job, *step.name.split("/")[1:]]), []).append(step)
    return [
        dg.define_asset_job(
            name if len(steps) == 1 else f"{name}_{step.version.replace('.', '_')}",
            selection=[asset_key(step.id)],
            description=f"Build partitions of {step.id}: {step.description}",
        )
        for name, steps in named.items()
        for step in steps
    ]


def _mapping(step: ArtifactStep, dep: ArtifactStep) -> dg.PartitionMapping | None:
    if not dep.partitions:
        return None
    return dg.IdentityPartitionMapping() if dep.partitions == step.partitions else dg.AllPartitionMapping()
