"""The runs of `marin materialize`: build what is missing, in dependency order, each artifact in a Dagster run of its own.

Dagster's own command line can't mix families of different partitions in one call, and its queue pays 8 CPU-seconds of start-up
a run. Here a few worker processes load the code location once and execute runs in process, on the instance that the UI shows.
"""

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, Literal

import dagster as dg
from dagster._core.storage.tags import PARTITION_NAME_TAG
from dagster._utils.interrupts import capture_interrupts
from rich.console import Console

from marin_assets.build import CANCEL_ON_INTERRUPT_TAG
from marin_assets.factory import code_versions
from marin_assets.instance import open_instance
from marin_assets.keys import asset_key
from marin_assets.lab import STATE, Lab, default_prefix
from marin_assets.metadata import DATA_VERSION_DIGITS, provenance
from marin_core.artifact import ArtifactGraph, ArtifactId, Store
from marin_core.artifact.drift import DriftFinder
from marin_core.artifact.record import failure_class
from marin_core.errors import ExitCode, InfrastructureError

DEFINITIONS_MODULE = "marin_assets.definitions"
PROGRESS_INTERVAL_SECONDS = 5.0
CLASS_EXIT_CODES = {
    "config": ExitCode.BAD_CONFIG,
    "data": ExitCode.BAD_DATA,
    "bug": ExitCode.BUG,
    "infrastructure": ExitCode.TRY_AGAIN,
    "preempted": ExitCode.PREEMPTED,
}
"""By class of failure: jobs also end with codes that are no class, killed by a signal for example."""

WORKER_GRACE_SECONDS = 60.0
"""Time that a worker without a parent has to stop its job."""


@dataclass(frozen=True)
class Outcome:
    """What became of one artifact: served (it was committed already), built, failed, not started for want of an input,
    or requested of a daemon.

    Attributes:
        exit_code: class of a failure, as jobs exit.
    """

    artifact: ArtifactId
    state: Literal["served", "built", "failed", "not started", "requested"]
    seconds: float = 0.0
    error: str = ""
    exit_code: int = int(ExitCode.DONE)


def materialize(
    graph: ArtifactGraph, chosen: Sequence[ArtifactId], *, rebuild: Collection[ArtifactId], workers: int, console: Console
) -> dict[ArtifactId, Outcome]:
    """Bring every chosen artifact to a committed record that Dagster knows of; a failure stops only what depends on it.

    Args:
        rebuild: `dev` artifacts to build anew although they are committed.
    """
    store = Store(default_prefix())
    store.ensure_writable()
    finder = DriftFinder(graph, store)
    committed = {artifact for artifact, record in finder.records(chosen).items() if record is not None and artifact not in rebuild}
    with open_instance() as instance:
        versions = code_versions(graph)
        known = [artifact for artifact in chosen if artifact in committed and _is_known(graph, versions, finder, instance, artifact)]
        outcomes = {artifact: Outcome(artifact, "served") for artifact in known}
    todo = [artifact for artifact in chosen if artifact not in outcomes]
    console.print(f"store {store.prefix}: {len(chosen)} artifacts, {len(outcomes)} served, {len(todo)} to do")
    if not todo:
        return outcomes
    for outcome in _run_all(graph, todo, rebuild, workers=min(workers, len(todo)), console=console):
        if outcome.state == "built" and outcome.artifact in committed and not _is_rebuilt(graph, finder, outcome.artifact):
            outcome = Outcome(outcome.artifact, "served", outcome.seconds)
        outcomes[outcome.artifact] = outcome
        console.print(f"  {outcome.state} {outcome.artifact} in {outcome.seconds:.1f} s")
    return outcomes


