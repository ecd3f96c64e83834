"""The life of a job: read the spec, prepare the output, run the module, write the record last, exit with a code that says why."""

import argparse
import importlib
import json
import os
import platform
import shutil
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache, partial
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

import fsspec

from marin_core.artifact.code import CodeTable, code_table
from marin_core.artifact.identity import ArtifactId
from marin_core.artifact.job import RESUMED_JOBS, JobSpec
from marin_core.artifact.lease import Heartbeat
from marin_core.artifact.objects import FileState, local_state
from marin_core.artifact.record import (
    Attempt,
    CheckResult,
    End,
    Environment,
    File,
    Record,
    Usage,
    failure_class,
    file_sha256,
    manifest_digest,
)
from marin_core.artifact.store import Store, attempt_folder, superseded, unfinished_folder
from marin_core.config import Config
from marin_core.errors import ConfigError, DataError, ExitCode, InfrastructureError, MarinError, PreemptedError
from marin_core.redaction import redact
from marin_core.report import Report, Reporter
from marin_jobs import gang
from marin_jobs.gang import Place
from marin_jobs.provenance import Clock, code_state, cpu_count
from marin_jobs.reporting import FollowerReporter, JobReporter

JOBS = ("adopt", "evaluate", "filter", "ingest", "mixture", "ngram", "plan", "summary", "tasks", "tokenize", "tokenizer", "train")
"""Modules that a spec may name; a spec comes from outside, so it chooses from a list and never imports at will."""

OUTCOME = "outcome.json"
"""In the job's folder: how it ended, for a launcher that isn't its parent."""

T = TypeVar("T", bound=Config)


@dataclass(frozen=True)
class JobContext:
    """What a job module works with.

    Attributes:
        spec: the job's spec.
        output: local folder that becomes the artifact's payload.
        inputs: records of everything that the job may read, by address.
        reporter: progress, metrics, log lines, and whether to stop.
        process: which of the job's processes this is; each but the first downloads into a folder of its own.
    """

    spec: JobSpec
    store: Store
    output: Path
    scratch: Path
    inputs: Mapping[str, Record]
    reporter: Reporter
    process: int = 0

    def config(self, cls: type[T]) -> T:
        """The configuration, validated as the job's own class."""
        return cls.from_json(self.spec.config)

    def record(self, address: str) -> Record:
        """Record of the input at an address of the store.

        Raises:
            ConfigError: it was not declared as an input.
        """
        try:
            return self.inputs[address]
        except KeyError:
            raise ConfigError(
                f"{self.spec.id} reads {address}, which is no input of it", advice="Declare its handle in the step's deps."
            ) from None

    def local(self, address: str) -> Path:
        """Local folder with the payload of the input at an address; downloaded and checked if it lies elsewhere."""
        record = self.record(address)
        path = self.store.payload_path(record)
        if path is not None:
            return path
        downloads = self.scratch / "inputs" / (f"process-{self.process}" if self.process else "")  # no part of a name has a dash
        folder = downloads / record.id.path
        if not folder.exists():
            part = folder.with_name(f"{folder.name}.part")
            self.store.download(record, part)
            part.rename(folder)
        return folder

    def local_parts(self, addresses: Mapping[str, Sequence[str]]) -> dict[str, list[Path]]:
        """Local folders of named groups of addresses, as mixtures and families are given."""
        return {name: [self.local(address) for address in group] for name, group in addresses.items()}


