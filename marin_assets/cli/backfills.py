"""The asset backfills of `marin backfill`: which of the instance's concern some artifacts, a new one, and how one ends.

They are put into the instance's own storage, from which the daemon takes them, as the webserver does when its button is pressed: it is
the storage that says which lab this is, while no one knows on which port its webserver listens, if there is one. An asset backfill, unlike
a job backfill, is followed by the daemon to the end of its runs, and its lost runs are retried (spec: dagster §2.2).
"""

import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import dagster as dg
from dagster._core.definitions.assets.graph.asset_graph_subset import AssetGraphSubset
from dagster._core.definitions.assets.graph.base_asset_graph import BaseAssetGraph
from dagster._core.definitions.events import AssetKeyPartitionKey
from dagster._core.errors import DagsterDefinitionChangedDeserializationError
from dagster._core.execution.asset_backfill import AssetBackfillData
from dagster._core.execution.backfill import BULK_ACTION_TERMINAL_STATUSES, BulkActionsFilter, BulkActionStatus, PartitionBackfill
from dagster._core.storage.tags import BACKFILL_ID_TAG, PARTITION_NAME_TAG
from dagster._core.utils import make_new_backfill_id

from marin_assets.cli.runs import CLASS_EXIT_CODES, Outcome, exit_code_of, failure_text
from marin_assets.keys import asset_key
from marin_core.artifact import ArtifactGraph, ArtifactId, Attempt, Store
from marin_core.errors import ExitCode

POLL_SECONDS = 2.0
DAEMON_SILENCE_SECONDS = 120.0
"""After which the daemon is said to be gone; it gives a sign of life every 30 s, and Dagster itself waits half an hour."""
TITLE_CHARACTERS = 100


@dataclass(frozen=True)
class Backfill:
    """A backfill that is under way.

    Attributes:
        artifacts: what it will still bring to an end.
        begun: when it was asked for.
    """

    id: str
    artifacts: frozenset[ArtifactId]
    begun: datetime


