"""The one Dagster resource: which store the lab keeps its artifacts in, and how it launches jobs."""

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import dagster as dg
from pydantic import PrivateAttr

from marin_assets.builder import Retries
from marin_assets.launch import InlineLauncher, Launcher, LocalLauncher
from marin_assets.launch.kubernetes import CLUSTER_LEASE_SECONDS, open_kubernetes_launcher
from marin_assets.place import LOCAL, PREFIX_VARIABLE, PROJECT, STATE, default_prefix, jobs_folder
from marin_core.artifact import ArtifactGraph, Store
from marin_core.artifact.drift import DriftFinder

__all__ = ["PREFIX_VARIABLE", "PROJECT", "STATE", "Lab", "default_prefix"]


class Lab(dg.ConfigurableResource):  # type: ignore[type-arg]
    """Store and launcher of this deployment.

    Attributes:
        prefix: folder or fsspec URL below which all artifacts lie.
        launcher: where jobs run: `local`, or the profile of a Kubernetes cluster, by its path or its name in deploy/kubernetes/profiles.
            Never part of what an artifact is.
        lease_seconds: silence of a builder after which another may take over; a builder that this machine can see is not waited for.
        infrastructure_retries: how often a day a build is tried again after lost processes, disks or networks.
        preemption_retries: how often a day a build is resumed after preemptions.
        first_retry_delay_seconds: before trying again; doubled each time, up to a minute.
    """

    prefix: str
    launcher: str = LOCAL
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

    def lease(self) -> float:
        """`lease_seconds`, but on a cluster no less than it takes to notice that a node is lost."""
        return self.lease_seconds if self.launcher == LOCAL else max(self.lease_seconds, CLUSTER_LEASE_SECONDS)

    def open_launcher(self, store: Store, *, inline: bool = False) -> Launcher:
        root = jobs_folder(store.prefix)
        if inline:
            return InlineLauncher(root)
        return LocalLauncher(root) if self.launcher == LOCAL else open_kubernetes_launcher(self.launcher, store.prefix)

    def drift_finder(self, graph: ArtifactGraph, store: Store, run_id: str) -> DriftFinder:
        """One finder for a whole run, so that a chain of artifacts is judged in linear time."""
        if self._finder is None or self._finder[0] != run_id:
            self._finder = (run_id, DriftFinder(graph, store))
        return self._finder[1]