def _is_known(
    graph: ArtifactGraph, versions: Mapping[ArtifactId, str], finder: DriftFinder, instance: dg.DagsterInstance, artifact: ArtifactId
) -> bool:
    """Whether the newest materialization of a committed artifact says what a run would say now, so that none is needed."""
    record, step = finder.record(artifact), graph[artifact]
    drift = finder.of(artifact)
    if record is None or (drift and step.on_drift != "serve"):
        return False
    events = instance.fetch_materializations(
        dg.AssetRecordsFilter(asset_key=asset_key(artifact.family), asset_partitions=[artifact.partition] if artifact.partition else None),
        limit=1,
    ).records
    materialization = events[0].asset_materialization if events else None
    tags = materialization.tags or {} if materialization else {}
    expected = {
        **provenance(record, step, drift, versions[artifact.family]),
        "dagster/data_version": record.content_digest[:DATA_VERSION_DIGITS],
    }
    return all(tags.get(name) == value for name, value in expected.items())


def _is_rebuilt(graph: ArtifactGraph, finder: DriftFinder, artifact: ArtifactId) -> bool:
    return graph[artifact].on_drift == "rebuild" and bool(finder.of(artifact))


def _run_all(
    graph: ArtifactGraph, todo: Sequence[ArtifactId], rebuild: Collection[ArtifactId], *, workers: int, console: Console
) -> Iterator[Outcome]:
    """Runs each artifact as soon as everything it reads is done."""
    pending = set(todo)
    waiting: dict[ArtifactId, set[ArtifactId]] = {}
    consumers: dict[ArtifactId, list[ArtifactId]] = {}
    for artifact in todo:
        step = graph[artifact]
        waiting[artifact] = {read for dep in step.deps for read in step.reads(dep, artifact.partition)} & pending
        for read in waiting[artifact]:
            consumers.setdefault(read, []).append(artifact)
    ready = [artifact for artifact in todo if not waiting[artifact]]
    context = multiprocessing.get_context("spawn")  # Dagster and forked threads don't mix
    messages = context.Queue()
    with ExitStack() as stack:
        stack.enter_context(_progress_lines(messages, console))
        pool = stack.enter_context(ProcessPoolExecutor(workers, mp_context=context, initializer=_start_worker, initargs=(messages,)))
        running: dict[Future[Outcome], ArtifactId] = {}
        stack.enter_context(_interrupts_stop_workers(pool))
        while ready or running:
            running.update({pool.submit(_execute, artifact, artifact in rebuild): artifact for artifact in ready})
            ready = []
            done, _ = wait(running, return_when=FIRST_COMPLETED)
            for future in done:
                artifact = running.pop(future)
                try:
                    outcome = future.result()
                except BrokenProcessPool as error:
                    raise InfrastructureError(
                        f"a run worker died while it built {artifact}; its log is in {STATE / 'workers'}",
                        advice="Run the same command again; it attaches to jobs that are still running.",
                    ) from error
                yield outcome
                over = [artifact]
                if outcome.error:
                    stopped = _stopped_by(graph, artifact, consumers, waiting)
                    yield from (Outcome(each, "not started", error="something upstream failed") for each in stopped)
                    over += stopped
                for source in over:
                    for consumer in consumers.get(source, ()):
                        reads = waiting.get(consumer, set())  # a consumer that won't be started waits no more
                        if source in reads:
                            reads.remove(source)
                            if not reads:
                                ready.append(consumer)


def _stopped_by(
    graph: ArtifactGraph,
    failed: ArtifactId,
    consumers: Mapping[ArtifactId, Sequence[ArtifactId]],
    waiting: dict[ArtifactId, set[ArtifactId]],
) -> list[ArtifactId]:
    """Everything downstream of a failure that can't do without it, taken out of what waits."""
    sources, stopped = [failed], []
    for source in sources:
        for consumer in consumers.get(source, ()):
            if not graph[consumer].is_optional(source) and waiting.pop(consumer, None) is not None:
                sources.append(consumer)
                stopped.append(consumer)
    return stopped


