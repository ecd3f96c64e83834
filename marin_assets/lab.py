"""The one Dagster resource: which store the lab keeps its artifacts in, and how it launches jobs."""

import hashlib
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar

import dagster as dg

from marin_assets.launch import Launcher, LocalLauncher
from marin_core.artifact import Store

PREFIX_VARIABLE = "MARIN_PREFIX"
PROJECT = Path(__file__).resolve().parents[1]
STATE = PROJECT / ".dagster"
"""Folder of everything that Dagster and the local launcher keep about runs; artifacts lie in the store."""


def default_prefix() -> str:
    """MARIN_PREFIX, or the project's own ignored folder."""
    return os.environ.get(PREFIX_VARIABLE) or f"file://{PROJECT / '.store'}"


class Lab(dg.ConfigurableResource):  # type: ignore[type-arg]
    """Store and launcher of this deployment.

    Attributes:
        prefix: folder or fsspec URL below which all artifacts lie.
    """

    prefix: str
    listener: ClassVar[Callable[[Mapping[str, Any]], None] | None] = None
    """Receives progress and metrics of every job followed in this process, besides Dagster: the terminal's progress lines."""

    def notify(self, message: Mapping[str, Any]) -> None:
        if Lab.listener is not None:
            Lab.listener(message)

    def store(self) -> Store:
        return Store(self.prefix)

    def launcher(self, store: Store) -> Launcher:
        """Jobs of a local store keep their folders in it; those of a remote one beside Dagster's state."""
        local = store.local_path(store.prefix)
        if local is not None:
            return LocalLauncher(local / ".jobs")
        return LocalLauncher(STATE / "jobs" / hashlib.sha256(store.prefix.encode()).hexdigest()[:12])
