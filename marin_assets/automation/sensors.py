"""The lab's sensors: what is due is asked for, and what failed or stalled is written down. Each is off until somebody switches it on."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import dagster as dg
from dagster._core.storage.dagster_run import NOT_FINISHED_STATUSES
from dagster._core.storage.tags import SENSOR_NAME_TAG, WILL_RETRY_TAG

from marin_assets.automation.desk import Clock, utc_now
from marin_assets.automation.failures import FailureRecord, record_failures
from marin_assets.automation.requests import UNFINISHED, Decision, Ended, decide
from marin_assets.automation.stalls import Watch, watch
from marin_assets.keys import asset_key
from marin_assets.lab import Lab
from marin_core.artifact import ArtifactGraph, ArtifactId, ArtifactStep, Store
from marin_core.errors import DataError

CHECK_SECONDS = 120
"""Between two looks for what is due."""

WATCH_SECONDS = 60
"""Between two looks for what has stalled."""

ARTIFACT_TAG = "marin/artifact"
"""Run tag: which artifact a sensor has asked for."""

COSTLY_JOBS = frozenset({"train"})
"""Jobs that nobody but a person starts: their families are built by hand or by `marin backfill`."""

LISTED: frozenset[str] = frozenset()
"""Families (`name@version`) of costly jobs that may be built without being asked for, all the same."""

FAILURES_SHOWN = 5


def lab_sensors(
    graph: ArtifactGraph, jobs: Mapping[ArtifactId, Any], clock: Clock = utc_now, listed: Collection[str] = LISTED
) -> list[dg.SensorDefinition]:
    """All of them; one that has no family to look after isn't there.

    Args:
        jobs: the job of each family.
        listed: see `LISTED`.
    """
    families = [step for step in graph if step.partitions]
    evaluations = [step for step in families if step.job == "evaluate"]
    shards = [step for step in families if step.job != "evaluate" and (step.job not in COSTLY_JOBS or str(step.id) in listed)]
    sensors = []
    if evaluations:
        sensors.append(
            request_sensor(
                "evaluate_new_checkpoints",
                "Evaluate every checkpoint of a run once the run is committed, however many were preempted on the way.",
                graph,
                evaluations,
                jobs,
                clock,
            )
        )
    if shards:
        sensors.append(
            request_sensor(
                "build_missing_shards",
                "Build members of families whose inputs are there, such as the tokens of new shards. Trainings are not among them.",
                graph,
                shards,
                jobs,
                clock,
            )
        )
    return [*sensors, failed_run_sensor(graph), stall_sensor(graph, clock)]


# What is due -----------------------------------------------------------------------------------------------------------


class AskedRuns:
    """What became of the runs that one sensor asked for, by Dagster's run storage (`Past`)."""

    def __init__(self, instance: dg.DagsterInstance, sensor: str) -> None:
        self._instance = instance
        self._sensor = sensor

    def unfinished(self) -> set[ArtifactId]:
        filters = dg.RunsFilter(tags={SENSOR_NAME_TAG: self._sensor}, statuses=NOT_FINISHED_STATUSES)
        runs = self._instance.get_runs(filters, limit=2 * UNFINISHED)
        return {ArtifactId.parse(tag) for run in runs if (tag := run.tags.get(ARTIFACT_TAG))}

    def ended(self, artifacts: Collection[ArtifactId]) -> dict[ArtifactId, Ended]:
        if not artifacts:
            return {}
        named = {str(artifact): artifact for artifact in artifacts}
        filters = dg.RunsFilter(tags={SENSOR_NAME_TAG: self._sensor, ARTIFACT_TAG: list(named)})
        found: dict[ArtifactId, Ended] = {}
        for record in self._instance.get_run_records(filters):
            artifact = named[record.dagster_run.tags[ARTIFACT_TAG]]
            if record.dagster_run.is_finished:
                at = datetime.fromtimestamp(record.end_time or record.update_timestamp.timestamp(), UTC)
                before = found.get(artifact, Ended(0, at))
                found[artifact] = Ended(before.runs + 1, max(before.at, at))
        return found

    def running(self, runs: Collection[str]) -> set[str]:
        if not runs:
            return set()
        return {run.run_id for run in self._instance.get_runs(dg.RunsFilter(run_ids=list(runs), statuses=NOT_FINISHED_STATUSES))}


def request_sensor(
    name: str, description: str, graph: ArtifactGraph, families: Sequence[ArtifactStep], jobs: Mapping[ArtifactId, Any], clock: Clock
) -> dg.SensorDefinition:
    """A sensor that asks for what is missing of some families and can be built (see `decide`)."""

    @dg.sensor(
        name=name,
        jobs=[jobs[step.id] for step in families],
        minimum_interval_seconds=CHECK_SECONDS,
        default_status=dg.DefaultSensorStatus.STOPPED,
        description=description,
    )
    def due(context: dg.SensorEvaluationContext, lab: Lab) -> dg.SensorResult:
        decision = decide(graph, families, lab.store(), AskedRuns(context.instance, name), context.cursor, clock())
        return result(decision, jobs)

    return due


