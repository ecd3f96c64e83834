"""The life of a job's process: read the spec, build or keep the gang that builds, close the attempt, exit with a code that says why."""

import argparse
import json
import os
import shutil
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import fsspec

from marin_core.artifact.job import RESUMED_JOBS, JobSpec
from marin_core.artifact.job_folder import JobFolder
from marin_core.artifact.lease import BEATS_PER_LEASE, Heartbeat
from marin_core.artifact.record import End, failure_class
from marin_core.artifact.store import Store, superseded
from marin_core.errors import ConfigError, ExitCode, MarinError, SupersededError
from marin_core.redaction import redact
from marin_core.report import Reporter
from marin_jobs import gang, pod
from marin_jobs.fence import Fence
from marin_jobs.gang import OUTCOME, Place
from marin_jobs.output import clear_debris, discard_output
from marin_jobs.provenance import Clock
from marin_jobs.reporting import FollowerReporter, JobReporter, say
from marin_jobs.runtime import build, build_in_gang


def main(arguments: Sequence[str]) -> int:
    """Run the job named by the spec at the given path or URL, or one process of it; returns the exit code."""
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda signum, frame: stop.set())  # finish the step, save, then end with `PreemptedError`
    try:
        given = _parser().parse_args(arguments)
    except SystemExit as error:
        return ExitCode.BAD_CONFIG if error.code else ExitCode.DONE
    if pod.FOLDER_VARIABLE in os.environ:
        return pod.keep(stop)
    if given.kept:
        gang.end_with_keeper()
    try:
        with fsspec.open(given.spec, "r") as file:
            spec = JobSpec.from_json(json.load(file))
        place = _place(spec, given)
        fence = Fence(JobFolder(given.job_folder), given.generation) if given.job_folder else None
    except (OSError, ValueError, MarinError) as error:
        print(f"the job spec {given.spec} can't be read: {error}", file=sys.stderr)
        return ExitCode.BAD_CONFIG
    if place is not None:
        return run_in_gang(spec, place, stop, fence)
    if spec.processes > 1:
        return run_gang(spec, given.spec, stop)
    _set_devices(spec)
    with JobReporter.open(stop) as reporter:
        return run(spec, reporter, on_lost=lambda error: _stop_soon(spec, error, stop), fence=fence)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m marin_jobs", description="Build one artifact and commit it.")
    parser.add_argument("spec", help="path or URL of the job's spec")
    parser.add_argument("--process", type=int, help="be one process of the spec's gang: which, from 0")
    parser.add_argument("--coordinator", help="host:port where process 0 of the gang serves")
    parser.add_argument("--bind", help="host:port at which process 0 serves, if that isn't the coordinator's")
    parser.add_argument("--kept", action="store_true", help="end when standard input does, which a keeper holds open")
    parser.add_argument("--job-folder", help="URL of the folder that the job's pods and its launcher have in common")
    parser.add_argument("--generation", help="which of the job's pods this is in")
    return parser


def _place(spec: JobSpec, given: argparse.Namespace) -> Place | None:
    """Which process of the spec's gang this is; None if it is the whole job, or keeps the gang.

    Raises:
        ConfigError: the arguments don't fit the spec.
    """
    process, coordinator = given.process, given.coordinator
    if process is None and coordinator is None:
        return None
    if process is None or coordinator is None or not 0 <= process < spec.processes or spec.processes == 1:
        raise ConfigError(
            f"--process {process} --coordinator {coordinator} is no process of {spec.id}, which has processes={spec.processes}",
            advice="Give both, the process from 0 to processes - 1, or neither.",
        )
    return Place(process, spec.processes, coordinator, given.bind)


def _set_devices(spec: JobSpec) -> None:
    """How many CPU devices JAX makes when the job loads it."""
    if spec.devices_per_process is not None:
        os.environ["JAX_NUM_CPU_DEVICES"] = str(spec.devices_per_process)


def run(
    spec: JobSpec, reporter: JobReporter, on_lost: Callable[[SupersededError], None] = lambda error: None, fence: Fence | None = None
) -> int:
    """Build the artifact of a spec and leave `outcome.json` in the job's folder; returns the exit code.

    Whatever happens, the attempt is closed with what became of it, unless the store can't be reached or the process is killed.

    Args:
        on_lost: called from another thread if another builder has taken over.
        fence: of the pod in which this is. The attempt isn't closed then, since another pod may go on with it.
    """
    clock = Clock.start()
    code, message = int(ExitCode.DONE), None
    with _signs_of_life(spec, on_lost, fence) as lost:
        try:
            build(spec, Path(spec.scratch), reporter, clock, fence)
        except Exception as error:
            code, message = _explain(error)
    taken_over = lost() if message is not None else None
    _discard_void(spec, fence)
    return _conclude(spec, clock, code, message, taken_over, closes=fence is None)


