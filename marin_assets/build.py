"""The body of every asset: bring the artifact to a committed record, and report what the record says."""

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Literal

import dagster as dg

from marin_assets.builder import Builder, BuildError, Following
from marin_assets.keys import asset_key
from marin_assets.lab import Lab
from marin_assets.launch import Handle, Observation
from marin_assets.live import LiveObservations, LiveStanding
from marin_assets.metadata import REPRODUCED, check_results, data_version, materialization_metadata, provenance
from marin_assets.pipes import JobMessageReader, open_job_session
from marin_assets.reproduce import reproduce
from marin_core.artifact import ArtifactGraph, ArtifactId, ArtifactStep, Record, Store
from marin_core.artifact.drift import Difference, DriftFinder
from marin_core.artifact.reproduction import newest
from marin_core.errors import ConfigError, MarinError

LOG_INTERVAL_SECONDS = 15.0

CANCEL_ON_INTERRUPT_TAG = "marin/cancel_on_interrupt"
"""Run tag of a terminal's run: whoever presses Ctrl-C there means the job too. Elsewhere an interrupted run worker
(a deploy, an eviction) leaves its job running, and the next materialization attaches to it."""


class BuildConfig(dg.Config):
    """Launchpad options.

    Attributes:
        rebuild: build a `dev` artifact anew although it is committed; refused for fixed versions.
        on_drift: overrides the artifact's own policy for this run; "declared" leaves it.
    """

    rebuild: bool = False
    on_drift: Literal["declared", "serve", "fail", "rebuild"] = "declared"


def build_asset(
    context: dg.AssetExecutionContext, options: BuildConfig, lab: Lab, graph: ArtifactGraph, step: ArtifactStep, code_version: str
) -> Iterator[dg.MaterializeResult[Any] | dg.AssetCheckResult]:
    """Yield one result for each selected partition; or, where checks alone were executed, their results as they are today.

    Raises:
        dg.Failure: with the cause and the way out; a failed build is never retried by Dagster.
    """
    store = lab.store()
    for artifact in _selected(context, step):
        try:
            if not context.selected_asset_keys:
                yield from _checks_alone(context, lab, store, graph, step, artifact)
                continue
            record, reused = _serve_or_build(context, options, lab, store, graph, step, artifact)
            drift = lab.drift_finder(graph, store, context.run.run_id).of(artifact)
            reproduction = newest(store, record)
        except MarinError as error:
            raise failure(artifact, error) from error
        yield dg.MaterializeResult(
            asset_key=asset_key(step.id),
            data_version=data_version(record),
            metadata=materialization_metadata(record, store, reused=reused),
            tags=provenance(record, step, drift, code_version),
            check_results=[
                each for each in check_results(step, record, drift, reproduction) if _is_selected(context, step, each.check_name)
            ],
        )


def _selected(context: dg.AssetExecutionContext, step: ArtifactStep) -> list[ArtifactId]:
    if not step.partitions:
        return [step.id]
    if not context.has_partition_key and not context.has_partition_key_range:
        raise dg.Failure(f"{step.id} is a family: choose a partition to check, or materialize it", allow_retries=False)
    return [ArtifactId(step.name, step.version, key) for key in context.partition_keys]


def _is_selected(context: dg.AssetExecutionContext, step: ArtifactStep, check: str | None) -> bool:
    return dg.AssetCheckKey(asset_key(step.id), str(check)) in context.selected_asset_check_keys


def _checks_alone(
    context: dg.AssetExecutionContext, lab: Lab, store: Store, graph: ArtifactGraph, step: ArtifactStep, artifact: ArtifactId
) -> Iterator[dg.AssetCheckResult]:
    """Today's results of the selected checks, without a materialization. `reproduced` executed by itself puts the artifact to the test."""
    record = store.record(artifact)
    if record is None:
        raise ConfigError(f"{artifact} is not committed, so there is nothing to check", advice="Materialize it first.")
    store.require_intact(record)
    if [each.name for each in context.selected_asset_check_keys] == [REPRODUCED]:
        reproduce(lab, graph, artifact, events=DagsterEvents(context, lab, artifact), dagster_run_id=context.run.run_id)
    drift = DriftFinder(graph, store).of(artifact)
    for result in check_results(step, record, drift, newest(store, record)):
        if _is_selected(context, step, result.check_name):
            yield result._replace(asset_key=asset_key(step.id))


