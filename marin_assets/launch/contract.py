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
    """Names a submitted job; `folder` holds its spec, messages and log."""

    name: str
    folder: Path


@dataclass(frozen=True)
class Observation:
    """One look at a job; `reason` is one readable sentence."""

    state: State
    exit_code: int | None = None
    reason: str = ""


class Launcher(Protocol):
    """Starts jobs and looks after them."""

    host: str
    """Where its jobs can be seen: launchers with equal hosts see each other's jobs, others have only the heartbeat."""

    adopts: bool
    """Whether `submit` of a job that another process has begun to submit is safe; else only who claimed an attempt may submit it."""

    def handle(self, name: str) -> Handle:
        """The handle of a job by its name, whether or not it exists."""

    def submit(self, name: str, spec: JobSpec, environment: Mapping[str, str]) -> Handle:
        """Start the job, or adopt it if it was started already. Safe to repeat."""

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