def main(arguments: Sequence[str]) -> int:
    """Run the job named by the spec at the given path or URL, or one process of it; returns the exit code."""
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda signum, frame: stop.set())  # finish the step, save, then end with `PreemptedError`
    try:
        given = _parser().parse_args(arguments)
    except SystemExit as error:
        return ExitCode.BAD_CONFIG if error.code else ExitCode.DONE
    if given.kept:
        gang.end_with_keeper()
    try:
        with fsspec.open(given.spec, "r") as file:
            spec = JobSpec.from_json(json.load(file))
        place = _place(spec, given.process, given.coordinator)
    except (OSError, ValueError, MarinError) as error:
        print(f"the job spec {given.spec} can't be read: {error}", file=sys.stderr)
        return ExitCode.BAD_CONFIG
    if place is not None:
        return run_in_gang(spec, place, stop)
    if spec.processes > 1:
        return run_gang(spec, given.spec, stop)
    _set_devices(spec)
    with JobReporter.open(stop) as reporter:
        return run(spec, reporter, on_lost=lambda end: _stop_soon(spec, end, stop))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m marin_jobs", description="Build one artifact and commit it.")
    parser.add_argument("spec", help="path or URL of the job's spec")
    parser.add_argument("--process", type=int, help="be one process of the spec's gang: which, from 0")
    parser.add_argument("--coordinator", help="host:port where process 0 of the gang serves")
    parser.add_argument("--kept", action="store_true", help="end when standard input does, which a keeper holds open")
    return parser


def _place(spec: JobSpec, process: int | None, coordinator: str | None) -> Place | None:
    """Which process of the spec's gang this is; None if it is the whole job, or keeps the gang.

    Raises:
        ConfigError: the arguments don't fit the spec.
    """
    if process is None and coordinator is None:
        return None
    if process is None or coordinator is None or not 0 <= process < spec.processes or spec.processes == 1:
        raise ConfigError(
            f"--process {process} --coordinator {coordinator} is no process of {spec.id}, which has processes={spec.processes}",
            advice="Give both, the process from 0 to processes - 1, or neither.",
        )
    return Place(process, spec.processes, coordinator)


def _set_devices(spec: JobSpec) -> None:
    """How many CPU devices JAX makes when the job loads it."""
    if spec.devices_per_process is not None:
        os.environ["JAX_NUM_CPU_DEVICES"] = str(spec.devices_per_process)


def run(spec: JobSpec, reporter: JobReporter, on_lost: Callable[[End], None] = lambda end: None) -> int:
    """Build the artifact of a spec and leave `outcome.json` in the job's folder; returns the exit code.

    Whatever happens, the attempt is closed with what became of it, unless the store can't be reached or the process is killed.

    Args:
        on_lost: called from another thread if another builder gives this attempt up.
    """
    clock = Clock.start()
    target = Store(spec.output_prefix or spec.prefix)
    code, message = int(ExitCode.DONE), None
    with Heartbeat(target, spec.id, spec.attempt, spec.lease_seconds, on_lost) as heartbeat:
        try:
            build(spec, Path(spec.scratch), reporter, clock)
        except Exception as error:
            code, message = _explain(error)
    return _conclude(spec, clock, code, message, heartbeat.lost)


def run_gang(spec: JobSpec, spec_uri: str, stop: threading.Event) -> int:
    """Keep the spec's gang on this machine, and close the attempt with its verdict; returns the exit code, as `run` does."""
    clock = Clock.start()
    try:
        verdict, message = gang.keep(spec, spec_uri, stop)
        code = int(verdict)
    except Exception as error:
        code, message = _explain(error)
    return _conclude(spec, clock, code, message, None)


def run_in_gang(spec: JobSpec, place: Place, stop: threading.Event) -> int:
    """One process of a gang. It leaves word of its end for whoever judges the gang, and the attempt's end to them; returns the exit code.

    A process that fails doesn't come back from here: what it waited for at its exit, such as its peers, might never come.
    """
    _set_devices(spec)
    clock = Clock.start()
    outcome: dict[str, Any] = {"exit_code": int(ExitCode.DONE), "message": None, "peer_lost": False}
    heartbeat = None
    with ExitStack() as context:
        try:
            reporter: Reporter = FollowerReporter(place.process, stop)
            if place.lead:
                reporter = context.enter_context(JobReporter.open(stop))
                on_lost = partial(_stop_soon, spec, stop=stop, outcome=gang.outcome_name(0))
                target = Store(spec.output_prefix or spec.prefix)
                heartbeat = context.enter_context(Heartbeat(target, spec.id, spec.attempt, spec.lease_seconds, on_lost))
            build_in_gang(spec, place, reporter, clock)
        except Exception as error:
            outcome = _explain_in_gang(error)
    if outcome["message"] is not None and heartbeat is not None and heartbeat.lost is not None:
        outcome = _explain_in_gang(superseded(spec.id, spec.attempt, heartbeat.lost))
    _write_outcome(Path(spec.scratch), outcome, gang.outcome_name(place.process))
    code = int(outcome["exit_code"])
    if code not in (ExitCode.DONE, ExitCode.PREEMPTED):
        with suppress(OSError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)
    return code