@contextmanager
def _signs_of_life(
    spec: JobSpec, on_lost: Callable[[SupersededError], None], fence: Fence | None
) -> Iterator[Callable[[], SupersededError | None]]:
    """Beat while an attempt builds; what it yields says whether another builder has taken over meanwhile."""
    target = Store(spec.output_prefix or spec.prefix)

    def given_up(end: End) -> None:
        on_lost(superseded(spec.id, spec.attempt, end))

    with ExitStack() as context:
        heartbeat = context.enter_context(Heartbeat(target, spec.id, spec.attempt, spec.lease_seconds, given_up))
        if fence is not None:
            context.enter_context(fence.watched(spec.lease_seconds / BEATS_PER_LEASE, on_lost))

        def lost() -> SupersededError | None:
            if heartbeat.lost is not None:
                return superseded(spec.id, spec.attempt, heartbeat.lost)
            return None if fence is None else fence.look()

        yield lost


def run_gang(spec: JobSpec, spec_uri: str, stop: threading.Event) -> int:
    """Keep the spec's gang on this machine, and close the attempt with its verdict; returns the exit code, as `run` does."""
    clock = Clock.start()
    try:
        verdict, message = gang.keep(spec, spec_uri, stop)
        code = int(verdict)
    except Exception as error:
        code, message = _explain(error)
    return _conclude(spec, clock, code, message, None, closes=True)


def run_in_gang(spec: JobSpec, place: Place, stop: threading.Event, fence: Fence | None = None) -> int:
    """One process of a gang. It leaves word of its end for whoever judges the gang, and the attempt's end to them; returns the exit code.

    A process that fails doesn't come back from here: what it waited for at its exit, such as its peers, might never come.
    """
    _set_devices(spec)
    clock = Clock.start()
    outcome: dict[str, Any] = {"exit_code": int(ExitCode.DONE), "message": None, "peer_lost": False}
    lost: Callable[[], SupersededError | None] = _nobody_asks
    with ExitStack() as context:
        try:
            reporter: Reporter = FollowerReporter(place.process, stop)
            if place.lead:
                reporter = context.enter_context(JobReporter.open(stop))
                on_lost = partial(_stop_soon, spec, stop=stop, outcome=gang.outcome_name(0))
                lost = context.enter_context(_signs_of_life(spec, on_lost, fence))
            build_in_gang(spec, place, reporter, clock, fence)
        except Exception as error:
            outcome = _explain_in_gang(error)
    if outcome["message"] is not None and (taken_over := lost()) is not None:
        outcome = _explain_in_gang(taken_over)
        _discard_void(spec, fence)
    _write_outcome(Path(spec.scratch), outcome, gang.outcome_name(place.process))
    code = int(outcome["exit_code"])
    if code not in (ExitCode.DONE, ExitCode.PREEMPTED):
        with suppress(OSError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)
    return code


def _discard_void(spec: JobSpec, fence: Fence | None) -> None:
    """Remove what a pod made that was given up; that it fails changes nothing."""
    if fence is not None and fence.is_void:
        try:
            discard_output(spec, Store(spec.output_prefix or spec.prefix), fence)
        except MarinError as error:
            say(f"what this pod made of {spec.id} could not be cleared: {error}")


def _nobody_asks() -> None:
    """Whether another builder has taken over is the lead's affair."""


def _conclude(spec: JobSpec, clock: Clock, code: int, message: str | None, lost: SupersededError | None, *, closes: bool) -> int:
    """Close the attempt of a job that failed, clear what it leaves behind, and write its outcome; returns the exit code that stands.

    Args:
        lost: that another builder had taken over before.
        closes: whether nothing else may go on with the attempt.
    """
    target = Store(spec.output_prefix or spec.prefix)
    if message is not None:
        if lost is None and closes and (end := _close_failed(spec, target, clock, code, message)) is not None:
            lost = superseded(spec.id, spec.attempt, end)
        if lost is not None:  # a builder without a lease fails in many ways, all for this one reason
            code, message = _explain(lost)
            clear_debris(spec, target)  # this process, which was asleep, may have written more since others cleared it
        say(message)
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
        say(f"the attempt could not be closed: {error}")
        return None
    return None if standing == end or standing.record is not None else standing


def _stop_soon(spec: JobSpec, error: SupersededError, stop: threading.Event, outcome: str = OUTCOME) -> None:
    """Ask the job to stop, and end it if it doesn't within the length of its lease, since its work can't be used any more."""
    message = f"SupersededError: {error}"
    say(message)
    stop.set()

    def end_process() -> None:
        try:
            left = {"exit_code": int(ExitCode.BAD_CONFIG), "message": message, "peer_lost": False}
            _write_outcome(Path(spec.scratch), left, outcome)
            clear_debris(spec, Store(spec.output_prefix or spec.prefix))
        finally:
            os._exit(ExitCode.BAD_CONFIG)

    timer = threading.Timer(spec.lease_seconds, end_process)
    timer.daemon = True
    timer.start()


def _write_outcome(scratch: Path, outcome: dict[str, Any], name: str = OUTCOME) -> None:
    """Leave word of how the process ended."""
    temporary = scratch / f"{name}.tmp"
    with suppress(OSError):  # the exit code says it too
        temporary.write_text(json.dumps(outcome))
        temporary.replace(scratch / name)
