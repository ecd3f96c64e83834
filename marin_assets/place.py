"""Where this lab's things lie, and where its jobs run. Imports next to nothing: commands that only read the store start without Dagster."""

import hashlib
import os
from pathlib import Path

from marin_core.errors import ConfigError

PREFIX_VARIABLE = "MARIN_PREFIX"
LAUNCHER_VARIABLE = "MARIN_LAUNCHER"
PROFILE_VARIABLE = "MARIN_PROFILE"
LOCAL = "local"
PROJECT = Path(__file__).resolve().parents[1]
STATE = PROJECT / ".dagster"
"""Folder of everything that Dagster and the local launcher keep about runs; artifacts lie in the store."""


def default_prefix() -> str:
    """MARIN_PREFIX, or the project's own ignored folder."""
    return os.environ.get(PREFIX_VARIABLE) or f"file://{PROJECT / '.store'}"


def default_launcher() -> str:
    """`local`, unless MARIN_LAUNCHER says `kubernetes`: then the cluster's profile, by MARIN_PROFILE a path or a name.

    Raises:
        ConfigError: MARIN_LAUNCHER has another value, or there is no MARIN_PROFILE.
    """
    launcher = os.environ.get(LAUNCHER_VARIABLE) or LOCAL
    if launcher not in (LOCAL, "kubernetes"):
        raise ConfigError(f"{LAUNCHER_VARIABLE} is {launcher!r}", advice=f"Set it to {LOCAL} or kubernetes, or leave it out.")
    if launcher == LOCAL:
        return LOCAL
    profile = os.environ.get(PROFILE_VARIABLE)
    if not profile:
        raise ConfigError(
            f"{LAUNCHER_VARIABLE} is kubernetes, and {PROFILE_VARIABLE} is not set",
            advice=f"Set {PROFILE_VARIABLE} to the cluster's profile: a path, or a name in deploy/kubernetes/profiles.",
        )
    return profile


def home() -> Path:
    """Dagster's home, or the project's own folder for its state."""
    return Path(os.environ.get("DAGSTER_HOME") or STATE)


def jobs_folder(prefix: str) -> Path:
    """Where the local launcher keeps jobs: those of a local store in it, those of a remote one in Dagster's home."""
    local = prefix.removeprefix("file://")
    if "://" not in local:
        return Path(local) / ".jobs"
    return home() / "jobs" / hashlib.sha256(prefix.encode()).hexdigest()[:12]
