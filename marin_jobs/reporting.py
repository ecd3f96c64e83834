"""How a job speaks: Dagster Pipes messages if Dagster launched it, and readable lines on its log always."""

import os
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from threading import Event
from typing import Any, TextIO

from dagster_pipes import PipesContext, open_dagster_pipes

PROGRESS_INTERVAL_SECONDS = 1.0
"""Progress closer together than this is swallowed, but never the last of a piece of work."""


class JobReporter:
    """A `Reporter` over Dagster Pipes. Progress and metrics travel as custom messages: `{"kind": …}`."""

    def __init__(self, pipes: "PipesContext | None", stop: Event, log: TextIO = sys.stdout) -> None:
        self._pipes = pipes
        self._stop = stop
        self._log = log
        self._last_progress = 0.0
        self._started = time.monotonic()
        self._first_done: int | None = None

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
        print(message, file=self._log, flush=True)
        if self._pipes is not None:
            self._pipes.log.info(message)

    def progress(self, done: int, total: int, unit: str) -> None:
        """Also derives rate and time left, from the work done by this process alone (a resumed run starts in the middle)."""
        now = time.monotonic()
        if self._first_done is None:
            self._first_done, self._started = done, now
        if done < total and now - self._last_progress < PROGRESS_INTERVAL_SECONDS:
            return
        self._last_progress = now
        elapsed = now - self._started
        rate = (done - self._first_done) / elapsed if elapsed > 0 else 0.0
        left = (total - done) / rate if rate > 0 else None
        self._send({"kind": "progress", "done": done, "total": total, "unit": unit, "rate_per_second": rate, "seconds_left": left})
        print(f"{done}/{total} {unit}" + (f", {rate:.1f}/s, {left:.0f} s left" if left is not None else ""), file=self._log, flush=True)

    def metrics(self, values: Mapping[str, float], step: int) -> None:
        self._send({"kind": "metrics", "step": step, "values": dict(values)})

    def _send(self, payload: dict[str, Any]) -> None:
        if self._pipes is not None:
            self._pipes.report_custom_message(payload)
