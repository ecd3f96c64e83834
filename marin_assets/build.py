"""The body of every asset: serve the committed artifact, or launch its job, follow it, and report what the record says."""

import time
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

import dagster as dg
from dagster._core.errors import DagsterExecutionInterruptedError

from marin_assets.keys import asset_key
from marin_assets.lab import Lab
from marin_assets.launch import Handle, Launcher, Observation, State
from marin_assets.launch.contract import job_name
from marin_assets.metadata import check_results, data_version, materialization_metadata
from marin_assets.pipes import JobMessageReader
from marin_core.artifact import ArtifactGraph, ArtifactId, ArtifactStep, Attempt, Record, Store
from marin_core.artifact.drift import DriftFinder
from marin_core.artifact.job import JobSpec
from marin_core.errors import ConfigError, ExitCode, MarinError

POLL_SECONDS = 0.2
LOG_INTERVAL_SECONDS = 15.0
OBSERVATION_INTERVAL_SECONDS = 60.0
"""Event logs are never purged, so a run of weeks must not write an observation every second."""

INFRASTRUCTURE_TRIES = 3
PREEMPTION_TRIES = 20

CANCEL_ON_INTERRUPT_TAG = "marin/cancel_on_interrupt"
"""Run tag of a terminal's run: whoever presses Ctrl-C there means the job too. Elsewhere an interrupted run worker
(a deploy, an eviction) leaves its job running, and the next materialization attaches to it."""


class BuildConfig(dg.Config):
    """Launchpad options.

    Attributes:
        rebuild: build a `dev` artifact anew although it is committed; refused for fixed versions.
    """

    rebuild: bool = False


def build_asset(
    context: dg.AssetExecutionContext, options: BuildConfig, lab: Lab, graph: ArtifactGraph, step: ArtifactStep
) -> Iterator[dg.MaterializeResult[Any]]:
    """Yield one result for each selected partition.

    Raises:
        dg.Failure: with the cause and the way out; a failed build is never retried by Dagster.
    """
    store = lab.store()
    keys: list[str | None] = list(context.partition_keys) if step.partitions else [None]
    for key in keys:
        artifact = ArtifactId(step.name, step.version, key)
        try:
            record, reused = _Build(context, lab, store, graph, step, artifact).committed(rebuild=options.rebuild)
            drift = DriftFinder(graph, store).of(artifact)
        except MarinError as error:
            raise dg.Failure(
                description=str(error), metadata={"exit_code": int(error.exit_code), "artifact": str(artifact)}, allow_retries=False
            ) from error
        context.log.info(f"{'serving' if reused else 'built'} {artifact}, content {record.content_digest[:16]}")
        yield dg.MaterializeResult(
            data_version=data_version(record),
            metadata=materialization_metadata(record, store, reused=reused),
            check_results=check_results(step, record, drift),
        )


