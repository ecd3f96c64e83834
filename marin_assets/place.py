"""Where this lab's things lie. Imports nothing, so that commands that only read the store start without Dagster."""

import hashlib
import os
from pathlib import Path

PREFIX_VARIABLE = "MARIN_PREFIX"
PROJECT = Path(__file__).resolve().parents[1]
STATE = PROJECT / ".dagster"
"""Folder of everything that Dagster and the local launcher keep about runs; artifacts lie in the store."""


def default_prefix() -> str:
    """MARIN_PREFIX, or the project's own ignored folder."""
    return os.environ.get(PREFIX_VARIABLE) or f"file://{PROJECT / '.store'}"


def jobs_folder(prefix: str) -> Path:
    """Where the local launcher keeps jobs: those of a local store in it, those of a remote one beside Dagster's state."""
    local = prefix.removeprefix("file://")
    return Path(local) / ".jobs" if "://" not in local else STATE / "jobs" / hashlib.sha256(prefix.encode()).hexdigest()[:12]
