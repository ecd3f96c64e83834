"""Jobs as JobSets that Kueue queues: the launcher on a cluster (spec/kubernetes.md)."""

from marin_assets.launch.kubernetes.opening import (
    CLUSTER_LEASE_SECONDS,
    load_profile,
    open_connection,
    open_kubernetes_launcher,
    require_places,
)

__all__ = ["CLUSTER_LEASE_SECONDS", "load_profile", "open_connection", "open_kubernetes_launcher", "require_places"]
