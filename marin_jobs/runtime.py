"""The life of a job: read the spec, prepare the output, run the module, write the record last, exit with a code that says why."""

import importlib
import json
import platform
import shutil
import signal
import sys
import threading
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import ModuleType
from typing import TypeVar

import fsspec

from marin_core.artifact.job import JobSpec
from marin_core.artifact.record import CheckResult, Environment, File, Record, file_sha256, manifest_digest
from marin_core.artifact.store import META, Store
from marin_core.config import Config
from marin_core.errors import ConfigError, DataError, ExitCode, InfrastructureError, MarinError
from marin_core.report import Report
from marin_jobs.provenance import Clock, code_state, cpu_count
from marin_jobs.reporting import JobReporter

JOBS = ("evaluate", "filter", "ingest", "mixture", "ngram", "tasks", "tokenize", "tokenizer", "train")
"""Modules that a spec may name; a spec comes from outside, so it chooses from a list and never imports at will."""

T = TypeVar("T", bound=Config)


@dataclass(frozen=True)
class JobContext:
    """What a job module works with.

    Attributes:
        spec: the job's spec.
        output: local folder that becomes the artifact's payload.
        reporter: progress, metrics, log lines, and whether to stop.
    """

    spec: JobSpec
    store: Store
    output: Path
    scratch: Path
    reporter: JobReporter

    def config(self, cls: type[T]) -> T:
        """The configuration, validated as the job's own class."""
        return cls.from_json(self.spec.config)

    def local(self, address: str) -> Path:
        """Local folder with the payload at an address of the store; downloaded if the store is remote."""
        path = self.store.local_path(address)
        if path is not None:
            return path
        relative = address.removeprefix(self.store.prefix).lstrip("/")
        folder = self.scratch / "inputs" / relative
        if not folder.exists():
            self.store.download(relative, folder)
        return folder

    def local_parts(self, addresses: Mapping[str, Sequence[str]]) -> dict[str, list[Path]]:
        """Local folders of named groups of addresses, as mixtures and families are given."""
        return {name: [self.local(address) for address in group] for name, group in addresses.items()}


def main(arguments: Sequence[str]) -> int:
    """Run the job named by the spec at the given path or URL; returns the exit code."""
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda signum, frame: stop.set())  # finish the step, save, then end with `PreemptedError`
    if len(arguments) != 1:
        print("usage: python -m marin_jobs <spec URI>", file=sys.stderr)
        return ExitCode.BAD_CONFIG
    try:
        with fsspec.open(arguments[0], "r") as file:
            spec = JobSpec.from_json(json.load(file))
    except (OSError, ValueError, MarinError) as error:
        print(f"the job spec {arguments[0]} can't be read: {error}", file=sys.stderr)
        return ExitCode.BAD_CONFIG
    scratch = Path(spec.scratch)
    with JobReporter.open(stop) as reporter:
        code, message = _run(spec, scratch, reporter)
        if message:
            print(message, file=sys.stderr, flush=True)
        _write_outcome(scratch, code, message)
    return code


def _run(spec: JobSpec, scratch: Path, reporter: JobReporter) -> tuple[int, str | None]:
    try:
        build(spec, scratch, reporter)
    except MarinError as error:
        return error.exit_code, f"{type(error).__name__}: {error}"
    except OSError as error:  # a full disk, a lost mount, a refused connection; a missing file is no such thing
        traceback.print_exc()
        misplaced = isinstance(error, FileNotFoundError | FileExistsError | IsADirectoryError | NotADirectoryError)
        return ExitCode.BUG if misplaced else ExitCode.TRY_AGAIN, f"{type(error).__name__}: {error}"
    except Exception as error:
        traceback.print_exc()
        return ExitCode.BUG, f"{type(error).__name__}: {error}"
    return ExitCode.DONE, None