class _Build:
    """One artifact on its way to a record."""

    def __init__(
        self, context: dg.AssetExecutionContext, lab: Lab, store: Store, graph: ArtifactGraph, step: ArtifactStep, artifact: ArtifactId
    ) -> None:
        self._context = context
        self._lab = lab
        self._store = store
        self._graph = graph
        self._step = step
        self._artifact = artifact
        self._launcher: Launcher = lab.launcher(store)
        self._last_log = 0.0
        self._last_observation = 0.0

    def committed(self, *, rebuild: bool) -> tuple[Record, bool]:
        """The committed record, and whether it was there before."""
        record = self._store.record(self._artifact)
        if record is not None and not rebuild:
            return record, True
        if record is not None:
            self._store.withdraw(self._artifact)
        self._store.ensure_writable()
        inputs = self._inputs()
        tries = {State.VANISHED: INFRASTRUCTURE_TRIES, State.PREEMPTED: PREEMPTION_TRIES}
        while True:
            attempt = self._attempt()
            seen = self._follow(attempt, inputs)
            record = self._store.record(self._artifact)
            self._end(attempt, seen, committed=record is not None)
            if record is not None:
                return record, False
            kind = State.VANISHED if seen.exit_code == ExitCode.TRY_AGAIN else seen.state
            if tries.get(kind, 0) <= 1:
                raise self._failure(attempt, seen)
            tries[kind] -= 1
            self._context.log.warning(f"attempt {attempt.number} of {self._artifact} ended: {seen.reason}; trying again")

    def _inputs(self) -> dict[ArtifactId, Record]:
        """Records of everything that this build reads.

        Raises:
            ConfigError: naming every missing input and why its last attempt failed.
        """
        records: dict[ArtifactId, Record] = {}
        missing = []
        for dep in self._step.deps:
            for artifact in self._step.reads(dep, self._artifact.partition):
                record = self._store.record(artifact)
                if record is None:
                    attempts = self._store.attempts(artifact)
                    why = f" (attempt {attempts[-1].number}: {attempts[-1].error or attempts[-1].state})" if attempts else ""
                    missing.append(f"{artifact}{why}")
                else:
                    records[artifact] = record
        if missing:
            raise ConfigError(
                f"{self._artifact} needs {len(missing)} artifacts that are not built: {'; '.join(missing)}",
                advice="Materialize them first; for a family, backfill its missing partitions.",
            )
        return records

    def _attempt(self) -> Attempt:
        """The attempt that is under way, whoever started it, or a new one."""
        while True:
            attempts = self._store.attempts(self._artifact)
            if attempts and attempts[-1].state == "submitted":
                return attempts[-1]
            number = attempts[-1].number + 1 if attempts else 1
            now = datetime.now(UTC).isoformat()
            attempt = Attempt(
                number=number,
                state="submitted",
                job=job_name(self._artifact, self._store.address(self._artifact), number, now),
                fingerprint=self._graph.fingerprint(self._step),
                submitted_at=now,
                dagster_run_id=self._context.run.run_id,
            )
            if self._store.begin_attempt(self._artifact, attempt):
                return attempt

    def _follow(self, attempt: Attempt, inputs: Mapping[ArtifactId, Record]) -> Observation:
        """Start the attempt's job or attach to it, and wait for its end."""
        handle = self._launcher.handle(attempt.job)
        reader = JobMessageReader(handle.folder, self._receive)
        with dg.open_pipes_session(context=self._context, context_injector=dg.PipesEnvContextInjector(), message_reader=reader) as session:
            self._launcher.submit(attempt.job, self._spec(attempt, inputs, handle), session.get_bootstrap_env_vars())
            self._context.log.info(f"following job {attempt.job}; its folder is {handle.folder}")
            try:
                while not (seen := self._launcher.observe(handle)).state.final:
                    reader.pump()
                    time.sleep(POLL_SECONDS)
            except DagsterExecutionInterruptedError:
                if self._stop_is_meant_for_the_job():
                    self._context.log.info(f"stopping job {attempt.job}")
                    self._launcher.cancel(handle)
                    self._end(attempt, self._launcher.observe(handle), committed=False)
                raise
            finally:
                reader.pump()
        return seen

    def _spec(self, attempt: Attempt, inputs: Mapping[ArtifactId, Record], handle: Handle) -> JobSpec:
        return JobSpec(
            name=self._artifact.name,
            version=self._artifact.version,
            partition=self._artifact.partition,
            job=self._step.job,
            prefix=self._store.prefix,
            config=self._step.config(self._store.prefix, self._artifact.partition).model_dump(mode="json"),
            fingerprint=self._graph.fingerprint(self._step),
            identity=self._graph.identity(self._step),
            inputs=tuple(record.as_input() for record in inputs.values()),
            attempt=attempt.number,
            scratch=str(handle.folder),
            dagster_run_id=self._context.run.run_id,
        )

    def _receive(self, message: Mapping[str, Any]) -> None:
        """Progress and metrics of the job, thinned out for the event log."""
        self._lab.notify({**message, "artifact": str(self._artifact)})
        now = time.monotonic()
        if message["kind"] == "progress" and now - self._last_log >= LOG_INTERVAL_SECONDS:
            self._last_log = now
            left = message["seconds_left"]
            self._context.log.info(
                f"{message['done']}/{message['total']} {message['unit']}, {message['rate_per_second']:.1f}/s"
                + (f", {left:.0f} s left" if left is not None else "")
            )
        if message["kind"] == "metrics" and now - self._last_observation >= OBSERVATION_INTERVAL_SECONDS:
            self._last_observation = now
            self._context.log_event(
                dg.AssetObservation(
                    asset_key=asset_key(self._artifact.family),
                    partition=self._artifact.partition,
                    metadata={"step": message["step"], **message["values"]},
                )
            )

    def _stop_is_meant_for_the_job(self) -> bool:
        run = self._context.instance.get_run_by_id(self._context.run.run_id)
        if run is None:
            return False
        canceling = run.status in (dg.DagsterRunStatus.CANCELING, dg.DagsterRunStatus.CANCELED)
        return canceling or run.tags.get(CANCEL_ON_INTERRUPT_TAG) == "true"

    def _end(self, attempt: Attempt, seen: Observation, *, committed: bool) -> None:
        """Keep what became of the attempt; failures are part of the record."""
        state = "succeeded" if committed else "lost" if seen.state == State.VANISHED else "failed"
        self._store.end_attempt(
            self._artifact,
            attempt.model_copy(
                update={
                    "state": state,
                    "ended_at": datetime.now(UTC).isoformat(),
                    "exit_code": seen.exit_code,
                    "error": None if committed else seen.reason,
                    "log": str(self._launcher.handle(attempt.job).folder / "log"),
                }
            ),
        )

    def _failure(self, attempt: Attempt, seen: Observation) -> dg.Failure:
        handle = self._launcher.handle(attempt.job)
        reason = seen.reason or "the job ended without a record, which is a bug in it"
        return dg.Failure(
            description=f"{self._artifact}, attempt {attempt.number}: {reason}",
            metadata={
                "artifact": str(self._artifact),
                "exit_code": seen.exit_code if seen.exit_code is not None else "none",
                "attempt": attempt.number,
                "log_file": dg.MetadataValue.path(str(handle.folder / "log")),
                "log_tail": dg.MetadataValue.text(self._launcher.logs(handle, tail_lines=40)),
            },
            allow_retries=False,
        )
