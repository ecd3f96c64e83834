"""The Dagster job `reproduce`: puts artifacts to the test, from the launchpad or a schedule; each result is the check `reproduced`."""

import dagster as dg
from dagster._core.definitions.asset_checks.asset_check_evaluation import AssetCheckEvaluationTargetMaterializationData

from marin_assets.build import DagsterEvents, failure
from marin_assets.keys import asset_key
from marin_assets.lab import Lab
from marin_assets.metadata import reproduction_result
from marin_assets.reproduce import reproduce
from marin_core.artifact import ArtifactGraph, ArtifactId
from marin_core.errors import ConfigError, MarinError


class ReproduceConfig(dg.Config):
    """Launchpad options.

    Attributes:
        artifacts: `name@version`, of a family all its partitions, or `name@version/partition`.
        prefix: folder or URL below which the shadows are built and left; empty = below the store, deleted after the comparison.
    """

    artifacts: list[str]
    prefix: str = ""


def reproduce_job(graph: ArtifactGraph) -> dg.JobDefinition:
    """A job that rebuilds artifacts at shadow addresses and fails if one came out differently."""

    @dg.op(name="reproduce_artifacts", tags={"marin/job": "reproduce"})
    def reproduce_artifacts(context: dg.OpExecutionContext, config: ReproduceConfig, lab: Lab) -> None:
        different = []
        for artifact in [each for text in config.artifacts for each in _members(graph, text)]:
            events = DagsterEvents(context, lab, artifact)
            try:
                result = reproduce(lab, graph, artifact, prefix=config.prefix or None, events=events, dagster_run_id=context.run.run_id)
            except MarinError as error:
                raise failure(artifact, error) from error
            context.log.info(f"{artifact}: {result.summary}")
            _post(context, artifact, reproduction_result(result))
            if not result.passed:
                different.append(f"{artifact} was {result.summary}")
        if different:
            raise dg.Failure("; ".join(different), allow_retries=False)

    @dg.job(name="reproduce", description="Build artifacts again at a shadow address and compare them with what is committed.")
    def job() -> None:
        reproduce_artifacts()

    return job


def _members(graph: ArtifactGraph, text: str) -> list[ArtifactId]:
    artifact = ArtifactId.parse(text)
    step = graph[artifact]
    if artifact.partition is None:
        return list(step.ids())
    if artifact not in step.ids():
        raise ConfigError(f"{step.id} has no partition {artifact.partition!r}", advice=f"It has: {', '.join(step.partitions)}.")
    return [artifact]


def _post(context: dg.OpExecutionContext, artifact: ArtifactId, result: dg.AssetCheckResult) -> None:
    """Put the result on the asset. It counts for the materialization it names; a partition's would vanish from the page without one."""
    key = asset_key(artifact.family)
    partitions = [artifact.partition] if artifact.partition else None
    found = context.instance.fetch_materializations(dg.AssetRecordsFilter(asset_key=key, asset_partitions=partitions), limit=1).records
    target = (
        AssetCheckEvaluationTargetMaterializationData(storage_id=found[0].storage_id, run_id=found[0].run_id, timestamp=found[0].timestamp)
        if found
        else None
    )
    context.log_event(
        dg.AssetCheckEvaluation(  # type: ignore[arg-type] # it takes every kind of asset event; the annotation lags
            asset_key=key,
            check_name=str(result.check_name),
            passed=result.passed,
            metadata=result.metadata,
            severity=result.severity,
            description=result.description,
            partition=artifact.partition,
            target_materialization_data=target,
        )
    )
