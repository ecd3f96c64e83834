"""Alerts of a run while it trains: raised once, resolved once, and written down."""

import json
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from marin_core.train.health.config import HealthConfig
from marin_core.train.health.history import RunHistory
from marin_core.train.health.rules import RULE, Alert, diagnose, is_fresh
from marin_core.train.metrics import Row

LOG = logging.getLogger(__name__)

SILENCE = ("telemetry_gone", "run_down")
"""Rules that any sign of life resolves."""

OnChange = Callable[[Alert, bool], None]
"""(alert, whether it was raised; False = resolved)."""


class Health:
    """Watches one attempt of a run and keeps `alerts.jsonl`, which all its attempts share.

    A condition becomes an alert once it has held for `pending_seconds`; the alert stays open, and silent, until the condition is gone.
    One that was open when an attempt died is not raised again by the next. All methods may be called from any thread.

    Args:
        path: of the file; one JSON object a line: `event` (raised or resolved), `time` (Unix seconds), and the alert.
        history: of this attempt.
        on_change: is told of every line, once it is durable.
        clock: seconds that only go forwards. A clock that people set would take its own jumps for silence.
        wall: Unix seconds, for people.
    """

    def __init__(
        self,
        path: Path,
        history: RunHistory,
        thresholds: HealthConfig,
        on_change: OnChange | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self.history = history
        self._path = path
        self._thresholds = thresholds
        self._on_change = on_change
        self._clock = clock
        self._wall = wall
        self._lock = threading.RLock()
        self._pending: dict[str, float] = {}
        self._raised: dict[str, Alert] = {}
        self._open: set[str] = set()
        self._untold: list[tuple[Alert, bool]] = []
        for event in _repaired(path):
            self._remember(Alert(**event["alert"]), raised=event["event"] == "raised")

    @property
    def open(self) -> tuple[Alert, ...]:
        """Alerts whose condition holds."""
        with self._lock:
            return tuple(alert for name, alert in self._raised.items() if name in self._open)

    @property
    def raised(self) -> tuple[Alert, ...]:
        """The newest alert of every rule that any attempt of this run has raised."""
        with self._lock:
            return tuple(self._raised.values())

    def add(self, row: Row) -> None:
        """Take in the row of a step."""
        with self._lock:
            self.history.add(row, self._clock())

    def tell(self, event: Callable[[RunHistory, float], None]) -> None:
        """Change the history by an event, which gets the time: `health.tell(RunHistory.retried)`."""
        with self._lock:
            event(self.history, self._clock())

    def check(self) -> tuple[Alert, ...]:
        """Evaluate all rules now; returns the alerts that this raised.

        Raises:
            OSError: an alert can't be written; the next check tries again.
        """
        try:
            with self._lock:
                now = self._clock()
                found = {alert.name: alert for alert in diagnose(self.history, now, self._thresholds)}
                self._pending = {name: self._pending.get(name, now) for name in found}
                raised = [self._raise(alert, now) for alert in found.values() if self._is_due(alert, now)]
                for alert in self._gone(found, now):
                    self._write(alert, raised=False)
            return tuple(raised)
        finally:
            self._tell_changes()

    def _tell_changes(self) -> None:
        """Outside the lock: whoever is told may be slow, and the loop must not wait for it."""
        with self._lock:
            changes, self._untold = self._untold, []
        if self._on_change is not None:
            for alert, raised in changes:
                self._on_change(alert, raised)

    def _is_due(self, alert: Alert, now: float) -> bool:
        held = now - self._pending[alert.name]
        return alert.name not in self._open and (alert.immediate or held >= self._thresholds.pending_seconds)

    def _raise(self, alert: Alert, now: float) -> Alert:
        # A reader elsewhere has another clock.
        alert = replace(alert, since=self._wall() - (now - self._pending[alert.name]))
        self._write(alert, raised=True)
        return alert

    def _gone(self, found: dict[str, Alert], now: float) -> list[Alert]:
        """Open alerts whose condition is gone. A run without fresh steps has healed nothing but its silence."""
        judged = self.history.ended or is_fresh(self.history, now, self._thresholds)
        return [alert for alert in self.open if alert.name not in found and (judged or alert.name in SILENCE)]

    def finish(self) -> None:
        """The run has ended on purpose: resolve what is open."""
        with self._lock:
            self.history.ended = True
        self.check()

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Check every `interval_seconds` on a thread of its own, so that a loop that makes no step is noticed too.

        The thread is a sign of life by itself: within a process silence shows as `progress_stalled`.
        """
        stop = threading.Event()

        def watch() -> None:
            while not stop.wait(self._thresholds.interval_seconds):
                self.tell(RunHistory.seen)
                try:
                    self.check()
                except OSError:
                    LOG.exception("Alerts can't be written to %s; training goes on", self._path)

        thread = threading.Thread(target=watch, name="health", daemon=True)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join(self._thresholds.interval_seconds)

    def _write(self, alert: Alert, *, raised: bool) -> None:
        event = {"event": "raised" if raised else "resolved", "time": self._wall(), "alert": alert.to_json()}
        whole = self._path.stat().st_size if self._path.exists() else 0
        try:
            with self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(event, allow_nan=False) + "\n")
                file.flush()
                os.fsync(file.fileno())
        except OSError:
            os.truncate(self._path, whole)  # half a line would hide all that follow
            raise
        self._remember(alert, raised=raised)
        self._untold.append((alert, raised))

    def _remember(self, alert: Alert, *, raised: bool) -> None:
        if alert.name not in RULE:
            return  # of a version that had other rules
        self._raised[alert.name] = alert
        (self._open.add if raised else self._open.discard)(alert.name)


def read_alerts(path: Path) -> list[dict[str, Any]]:
    """Whole events of an `alerts.jsonl`, oldest first; [] where there is no file. A torn last line is left out."""
    if not path.exists():
        return []
    events = []
    for line in path.read_bytes().split(b"\n")[:-1]:
        try:
            events.append(json.loads(line))
        except ValueError:
            break
    return events


def _repaired(path: Path) -> list[dict[str, Any]]:
    """The events of a file, which ends with the last of them afterwards."""
    events = read_alerts(path)
    if path.exists():
        whole = sum(len(line) + 1 for line in path.read_bytes().split(b"\n")[: len(events)])
        os.truncate(path, whole)
    return events