def _conclude(spec: JobSpec, clock: Clock, code: int, message: str | None, lost: End | None) -> int:
    """Close the attempt of a job that failed, clear what it leaves behind, and write its outcome; returns the exit code that stands."""
    target = Store(spec.output_prefix or spec.prefix)
    if message is not None:
        lost = lost or _close_failed(spec, target, clock, code, message)
        if lost is not None:  # a builder without a lease fails in many ways, all for this one reason
            code, message = _explain(superseded(spec.id, spec.attempt, lost))
            _clear_debris(spec, target)  # this process, which was asleep, may have written more since others cleared it
        _say(message)
    shutil.rmtree(Path(spec.scratch) / "inputs", ignore_errors=True)  # copies of what lies in a remote store
    if code == ExitCode.DONE or spec.job not in RESUMED_JOBS:
        shutil.rmtree(Path(spec.scratch) / "output", ignore_errors=True)
    _write_outcome(Path(spec.scratch), {"exit_code": code, "message": message})
    return code


def run_inline(spec: JobSpec) -> int:
    """`run` in a process that goes on afterwards and isn't the job's own: no signals, no Pipes; leaves the same outcome."""
    with (Path(spec.scratch) / "log").open("w") as log:
        return run(spec, JobReporter(None, threading.Event(), log))


def _explain(error: Exception) -> tuple[int, str]:
    """Exit code and message of what stopped a job."""
    if isinstance(error, MarinError):
        code = error.exit_code
    else:
        with suppress(OSError):  # the log's disk is full
            traceback.print_exception(error)
        # A full disk, a lost mount or a refused connection may pass; a missing file won't.
        misplaced = isinstance(error, FileNotFoundError | FileExistsError | IsADirectoryError | NotADirectoryError)
        code = ExitCode.TRY_AGAIN if isinstance(error, OSError) and not misplaced else ExitCode.BUG
    return int(code), redact(f"{type(error).__name__}: {error}")


def _explain_in_gang(error: Exception) -> dict[str, Any]:
    """The outcome of a process of a gang that was stopped: exit code, message, and whether it only missed another process."""
    code, message = _explain(error)
    peer_lost = False
    if code in (ExitCode.BUG, ExitCode.TRY_AGAIN):
        from marin_core import distributed

        peer_lost = distributed.peer_lost(error)
    return {"exit_code": int(ExitCode.TRY_AGAIN) if peer_lost else code, "message": message, "peer_lost": peer_lost}


def _close_failed(spec: JobSpec, store: Store, clock: Clock, code: int, message: str) -> End | None:
    """Close the attempt with what became of it; the end that another builder had written before, if there is one."""
    end = End(
        state="failed",
        ended_at=datetime.now(UTC).isoformat(),
        failure=failure_class(code),
        exit_code=code,
        error=message,
        log=str(Path(spec.scratch) / "log"),
        usage=clock.usage(),
    )
    try:
        standing = store.close(spec.id, spec.attempt, end)
    except MarinError as error:  # the launcher's side closes it then, from the outcome
        _say(f"the attempt could not be closed: {error}")
        return None
    return None if standing == end or standing.record is not None else standing


def _clear_debris(spec: JobSpec, store: Store, *, keep: int = 0) -> None:
    """Clear what closed attempts left, once nobody may carry it over any more; that it fails changes nothing."""
    try:
        if store.record(spec.id) is not None:
            store.clear_debris(spec.id, keep=keep)
    except MarinError as error:
        _say(f"debris of {spec.id} could not be cleared: {error}")


def _say(message: str) -> None:
    """A line in the job's log, which may lie on the very disk that is full."""
    with suppress(OSError):
        print(message, file=sys.stderr, flush=True)