def result(decision: Decision, jobs: Mapping[ArtifactId, Any]) -> dg.SensorResult:
    """A decision as Dagster takes it."""
    if not decision.requests:
        reason = str(decision.waiting) or "everything that could be built is there"
        return dg.SensorResult(skip_reason=reason, cursor=decision.cursor)
    requests = [
        dg.RunRequest(
            run_key=request.key,
            job_name=jobs[request.artifact.family].name,
            partition_key=request.artifact.partition,
            tags={ARTIFACT_TAG: str(request.artifact)},
        )
        for request in decision.requests
    ]
    return dg.SensorResult(run_requests=requests, cursor=decision.cursor)


# What failed -----------------------------------------------------------------------------------------------------------


def failed_run_sensor(graph: ArtifactGraph) -> dg.SensorDefinition:
    """Keeps a failure record for each attempt that a failed run leaves behind; a run that Dagster tries again is left to the last try."""
    families = {asset_key(step.id): step.id for step in graph}

    @dg.run_failure_sensor(
        name="record_failed_runs",
        monitor_all_code_locations=True,
        default_status=dg.DefaultSensorStatus.STOPPED,
        description="Write down what failed, why, and what to do about it, below .failures in the store.",
    )
    def failed(context: dg.RunFailureSensorContext, lab: Lab) -> None:  # a value of any kind would end the tick after one run
        run = context.dagster_run
        if run.tags.get(WILL_RETRY_TAG) == "true":
            return
        store = lab.store()
        for artifact, attempt in failed_artifacts(context.instance, run, context.get_step_failure_events(), store, families):
            try:
                for failure in record_failures(store, [(artifact, attempt)]):
                    context.log.info(_said(failure))
            except DataError as error:  # one damaged history doesn't hide the others
                context.log.warning(f"run {run.run_id}: {error}")

    return failed


def failed_artifacts(
    instance: dg.DagsterInstance,
    run: dg.DagsterRun,
    failures: Iterable[dg.DagsterEvent],
    store: Store,
    families: Mapping[dg.AssetKey, ArtifactId],
) -> list[tuple[ArtifactId, int | None]]:
    """Artifacts that a failed run was about, with their attempts if it says so. A lost worker says nothing: then it is what it had planned.

    Args:
        failures: of the run's steps.
    """
    said = [found for event in failures if (found := _attempt_of(event)) is not None]
    if said:
        return said
    planned = []
    for record in instance.get_records_for_run(run.run_id, of_type=dg.DagsterEventType.ASSET_MATERIALIZATION_PLANNED).records:
        event = record.event_log_entry.dagster_event
        data = None if event is None else event.asset_materialization_planned_data
        family = None if data is None else families.get(data.asset_key)
        if data is not None and family is not None:
            keys = data.partitions_subset.get_partition_keys() if data.partitions_subset else [data.partition]
            planned += [ArtifactId(family.name, family.version, key) for key in keys]
    there = store.committed(planned, lambda artifact, error: None)
    attempted = store.attempted(artifact for artifact in planned if artifact not in there)
    return [(artifact, None) for artifact in planned if artifact in attempted]


def _attempt_of(event: dg.DagsterEvent) -> tuple[ArtifactId, int | None] | None:
    """What the failure of an asset's step says (see `marin_assets.build.failure`)."""
    told = event.step_failure_data.user_failure_data
    metadata = {} if told is None else told.metadata
    if "artifact" not in metadata:
        return None
    attempt = metadata["attempt"].value if "attempt" in metadata else None
    return ArtifactId.parse(str(metadata["artifact"].value)), attempt if isinstance(attempt, int) else None


def stall_sensor(graph: ArtifactGraph, clock: Clock) -> dg.SensorDefinition:
    """Watches attempts from tick to tick (see `watch`)."""
    members = [artifact for step in graph for artifact in step.ids()]

    @dg.sensor(
        name="record_stalled_attempts",
        minimum_interval_seconds=WATCH_SECONDS,
        default_status=dg.DefaultSensorStatus.STOPPED,
        description="Write down attempts that are open and give no sign of life, and failures that were missed, below .failures.",
    )
    def stalled(context: dg.SensorEvaluationContext, lab: Lab) -> dg.SensorResult:
        after, new = watch(lab.store(), members, Watch.of_cursor(context.cursor), lab.lease(), clock())
        said = "; ".join(_said(failure) for failure in new[:FAILURES_SHOWN]) or f"{len(after.watched)} open attempts are watched"
        return dg.SensorResult(skip_reason=said, cursor=after.model_dump_json())

    return stalled


def _said(failure: FailureRecord) -> str:
    return f"{failure.artifact}, attempt {failure.attempt}, {failure.failure}: {failure.message}"
