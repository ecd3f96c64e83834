"""A job's process in a pod: its keeper finds out which it is, starts it, passes SIGTERM on, and sees that its words reach the launcher.

The keeper loads no JAX. It is the pod's main process, so that a job which is killed or aborted still leaves word of how it ended.
"""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import IO, Any

from dagster_pipes import DAGSTER_PIPES_CONTEXT_ENV_VAR, DAGSTER_PIPES_MESSAGES_ENV_VAR, encode_param

from marin_core.artifact.ending import Ending
from marin_core.artifact.job import JobSpec
from marin_core.artifact.job_folder import GENERATION, GENERATION_DIGITS, JobFolder, Outcome
from marin_core.errors import ConfigError, ExitCode, InfrastructureError, MarinError, PreemptedError
from marin_core.redaction import redact
from marin_jobs.gang import OUTCOME, outcome_name
from marin_jobs.shipping import Shipper

FOLDER_VARIABLE = "MARIN_JOB_FOLDER"
"""URL of the job's folder; that it is set says that this process is a pod's first."""
TERMINATION_LOG_VARIABLE = "MARIN_TERMINATION_LOG"
TERMINATION_LOG = "/dev/termination-log"
TERMINATION_BYTES = 4096
"""Largest termination message that Kubernetes keeps of a container."""

RETRY_DELAY_VARIABLE = "MARIN_RETRY_DELAY_SECONDS"
RETRY_DELAY_SECONDS = 60.0
SHORTEST_DELAY_SECONDS = 5.0
"""A pod that says "try again" ends after a random delay up to the variable's value: JobSet itself restarts at once, and a job that always
says it made four rounds in 12 s (spec/kubernetes.md §1.5)."""

GRACE_VARIABLE = "MARIN_GRACE_SECONDS"
"""What Kubernetes gives a pod from SIGTERM to SIGKILL. Where the keeper knows it, it ends a process that doesn't, while there is time left
to say so."""
GRACE_KEPT = 0.25
"""Share of the grace that the keeper keeps for itself, up to `GRACE_KEPT_SECONDS`."""
GRACE_KEPT_SECONDS = 20.0

SHARED_SCRATCH_VARIABLE = "MARIN_SHARED_SCRATCH"
"""Where pods keep their files on one file system, which outlives them: the folder in which each has its own."""
ALIVE_SECONDS = 3600.0
"""Between two signs of life that a pod gives of its folder there."""
ABANDONED_SECONDS = 2 * 86_400.0
"""Since the last sign of life, after which a folder there counts as left behind by a pod that was killed."""

PATIENCE_SECONDS = 300.0
"""How long a store may be away when a pod begins."""

LOOK_SECONDS = 0.2
"""Between two looks at the process."""

ABORTED_BY_JAX = b"JAX distributed service detected fatal errors"
"""What JAX 0.12 prints before it aborts a process whose peers are gone."""

_CGROUP = Path("/sys/fs/cgroup")


@dataclass(frozen=True)
class Pod:
    """Which pod this is, as its environment says (spec/kubernetes.md §2.5).

    Attributes:
        folder: URL of the job's folder.
        scratch: where the pod keeps its own files.
        process: contiguous over the pods of a child job, on which the order of a mesh over racks relies.
        coordinator: `host:port` of process 0; None in a job of one process.
        bind: `host:port` of this pod's own address, at which process 0 serves.
        retry_delay_seconds, grace_seconds: see RETRY_DELAY_VARIABLE and GRACE_VARIABLE.
        shared_scratch: see SHARED_SCRATCH_VARIABLE; None = its files end with it.
    """

    folder: str
    scratch: Path
    process: int
    processes: int
    coordinator: str | None
    bind: str | None
    restart: int
    name: str
    node: str
    retry_delay_seconds: float
    grace_seconds: float | None
    shared_scratch: Path | None = None

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> "Pod":
        """Read the variables that the launcher gives every pod.

        Raises:
            ConfigError: names the variable that is missing or doesn't fit the others.
        """
        job, pod = _number(environment, "MARIN_JOB_INDEX"), _number(environment, "MARIN_POD_INDEX")
        width, processes = _number(environment, "MARIN_PODS_PER_JOB", 1), _number(environment, "MARIN_NUM_PROCESSES", 1)
        process = job * width + pod
        if pod >= width or process >= processes or processes % width:
            raise ConfigError(
                f"pod MARIN_POD_INDEX={pod} of job MARIN_JOB_INDEX={job}, with MARIN_PODS_PER_JOB={width} pods each, is none of"
                f" MARIN_NUM_PROCESSES={processes} processes",
                advice="Let every job have that many pods, and all jobs together that many processes.",
            )
        coordinator = _given(environment, "MARIN_COORDINATOR") if processes > 1 else None
        address = environment.get("MARIN_POD_IP", "")
        bind = None
        if coordinator is not None and address:
            bind = f"{f'[{address}]' if ':' in address else address}:{coordinator.rpartition(':')[2]}"
        return cls(
            folder=_given(environment, FOLDER_VARIABLE),
            scratch=Path(_given(environment, "MARIN_SCRATCH")),
            process=process,
            processes=processes,
            coordinator=coordinator,
            bind=bind,
            restart=_number(environment, "MARIN_RESTART"),
            name=environment.get("MARIN_POD", ""),
            node=environment.get("MARIN_NODE", ""),
            retry_delay_seconds=_seconds(environment, RETRY_DELAY_VARIABLE, RETRY_DELAY_SECONDS),
            grace_seconds=_seconds(environment, GRACE_VARIABLE, None),
            shared_scratch=None if (shared := environment.get(SHARED_SCRATCH_VARIABLE)) is None else Path(shared),
        )