def _stop_soon(spec: JobSpec, end: End, stop: threading.Event, outcome: str = OUTCOME) -> None:
    """Ask the job to stop, and end it if it doesn't within the length of its lease, since its work can't be used any more."""
    message = f"SupersededError: {superseded(spec.id, spec.attempt, end)}"
    _say(message)
    stop.set()

    def end_process() -> None:
        try:
            left = {"exit_code": int(ExitCode.BAD_CONFIG), "message": message, "peer_lost": False}
            _write_outcome(Path(spec.scratch), left, outcome)
            _clear_debris(spec, Store(spec.output_prefix or spec.prefix))
        finally:
            os._exit(ExitCode.BAD_CONFIG)

    timer = threading.Timer(spec.lease_seconds, end_process)
    timer.daemon = True
    timer.start()


def build(spec: JobSpec, scratch: Path, reporter: Reporter, clock: Clock) -> Record:
    """Build the artifact of a spec and commit it; returns the committed record.

    Raises:
        MarinError: whatever stopped it, with the exit code that says how to go on.
    """
    store, target = _stores(spec)
    committed = _committed(spec, target, reporter)
    if committed is not None:
        return committed
    module = _module(spec.job)
    code = _code(code_table, spec.job)
    job = _prepared(spec, store, target, module, scratch, reporter)
    report: Report = module.run(job)
    return _commit(job, target, report, code, clock)


def build_in_gang(spec: JobSpec, place: Place, reporter: Reporter, clock: Clock) -> None:
    """One process's part of building the artifact of a spec. The lead decides before any begins, and commits after all are done.

    Raises:
        MarinError: whatever stopped it, with the exit code that says how to go on.
    """
    module = _module(spec.job)
    if not getattr(module, "GANG", False):
        raise ConfigError(
            f"{spec.id} is built by the job {spec.job!r}, which can't run in {spec.processes} processes",
            advice="Leave processes at 1 in its step's resources.",
        )
    from marin_core import distributed  # loads JAX, which no job without a gang needs

    code = _code(code_table, spec.job)
    store, target = _stores(spec)
    distributed.start(place.coordinator, place.processes, place.process)
    job = _lead(spec, store, target, module, reporter) if place.lead else _follow(spec, store, place, reporter)
    if job is None:
        distributed.stop()
        return
    try:
        report: Report = module.run(job)
    except PreemptedError:
        with suppress(distributed.PeerLostError):  # what could be saved is saved
            distributed.stop()
        raise
    usages = [Usage.model_validate_json(text) for text in distributed.from_each(clock.usage().model_dump_json())]
    distributed.stop()  # from here on nobody waits for anybody
    if place.lead:
        _commit(job, target, report, code, clock, usages[1:])


def _lead(spec: JobSpec, store: Store, target: Store, module: ModuleType, reporter: Reporter) -> JobContext | None:
    """What the lead works with, told to the others; None if there is nothing to build."""
    from marin_core import distributed

    job = None
    try:
        if _committed(spec, target, reporter) is None:
            job = _prepared(spec, store, target, module, Path(spec.scratch), reporter)
    except Exception:
        with suppress(distributed.PeerLostError):
            distributed.from_lead(None)
        raise
    distributed.from_lead(None if job is None else str(job.output))
    return job


def _follow(spec: JobSpec, store: Store, place: Place, reporter: Reporter) -> JobContext | None:
    """What another process than the lead works with, once that has prepared it; None if the lead says that there is nothing to do."""
    from marin_core import distributed

    output = distributed.from_lead(None)
    if output is None:
        return None
    return JobContext(spec, store, Path(output), Path(spec.scratch), _inputs_by_address(spec, store), reporter, place.process)


def _stores(spec: JobSpec) -> tuple[Store, Store]:
    """Where the inputs lie, and where the artifact is built."""
    store = Store(spec.prefix)
    return store, Store(spec.output_prefix) if spec.output_prefix else store


