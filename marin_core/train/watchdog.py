"""Ends a process whose steps have stopped, and says where it hung, so that the launcher can start it again."""

import faulthandler
import logging
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

from marin_core.errors import ExitCode

LOG = logging.getLogger(__name__)

TICKS = 20
"""Looks of the watchdog within a deadline."""

REPORT_SECONDS = 30.0
"""How long writing stacks and telling about the hang may take; the process ends anyway."""


class Hang(NamedTuple):
    """A process that made no step.

    Attributes:
        step: the last that was finished; None in start-up.
        silent_seconds: without one.
        stacks: file with the stacks of all threads.
    """

    step: int | None
    silent_seconds: float
    stacks: Path


class Silence:
    """Seconds since the last beat, as far as somebody was awake to witness them.

    A process that is stopped, or a machine that sleeps, loses time in which no step could be made. Whoever looks every `tick_seconds`
    notices: the next look comes late. Of a late look only `tick_seconds` count, so no such gap is mistaken for a hang.
    """

    def __init__(self, now: float, tick_seconds: float) -> None:
        self.seconds = 0.0
        self._tick = tick_seconds
        self._looked = now
        self._beats = 0

    def look(self, now: float, beats: int) -> float:
        """Silence at a time of a clock that only goes forwards, given how many beats there were in all."""
        self.seconds = 0.0 if beats != self._beats else self.seconds + min(now - self._looked, self._tick)
        self._looked, self._beats = now, beats
        return self.seconds


class Watchdog:
    """A thread that expects a `beat` within a deadline. Without one it writes the stacks of all threads to `hang-N.txt` in a folder, logs
    one line and ends the process with exit code 75, at once and without cleaning up: a launcher tries again.

    It can't see a hang that holds Python's global lock, as no thread runs then; the launcher sees it, since heartbeats stop as well.

    Args:
        deadline_seconds: longest time between two beats.
        folder: for the stacks; made if there is none.
        on_hang: is told before the end; all reporting together has thirty seconds.
        startup_seconds: longest time to the first beat: restoring and compiling take longer than steps. None = the deadline.
    """

    def __init__(
        self, deadline_seconds: float, folder: Path, on_hang: Callable[[Hang], None] | None = None, *, startup_seconds: float | None = None
    ) -> None:
        self._deadline = deadline_seconds
        self._startup = deadline_seconds if startup_seconds is None else startup_seconds
        self._folder = folder
        self._on_hang = on_hang
        self._step: int | None = None
        self._beats = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)

    def beat(self, step: int) -> None:
        """A step was finished."""
        self._step = step
        self._beats += 1

    def _watch(self) -> None:
        tick = min(self._deadline, self._startup) / TICKS
        silence = Silence(time.monotonic(), tick)
        while not self._stop.wait(tick):
            beats = self._beats
            seconds = silence.look(time.monotonic(), beats)
            if seconds >= (self._deadline if beats else self._startup):
                self._end(seconds)

    def _end(self, seconds: float) -> None:
        try:
            # On a thread of its own: the disk, or the lock of the log, may be what the process hangs on.
            report = threading.Thread(target=self._report, args=(seconds,), name="watchdog-report", daemon=True)
            report.start()
            report.join(REPORT_SECONDS)
        finally:
            # Not sys.exit: the hung thread would be waited for.
            os._exit(ExitCode.TRY_AGAIN)

    def _report(self, seconds: float) -> None:
        try:
            stacks = self._write_stacks(seconds)
        except OSError as error:
            faulthandler.dump_traceback(all_threads=True)
            LOG.error("%s; stacks are above, since they can't be written: %s", _says(self._step, seconds), error)
            return
        LOG.error("%s; stacks of all threads are in %s; the process ends and may be started again", _says(self._step, seconds), stacks)
        if self._on_hang is not None:
            self._on_hang(Hang(self._step, seconds, stacks))

    def _write_stacks(self, seconds: float) -> Path:
        self._folder.mkdir(parents=True, exist_ok=True)
        number = 0
        while True:
            number += 1
            path = self._folder / f"hang-{number}.txt"
            try:
                with path.open("x", encoding="utf-8") as file:
                    file.write(f"{_says(self._step, seconds)} (process {os.getpid()})\n\n")
                    file.flush()
                    faulthandler.dump_traceback(file, all_threads=True)
                    os.fsync(file.fileno())
                return path
            except FileExistsError:  # of another attempt, or of another process of this run
                continue

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._stop.set()
        self._thread.join()


def _says(step: int | None, seconds: float) -> str:
    return f"No step for {seconds:.0f} seconds after " + ("the start" if step is None else f"step {step}")
