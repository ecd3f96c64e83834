"""A job of several processes on one machine: its keeper starts them, brings all down when one is lost, and says what the cause was.

The keeper loads no JAX and joins in nothing. On a cluster each process has a pod and a keeper of its own (`marin_jobs.pod`), and whoever
watches them judges by the same evidence.
"""

import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from marin_core.artifact.ending import Ending, verdict
from marin_core.artifact.job import JobSpec
from marin_core.errors import ExitCode

GRACE_SECONDS = 30.0
"""From the first process that fails, or ends saved, to SIGKILL for the others: they can't go on without it, and may not notice."""

LOOK_SECONDS = 0.05
"""Between two looks at the processes."""


@dataclass(frozen=True)
class Place:
    """Which process of a gang this is.

    Attributes:
        process: from 0; process 0 is the lead, which alone prepares, reports and commits.
        processes: how many there are.
        coordinator: `host:port` where the others find JAX's coordination service, which the lead serves.
        bind: `host:port` at which the lead serves it, where that isn't the same: a service's name belongs to no interface.
    """

    process: int
    processes: int
    coordinator: str
    bind: str | None = None

    @property
    def lead(self) -> bool:
        return self.process == 0


OUTCOME = "outcome.json"
"""In the job's folder: how it ended, for a launcher that isn't its parent."""


def outcome_name(process: int) -> str:
    """File in the job's folder that says how a process of the gang ended, for whoever judges the gang."""
    return f"outcome-{process}.json"


def keep(
    spec: JobSpec,
    spec_uri: str,
    stop: threading.Event,
    *,
    grace_seconds: float = GRACE_SECONDS,
    command: Sequence[str] = (sys.executable, "-m", "marin_jobs"),
) -> tuple[ExitCode, str | None]:
    """Run the gang of a spec to its end; returns its verdict and why.

    No process outlives this one, however it ends: each reads a pipe that only this one holds open (`end_with_keeper`).

    Args:
        stop: set when the gang is to stop; every process gets SIGTERM then.
        grace_seconds: see GRACE_SECONDS.
        command: of one process, to which its arguments are appended.
    """
    folder = Path(spec.scratch)
    for process in range(spec.processes):
        (folder / outcome_name(process)).unlink(missing_ok=True)
    children: list[subprocess.Popen[bytes]] = []
    with _free_address() as coordinator:
        try:
            for process in range(spec.processes):
                arguments = [spec_uri, "--process", str(process), "--coordinator", coordinator, "--kept"]
                children.append(subprocess.Popen([*command, *arguments], stdin=subprocess.PIPE))
            endings = _watch(children, folder, stop, grace_seconds)
        finally:
            for child in children:
                child.kill()  # nothing to do for one that has ended
                child.wait()
    code, message = verdict(endings)
    for ending in endings:
        if ending.code and (said := ending.line(len(endings))) != message:
            with suppress(OSError):  # the log's disk is full
                print(said, file=sys.stderr, flush=True)
    return code, message


def end_with_keeper() -> None:
    """End this process when its keeper does, even by kill -9: standard input is a pipe that only the keeper holds open."""

    def watch() -> None:
        os.read(0, 1)  # returns when the pipe is closed; nobody writes to it
        os._exit(ExitCode.TRY_AGAIN)

    threading.Thread(target=watch, name="end with keeper", daemon=True).start()


def _watch(children: Sequence["subprocess.Popen[bytes]"], folder: Path, stop: threading.Event, grace_seconds: float) -> list[Ending]:
    """Wait until all have ended; returns their endings, by process."""
    ended: dict[int, Ending] = {}
    told, deadline, killed, look = False, None, set[int](), 0
    while len(ended) < len(children):
        look += 1
        # What dies between two polls of one pass could be missed before what it caused is seen: so pass again while anything turns up.
        while found := [n for n, child in enumerate(children) if n not in ended and child.poll() is not None]:
            ended |= {n: _ending(n, children[n].returncode, folder, look, put_down=n in killed) for n in found}
        failed = any(ending.code for ending in ended.values())
        alive = [n for n in range(len(children)) if n not in ended]
        if (failed or stop.is_set()) and not told:
            told = True
            for n in alive:
                children[n].terminate()
        if failed and deadline is None:
            deadline = time.monotonic() + grace_seconds
        if deadline is not None and time.monotonic() > deadline:
            for n in alive:
                children[n].kill()
                killed.add(n)
        if alive:
            time.sleep(LOOK_SECONDS)
    return [ended[n] for n in range(len(children))]


def _ending(process: int, code: int, folder: Path, look: int, *, put_down: bool) -> Ending:
    """How a process ended. Its own word counts, once it has left it: what hits it on its way out changes nothing."""
    with suppress(OSError, ValueError):
        left = json.loads((folder / outcome_name(process)).read_text())
        return Ending(process, left["exit_code"], left["message"], left["peer_lost"], look)
    return Ending(process, code, None, peer_lost=False, look=look, put_down=put_down)


@contextmanager
def _free_address() -> Iterator[str]:
    """A loopback address that nobody else gets meanwhile: the port stays bound here, and gRPC may bind it too (SO_REUSEPORT)."""
    with socket.socket() as reservation:
        reservation.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        reservation.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{reservation.getsockname()[1]}"
