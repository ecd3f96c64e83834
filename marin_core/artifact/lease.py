"""Leases: a builder's signs of life, and how others tell that they have stopped. No two clocks are ever compared."""

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import Self

from marin_core.artifact.identity import ArtifactId
from marin_core.artifact.record import End
from marin_core.artifact.store import Store
from marin_core.errors import InfrastructureError

BEATS_PER_LEASE = 6
"""A builder may miss five beats, for a slow store or a busy machine, before others think that it is gone."""


class Heartbeat:
    """Beats from a thread while an attempt builds, and notices when another builder has given the attempt up.

    It looks before it beats, so that a builder that was asleep while others took over touches nothing any more.

    Args:
        on_lost: called once, in the thread, with the end that another builder wrote.
    """

    def __init__(self, store: Store, artifact: ArtifactId, number: int, lease_seconds: float, on_lost: Callable[[End], None]) -> None:
        self._store = store
        self._artifact = artifact
        self._number = number
        self._interval = lease_seconds / BEATS_PER_LEASE
        self._on_lost = on_lost
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"heartbeat of {artifact}", daemon=True)
        self.lost: End | None = None

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        count = 0
        while not self._stop.wait(self._interval):  # a build of a second needs no sign of life at all
            count += 1
            end = None
            with suppress(Exception):  # a store that doesn't answer is no reason to stop: the commit decides
                end = self._store.end(self._artifact, self._number)
                if end is None:
                    self._store.beat(self._artifact, self._number, count)
            if end is not None:
                if end.record is None and not self._stop.is_set():  # a success is the builder's own
                    self.lost = end
                    self._on_lost(end)
                return


class WaitingBeats:
    """Signs of life that whoever submitted a job gives for it until it runs and gives its own: it may wait long for its machine."""

    def __init__(self, store: Store, artifact: ArtifactId, number: int, lease_seconds: float) -> None:
        self._store = store
        self._artifact = artifact
        self._number = number
        self._interval = lease_seconds / BEATS_PER_LEASE
        self._next = time.monotonic() + self._interval

    def beat(self) -> None:
        """Beat if it is time."""
        now = time.monotonic()
        if now >= self._next:
            self._next = now + self._interval
            with suppress(InfrastructureError):
                self._store.beat(self._artifact, self._number, -time.monotonic_ns())  # no count of the job's own, nor of another waiter


class LeaseWatch:
    """Tells whether another builder's signs of life have stopped, by watching them change against the own clock.

    Time alone doesn't tell: whoever was asleep for longer than the lease has to look again some times before it gives anybody up.
    """

    def __init__(self, store: Store, artifact: ArtifactId, number: int, lease_seconds: float) -> None:
        self._store = store
        self._artifact = artifact
        self._number = number
        self._lease_seconds = lease_seconds
        self._seen: bytes | None = None
        self._since = time.monotonic()
        self._looks = 0
        self._next_look = 0.0

    def expired(self) -> bool:
        """One look; True once no new sign of life was seen for the length of the lease."""
        now = time.monotonic()
        if now < self._next_look:
            return False
        self._next_look = now + self._lease_seconds / (2 * BEATS_PER_LEASE)
        try:
            beat = self._store.last_beat(self._artifact, self._number)
        except InfrastructureError:
            self._since, self._looks = now, 0  # while the store doesn't answer, the builder can't give signs either
            return False
        self._looks += 1
        if beat != self._seen:
            self._seen, self._since, self._looks = beat, now, 0
        return now - self._since > self._lease_seconds and self._looks > BEATS_PER_LEASE
