"""The one Dagster resource: which store the lab keeps its artifacts in, and how it launches jobs."""

import hashlib
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar

import dagster as dg
from pydantic import PrivateAttr

from marin_assets.builder import Retries
from marin_assets.launch import InlineLauncher, Launcher, LocalLauncher
from marin_core.artifact import ArtifactGraph, Store
from marin_core.artifact.drift import DriftFinder
from marin_core.artifact.store import local_path

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
        lease_seconds: silence of a builder after which another may take over; a builder that this machine can see is not waited for.
        infrastructure_retries: how often a build is tried again after lost processes, disks or networks.
        preemption_retries: how often a build is resumed after preemptions.
        first_retry_delay_seconds: before trying again; doubled each time, up to a minute.
    """

    prefix: str
    lease_seconds: float = 60.0
    infrastructure_retries: int = Retries.infrastructure
    preemption_retries: int = Retries.preempted
    first_retry_delay_seconds: float = Retries.first_delay_seconds
    _finder: tuple[str, DriftFinder] | None = PrivateAttr(default=None)
    listener: ClassVar[Callable[[Mapping[str, Any]], None] | None] = None
    """Receives progress and metrics of every job followed in this process, besides Dagster: the terminal's progress lines."""

    def notify(self, message: Mapping[str, Any]) -> None:
        if Lab.listener is not None:
            Lab.listener(message)

    def store(self) -> Store:
        return Store(self.prefix)

    def retries(self) -> Retries:
        return Retries(self.infrastructure_retries, self.preemption_retries, self.first_retry_delay_seconds)

    def launcher(self, store: Store, *, inline: bool = False) -> Launcher:
        """Jobs of a local store keep their folders in it; those of a remote one beside Dagster's state."""
        local = local_path(store.prefix)
        root = local / ".jobs" if local else STATE / "jobs" / hashlib.sha256(store.prefix.encode()).hexdigest()[:12]
        return InlineLauncher(root) if inline else LocalLauncher(root)

    def drift_finder(self, graph: ArtifactGraph, store: Store, run_id: str) -> DriftFinder:
        """One finder for a whole run, so that a chain of artifacts is judged in linear time."""
        if self._finder is None or self._finder[0] != run_id:
            self._finder = (run_id, DriftFinder(graph, store))
        return self._finder[1]
