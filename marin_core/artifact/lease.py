"""Leases: a builder's signs of life, and how others tell that they have stopped. No two clocks are ever compared."""

import threading
import time
from collections.abc import Callable
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
            try:
                self._store.beat(self._artifact, self._number, count)
                end = self._store.end(self._artifact, self._number)
            except InfrastructureError:
                end = None  # a store that doesn't answer is no reason to stop: the commit decides
            if end is not None and not self._stop.is_set():
                self.lost = end
                self._on_lost(end)
                return


class LeaseWatch:
    """Tells whether another builder's signs of life have stopped, by watching them change against the own clock."""

    def __init__(self, store: Store, artifact: ArtifactId, number: int, lease_seconds: float) -> None:
        self._store = store
        self._artifact = artifact
        self._number = number
        self._lease_seconds = lease_seconds
        self._seen: bytes | None = None
        self._since = time.monotonic()
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
            self._since = now  # while the store doesn't answer, the builder can't give signs either
            return False
        if beat != self._seen:
            self._seen, self._since = beat, now
        return now - self._since > self._lease_seconds