@dataclass(frozen=True)
class Ended:
    """How the process of a pod ended, in the pod's terms."""

    code: int
    message: str | None = None
    peer_lost: bool = False


def keep(stop: threading.Event) -> int:
    """Run this pod's process of the job to its end; returns the pod's exit code.

    Args:
        stop: set by SIGTERM.
    """
    try:
        pod = Pod.from_environment(os.environ)
    except ConfigError as error:
        ended = _unbegun(error)
        _print(f"the pod ends with {ended.code}: {ended.message}\n".encode())
        _write_termination_message({"exit_code": ended.code, "message": ended.message})
        return ended.code
    try:
        folder = JobFolder(pod.folder)
        generation = _patiently(partial(folder.next_generation, pod.process, time.time_ns()), stop)
    except MarinError as error:
        ended = _unbegun(error)
        _say_farewell(pod, "0" * GENERATION_DIGITS, ended, None)
    else:
        work = pod.scratch / generation
        shipper = Shipper(folder, generation, pod.process, work / "messages" if pod.process == 0 else None)
        ended = _run(pod, folder, generation, work, shipper, stop)
        _say_farewell(pod, generation, ended, shipper)
        clear_scratch(pod, work, ended)
    if ended.code == ExitCode.TRY_AGAIN:
        longest = pod.retry_delay_seconds
        stop.wait(random.uniform(min(SHORTEST_DELAY_SECONDS, longest), longest))  # noqa: S311  # so that not all come back at once
    return ended.code


def clear_scratch(pod: Pod, work: Path, ended: Ended) -> None:
    """Remove the pod's own files, and what killed pods have left on a file system that outlives them.

    Where the lead has failed, the others may still write into its folder: that it is gone must not look like a failure of theirs, which
    might be taken for the cause. It is cleared like a killed pod's then.
    """
    if pod.processes == 1 or pod.process > 0 or ended.code in (ExitCode.DONE, ExitCode.PREEMPTED):
        shutil.rmtree(work, ignore_errors=True)
    if pod.shared_scratch is not None:
        with suppress(OSError):  # it isn't empty
            pod.scratch.rmdir()
        if pod.process == 0:
            with suppress(OSError):  # the file system is away: another pod's turn
                for folder in pod.shared_scratch.iterdir():
                    _clear_abandoned(folder)


def _clear_abandoned(folder: Path) -> None:
    """Remove a pod's folder without signs of life; nothing that holds anything else than a pod puts there."""
    with suppress(OSError):  # another pod was faster
        silent_seconds = time.time() - folder.stat().st_mtime
        if silent_seconds > ABANDONED_SECONDS and all(GENERATION.fullmatch(each.name) for each in folder.iterdir()):
            shutil.rmtree(folder)


def _run(pod: Pod, folder: JobFolder, generation: str, work: Path, shipper: Shipper, stop: threading.Event) -> Ended:
    """Run the process in a folder of its own."""
    try:
        spec = _patiently(partial(_spec, folder, pod), stop)
        work.mkdir(parents=True)
        (work / "spec.json").write_text(spec.changed(scratch=str(work)).model_dump_json())
        return _Process(pod, generation, work, shipper, stop).run()
    except (MarinError, OSError) as error:
        return _unbegun(error)


