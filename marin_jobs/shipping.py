"""What a pod prints and says, sent to the job's folder in the store while it runs: bounded in memory, and never in the job's way."""

import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from marin_core.artifact.job_folder import MESSAGES, JobFolder, Outcome, log_stream
from marin_core.redaction import redact

SHORTEST_SECONDS = 2.0
LONGEST_SECONDS = 30.0
AGE = 1 / 1000
"""Pieces are sent 2 s apart, later at this share of the pod's age, and in the end half a minute: three months of one every 2 s would be
four million objects a process, and these are 260,000 at most."""

PIECE_BYTES = 2**20
LOG_BYTES = 8 * 2**20
"""What is kept of a log while the store doesn't answer; of more, the oldest lines are dropped. The pod's own log has them all."""

FAREWELL_SECONDS = 30.0
"""For what is left when the process has ended: a pod that was asked to stop has little of its grace left."""


class Source(Protocol):
    """Where the pieces of a stream come from."""

    def take(self, *, last: bool) -> bytes | None:
        """The next whole lines, or None if there are none now. With `last` nothing more will come, so a line without an end is one."""


class Printed:
    """A process's output on its way to the store. What doesn't fit is dropped, and a line says so."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting = bytearray()
        self._dropped = 0

    def add(self, data: bytes) -> None:
        with self._lock:
            self._waiting += data
            excess = len(self._waiting) - LOG_BYTES
            if excess > 0:
                end = self._waiting.find(b"\n", excess)
                cut = end + 1 if end >= 0 else excess
                del self._waiting[:cut]
                self._dropped += cut

    def take(self, *, last: bool) -> bytes | None:
        with self._lock:
            if self._dropped:
                note, self._dropped = f"[{self._dropped} bytes of the log are missing here: the store didn't answer]\n", 0
                return note.encode()
            end = self._waiting.rfind(b"\n", 0, PIECE_BYTES) + 1
            if not end and (last or len(self._waiting) >= PIECE_BYTES):
                end = min(len(self._waiting), PIECE_BYTES)
            piece = bytes(self._waiting[:end])
            del self._waiting[:end]
            return piece if piece.endswith(b"\n") or not piece else piece + b"\n"


class Said:
    """Lines of a file that grows. Each is a message, so that none is dropped, and half of one at the end isn't sent."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0

    def take(self, *, last: bool) -> bytes | None:
        with suppress(FileNotFoundError), self._path.open("rb") as file:
            file.seek(self._offset)
            piece = file.read(PIECE_BYTES)
            piece = piece[: piece.rfind(b"\n") + 1] or (piece + file.readline() if piece else piece)
            if piece.endswith(b"\n"):
                self._offset += len(piece)
                return piece
        return None


class _Stream:
    """One writer's numbered pieces. A piece that was sent without an answer is sent again as it was: a reader may have seen it."""

    def __init__(self, folder: JobFolder, name: str, generation: str, source: Source) -> None:
        self._put: Callable[[int, bytes], None] = lambda sequence, piece: folder.put(name, generation, sequence, piece)
        self._source = source
        self._sequence = 0
        self._piece: bytes | None = None

    def send(self, *, last: bool) -> None:
        """Send all there is."""
        while True:
            if self._piece is None:
                piece = self._source.take(last=last)
                if not piece:
                    return
                self._piece = redact(piece.decode(errors="replace")).encode()
            self._put(self._sequence, self._piece)
            self._sequence, self._piece = self._sequence + 1, None


class Shipper:
    """Sends a pod's streams from a thread. A store that is away is tried again for as long as the job runs, and is no reason to end it.

    Args:
        messages: file to which process 0 writes its messages; None in other processes.
    """

    def __init__(self, folder: JobFolder, generation: str, process: int, messages: Path | None) -> None:
        self.printed = Printed()
        self._folder = folder
        self._streams = [_Stream(folder, log_stream(process), generation, self.printed)]
        if messages is not None:
            self._streams.insert(0, _Stream(folder, MESSAGES, generation, Said(messages)))
        self._outcome: Outcome | None = None
        self._ended = threading.Event()
        self._began = time.monotonic()
        self._away = False
        self._thread = threading.Thread(target=self._run, name="shipper", daemon=True)
        self._thread.start()

    def finish(self, outcome: Outcome, seconds: float = FAREWELL_SECONDS) -> bool:
        """Send what is left and then the outcome, so that whoever reads that has everything; whether the time sufficed."""
        self._outcome = outcome
        self._ended.set()
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while not self._ended.wait(self._interval()):
            self._try(lambda: self._send(last=False))
        pause = 0.1
        while not self._try(self._say_farewell):
            time.sleep(pause)
            pause = min(2 * pause, SHORTEST_SECONDS)

    def _interval(self) -> float:
        return min(max(SHORTEST_SECONDS, AGE * (time.monotonic() - self._began)), LONGEST_SECONDS)

    def _say_farewell(self) -> None:
        self._send(last=True)
        if self._outcome is not None:
            self._folder.leave(self._outcome)

    def _send(self, *, last: bool) -> None:
        for stream in self._streams:
            stream.send(last=last)

    def _try(self, send: Callable[[], None]) -> bool:
        """Whether it worked; whatever kind of error the backend has, the job goes on."""
        try:
            send()
        except Exception as error:
            if not self._away:
                _say(f"the job's folder {self._folder.url} can't be written, and the job goes on: {error}")
            self._away = True
            return False
        if self._away:
            _say(f"the job's folder {self._folder.url} can be written again")
        self._away = False
        return True


def _say(message: str) -> None:
    with suppress(OSError):
        print(message, file=sys.stderr, flush=True)
