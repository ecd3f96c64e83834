"""A job of several processes on one machine: its keeper starts them, brings all down when one is lost, and says what the cause was.

The keeper loads no JAX and joins in nothing. On a cluster each process is started by itself, with the same arguments and no keeper, and
whoever watches them judges by the same evidence.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from marin_core.artifact.job import JobSpec
from marin_core.errors import ExitCode

GRACE_SECONDS = 30.0
"""From the first process that fails, or ends saved, to SIGKILL for the others: they can't go on without it, and may not notice."""

LOOK_SECONDS = 0.05
"""Between two looks at the processes."""

_GRAVITY = (ExitCode.BAD_CONFIG, ExitCode.BAD_DATA, ExitCode.BUG, ExitCode.TRY_AGAIN, ExitCode.PREEMPTED)
"""What must be repaired before what may pass: trying again can't help where one process has bad data (spec/kubernetes.md §1.5)."""


@dataclass(frozen=True)
class Place:
    """Which process of a gang this is.

    Attributes:
        process: from 0; process 0 is the lead, which alone prepares, reports and commits.
        processes: how many there are.
        coordinator: `host:port` where the lead serves JAX's coordination service.
    """

    process: int
    processes: int
    coordinator: str

    @property
    def lead(self) -> bool:
        return self.process == 0


def outcome_name(process: int) -> str:
    """File in the job's folder that says how a process of the gang ended, for whoever judges the gang."""
    return f"outcome-{process}.json"


@dataclass(frozen=True)
class Ending:
    """How a process of a gang ended.

    Attributes:
        code: exit code; negative: ended by that signal.
        message: what it left to say; None = nothing.
        peer_lost: it says itself that it only missed another process.
        look: number of the look that found it ended; what one look finds is in no order.
        put_down: the keeper killed it, after the grace.
    """

    process: int
    code: int
    message: str | None
    peer_lost: bool
    look: int
    put_down: bool = False

    @property
    def failure(self) -> ExitCode:
        """Its class: of a process that was killed, infrastructure; of an unknown code, a bug."""
        if self.code == -signal.SIGTERM:  # it hadn't begun
            return ExitCode.PREEMPTED
        if self.code < 0:
            return ExitCode.TRY_AGAIN
        return ExitCode(self.code) if self.code in set(ExitCode) else ExitCode.BUG

    @property
    def reason(self) -> str:
        if self.message is not None:
            return self.message
        if self.put_down:
            return "it didn't end when it was asked to, and was killed"
        if self.code == -signal.SIGTERM:
            return "it was asked to stop before it had begun"
        return f"it was killed by {signal.Signals(-self.code).name}" if self.code < 0 else f"it ended with code {self.code} without a word"


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
        if ending.code and (said := _line(ending, len(endings))) != message:
            with suppress(OSError):  # the log's disk is full
                print(said, file=sys.stderr, flush=True)
    return code, message


def verdict(endings: Sequence[Ending]) -> tuple[ExitCode, str | None]:
    """What became of a gang, by the gravest of its causes, and the words of who was the cause.

    When one process is lost, the others fail too: in a collective, for want of an answer, or by our own hand. What only follows is no
    cause. Without any cause of their own the processes lost touch with each other, which is infrastructure.
    """
    if endings[0].code == 0:  # the lead's last act is the commit
        return ExitCode.DONE, None
    failed = [ending for ending in endings if ending.code]
    causes = [ending for ending in failed if not _follows(ending, failed)]
    worst = min(causes or failed, key=lambda ending: (_GRAVITY.index(ending.failure), ending.look))
    code = worst.failure if causes else ExitCode.TRY_AGAIN
    return code, _line(worst, len(endings))


def _line(ending: Ending, processes: int) -> str:
    return f"process {ending.process} of {processes}: {ending.reason}"


def _follows(ending: Ending, failed: Sequence[Ending]) -> bool:
    """Whether the end of a process only follows from that of another."""
    if ending.peer_lost or ending.put_down:
        return True
    if ending.failure in (ExitCode.BAD_CONFIG, ExitCode.BAD_DATA):  # nobody says this for want of another process
        return False
    first = min(each.look for each in failed)
    if ending.look > first:
        return ending.code < 0 or ending.failure in (ExitCode.BUG, ExitCode.PREEMPTED)  # the others have been told to stop by then
    killed_too = any(each.look == first and each.code < 0 and each.code not in _OWN_SIGNALS for each in failed)
    return ending.failure == ExitCode.BUG and killed_too


_OWN_SIGNALS = (-signal.SIGTERM, -signal.SIGABRT)
"""Asked to end; and how JAX ends a process whose peers have fallen silent."""


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
