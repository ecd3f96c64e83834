"""The body of every asset: bring the artifact to a committed record, and report what the record says."""

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Literal

import dagster as dg

from marin_assets.builder import Builder, BuildError, Following
from marin_assets.keys import asset_key
from marin_assets.lab import Lab
from marin_assets.launch import Handle
from marin_assets.metadata import check_results, data_version, materialization_metadata
from marin_assets.pipes import JobMessageReader
from marin_core.artifact import ArtifactGraph, ArtifactId, ArtifactStep, Record, Store
from marin_core.artifact.drift import Difference, DriftFinder
from marin_core.errors import ConfigError, MarinError

LOG_INTERVAL_SECONDS = 15.0
OBSERVATION_INTERVAL_SECONDS = 60.0
"""Event logs are never purged, so a run of weeks must not write an observation every second."""

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
            record, reused = _serve_or_build(context, options, lab, store, graph, step, artifact)
            drift = lab.drift_finder(graph, store, context.run.run_id).of(artifact)
        except MarinError as error:
            raise _failure(artifact, error) from error
        context.log.info(f"{'serving' if reused else 'built'} {artifact}, content {record.content_digest[:16]}")
        yield dg.MaterializeResult(
            data_version=data_version(record),
            metadata=materialization_metadata(record, store, reused=reused),
            check_results=check_results(step, record, drift),
        )


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
        launcher=lab.launcher(store, inline=step.resources.inline),
        events=_DagsterEvents(context, lab, artifact),
        retries=lab.retries(),
        lease_seconds=lab.lease_seconds,
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


def _failure(artifact: ArtifactId, error: MarinError) -> dg.Failure:
    metadata: dict[str, Any] = {"exit_code": int(error.exit_code), "artifact": str(artifact)}
    if isinstance(error, BuildError):
        metadata |= {
            "attempt": error.attempt,
            "exit_code": error.job_exit_code if error.job_exit_code is not None else "none",
            "log_file": dg.MetadataValue.path(error.log),
            "log_tail": dg.MetadataValue.text(error.log_tail),
        }
    return dg.Failure(description=str(error), metadata=metadata, allow_retries=False)


class _DagsterEvents:
    """Hands a build's news to Dagster: log lines, observations, the job's own log, and to the terminal's listener."""

    def __init__(self, context: dg.AssetExecutionContext, lab: Lab, artifact: ArtifactId) -> None:
        self._context = context
        self._lab = lab
        self._artifact = artifact
        self._last_log = 0.0
        self._last_observation = 0.0

    def info(self, message: str) -> None:
        self._context.log.info(message)

    def warning(self, message: str) -> None:
        self._context.log.warning(message)

    @contextmanager
    def following(self, handle: Handle) -> Iterator[Following]:
        reader = JobMessageReader(handle.folder, self._receive)
        with dg.open_pipes_session(context=self._context, context_injector=dg.PipesEnvContextInjector(), message_reader=reader) as session:
            yield _Followed(session.get_bootstrap_env_vars(), reader)

    def stop_means_job(self) -> bool:
        run = self._context.instance.get_run_by_id(self._context.run.run_id)
        if run is None:
            return False
        canceling = run.status in (dg.DagsterRunStatus.CANCELING, dg.DagsterRunStatus.CANCELED)
        return canceling or run.tags.get(CANCEL_ON_INTERRUPT_TAG) == "true"

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


class _Followed:
    def __init__(self, environment: Mapping[str, str], reader: JobMessageReader) -> None:
        self.environment = environment
        self._reader = reader

    def pump(self) -> None:
        self._reader.pump()