def _committed(spec: JobSpec, target: Store, reporter: Reporter) -> Record | None:
    """The record, if the artifact is committed already.

    Raises:
        SupersededError: another builder has given this attempt up.
    """
    ended = target.end(spec.id, spec.attempt)  # while this job waited for its machine
    committed = target.record(spec.id) if ended is None else target.settle(spec.id)
    if committed is not None:
        reporter.log(f"{spec.id} is committed already; nothing to build")
        return committed
    if ended is not None:
        raise superseded(spec.id, spec.attempt, ended)
    return None


def _prepared(spec: JobSpec, store: Store, target: Store, module: ModuleType, scratch: Path, reporter: Reporter) -> JobContext:
    """What the job works with: intact inputs and a fresh output folder."""
    inputs = _inputs_by_address(spec, store)
    for record in inputs.values():
        store.require_intact(record)
    output = _prepare_output(spec, target, scratch, getattr(module, "carry_over", None))
    reporter.log(f"building {spec.id}, attempt {spec.attempt}")
    return JobContext(spec, store, output, scratch, inputs, reporter)


def _commit(job: JobContext, target: Store, report: Report, code: CodeTable, clock: Clock, others: Sequence[Usage] = ()) -> Record:
    """Commit what the job made; returns the record that stands.

    Args:
        others: what the other processes of a gang have cost.
    """
    spec, output = job.spec, job.output
    job.reporter.log("writing the manifest")
    if report.adopted:
        files = report.adopted.files
        shutil.rmtree(output)
    elif target.is_local:
        files = _manifest(output)
    else:
        files = _uploaded(_manifest(output), target.upload(output, spec.id, spec.attempt))
    _inputs(spec, job.store)  # what was read is what the record will say
    record = _record(spec, report, output, files, code, clock, others)
    end = End(
        state="succeeded",
        ended_at=record.ended_at,
        exit_code=0,
        log=str(job.scratch / "log"),
        usage=record.usage,
        record=record,
    )
    record = target.commit(spec.id, end, code)
    if record.attempt > 1:
        _clear_debris(spec, target, keep=record.attempt)
    job.reporter.log(f"committed {spec.id}: {len(record.files)} files, {record.size} bytes, content {record.content_digest[:16]}")
    return record


def _module(job: str) -> ModuleType:
    if job not in JOBS:
        raise ConfigError(f"there is no job {job!r}", advice=f"Known jobs: {', '.join(JOBS)}.")
    return importlib.import_module(f"marin_jobs.{job}")


@cache
def _code(read: Callable[[str], CodeTable], job: str) -> CodeTable:
    """The code of a job as it was loaded: edits while it runs, or while a process runs job after job, are not what it executes."""
    return read(f"marin_jobs.{job}")


def _inputs(spec: JobSpec, store: Store) -> dict[ArtifactId, Record]:
    """Records of the inputs, refused if one isn't what the launcher found.

    Raises:
        DataError: an input was withdrawn or rebuilt.
    """
    records = store.records([read.id for read in spec.inputs])
    for read in spec.inputs:
        record = records[read.id]
        if record is None or record.content_digest != read.content_digest:
            found = "no record" if record is None else f"content {record.content_digest[:16]}"
            raise DataError(
                f"input {read.id} changed since this job was launched: {found} instead of content {read.content_digest[:16]}",
                advice="Materialize again.",
            )
    return {artifact: record for artifact, record in records.items() if record is not None}


def _inputs_by_address(spec: JobSpec, store: Store) -> dict[str, Record]:
    return {store.address(artifact): record for artifact, record in _inputs(spec, store).items()}