def build(spec: JobSpec, scratch: Path, reporter: JobReporter) -> Record:
    """Build the artifact of a spec and commit it; returns the committed record.

    Raises:
        MarinError: whatever stopped it, with the exit code that says how to go on.
    """
    store = Store(spec.prefix)
    committed = store.record(spec.id)
    if committed is not None:
        reporter.log(f"{spec.id} is committed already; nothing to build")
        return committed
    module = _module(spec.job)
    _refuse_changed_inputs(spec, store)
    output = _prepare_output(spec, store, scratch, resumable=getattr(module, "RESUMABLE", False))
    clock = Clock.start()
    reporter.log(f"building {spec.id}, attempt {spec.attempt}")
    report: Report = module.run(JobContext(spec, store, output, scratch, reporter))
    reporter.log("writing the manifest")
    record = _record(spec, report, output, clock)
    if not store.is_local:
        store.upload(output, spec.id)
    if not store.commit(record):
        raise InfrastructureError(
            f"{spec.id} was committed by another builder meanwhile; this one's work is not used",
            advice="Nothing: the committed artifact is served.",
        )
    reporter.log(f"committed {spec.id}: {len(record.files)} files, {record.size} bytes, content {record.content_digest[:16]}")
    return record


def _module(job: str) -> ModuleType:
    if job not in JOBS:
        raise ConfigError(f"there is no job {job!r}", advice=f"Known jobs: {', '.join(JOBS)}.")
    return importlib.import_module(f"marin_jobs.{job}")


def _refuse_changed_inputs(spec: JobSpec, store: Store) -> None:
    for read in spec.inputs:
        record = store.record(read.id)
        if record is None or record.content_digest != read.content_digest:
            found = "no record" if record is None else f"content {record.content_digest[:16]}"
            raise DataError(
                f"input {read.id} changed between launch and start: {found} instead of content {read.content_digest[:16]}",
                advice="Materialize again.",
            )


def _prepare_output(spec: JobSpec, store: Store, scratch: Path, *, resumable: bool) -> Path:
    """The folder to build in. Whatever lies at an address without a record is debris of an earlier attempt."""
    output = store.local_path(store.address(spec.id)) or scratch / "output"
    if not resumable and output.exists():
        for path in output.iterdir():
            if path.name == META:
                continue
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink()
    output.mkdir(parents=True, exist_ok=True)
    return output


def _record(spec: JobSpec, report: Report, output: Path, clock: Clock) -> Record:
    files = tuple(
        File(path=path.relative_to(output).as_posix(), size=path.stat().st_size, sha256=file_sha256(path))
        for path in sorted(output.rglob("*"))
        if path.is_file() and path.relative_to(output).parts[0] != META
    )
    manifest = manifest_digest(files)
    return Record(
        name=spec.name,
        version=spec.version,
        partition=spec.partition,
        fingerprint=spec.fingerprint,
        identity=spec.identity,
        inputs=spec.inputs,
        files=files,
        manifest_digest=manifest,
        content_digest=report.content_digest or manifest,
        attempt=spec.attempt,
        code=code_state(),
        environment=Environment(python=platform.python_version(), platform=platform.platform(), cpus=cpu_count()),
        started_at=clock.started_at,
        ended_at=datetime.now(UTC).isoformat(),
        usage=clock.usage(),
        dagster_run_id=spec.dagster_run_id,
        metrics=dict(report.metrics),
        tables={name: [dict(row) for row in rows] for name, rows in report.tables.items()},
        plots={name: path.relative_to(output).as_posix() for name, path in report.plots.items()},
        checks=tuple(
            CheckResult(name=check.name, passed=check.passed, description=check.description, values=dict(check.values))
            for check in report.checks
        ),
        links=dict(report.links),
    )


def _write_outcome(scratch: Path, code: int, message: str | None) -> None:
    """`outcome.json` in the job's folder: how the process ended, for a launcher that isn't its parent."""
    temporary = scratch / "outcome.tmp"
    temporary.write_text(json.dumps({"exit_code": int(code), "message": message}))
    temporary.replace(scratch / "outcome.json")