def _serve_or_build(
    context: dg.AssetExecutionContext,
    options: BuildConfig,
    lab: Lab,
    store: Store,
    graph: ArtifactGraph,
    step: ArtifactStep,
    artifact: ArtifactId,
) -> tuple[Record, bool]:
    policy = step.on_drift if options.on_drift == "declared" else options.on_drift
    record = store.record(artifact)
    if record is not None and (options.rebuild or policy != "serve"):
        drift = () if options.rebuild else DriftFinder(graph, store).of(artifact)
        if drift and policy == "fail":
            raise _drifted(artifact, drift)
        if options.rebuild or drift:
            store.withdraw(artifact)
    builder = Builder(
        graph=graph,
        store=store,
        target=store,
        launcher=lab.open_launcher(store, inline=step.resources.inline),
        events=DagsterEvents(context, lab, artifact, inline=step.resources.inline),
        retries=lab.retries(),
        lease_seconds=lab.lease(),
        dagster_run_id=context.run.run_id,
    )
    return builder.build(step, artifact)


def _drifted(artifact: ArtifactId, drift: tuple[Difference, ...]) -> ConfigError:
    named = "; ".join(f"{each.kind} {each.field} of {each.artifact}: {each.recorded} → {each.declared}" for each in drift[:10])
    more = f"; and {len(drift) - 10} more" if len(drift) > 10 else ""
    return ConfigError(
        f"{artifact} was built differently from how it would be built today, and its policy is on_drift='fail': {named}{more}",
        advice="Give it a new version, undo the change, or set on_drift='serve' to use it as it is.",
    )


def failure(artifact: ArtifactId, error: MarinError) -> dg.Failure:
    metadata: dict[str, Any] = {"exit_code": int(error.exit_code), "artifact": str(artifact)}
    if isinstance(error, BuildError):
        metadata |= {
            "attempt": error.attempt,
            "exit_code": error.job_exit_code if error.job_exit_code is not None else "none",
            "log_file": dg.MetadataValue.path(error.log),
            "log_tail": dg.MetadataValue.text(error.log_tail),
        }
    return dg.Failure(description=str(error), metadata=metadata, allow_retries=False)


class DagsterEvents:
    """Hands a build's news to Dagster: log lines, observations, the job's own log, and to the terminal's listener."""

    def __init__(
        self, context: dg.AssetExecutionContext | dg.OpExecutionContext, lab: Lab, artifact: ArtifactId, *, inline: bool = False
    ) -> None:
        self._context = context
        self._lab = lab
        self._artifact = artifact
        self._inline = inline
        self._live = LiveObservations(artifact, context.log_event)
        self._standing = LiveStanding(artifact, self._stands, context.log_event)
        self._last_log = 0.0

    def info(self, message: str) -> None:
        self._context.log.info(message)

    def warning(self, message: str) -> None:
        self._context.log.warning(message)

    @contextmanager
    def following(self, handle: Handle) -> Iterator[Following]:
        reader = JobMessageReader(handle.folder, self._receive)
        if self._inline:  # it has a log and no messages; a session and a line in the event log cost more than all of its bookkeeping
            yield _Followed({}, reader, self._live, self._standing)
            return
        with open_job_session(self._context, reader) as session:
            self.info(f"following job {handle.name}; its folder is {handle.url or handle.folder}")
            yield _Followed(session.get_bootstrap_env_vars(), reader, self._live, self._standing)

    def stop_means_job(self) -> bool:
        run = self._context.instance.get_run_by_id(self._context.run.run_id)
        if run is None:
            return False
        canceling = run.status in (dg.DagsterRunStatus.CANCELING, dg.DagsterRunStatus.CANCELED)
        return canceling or run.tags.get(CANCEL_ON_INTERRUPT_TAG) == "true"

    def _stands(self, line: str) -> None:
        self._context.log.info(line)
        self._lab.notify({"kind": "standing", "artifact": str(self._artifact), "text": line})

    def _receive(self, message: Mapping[str, Any]) -> None:
        """News of the job; its progress is thinned out for the event log."""
        if message["kind"] != "plots":  # nobody looks at pictures in a terminal
            self._lab.notify({**message, "artifact": str(self._artifact)})
        self._live.receive(message)
        now = time.monotonic()
        if message["kind"] == "progress" and now - self._last_log >= LOG_INTERVAL_SECONDS:
            self._last_log = now
            left = message["seconds_left"]
            self._context.log.info(
                f"{message['done']}/{message['total']} {message['unit']}, {message['rate_per_second']:.1f}/s"
                + (f", {left:.0f} s left" if left is not None else "")
            )


class _Followed:
    def __init__(self, environment: Mapping[str, str], reader: JobMessageReader, live: LiveObservations, standing: LiveStanding) -> None:
        self.environment = environment
        self._reader = reader
        self._live = live
        self._standing = standing

    def pump(self) -> None:
        self._reader.pump()
        self._live.show()

    def see(self, seen: Observation) -> None:
        self._standing.see(seen)