class Backfills:
    """The backfills of one instance, about the artifacts of one graph.

    Args:
        assets: the assets that the experiments declare.
        pause: waits so many seconds.
    """

    def __init__(
        self, instance: dg.DagsterInstance, graph: ArtifactGraph, assets: BaseAssetGraph[Any], pause: Callable[[float], None] = time.sleep
    ) -> None:
        self._instance = instance
        self._graph = graph
        self._assets = assets
        self._pause = pause
        self._families = {asset_key(step.id): step.id for step in graph}

    def under_way(self) -> list[Backfill]:
        """Backfills that the daemon has taken up or will, whoever asked for them, oldest first."""
        found = self._instance.get_backfills(filters=BulkActionsFilter(statuses=[BulkActionStatus.REQUESTED]))
        return [self._read(each) for each in reversed(found) if each.is_asset_backfill]

    def _read(self, backfill: PartitionBackfill) -> Backfill:
        begun = datetime.fromtimestamp(backfill.backfill_timestamp, UTC)
        try:
            data = backfill.get_asset_backfill_data(self._assets)
        except DagsterDefinitionChangedDeserializationError:  # of other assets than are declared today
            return Backfill(backfill.backfill_id, frozenset(), begun)
        given_up = set(data.failed_and_downstream_subset.iterate_asset_partitions())
        return Backfill(
            backfill.backfill_id,
            frozenset(
                ArtifactId(family.name, family.version, each.partition_key)
                for each in data.target_subset.iterate_asset_partitions()
                if each not in given_up and (family := self._families.get(each.asset_key)) is not None
            ),
            begun,
        )

    def launch(self, artifacts: Collection[ArtifactId], title: str) -> Backfill:
        """Ask the daemon for some artifacts, each in a run of its own, in the order of their dependencies."""
        now = time.time()
        wanted = {AssetKeyPartitionKey(asset_key(artifact.family), artifact.partition) for artifact in artifacts}
        backfill = PartitionBackfill(
            backfill_id=make_new_backfill_id(),
            status=BulkActionStatus.REQUESTED,
            from_failure=False,
            tags={},
            backfill_timestamp=now,
            asset_selection=sorted({each.asset_key for each in wanted}),
            asset_backfill_data=AssetBackfillData.empty(
                AssetGraphSubset.from_asset_partition_set(wanted, self._assets), now, dynamic_partitions_store=self._instance
            ),
            title=title[:TITLE_CHARACTERS],
        )
        self._instance.add_backfill(backfill)
        return Backfill(backfill.backfill_id, frozenset(artifacts), datetime.fromtimestamp(now, UTC))

    def daemon_lives(self) -> bool:
        """Whether a daemon of this instance has given a sign of life of late."""
        beat = self._instance.get_daemon_heartbeats().get("BACKFILL")
        return beat is not None and time.time() - beat.timestamp < DAEMON_SILENCE_SECONDS

    def wait(self, backfills: Sequence[Backfill], watch: Callable[[], None]) -> None:
        """Return when the last of some backfills has ended; `watch` is called meanwhile."""
        while not all(self._has_ended(each.id) for each in backfills):
            watch()
            self._pause(POLL_SECONDS)

    def _has_ended(self, backfill: str) -> bool:
        found = self._instance.get_backfill(backfill)
        return found is None or found.status in BULK_ACTION_TERMINAL_STATUSES

    def outcomes(
        self, store: Store, artifacts: Iterable[ArtifactId], backfills: Sequence[Backfill], served: Collection[ArtifactId]
    ) -> dict[ArtifactId, Outcome]:
        """What became of artifacts, by their records and attempts; Dagster is asked about those of which there is neither.

        Args:
            served: those that were committed before.
        """
        artifacts = list(artifacts)
        records = store.records(artifacts)
        begun = min((each.begun for each in backfills), default=datetime.now(UTC))
        runs = self._failed_runs(backfills) if any(record is None for record in records.values()) else {}
        outcomes = {}
        for artifact in artifacts:
            record = records[artifact]
            if record is not None:
                built = artifact not in served
                outcomes[artifact] = Outcome(artifact, "built" if built else "served", record.usage.wall_seconds if built else 0.0)
            else:
                failed = _failed_attempt(artifact, store.attempts(artifact), begun) or self._failed_run(artifact, runs.get(artifact))
                outcomes[artifact] = failed or Outcome(artifact, "not started", error=self._why_not_started(backfills))
        return outcomes

    def _failed_runs(self, backfills: Sequence[Backfill]) -> Mapping[ArtifactId, str]:
        """The newest failed run of each artifact that has one."""
        found: dict[ArtifactId, str] = {}
        for backfill in backfills:
            filters = dg.RunsFilter(tags={BACKFILL_ID_TAG: backfill.id}, statuses=[dg.DagsterRunStatus.FAILURE])
            for run in reversed(self._instance.get_runs(filters)):
                for key in run.asset_selection or ():
                    if (family := self._families.get(key)) is not None:
                        found[ArtifactId(family.name, family.version, run.tags.get(PARTITION_NAME_TAG))] = run.run_id
        return found

    def _failed_run(self, artifact: ArtifactId, run: str | None) -> Outcome | None:
        if run is None:
            return None
        logs = self._instance.all_logs(run, of_type=dg.DagsterEventType.STEP_FAILURE)
        events = [event for entry in logs if (event := entry.dagster_event) is not None]
        if not events:
            return Outcome(artifact, "failed", error=f"the worker of Dagster run {run} was lost", exit_code=int(ExitCode.TRY_AGAIN))
        return Outcome(artifact, "failed", error=failure_text(events[-1]), exit_code=exit_code_of(events[-1]))

    def _why_not_started(self, backfills: Sequence[Backfill]) -> str:
        found = [each for each in map(self._instance.get_backfill, (each.id for each in backfills)) if each is not None]
        errors = [each.error.message.strip().splitlines()[0] for each in found if each.error]
        if errors:
            return f"the backfill failed: {errors[0]}"
        canceled = any(each.status == BulkActionStatus.CANCELED for each in found)
        return "the backfill was canceled" if canceled else "something upstream failed"


def _failed_attempt(artifact: ArtifactId, attempts: Sequence[Attempt], since: datetime) -> Outcome | None:
    """How the newest attempt failed, if it isn't older than the backfill."""
    newest = attempts[-1] if attempts else None
    if newest is None or newest.end is None or newest.end.state == "succeeded" or _time(newest.end.ended_at) < since:
        return None
    error = f"attempt {newest.number}: {newest.error or newest.state}"
    return Outcome(artifact, "failed", error=error, exit_code=int(CLASS_EXIT_CODES[newest.end.failure or "infrastructure"]))


def _time(text: str) -> datetime:
    return datetime.fromisoformat(text)
