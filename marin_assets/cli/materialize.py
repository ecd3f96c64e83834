"""`marin materialize`: build what is missing, in dependency order, each artifact in a Dagster run of its own.

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
from marin_assets.metadata import DATA_VERSION_DIGITS
from marin_core.artifact import ArtifactGraph, ArtifactId, Store
from marin_core.errors import InfrastructureError

DEFINITIONS_MODULE = "marin_assets.definitions"
PROGRESS_INTERVAL_SECONDS = 5.0
WORKER_GRACE_SECONDS = 60.0
"""Time that a worker without a parent has to stop its job."""


@dataclass(frozen=True)
class Outcome:
    """What became of one artifact: served (it was committed already), built, failed, or not started for want of an input."""

    artifact: ArtifactId
    state: Literal["served", "built", "failed", "not started"]
    seconds: float = 0.0
    error: str = ""


def materialize(
    graph: ArtifactGraph, chosen: Sequence[ArtifactId], *, rebuild: Collection[ArtifactId], workers: int, console: Console
) -> dict[ArtifactId, Outcome]:
    """Bring every chosen artifact to a committed record that Dagster knows of; a failure stops only what depends on it.

    Args:
        rebuild: `dev` artifacts to build anew although they are committed.
    """
    store = Store(default_prefix())
    store.ensure_writable()
    with open_instance() as instance:
        versions = code_versions(graph)
        known = [artifact for artifact in chosen if artifact not in rebuild and _is_known(versions, store, instance, artifact)]
        outcomes = {artifact: Outcome(artifact, "served") for artifact in known}
    todo = [artifact for artifact in chosen if artifact not in outcomes]
    console.print(f"store {store.prefix}: {len(chosen)} artifacts, {len(outcomes)} served, {len(todo)} to do")
    if not todo:
        return outcomes
    committed = {artifact for artifact in todo if artifact not in rebuild and store.record(artifact) is not None}
    for outcome in _run_all(graph, todo, rebuild, workers=min(workers, len(todo)), console=console):
        if outcome.state == "built" and outcome.artifact in committed:
            outcome = Outcome(outcome.artifact, "served", outcome.seconds)
        outcomes[outcome.artifact] = outcome
        console.print(f"  {outcome.state} {outcome.artifact} in {outcome.seconds:.1f} s", highlight=False)
    return outcomes


def _is_known(versions: Mapping[ArtifactId, str], store: Store, instance: dg.DagsterInstance, artifact: ArtifactId) -> bool:
    """Whether the artifact is committed and its newest materialization says so, built as it would be today."""
    record = store.record(artifact)
    if record is None:
        return False
    events = instance.fetch_materializations(
        dg.AssetRecordsFilter(asset_key=asset_key(artifact.family), asset_partitions=[artifact.partition] if artifact.partition else None),
        limit=1,
    ).records
    materialization = events[0].asset_materialization if events else None
    tags = materialization.tags or {} if materialization else {}
    known = (tags.get("dagster/code_version"), tags.get("dagster/data_version"))
    return known == (versions[artifact.family], record.content_digest[:DATA_VERSION_DIGITS])


def _run_all(
    graph: ArtifactGraph, todo: Sequence[ArtifactId], rebuild: Collection[ArtifactId], *, workers: int, console: Console
) -> Iterator[Outcome]:
    """Runs each artifact as soon as everything it reads is done."""
    pending = set(todo)
    waiting = {
        artifact: {read for dep in graph[artifact].deps for read in graph[artifact].reads(dep, artifact.partition)} & pending
        for artifact in todo
    }
    failed: set[ArtifactId] = set()
    context = multiprocessing.get_context("spawn")  # Dagster and forked threads don't mix
    messages = context.Queue()
    with ExitStack() as stack:
        stack.enter_context(_progress_lines(messages, console))
        pool = stack.enter_context(ProcessPoolExecutor(workers, mp_context=context, initializer=_start_worker, initargs=(messages,)))
        running: dict[Future[Outcome], ArtifactId] = {}
        stack.enter_context(_interrupts_stop_workers(pool))
        while waiting or running:
            for artifact in [artifact for artifact, reads in waiting.items() if reads & failed]:
                del waiting[artifact]
                failed.add(artifact)
                yield Outcome(artifact, "not started", error="something upstream failed")
            for artifact in [artifact for artifact, reads in waiting.items() if not reads]:
                del waiting[artifact]
                running[pool.submit(_execute, artifact, artifact in rebuild)] = artifact
            if not running:
                continue
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
                if outcome.error:
                    failed.add(artifact)
                for reads in waiting.values():
                    if not outcome.error:
                        reads.discard(artifact)
                yield outcome


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
        errors = [_failure_text(event) for event in result.all_events if event.is_step_failure]
    seconds = time.monotonic() - started
    if result.success:
        return Outcome(artifact, "built", seconds)
    return Outcome(artifact, "failed", seconds, error="; ".join(errors) or f"Dagster run {result.run_id} failed")


def _failure_text(event: dg.DagsterEvent) -> str:
    data = event.step_failure_data
    if data.user_failure_data and data.user_failure_data.description:
        return data.user_failure_data.description
    return data.error.to_string() if data.error else str(event.message)


@contextmanager
def _progress_lines(messages: "multiprocessing.Queue[Mapping[str, Any] | None]", console: Console) -> Iterator[None]:
    """Prints each job's progress every few seconds while the block runs."""

    def show() -> None:
        last: dict[str, float] = {}
        while (message := messages.get()) is not None:
            if message["kind"] != "progress":
                continue
            now = time.monotonic()
            if now - last.get(message["artifact"], 0.0) < PROGRESS_INTERVAL_SECONDS and message["done"] < message["total"]:
                continue
            last[message["artifact"]] = now
            left = f", {message['seconds_left']:.0f} s left" if message["seconds_left"] is not None else ""
            console.print(f"  {message['artifact']}: {message['done']}/{message['total']} {message['unit']}{left}", highlight=False)

    thread = threading.Thread(target=show, daemon=True)
    thread.start()
    try:
        yield
    finally:
        messages.put(None)
        thread.join()
