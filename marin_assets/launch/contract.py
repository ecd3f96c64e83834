"""What every launcher promises. Jobs outlive whoever launched them, and names are stable, so looking again is always safe."""

import base64
import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Protocol

from marin_core.artifact.identity import ArtifactId
from marin_core.artifact.job import JobSpec
from marin_core.artifact.record import FailureClass
from marin_core.artifact.step import Resources

NOTHING_SPECIAL = Resources()
"""What a job needs that doesn't say."""


class State(Enum):
    """Where a job stands. All but PENDING and RUNNING are final."""

    PENDING = "pending"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    PREEMPTED = "preempted"
    """It was asked to stop, saved, and can be resumed."""
    VANISHED = "vanished"
    """Its process is gone and left no word: killed, out of memory, rebooted. Infrastructure."""

    @property
    def final(self) -> bool:
        return self not in (State.PENDING, State.RUNNING)


@dataclass(frozen=True)
class Handle:
    """Names a submitted job; `folder` holds its messages and log, and on this machine its spec.

    `url` is where they come from, if the folder is only a copy.
    """

    name: str
    folder: Path
    url: str | None = None

    @property
    def log(self) -> str:
        """Where people find what it printed."""
        return self.url or str(self.folder / "log")


@dataclass(frozen=True)
class Standing:
    """How a job stands in a cluster's queue, or on its nodes.

    Attributes:
        phase: in the cluster's own terms: queued, starting, running, preempted, …
        position: place in the queue, from 1; None if it isn't queued or the place isn't known.
        pods_ready, pods_total: of the job.
        application_restarts: restarts on account of the job's own failures, which have a budget.
        infrastructure_restarts: those that count towards none.
        since: when it came into this phase, in seconds since 1970.
        stale_since: since when the cluster hasn't answered; None if it does. What is said here is then as old.
    """

    phase: str
    position: int | None = None
    pods_ready: int = 0
    pods_total: int = 0
    application_restarts: int = 0
    infrastructure_restarts: int = 0
    since: float | None = None
    stale_since: float | None = None


@dataclass(frozen=True)
class Observation:
    """One look at a job.

    Attributes:
        exit_code: the job's own; None while it has none.
        reason: one readable sentence: why it waits, or why it ended.
        failure: why it ended, where its launcher knows better than the exit code says; None = as that says.
        standing: None on a single machine.
    """

    state: State
    exit_code: int | None = None
    reason: str = ""
    failure: FailureClass | None = None
    standing: Standing | None = None

    @property
    def is_mute(self) -> bool:
        """Whether the job can't be expected to give signs of life itself: it doesn't run, or nobody knows whether it does."""
        return self.state == State.PENDING or (self.standing is not None and self.standing.stale_since is not None)


class Launcher(Protocol):
    """Starts jobs and looks after them."""

    host: str
    """Where its jobs can be seen: launchers with equal hosts see each other's jobs, others have only the heartbeat."""

    adopts: bool
    """Whether `submit` of a job that another process has begun to submit is safe; else only who claimed an attempt may submit it."""

    def handle(self, name: str) -> Handle:
        """The handle of a job by its name, whether or not it exists."""

    def submit(self, name: str, spec: JobSpec, environment: Mapping[str, str], resources: Resources = NOTHING_SPECIAL) -> Handle:
        """Start the job, or adopt it if it was started already. Safe to repeat.

        Args:
            resources: what the job's step asks for; one machine has what it has.
        """

    def observe(self, handle: Handle) -> Observation:
        """One look, without waiting."""

    def cancel(self, handle: Handle) -> None:
        """Stop the job and every process that it started; returns when they are gone. Safe to repeat."""

    def logs(self, handle: Handle, tail_lines: int) -> str:
        """The last lines that the job printed."""


def job_name(artifact: ArtifactId, address: str, attempt: int, submitted_at: str) -> str:
    """`m-{slug}-{key}-a{attempt}`, at most 36 characters of `[a-z0-9-]`.

    The key also covers the submission time, so that an address which was cleared by hand doesn't find its old jobs.
    """
    slug = re.sub(r"[^a-z0-9]+", "-", artifact.name.split("/")[-1].lower())[:16].strip("-")
    key = base64.b32encode(hashlib.sha256(f"{address}\n{submitted_at}".encode()).digest()).decode().lower()[:10]
    return f"m-{slug}-{key}-a{attempt}"
