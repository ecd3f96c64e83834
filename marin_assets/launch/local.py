"""Jobs as detached local processes: the embedded default. A job's folder is its identity and its memory."""

import hashlib
import importlib
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from marin_assets.launch.contract import NOTHING_SPECIAL, Handle, Observation, State
from marin_core.artifact.job import JobSpec
from marin_core.artifact.step import Resources
from marin_core.errors import ExitCode, InfrastructureError
from marin_core.redaction import redact

START_TIMEOUT_SECONDS = 60.0
"""A launcher that lives and hasn't started its job for this long hangs."""

ORPHAN_SECONDS = 2.0
"""How long to look for the process of a job whose launcher died before it could write down which it is."""

REAP_SECONDS = 5.0
"""The longest that a dead process's other threads may take to go; until then nobody is told its exit code."""

CANCEL_GRACE_SECONDS = 30
"""Time to save after SIGTERM before SIGKILL."""

ALLOCATOR = {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}
"""Large arrays get huge pages where Linux leaves that to the program: XLA:CPU allocates its temporaries anew in every step, and filling
small pages took a tenth of a training step."""

_PROJECT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Mark:
    """A process, told from any other that had or will have its pid."""

    pid: int
    started: float | None


class LocalLauncher:
    """Runs each job as a process group of its own below `root`, one folder a job: spec, messages, log, process, outcome.

    The folder appears by a rename, with the spec and its launcher in it, so two launchers start a job once. The process outlives the
    launcher, as a job on a cluster does; the next launcher finds it by name. A job of several processes is known by the one that keeps
    them. Jobs share a cache of compiled programs: a run that resumes, or the evaluation of the next checkpoint, compiles nothing.
    """

    adopts = True

    def __init__(self, root: Path, host: str | None = None) -> None:
        self.host = host or this_host(root)
        self._root = root
        self._children: dict[str, subprocess.Popen[bytes]] = {}
        self._pending_since: dict[str, float] = {}

    def handle(self, name: str) -> Handle:
        return Handle(name, self._root / name)

    def submit(self, name: str, spec: JobSpec, environment: Mapping[str, str], resources: Resources = NOTHING_SPECIAL) -> Handle:
        handle = self.handle(name)
        if handle.folder.exists():
            return handle
        fresh = self._root / f".{name}.{secrets.token_hex(4)}"
        try:
            fresh.mkdir(parents=True)
            (fresh / "spec.json").write_text(spec.model_dump_json())
            if self.adopts:  # else nobody but this process starts it, and nobody asks whether it is about to
                (fresh / "launcher.json").write_text(json.dumps({"pid": os.getpid(), "started": process_start(os.getpid())}))
            fresh.rename(handle.folder)
        except OSError as error:
            shutil.rmtree(fresh, ignore_errors=True)
            if handle.folder.exists():  # another launcher was first
                return handle
            raise _not_launched(name, error) from error
        try:
            self._start(handle, spec, environment)
        except OSError as error:  # full disk, no more processes: whoever tries next starts from nothing
            shutil.rmtree(handle.folder, ignore_errors=True)
            raise _not_launched(name, error) from error
        return handle

    def _start(self, handle: Handle, spec: JobSpec, environment: Mapping[str, str]) -> None:
        with (handle.folder / "log").open("wb") as log:
            child = subprocess.Popen(
                [sys.executable, "-m", "marin_jobs", str(handle.folder / "spec.json")],
                cwd=_PROJECT,
                env=ALLOCATOR
                | {"JAX_COMPILATION_CACHE_DIR": str(self._root / "xla"), **os.environ, **environment, "PYTHONUNBUFFERED": "1"},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._children[handle.name] = child
        try:
            self._remember(handle, child.pid)
        except OSError:
            child.kill()  # nobody would ever find it
            child.wait()
            raise

    def _remember(self, handle: Handle, pid: int) -> None:
        _write(handle.folder / "process.json", json.dumps({"pid": pid, "started": process_start(pid)}))

    def observe(self, handle: Handle) -> Observation:
        if outcome := self._outcome(handle):
            return outcome
        mark = _read_mark(handle.folder / "process.json")
        if mark is None:
            return self._not_started(handle)
        if self._living(handle, mark) is not None:
            return Observation(State.RUNNING)
        return self._outcome(handle) or self._without_outcome(handle)  # it may have ended between the two looks

    def cancel(self, handle: Handle, grace_seconds: float = CANCEL_GRACE_SECONDS) -> None:
        mark = _read_mark(handle.folder / "process.json")
        process = self._living(handle, mark) if mark is not None else self._orphan(handle)
        if process is None:
            return
        tree = [process, *process.children(recursive=True)]
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
        _, alive = psutil.wait_procs(tree, timeout=grace_seconds)
        for survivor in alive:
            with suppress(psutil.NoSuchProcess):
                survivor.kill()
        psutil.wait_procs(alive, timeout=grace_seconds)

    def logs(self, handle: Handle, tail_lines: int) -> str:
        try:
            with (handle.folder / "log").open("rb") as log:
                log.seek(0, os.SEEK_END)
                log.seek(max(0, log.tell() - 200 * tail_lines))
                text = log.read().decode(errors="replace")
        except FileNotFoundError:
            return ""
        return redact("\n".join(text.splitlines()[-tail_lines:]))

    def _living(self, handle: Handle, mark: Mark) -> psutil.Process | None:
        """The job's own process if it is alive; a zombie, or another process with its pid, is not."""
        child = self._children.get(handle.name)
        if child is not None:
            child.poll()  # reaps it
        return _living(mark)

    def _orphan(self, handle: Handle) -> psutil.Process | None:
        """The job's process where its launcher died before it could write down which it is."""
        command = ["-m", "marin_jobs", str(handle.folder / "spec.json")]
        for process in psutil.process_iter(["cmdline"]):
            with suppress(ProcessLookupError):
                if (process.info["cmdline"] or [])[-3:] == command and os.getsid(process.pid) == process.pid:  # not a child of the job
                    return process
        return None

    def _outcome(self, handle: Handle) -> Observation | None:
        try:
            outcome = json.loads((handle.folder / "outcome.json").read_text())
        except FileNotFoundError:
            return None
        code = outcome["exit_code"]
        state = {ExitCode.DONE: State.SUCCEEDED, ExitCode.PREEMPTED: State.PREEMPTED}.get(code, State.FAILED)
        return Observation(state, code, outcome["message"] or "")

    def _not_started(self, handle: Handle) -> Observation:
        """A job without a known process: its launcher is about to start it, or died over that. No clock but our own is asked."""
        if not handle.folder.exists():
            return Observation(State.VANISHED, reason=f"no job folder {handle.folder}")
        now = time.monotonic()
        waited = now - self._pending_since.setdefault(handle.name, now)
        mark = _read_mark(handle.folder / "launcher.json")
        if mark is not None and _living(mark) is not None:
            hangs = waited > START_TIMEOUT_SECONDS
            return Observation(State.VANISHED, reason="its launcher hangs") if hangs else Observation(State.PENDING)
        orphan = self._orphan(handle)
        if orphan is not None:
            with suppress(OSError):
                self._remember(handle, orphan.pid)
            return Observation(State.RUNNING)
        if waited < ORPHAN_SECONDS:
            return Observation(State.PENDING)
        return self._outcome(handle) or Observation(State.VANISHED, reason="its launcher died while starting it")

    def _without_outcome(self, handle: Handle) -> Observation:
        child = self._children.get(handle.name)
        code = None
        if child is not None:
            with suppress(subprocess.TimeoutExpired):  # it is a zombie, which can be waited for once its last thread has gone
                code = child.wait(REAP_SECONDS)
        if code is not None and code > 0:  # it ended before the runtime could speak: a broken installation
            return Observation(State.FAILED, code, self.logs(handle, 5))
        if code == -signal.SIGTERM:
            return Observation(State.PREEMPTED, code, "the job was asked to stop before it had begun")
        how = f"killed by {signal.Signals(-code).name}" if code else "gone without a word"
        return Observation(State.VANISHED, code, f"the job's process was {how}")


class InlineLauncher(LocalLauncher):
    """Runs a job in this process, to its end, when it is submitted: for steps of plain Python that take less than starting a process.

    A launcher may load `marin_jobs`, which the rest of `marin_assets` never does: it is what starts jobs. An inline job dies with
    its run worker and is then found vanished, like any other.
    """

    adopts = False

    def _not_started(self, handle: Handle) -> Observation:
        """Nobody else can start it; if whoever claimed it has died before it did, the silence tells."""
        return Observation(State.PENDING)

    def _start(self, handle: Handle, spec: JobSpec, environment: Mapping[str, str]) -> None:
        process = importlib.import_module("marin_jobs.process")
        self._remember(handle, os.getpid())
        process.run_inline(spec)

    def cancel(self, handle: Handle, grace_seconds: float = CANCEL_GRACE_SECONDS) -> None:
        """Nothing to stop: whoever could ask is the process that runs it, or can't reach it."""


def this_host(root: Path) -> str:
    """Name of what shares one table of processes and one folder of jobs: this boot of this machine, this container of it, this root."""
    boot = Path("/proc/sys/kernel/random/boot_id")
    namespace = Path("/proc/self/ns/pid")
    started = boot.read_text().strip()[:8] if boot.exists() else str(int(psutil.boot_time()))
    container = f"-{namespace.readlink().name[5:-1]}" if namespace.is_symlink() else ""
    return f"{socket.gethostname()}-{started}{container}-{hashlib.sha256(str(root.resolve()).encode()).hexdigest()[:8]}"


def process_start(pid: int) -> float | None:
    """When a living process started, on a scale that setting the clock doesn't move; None if it is gone, a zombie included.

    pids are reused; a pid with its start is not.
    """
    try:
        if not Path("/proc/stat").exists():  # not Linux
            process = psutil.Process(pid)
            return None if process.status() == psutil.STATUS_ZOMBIE else process.create_time()
        state, *numbers = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError, psutil.NoSuchProcess):
        return None
    return None if state in "ZX" else float(numbers[18])  # clock ticks since the machine started


def _read_mark(path: Path) -> Mark | None:
    """Which process a file names, whether or not it lives; None if there is no file."""
    try:
        return Mark(**json.loads(path.read_text()))
    except FileNotFoundError:
        return None


def _living(mark: Mark) -> psutil.Process | None:
    started = process_start(mark.pid)
    try:
        return psutil.Process(mark.pid) if started is not None and started == mark.started else None
    except psutil.NoSuchProcess:
        return None


def _not_launched(name: str, error: OSError) -> InfrastructureError:
    return InfrastructureError(f"job {name} can't be started: {error}", advice="Look at the machine's disk and processes, and try again.")


def _write(path: Path, text: str) -> None:
    """Complete or absent, never torn."""
    temporary = path.with_suffix(".tmp")
    temporary.write_text(text)
    temporary.replace(path)
