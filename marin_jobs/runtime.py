"""Building an artifact: prepare its output, run the job's module, and write the record last."""

import importlib
import platform
import shutil
import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import TypeVar

from marin_core.artifact.code import CodeTable, code_table
from marin_core.artifact.identity import ArtifactId
from marin_core.artifact.job import JobSpec
from marin_core.artifact.link import is_same_work, linked_record
from marin_core.artifact.record import (
    CheckResult,
    End,
    Environment,
    File,
    Record,
    Usage,
    manifest_digest,
)
from marin_core.artifact.region import EgressGuard
from marin_core.artifact.store import Store, payload_folder, superseded
from marin_core.config import Config
from marin_core.errors import ConfigError, DataError, PreemptedError
from marin_core.report import Report, Reporter
from marin_core.train.checkpoint.mirror import Mirror
from marin_jobs.fence import Fence
from marin_jobs.gang import Place
from marin_jobs.output import as_uploaded, clear_debris, clear_other_generations, manifest, prepare_output
from marin_jobs.provenance import Clock, code_state, cpu_count

JOBS = (
    "adopt",
    "attributes",
    "classifier",
    "consolidate",
    "contamination",
    "contamination_index",
    "duplicates",
    "evaluate",
    "filter",
    "ingest",
    "manifest",
    "mixture",
    "mixture_at",
    "ngram",
    "plan",
    "signatures",
    "summary",
    "tasks",
    "tokenize",
    "tokenizer",
    "tokenizer_file",
    "tokenizer_kmer",
    "train",
)
"""Modules that a spec may name; a spec comes from outside, so it chooses from a list and never imports at will."""