@contextmanager
def _interrupts_stop_workers(pool: ProcessPoolExecutor) -> Iterator[None]:
    """Ctrl-C and SIGTERM end the runs that are under way, and with them their jobs, before this process ends."""

    def interrupt(signum: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    except (KeyboardInterrupt, GeneratorExit):  # the latter if it struck while the caller was printing
        for worker in multiprocessing.active_children():
            if worker.pid is not None:
                os.kill(worker.pid, signal.SIGINT)
        pool.shutdown(cancel_futures=True)
        raise
    finally:
        signal.signal(signal.SIGTERM, before)


def _end_with_parent() -> None:
    """A killed parent can't say goodbye; its workers then interrupt themselves."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(WORKER_GRACE_SECONDS)
        os._exit(1)


def _start_worker(messages: "multiprocessing.Queue[Mapping[str, Any]]") -> None:
    """Dagster prints events and jobs print logs; both are kept in a file, so that the terminal shows progress alone."""
    Lab.listener = messages.put
    threading.Thread(target=_end_with_parent, daemon=True).start()
    folder = STATE / "workers"
    folder.mkdir(parents=True, exist_ok=True)
    log = os.open(folder / f"{os.getpid()}.log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    os.dup2(log, 1)
    os.dup2(log, 2)


def _execute(artifact: ArtifactId, rebuild: bool) -> Outcome:
    """One Dagster run in this worker."""
    from dagster._core.definitions.reconstruct import ReconstructableRepository

    started = time.monotonic()
    repository = ReconstructableRepository.for_module(DEFINITIONS_MODULE, "defs", working_directory=str(Path.cwd()))
    key = asset_key(artifact.family)
    definition = repository.get_definition()
    job = definition.get_implicit_job_def_for_assets([key])
    assert job is not None, "one asset always has an implicit job"  # noqa: S101
    tags = {CANCEL_ON_INTERRUPT_TAG: "true"} | ({PARTITION_NAME_TAG: artifact.partition} if artifact.partition else {})
    with open_instance() as instance, capture_interrupts():
        result = dg.execute_job(
            repository.get_reconstructable_job(job.name),
            instance=instance,
            asset_selection=[key],
            run_config={"ops": {definition.assets_defs_by_key[key].op.name: {"config": {"rebuild": rebuild}}}},
            tags=tags,
            raise_on_error=False,
        )
        failures = [event for event in result.all_events if event.is_step_failure]
    seconds = time.monotonic() - started
    if result.success:
        return Outcome(artifact, "built", seconds)
    error = "; ".join(failure_text(event) for event in failures) or f"Dagster run {result.run_id} failed"
    return Outcome(artifact, "failed", seconds, error, exit_code=min((exit_code_of(event) for event in failures), default=ExitCode.BUG))


def failure_text(event: dg.DagsterEvent) -> str:
    """What a step's failure says."""
    data = event.step_failure_data
    if data.user_failure_data and data.user_failure_data.description:
        return data.user_failure_data.description
    return data.error.to_string() if data.error else str(event.message)


def exit_code_of(event: dg.DagsterEvent) -> int:
    """The class of a step's failure; one that doesn't say is a bug."""
    data = event.step_failure_data.user_failure_data
    found = data.metadata.get("exit_code") if data else None
    if found is None:
        return ExitCode.BUG
    return CLASS_EXIT_CODES[failure_class(found.value if isinstance(found.value, int) else None)]


@contextmanager
def _progress_lines(messages: "multiprocessing.Queue[Mapping[str, Any] | None]", console: Console) -> Iterator[None]:
    """Prints each job's progress every few seconds while the block runs, and how it stands in a cluster's queue when that changes."""

    def show() -> None:
        last: dict[str, float] = {}
        while (message := messages.get()) is not None:
            if message["kind"] == "standing":
                console.print(f"  {message['artifact']}: {message['text']}", markup=False)
            if message["kind"] != "progress":
                continue
            now = time.monotonic()
            if now - last.get(message["artifact"], 0.0) < PROGRESS_INTERVAL_SECONDS and message["done"] < message["total"]:
                continue
            last[message["artifact"]] = now
            left = f", {message['seconds_left']:.0f} s left" if message["seconds_left"] is not None else ""
            console.print(f"  {message['artifact']}: {message['done']}/{message['total']} {message['unit']}{left}")

    thread = threading.Thread(target=show, daemon=True)
    thread.start()
    try:
        yield
    finally:
        messages.put(None)
        thread.join()
