"""Jobs as detached local processes: the embedded default. A job's folder is its identity and its memory."""

import importlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import psutil

from marin_assets.launch.contract import Handle, Observation, State
from marin_core.artifact.job import JobSpec
from marin_core.errors import ExitCode
from marin_core.redaction import redact

START_TIMEOUT_SECONDS = 60
"""A claimed folder without a process for this long belongs to a launcher that died while starting it."""

CANCEL_GRACE_SECONDS = 30
"""Time to save after SIGTERM before SIGKILL."""

_PROJECT = Path(__file__).resolve().parents[2]


class LocalLauncher:
    """Runs each job as a process group of its own below `root`, one folder a job: spec, messages, log, process, outcome.

    `mkdir` of the folder is the claim, so two launchers start a job once. The process outlives the launcher, as a job on
    a cluster does; the next launcher finds it by name. Jobs share a cache of compiled programs: a run that resumes, or the
    evaluation of the next checkpoint, compiles nothing.
    """

    adopts = True

    def __init__(self, root: Path, host: str | None = None) -> None:
        self.host = host or this_host()
        self._root = root
        self._children: dict[str, subprocess.Popen[bytes]] = {}

    def handle(self, name: str) -> Handle:
        return Handle(name, self._root / name)

    def submit(self, name: str, spec: JobSpec, environment: Mapping[str, str]) -> Handle:
        handle = self.handle(name)
        self._root.mkdir(parents=True, exist_ok=True)
        try:
            handle.folder.mkdir()
        except FileExistsError:
            return handle
        _write(handle.folder / "spec.json", spec.model_dump_json())
        self._start(handle, spec, environment)
        return handle

    def _start(self, handle: Handle, spec: JobSpec, environment: Mapping[str, str]) -> None:
        with (handle.folder / "log").open("wb") as log:
            child = subprocess.Popen(
                [sys.executable, "-m", "marin_jobs", str(handle.folder / "spec.json")],
                cwd=_PROJECT,
                env={"JAX_COMPILATION_CACHE_DIR": str(self._root / "xla"), **os.environ, **environment, "PYTHONUNBUFFERED": "1"},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._children[handle.name] = child
        self._remember(handle, child.pid)

    def _remember(self, handle: Handle, pid: int) -> None:
        started = psutil.Process(pid).create_time()  # pids are reused; a pid with its start time is not
        _write(handle.folder / "process.json", json.dumps({"pid": pid, "started": started}))

    def observe(self, handle: Handle) -> Observation:
        if outcome := self._outcome(handle):
            return outcome
        if self._process(handle) is not None:
            return Observation(State.RUNNING)
        if not (handle.folder / "process.json").exists():
            return self._not_started(handle)
        return self._outcome(handle) or self._without_outcome(handle)  # it may have ended between the two looks

    def cancel(self, handle: Handle, grace_seconds: float = CANCEL_GRACE_SECONDS) -> None:
        process = self._process(handle)
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

    def _process(self, handle: Handle) -> psutil.Process | None:
        """The job's own process if it is alive; a zombie, or another process with its pid, is not."""
        child = self._children.get(handle.name)
        if child is not None:
            child.poll()  # reaps it
        try:
            known = json.loads((handle.folder / "process.json").read_text())
            process = psutil.Process(known["pid"])
            alive = process.create_time() == known["started"] and process.status() != psutil.STATUS_ZOMBIE
        except (FileNotFoundError, psutil.NoSuchProcess):
            return None
        return process if alive else None

    def _outcome(self, handle: Handle) -> Observation | None:
        try:
            outcome = json.loads((handle.folder / "outcome.json").read_text())
        except FileNotFoundError:
            return None
        code = outcome["exit_code"]
        state = {ExitCode.DONE: State.SUCCEEDED, ExitCode.PREEMPTED: State.PREEMPTED}.get(code, State.FAILED)
        return Observation(state, code, outcome["message"] or "")

    def _not_started(self, handle: Handle) -> Observation:
        try:
            age = time.time() - handle.folder.stat().st_mtime
        except FileNotFoundError:
            return Observation(State.VANISHED, reason=f"no job folder {handle.folder}")
        if age > START_TIMEOUT_SECONDS:
            return Observation(State.VANISHED, reason="its launcher died while starting it")
        return Observation(State.PENDING)

    def _without_outcome(self, handle: Handle) -> Observation:
        child = self._children.get(handle.name)
        code = child.returncode if child is not None else None
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

    def _start(self, handle: Handle, spec: JobSpec, environment: Mapping[str, str]) -> None:
        runtime = importlib.import_module("marin_jobs.runtime")
        self._remember(handle, os.getpid())
        runtime.run_inline(spec)

    def cancel(self, handle: Handle, grace_seconds: float = CANCEL_GRACE_SECONDS) -> None:
        """Nothing to stop: whoever could ask is the process that runs it, or can't reach it."""


def this_host() -> str:
    """Name of what shares one table of processes: this boot of this machine, and this container of it."""
    boot = Path("/proc/sys/kernel/random/boot_id")
    namespace = Path("/proc/self/ns/pid")
    started = boot.read_text().strip()[:8] if boot.exists() else str(int(psutil.boot_time()))
    return f"{socket.gethostname()}-{started}" + (f"-{namespace.readlink().name[5:-1]}" if namespace.is_symlink() else "")


def _write(path: Path, text: str) -> None:
    """Complete or absent, never torn."""
    temporary = path.with_suffix(".tmp")
    temporary.write_text(text)
    temporary.replace(path)