_NOT_BEGUN = ""
"""What the lead tells the others, in place of a folder, when it failed before there was one."""

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
        egress: bounds what all its downloads together may take from other regions.
        mirror: of the output in a store that is no file system, if the job's module asks for one; only the lead's.
    """

    spec: JobSpec
    store: Store
    output: Path
    scratch: Path
    inputs: Mapping[str, Record]
    reporter: Reporter
    process: int = 0
    egress: EgressGuard = field(default_factory=EgressGuard)
    mirror: Mirror | None = None

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

    def local(self, address: str, below: str = "") -> Path:
        """Local folder with the payload of the input at an address; downloaded and checked if it lies elsewhere.

        Args:
            below: a folder of the payload, if nothing else of it is needed; then that folder.

        Raises:
            ConfigError: it lies in another region, and is more than may be read from there.
        """
        record = self.record(address)
        path = self.store.payload_path(record)
        if path is not None:
            return path / below
        downloads = self.scratch / "inputs" / (f"process-{self.process}" if self.process else "")  # no part of a name has a dash
        folder = downloads / record.id.path / below
        if not folder.exists():
            part = folder.with_name(f"{folder.name}.part")
            size = sum(file.size for file in record.files if not below or file.path.startswith(f"{below}/"))
            self.egress.require(self.store.payload_url(record), size, f"the input {record.id}")
            self.store.download(record, part, below)
            part.rename(folder)
        return folder

    def local_parts(self, addresses: Mapping[str, Sequence[str]]) -> dict[str, list[Path]]:
        """Local folders of named groups of addresses, as mixtures and families are given."""
        return {name: [self.local(address) for address in group] for name, group in addresses.items()}


def build(spec: JobSpec, scratch: Path, reporter: Reporter, clock: Clock, fence: Fence | None = None) -> Record:
    """Build the artifact of a spec and commit it; returns the committed record.

    Raises:
        MarinError: whatever stopped it, with the exit code that says how to go on.
    """
    store, target = _stores(spec)
    committed = _committed(spec, target, reporter, fence)
    if committed is not None:
        return committed
    module = _module(spec.job)
    code = _code(code_table, spec.job)
    job = _prepared(spec, store, target, module, scratch, reporter, fence)
    base = _same_as_base(job, module)
    report: Report = module.run(job) if base is None else Report(linked=base)
    return _commit(job, target, report, code, clock, fence=fence)


def _same_as_base(job: JobContext, module: ModuleType) -> Record | None:
    """The member of an older version that is already what this job would make; None if there is none, or this is to prove it."""
    member = job.spec.base_member
    base = None if member is None or job.spec.output_prefix is not None else job.inputs.get(job.store.address(member))
    if base is None:
        return None
    of_this_job: Callable[[JobContext, Record], bool] | None = getattr(module, "is_work_of", None)
    same = of_this_job(job, base) if of_this_job else is_same_work(base, job.spec.identity, job.spec.inputs)
    if same:
        job.reporter.log(f"the work of {job.spec.id} is that of {base.id}: linked to it")
    return base if same else None


def build_in_gang(spec: JobSpec, place: Place, reporter: Reporter, clock: Clock, fence: Fence | None = None) -> None:
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
    with _ends_when_told(reporter):
        distributed.start(place.coordinator, place.processes, place.process, bind=place.bind)
    job = _lead(spec, store, target, module, reporter, fence) if place.lead else _follow(spec, store, place, reporter)
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
        _commit(job, target, report, code, clock, usages[1:], fence)


@contextmanager
def _ends_when_told(reporter: Reporter) -> Iterator[None]:
    """Let SIGTERM end this process while there is nothing to save: JAX waits for the others in C++, where no handler of ours runs.

    Raises:
        PreemptedError: it was told before.
    """
    if threading.current_thread() is not threading.main_thread():  # only there can handlers be changed
        yield
        return
    ours = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        if reporter.stop_requested():
            raise PreemptedError("it was asked to stop before it had begun", advice="Start it again.")
        yield
    finally:
        signal.signal(signal.SIGTERM, ours)


def _lead(spec: JobSpec, store: Store, target: Store, module: ModuleType, reporter: Reporter, fence: Fence | None) -> JobContext | None:
    """What the lead works with, told to the others; None if there is nothing to build."""
    from marin_core import distributed

    job = None
    try:
        if _committed(spec, target, reporter, fence) is None:
            job = _prepared(spec, store, target, module, Path(spec.scratch), reporter, fence)
    except Exception:
        with suppress(distributed.PeerLostError):
            distributed.from_lead(_NOT_BEGUN)
        raise
    distributed.from_lead(None if job is None else str(job.output))
    return job


def _follow(spec: JobSpec, store: Store, place: Place, reporter: Reporter) -> JobContext | None:
    """What another process than the lead works with, once that has prepared it; None if the lead says that there is nothing to do.

    Raises:
        PeerLostError: the lead can't begin.
        ConfigError: the output's folder isn't the lead's.
    """
    from marin_core import distributed

    output = distributed.from_lead(None)
    if output is None:
        return None
    if output == _NOT_BEGUN:  # success would be for good: a pod that says so isn't started again with the others (kueue #10487)
        raise distributed.PeerLostError("process 0 couldn't begin", advice="Look at its part of the log.")
    if not Path(output).is_dir():
        raise ConfigError(
            f"process {place.process} of {spec.id} doesn't see {output}, which process 0 has made",
            advice="Let all nodes of a gang mount one file system, and put the store on it, or with a store elsewhere the jobs' folders.",
        )
    return JobContext(spec, store, Path(output), Path(spec.scratch), _inputs_by_address(spec, store), reporter, place.process)


def _stores(spec: JobSpec) -> tuple[Store, Store]:
    """Where the inputs lie, and where the artifact is built."""
    store = Store(spec.prefix)
    return store, Store(spec.output_prefix) if spec.output_prefix else store


def _committed(spec: JobSpec, target: Store, reporter: Reporter, fence: Fence | None) -> Record | None:
    """The record, if the artifact is committed already; older pods of the attempt can't commit it any more, or may have begun to.

    Raises:
        SupersededError: another builder has given this attempt up, or a newer pod goes on with it.
    """
    if fence is not None:
        fence.seal_older()
    ended = target.end(spec.id, spec.attempt)  # while this job waited for its machine
    committed = target.record(spec.id) if ended is None else target.settle(spec.id)
    if committed is not None:
        reporter.log(f"{spec.id} is committed already; nothing to build")
        return committed
    if ended is not None:
        raise superseded(spec.id, spec.attempt, ended)
    return None


def _prepared(
    spec: JobSpec, store: Store, target: Store, module: ModuleType, scratch: Path, reporter: Reporter, fence: Fence | None
) -> JobContext:
    """What the job works with: intact inputs and a fresh output folder."""
    inputs = _inputs_by_address(spec, store)
    for record in inputs.values():
        store.require_intact(record)
    mirror = None
    if getattr(module, "MIRRORED", False) and not target.is_local:
        mirror = Mirror(target.objects, f"{spec.id.path}/{payload_folder(spec.attempt, None if fence is None else fence.generation)}")
    output = prepare_output(spec, target, scratch, getattr(module, "carry_over", None), fence, mirror)
    reporter.log(f"building {spec.id}, attempt {spec.attempt}")
    return JobContext(spec, store, output, scratch, inputs, reporter, mirror=mirror)


def _commit(
    job: JobContext,
    target: Store,
    report: Report,
    code: CodeTable,
    clock: Clock,
    others: Sequence[Usage] = (),
    fence: Fence | None = None,
) -> Record:
    """Commit what the job made; returns the record that stands.

    Args:
        others: what the other processes of a gang have cost.
    """
    spec, output = job.spec, job.output
    payload = payload_folder(spec.attempt, None if fence is None else fence.generation)
    job.reporter.log("writing the manifest")
    if report.adopted or report.linked:
        files = report.adopted.files if report.adopted else ()
        shutil.rmtree(output)
        if job.mirror is not None:
            job.mirror.clear()
    elif target.is_local:
        files = manifest(output)
    else:
        files = as_uploaded(manifest(output), target.upload(output, spec.id, payload))
    _inputs(spec, job.store)  # what was read is what the record will say
    if report.linked:
        record = _linked(job, report.linked, clock)
        code = job.store.code_table(report.linked) or code
    else:
        record = _record(spec, report, output, payload, files, code, clock, others)
    end = End(
        state="succeeded",
        ended_at=record.ended_at,
        exit_code=0,
        log=str(job.scratch / "log"),
        usage=record.usage,
        record=record,
    )
    if fence is not None:
        fence.begin_commit()
    record = target.commit(spec.id, end, code)
    if fence is not None:
        clear_other_generations(target, spec.id, record, spec.attempt)
    if record.attempt > 1:
        clear_debris(spec, target, keep=record.attempt)
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


def _record(
    spec: JobSpec,
    report: Report,
    output: Path,
    payload: str,
    files: tuple[File, ...],
    code: CodeTable,
    clock: Clock,
    others: Sequence[Usage],
) -> Record:
    of_files = manifest_digest(files)
    return Record(
        name=spec.name,
        version=spec.version,
        partition=spec.partition,
        fingerprint=spec.fingerprint,
        identity=spec.identity,
        inputs=spec.inputs,
        payload=report.adopted.url if report.adopted else payload,
        files=files,
        manifest_digest=of_files,
        content_digest=report.content_digest or of_files,
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


def _linked(job: JobContext, base: Record, clock: Clock) -> Record:
    spec = job.spec
    return linked_record(
        base,
        job.store.payload_url(base),
        name=spec.name,
        version=spec.version,
        partition=spec.partition,
        fingerprint=spec.fingerprint,
        identity=spec.identity,
        inputs=spec.inputs,
        attempt=spec.attempt,
        started_at=clock.started_at,
        ended_at=datetime.now(UTC).isoformat(),
        usage=clock.usage(),
        dagster_run_id=spec.dagster_run_id,
        keep_days=spec.keep_days,
    )


def _together(own: Usage, others: Sequence[Usage]) -> Usage:
    """What a job costs: this process's time, everybody's processors and memory."""
    return own.model_copy(
        update={
            "cpu_seconds": round(own.cpu_seconds + sum(other.cpu_seconds for other in others), 3),
            "peak_memory_bytes": own.peak_memory_bytes + sum(other.peak_memory_bytes for other in others),
        }
    )
