"""How a job speaks: Dagster Pipes messages if Dagster launched it, and readable lines on its log always."""

import base64
import logging
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Event, Lock
from typing import Any, TextIO

from dagster_pipes import PipesContext, open_dagster_pipes

PROGRESS_INTERVAL_SECONDS = 1.0
"""Progress closer together than this is swallowed, but never the last of a piece of work."""

PLOTS_INTERVAL_SECONDS = 60.0
PLOTS_LONGEST_INTERVAL_SECONDS = 3600.0
PLOTS_AGE = 1 / 20
"""Pictures are sent a minute apart, later at this share of the job's age, and in the end hourly. Each set stays in Dagster's event log,
which is never purged: three months of one a minute would be 130,000 of them, and these are 2,200."""

PICTURE_BYTES = 100_000
PICTURES_BYTES = 300_000
"""Largest picture, and largest set of them, that is sent: it becomes a row of Dagster's event log (spec/dagster.md §1.6)."""


class JobReporter:
    """A `Reporter` over Dagster Pipes. What Pipes has no message for travels as a custom one: `{"kind": …}`.

    Pictures travel within their message and not as paths: a job on another machine shares nothing with Dagster but the channel.

    All methods may be called from any thread; without the lock, long lines of the channel's file would mix.

    Args:
        pipes: None = nobody but the log listens.
        stop: set once the job has been asked to stop.
        clock: seconds that only go forwards.
    """

    def __init__(
        self, pipes: "PipesContext | None", stop: Event, log: TextIO = sys.stdout, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._pipes = pipes
        self._stop = stop
        self._log = log
        self._clock = clock
        self._lock = Lock()
        self._opened = self._started = clock()
        self._last_progress = 0.0
        self._first_done: int | None = None
        self._plots_due = self._opened

    @classmethod
    @contextmanager
    def open(cls, stop: Event) -> Iterator["JobReporter"]:
        """A reporter on Dagster's channel if Dagster launched this process; `stop` is set by whoever wants the job to end."""
        if "DAGSTER_PIPES_CONTEXT" not in os.environ:
            yield cls(None, stop)
            return
        with open_dagster_pipes() as pipes:
            yield cls(pipes, stop)

    def stop_requested(self) -> bool:
        return self._stop.is_set()

    def log(self, message: str) -> None:
        self._say(message, logging.INFO)

    def progress(self, done: int, total: int, unit: str) -> None:
        """Also derives rate and time left, from the work done by this process alone (a resumed run starts in the middle)."""
        with self._lock:
            now = self._clock()
            if self._first_done is None:
                self._first_done, self._started = done, now
            if done < total and now - self._last_progress < PROGRESS_INTERVAL_SECONDS:
                return
            self._last_progress = now
            elapsed = now - self._started
            rate = (done - self._first_done) / elapsed if elapsed > 0 else 0.0
            left = (total - done) / rate if rate > 0 else None
            self._send({"kind": "progress", "done": done, "total": total, "unit": unit, "rate_per_second": rate, "seconds_left": left})
            self._print(f"{done}/{total} {unit}" + (f", {rate:.1f}/s, {left:.0f} s left" if left is not None else ""))

    def metrics(self, values: Mapping[str, float], step: int) -> None:
        with self._lock:
            self._send({"kind": "metrics", "step": step, "values": dict(values)})

    def plots(self, files: Mapping[str, Path], step: int) -> None:
        """Sends small PNG files, as long as they are few and the last were long enough ago; the others are seen in the run's folder."""
        with self._lock:
            now = self._clock()
            if self._pipes is None or now < self._plots_due:
                return
            age = now - self._opened
            self._plots_due = now + min(max(PLOTS_INTERVAL_SECONDS, PLOTS_AGE * age), PLOTS_LONGEST_INTERVAL_SECONDS)
            pictures, left_out = _pictures(files)
            self._send({"kind": "plots", "step": step, "pictures": pictures})
        if left_out:
            self.log(f"not shown, as they are too large or can't be read: {', '.join(left_out)}")

    def alert(self, alert: Mapping[str, Any], *, raised: bool) -> None:
        """Also a line of the log; a warning, if somebody should wake up."""
        line = f"{'alert' if raised else 'over'}: {alert['name']} ({alert['route']}): {alert['message']}"
        line += f"; {alert['action']}" if raised else ""
        self._say(line, logging.WARNING if raised and alert["route"] == "page" else logging.INFO)
        with self._lock:
            self._send({"kind": "alert", "raised": raised, "alert": dict(alert)})

    def _say(self, message: str, level: int) -> None:
        with self._lock:
            self._print(message)
            if self._pipes is not None:
                self._pipes.log.log(level, message)

    def _print(self, message: str) -> None:
        print(message, file=self._log, flush=True)

    def _send(self, payload: dict[str, Any]) -> None:
        if self._pipes is not None:
            self._pipes.report_custom_message(payload)


def _pictures(files: Mapping[str, Path]) -> tuple[dict[str, str], list[str]]:
    """Name → Base64 of the files that may be sent, the first of them first, and the names of the others."""
    pictures: dict[str, str] = {}
    left_out, room = [], PICTURES_BYTES
    for name, path in files.items():
        try:
            picture = path.read_bytes()
        except OSError:
            left_out.append(name)
            continue
        if len(picture) > min(PICTURE_BYTES, room):
            left_out.append(name)
            continue
        room -= len(picture)
        pictures[name] = base64.b64encode(picture).decode()
    return pictures, left_out


class FollowerReporter:
    """The `Reporter` of a gang's other processes: lines on the gang's log that say whose they are. Process 0 speaks to Dagster for all."""

    def __init__(self, process: int, stop: Event, log: TextIO = sys.stdout) -> None:
        self._process = process
        self._stop = stop
        self._log = log

    def stop_requested(self) -> bool:
        return self._stop.is_set()

    def log(self, message: str) -> None:
        print(f"[process {self._process}] {message}", file=self._log, flush=True)

    def progress(self, done: int, total: int, unit: str) -> None: ...

    def metrics(self, values: Mapping[str, float], step: int) -> None: ...

    def plots(self, files: Mapping[str, Path], step: int) -> None: ...

    def alert(self, alert: Mapping[str, Any], *, raised: bool) -> None: ...


def say(message: str) -> None:
    """A line in the job's log, which may lie on the very disk that is full."""
    with suppress(OSError):
        print(message, file=sys.stderr, flush=True)