def _say_farewell(pod: Pod, generation: str, ended: Ended, shipper: Shipper | None) -> None:
    """Leave word of how it ended wherever somebody may look: the pod's log, its termination message, the job's folder."""
    outcome = Outcome(
        generation=generation,
        process=pod.process,
        exit_code=ended.code,
        message=ended.message,
        peer_lost=ended.peer_lost,
        restart=pod.restart,
        pod=pod.name,
        node=pod.node,
        ended_at=datetime.now(UTC),
    )
    line = f"process {pod.process} of {pod.processes} ends with {ended.code}: {ended.message}\n".encode()
    if ended.message is not None:
        _print(line)
    _write_termination_message(outcome.model_dump(mode="json"))
    if shipper is None:
        return
    if ended.message is not None:
        shipper.printed.add(line)
    if not shipper.finish(outcome):
        _print(b"the job's folder could not be written to the end\n")


class _Process:
    """The process that a pod is for, and what its keeper sees of it."""

    def __init__(self, pod: Pod, generation: str, work: Path, shipper: Shipper, stop: threading.Event) -> None:
        self._pod = pod
        self._generation = generation
        self._work = work
        self._shipper = shipper
        self._stop = stop
        self._tail = b""

    def run(self) -> Ended:
        """Start it and wait for its end."""
        if self._stop.is_set():
            return Ended(ExitCode.PREEMPTED, "it was asked to stop before it had begun")
        child = subprocess.Popen(
            [sys.executable, "-m", "marin_jobs", str(self._work / "spec.json"), *self._arguments()],
            env=self._environment(),
            stdin=subprocess.PIPE,  # it ends when this is closed, however the keeper dies
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        assert child.stdout is not None  # noqa: S101  # it is a pipe
        tee = threading.Thread(target=self._tee, args=(child.stdout,), name="tee", daemon=True)
        tee.start()
        try:
            put_down = self._wait(child)
        finally:
            child.kill()  # nothing to do for one that has ended
            child.wait()
        tee.join(5)  # something that it started may hold its output open
        return self._ended(child.returncode, put_down=put_down)

    def _arguments(self) -> list[str]:
        pod = self._pod
        arguments = ["--kept", "--job-folder", pod.folder, "--generation", self._generation]
        if pod.coordinator is not None:
            arguments += ["--process", str(pod.process), "--coordinator", pod.coordinator]
            arguments += ["--bind", pod.bind] if pod.bind is not None else []
        return arguments

    def _environment(self) -> dict[str, str]:
        environment = {name: value for name, value in os.environ.items() if name != FOLDER_VARIABLE} | {"PYTHONUNBUFFERED": "1"}
        if DAGSTER_PIPES_CONTEXT_ENV_VAR in environment:  # the launcher's file is on another machine
            environment[DAGSTER_PIPES_MESSAGES_ENV_VAR] = encode_param({"path": str(self._work / "messages")})
        return environment

    def _tee(self, output: IO[bytes]) -> None:
        while data := os.read(output.fileno(), 2**16):
            _print(data)
            self._shipper.printed.add(data)
            self._tail = (self._tail + data)[-(2**13) :]

    def _wait(self, child: "subprocess.Popen[bytes]") -> bool:
        """Wait for its end, and pass on that it is to stop; whether it had to be killed."""
        told, deadline, put_down, alive_at = False, None, False, time.monotonic()
        while True:
            with suppress(subprocess.TimeoutExpired):
                child.wait(LOOK_SECONDS)
                return put_down
            if self._pod.shared_scratch is not None and time.monotonic() - alive_at > ALIVE_SECONDS:
                alive_at = time.monotonic()
                with suppress(OSError):
                    os.utime(self._pod.scratch)
            if self._stop.is_set() and not told:
                told = True
                child.terminate()
                if (grace := self._pod.grace_seconds) is not None:
                    deadline = time.monotonic() + grace - min(GRACE_KEPT * grace, GRACE_KEPT_SECONDS)
            if deadline is not None and time.monotonic() > deadline:
                put_down = True
                child.kill()

    def _ended(self, code: int, *, put_down: bool) -> Ended:
        """Its own word counts, once it has left it: what hits it on its way out changes nothing."""
        name = outcome_name(self._pod.process) if self._pod.processes > 1 else OUTCOME
        with suppress(OSError, ValueError, KeyError):
            left: dict[str, Any] = json.loads((self._work / name).read_text())
            return Ended(int(left["exit_code"]), left["message"], bool(left.get("peer_lost", False)))
        if code == 0:
            return Ended(ExitCode.DONE)
        reason = Ending(self._pod.process, code, None, peer_lost=False, look=1, put_down=put_down).reason
        if code > 0:
            return Ended(code, f"{reason}: {_last_line(self._tail)}")
        if put_down or code == -signal.SIGTERM:
            return Ended(ExitCode.PREEMPTED, reason)
        if code == -signal.SIGABRT and ABORTED_BY_JAX in self._tail:
            return Ended(ExitCode.TRY_AGAIN, "JAX ended it, since another process of the gang is gone", peer_lost=True)
        return Ended(128 - code, reason + (_memory() if code == -signal.SIGKILL else ""))


def _patiently[T](ask: Callable[[], T], stop: threading.Event) -> T:
    """What a store answers that may be away for a while.

    Raises:
        InfrastructureError: it stays away.
        PreemptedError: the pod was asked to stop meanwhile.
    """
    deadline, pause = time.monotonic() + PATIENCE_SECONDS, 1.0
    while True:
        try:
            return ask()
        except InfrastructureError as error:
            if time.monotonic() > deadline:
                raise
            _print(f"the job's folder doesn't answer, trying again: {error}\n".encode())
        if stop.wait(pause):
            raise PreemptedError("it was asked to stop before it had begun", advice="Start it again.")
        pause = min(2 * pause, 30.0)


def _spec(folder: JobFolder, pod: Pod) -> JobSpec:
    """The job's spec.

    Raises:
        ConfigError: there is none, it can't be read, or it is for another number of processes than there are pods.
    """
    text = folder.spec()
    if text is None:
        raise ConfigError(f"{folder.url} holds no spec.json", advice="Launch the job again: its spec is written before its pods are made.")
    try:
        spec = JobSpec.from_json(json.loads(text))
    except ValueError as error:
        raise ConfigError(f"{folder.url}/spec.json is no JSON: {error}", advice="Launch the job again.") from error
    if spec.processes != pod.processes:
        raise ConfigError(
            f"{spec.id} is built by {spec.processes} processes, and MARIN_NUM_PROCESSES={pod.processes}",
            advice="Render the job from the resources that its spec was made from.",
        )
    return spec


def _unbegun(error: MarinError | OSError) -> Ended:
    """What stopped a pod before its process was started, or with it."""
    message = redact(f"{type(error).__name__}: {error}")
    if isinstance(error, MarinError):
        return Ended(int(error.exit_code), message)
    return Ended(ExitCode.BAD_CONFIG if isinstance(error, PermissionError) else ExitCode.TRY_AGAIN, message)


def _write_termination_message(told: Mapping[str, Any]) -> None:
    """One line of JSON for `state.terminated.message`, its own message cut so that the line fits."""
    line, message = json.dumps(told), str(told["message"])
    while len(line) >= TERMINATION_BYTES:
        message = message[: len(message) * 3 // 4]
        line = json.dumps({**told, "message": f"{message}..."})
    with suppress(OSError):  # outside a container there is none; the exit code says it too
        Path(os.environ.get(TERMINATION_LOG_VARIABLE) or TERMINATION_LOG).write_text(f"{line}\n")


def _memory() -> str:
    """Limit and peak of the container's memory, if anything in it was killed for want of memory."""
    try:
        events = dict(line.split() for line in (_CGROUP / "memory.events").read_text().splitlines())
        limit, peak = ((_CGROUP / name).read_text().strip() for name in ("memory.max", "memory.peak"))
    except (OSError, ValueError):
        return ""
    if events.get("oom_kill", "0") == "0":
        return ""
    limit, peak = (f"{int(value) / 2**30:.1f} GiB" if value.isdigit() else value for value in (limit, peak))
    return f"; the container ran out of memory: its limit is {limit}, the peak was {peak}"


def _last_line(output: bytes) -> str:
    lines = [line for line in redact(output.decode(errors="replace")).splitlines() if line.strip()]
    return lines[-1].strip() if lines else "it printed nothing"


def _number(environment: Mapping[str, str], name: str, least: int = 0) -> int:
    text = _given(environment, name)
    if not text.isdecimal() or int(text) < least:
        raise ConfigError(
            f"{name} is {text!r}", advice=f"Set it to a whole number from {least}; the launcher does, and Kubernetes fills it in."
        )
    return int(text)


def _seconds[T](environment: Mapping[str, str], name: str, default: T) -> float | T:
    text = environment.get(name, "")
    if not text:
        return default
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < float("inf"):
        raise ConfigError(f"{name} is {text!r}", advice="Set it to a number of seconds from 0, or leave it out.")
    return seconds


def _given(environment: Mapping[str, str], name: str) -> str:
    if not environment.get(name):
        raise ConfigError(f"{name} is not set in this pod", advice="Start jobs by a launcher, which sets it.")
    return environment[name]


def _print(data: bytes) -> None:
    with suppress(OSError, ValueError):
        sys.stdout.buffer.write(data)
        sys.stdout.flush()