def _prepare_output(spec: JobSpec, store: Store, scratch: Path, carry_over: Callable[[Path, Path], None] | None) -> Path:
    """The attempt's own empty folder, or with `carry_over` one that holds what earlier attempts left for good.

    It appears by a rename, complete, so that the next attempt can carry it over in turn, wherever this one dies.
    """
    output = store.output_path(spec.id, spec.attempt) or scratch / "output"
    before = [attempt for attempt in store.attempts(spec.id) if attempt.number < spec.attempt] if spec.attempt > 1 else []
    places = {attempt.number: _output_of(attempt, spec, store, scratch) for attempt in before}
    usable = [each for each in before if each.state in ("failed", "lost") and each.claim.fingerprint == spec.fingerprint]
    earlier = [path for attempt in usable if (path := places[attempt.number]).is_dir()]
    fresh = output.with_name(unfinished_folder(spec.attempt))
    for path in (output, fresh):
        shutil.rmtree(path, ignore_errors=True)
    fresh.mkdir(parents=True)
    if carry_over is not None and earlier:
        carry_over(earlier[-1], fresh)
    fresh.rename(output)
    if spec.attempt > 1:
        store.clear_debris(spec.id, keep=spec.attempt)
    if not store.is_local:  # in a local one clearing the debris did it
        for path in places.values():
            shutil.rmtree(path, ignore_errors=True)
    return output


def _output_of(attempt: Attempt, spec: JobSpec, store: Store, scratch: Path) -> Path:
    """Where an attempt puts its output: in the store, or if that lies elsewhere in its job's folder, beside this job's on one machine."""
    return store.output_path(spec.id, attempt.number) or scratch.parent / attempt.claim.job / "output"


def _manifest(output: Path) -> tuple[File, ...]:
    """Size, checksum and stamp of every file of the payload."""
    files = []
    for path in sorted(output.rglob("*")):
        if path.is_file():
            state = local_state(path)
            files.append(File(path=path.relative_to(output).as_posix(), size=state.size, sha256=file_sha256(path), stamp=state.stamp))
    return tuple(files)


def _uploaded(files: tuple[File, ...], states: Mapping[str, FileState]) -> tuple[File, ...]:
    """The manifest with the stamps that the store gave.

    Raises:
        InfrastructureError: the store doesn't have what was sent.
    """
    missing = [file.path for file in files if file.path not in states or states[file.path].size != file.size]
    if missing:
        raise InfrastructureError(f"{len(missing)} files are not in the store as they were sent: {missing[:5]}", advice="Try again.")
    return tuple(file.model_copy(update={"stamp": states[file.path].stamp}) for file in files)


def _record(
    spec: JobSpec, report: Report, output: Path, files: tuple[File, ...], code: CodeTable, clock: Clock, others: Sequence[Usage]
) -> Record:
    manifest = manifest_digest(files)
    return Record(
        name=spec.name,
        version=spec.version,
        partition=spec.partition,
        fingerprint=spec.fingerprint,
        identity=spec.identity,
        inputs=spec.inputs,
        payload=report.adopted.url if report.adopted else attempt_folder(spec.attempt),
        files=files,
        manifest_digest=manifest,
        content_digest=report.content_digest or manifest,
        attempt=spec.attempt,
        code=code_state(code.digest),
        environment=Environment(python=platform.python_version(), platform=platform.platform(), cpus=cpu_count()),
        started_at=clock.started_at,
        ended_at=datetime.now(UTC).isoformat(),
        usage=_together(clock.usage(), others),
        dagster_run_id=spec.dagster_run_id,
        keep_days=spec.keep_days,
        metrics=dict(report.metrics),
        tables={name: [dict(row) for row in rows] for name, rows in report.tables.items()},
        plots={name: path.relative_to(output).as_posix() for name, path in report.plots.items()},
        checks=tuple(
            CheckResult(name=check.name, passed=check.passed, description=check.description, values=dict(check.values))
            for check in report.checks
        ),
        links=dict(report.links),
    )


def _together(own: Usage, others: Sequence[Usage]) -> Usage:
    """What a job costs: this process's time, everybody's processors and memory."""
    return own.model_copy(
        update={
            "cpu_seconds": round(own.cpu_seconds + sum(other.cpu_seconds for other in others), 3),
            "peak_memory_bytes": own.peak_memory_bytes + sum(other.peak_memory_bytes for other in others),
        }
    )


def _write_outcome(scratch: Path, outcome: dict[str, Any], name: str = OUTCOME) -> None:
    """Leave word of how the process ended."""
    temporary = scratch / f"{name}.tmp"
    with suppress(OSError):  # the exit code says it too
        temporary.write_text(json.dumps(outcome))
        temporary.replace(scratch / name)
