"""What a record says about code, machine and cost."""

import os
import resource
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from marin_core.artifact.record import Code, Usage

_PROJECT = Path(__file__).resolve().parents[1]
_PACKAGES = (
    "dagster-pipes",
    "datatrove",
    "flax",
    "jax",
    "jaxlib",
    "lm-eval",
    "numpy",
    "optax",
    "orbax-checkpoint",
    "tensorstore",
    "tokenizers",
)


def cpu_count() -> int:
    """Processor cores that this process may use."""
    return len(os.sched_getaffinity(0))


def code_state(digest: str) -> Code:
    """Git commit and cleanliness of the project's checkout, versions of packages that decide results, and the code table's digest.

    In a process that runs job after job, they are those of when it first ran this code: a commit made meanwhile is not what it loaded.
    """
    commit, dirty = _checkout(digest)
    return Code(git_commit=commit, dirty=dirty, packages=dict(_installed()), digest=digest)


def source_commit() -> str | None:
    """Git commit of the project's checkout, marked where the tree has changes; None outside one."""
    commit, dirty = _checkout("")
    return f"{commit}, with changes" if commit and dirty else commit


@cache
def _checkout(digest: str) -> tuple[str | None, bool | None]:
    """Commit and cleanliness; of a digest, since another look is due when the code has changed. Asking git takes longer than many a job."""
    commit = _git("rev-parse", "HEAD")
    return commit, None if commit is None else bool(_git("status", "--porcelain"))


@cache
def _installed() -> Mapping[str, str]:
    """Versions of the packages, asked once: a running process keeps what it imported."""
    found = {}
    for name in _PACKAGES:
        with suppress(PackageNotFoundError):
            found[name] = version(name)
    return found


def _git(*arguments: str) -> str | None:
    try:
        done = subprocess.run(["git", *arguments], cwd=_PROJECT, capture_output=True, text=True, timeout=20, check=True)  # noqa: S607
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


@dataclass(frozen=True)
class Clock:
    """Measures what a job costs, child processes included."""

    started_at: str
    wall: float
    cpu: float

    @classmethod
    def start(cls) -> "Clock":
        return cls(datetime.now(UTC).isoformat(), time.monotonic(), _cpu_seconds())

    def usage(self) -> Usage:
        unit = 1 if sys.platform == "darwin" else 1024  # ru_maxrss is in bytes there, in KiB elsewhere
        peak = max(resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
        return Usage(
            wall_seconds=round(time.monotonic() - self.wall, 3),
            cpu_seconds=round(_cpu_seconds() - self.cpu, 3),
            peak_memory_bytes=peak * unit,
        )


def _cpu_seconds() -> float:
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system
