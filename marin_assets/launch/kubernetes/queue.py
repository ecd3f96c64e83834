"""The queue as the cluster keeps it: who waits, for what, since when, and why."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from decimal import Decimal

from marin_assets.launch.kubernetes.client import (
    JOBSETS,
    LOCAL_QUEUES,
    NAMESPACES,
    PENDING_WORKLOADS,
    PRIORITY_CLASSES,
    WORKLOADS,
    ApiError,
    Cluster,
    Json,
    NotFoundError,
    RefusedError,
    quantity,
)
from marin_assets.launch.kubernetes.names import ADDRESS_ANNOTATION, PRIORITY_LABEL
from marin_assets.launch.kubernetes.objects import condition, is_true
from marin_assets.launch.kubernetes.pending import NOT_ASKED, Line, why_queued
from marin_assets.launch.kubernetes.profile import Profile
from marin_core.errors import ConfigError

ORDER_SECONDS = 10.0
"""Between two questions for the order of the queue, whoever wants to know."""

SILENCE_SECONDS = 60.0
"""Between two looks for why Kueue doesn't see a job."""

MANAGED_NAMESPACE_LABEL = "kueue-managed"
"""What deploy/kubernetes has Kueue look for on a namespace (spec/kubernetes.md §2.6)."""


@dataclass(frozen=True)
class QueueEntry:
    """One job in a cluster's queue, or past it.

    Attributes:
        position: from 1; 0 = it has got what it asks for; None = it waits, and isn't in the line: it is paused, or Kueue doesn't see it.
        name: of the job, or of whatever else queues there.
        address: URL of the artifact that it builds; "" for what isn't ours.
        namespace: whose it is.
        priority: the higher one goes first.
        asks: resource → amount, of all its pods together.
        since: ISO time since when it has waited, or has had what it asks for.
        why: one readable sentence.
    """

    position: int | None
    name: str
    address: str
    namespace: str
    priority: int
    asks: Mapping[str, str]
    since: str
    why: str


@dataclass(frozen=True)
class Order:
    """Who goes when: `namespace/name` of each Workload that waits, the first one first."""

    cluster_queue: str | None = None
    waiting: tuple[str, ...] = ()

    def line(self, workload: Json) -> Line:
        """Where a Workload stands in it."""
        key = _key(workload)
        if key not in self.waiting:
            return Line(self.cluster_queue)
        return Line(self.cluster_queue, self.waiting.index(key) + 1, _job(self.waiting[0].partition("/")[2]))


@dataclass
class QueueOrder:
    """The order in which a cluster's queue will let jobs go, and what is known of a queue that doesn't see a job.

    Kueue's visibility API knows the order; where that can't be asked it is computed as Kueue would: by priority, then by age, which is
    known to the second, so that two of one second may be the other way round (spec §1.9). Either is asked at most every ten seconds.
    """

    cluster: Cluster
    profile: Profile
    clock: Callable[[], float] = time.monotonic
    _order: Order = field(default_factory=Order)
    _order_due: float = 0.0
    _silence: Line = NOT_ASKED
    _silence_due: float = 0.0

    def line(self, jobset: Json, workload: Json | None) -> Line:
        """What is known of the queue beside a job's own objects. That the cluster doesn't tell is no failure: nothing rests on it."""
        now = self.clock()
        if workload is None:
            if now >= self._silence_due:
                self._silence_due = now + SILENCE_SECONDS
                self._silence = self._look_into_silence(jobset)
            return self._silence
        if is_true(workload, "QuotaReserved"):
            return NOT_ASKED
        if now >= self._order_due:
            self._order_due = now + ORDER_SECONDS
            try:
                self._order = self.order()
            except (ApiError, RefusedError):
                self._order = Order()
        return self._order.line(workload)

    def order(self) -> Order:
        """Everything that waits in the ClusterQueue of the profile's queue.

        Raises:
            ApiError, RefusedError: the cluster doesn't answer, or doesn't tell.
        """
        namespace = self.profile.namespace
        queue = str(self.cluster.get(LOCAL_QUEUES.path(namespace, self.profile.queue))["spec"]["clusterQueue"])
        try:
            waiting = self.cluster.get(PENDING_WORKLOADS.path(name=queue, subresource="pendingworkloads"))["items"]
        except (ApiError, RefusedError):  # 404 where it isn't installed, 503 while Kueue is down, 403 without the right
            listed = self.cluster.list(WORKLOADS.path(namespace))["items"]
            ours = [each for each in listed if each["spec"].get("queueName") == self.profile.queue and _waits(each)]
            return Order(queue, tuple(_key(each) for each in sorted(ours, key=_rank)))
        return Order(queue, tuple(_key(each) for each in sorted(waiting, key=lambda each: int(each.get("positionInClusterQueue", 0)))))

    def _look_into_silence(self, jobset: Json) -> Line:
        """The causes for which Kueue makes no Workload, and says nothing (spec §1.9)."""
        namespace = self.profile.namespace
        priority = jobset["metadata"].get("labels", {}).get(PRIORITY_LABEL)
        return Line(
            namespace_selected=self._is_managed(namespace),
            queue_exists=self._exists(LOCAL_QUEUES.path(namespace, self.profile.queue)),
            priority_exists=None if priority is None else self._exists(PRIORITY_CLASSES.path(name=priority)),
        )

    def _exists(self, path: str) -> bool | None:
        """Whether an object is there; None if the cluster doesn't tell."""
        try:
            self.cluster.get(path)
        except NotFoundError:
            return False
        except (ApiError, RefusedError):
            return None
        return True

    def _is_managed(self, namespace: str) -> bool | None:
        try:
            labels = self.cluster.get(NAMESPACES.path(name=namespace))["metadata"].get("labels", {})
        except (ApiError, RefusedError):
            return None
        return str(labels.get(MANAGED_NAMESPACE_LABEL)) == "true"


def queue(cluster: Cluster, profile: Profile, pool: str | None = None) -> list[QueueEntry]:
    """What waits in the queue of a profile, after what has got through it.

    Args:
        pool: only jobs that run there, and those that wait for what it has.

    Raises:
        ConfigError: there is no such pool, or no queue.
        ApiError: the cluster doesn't answer.
    """
    if not profile.kueue:
        raise ConfigError(f"{profile.name} has no Kueue, so it has no queue", advice="`kubectl get pods` shows what waits there.")
    resource = None if pool is None else profile.pool(pool).resource or "cpu"
    jobsets = {each["metadata"]["uid"]: each for each in cluster.list(JOBSETS.path(profile.namespace))["items"]}
    order = QueueOrder(cluster, profile).order()
    found = []
    for workload in cluster.list(WORKLOADS.path(profile.namespace))["items"]:
        taken = _flavors(workload)
        fits = pool is None or pool in taken or (not taken and resource in asks(workload))
        if fits and not is_true(workload, "Finished"):
            owners = (owner["uid"] for owner in workload["metadata"].get("ownerReferences", ()))
            found.append(_entry(workload, next((jobsets[uid] for uid in owners if uid in jobsets), None), order.line(workload)))
    return sorted(found, key=lambda entry: (entry.position is None, entry.position, -entry.priority, entry.since, entry.name))


def asks(workload: Json) -> dict[str, str]:
    """Resource → what all its pods ask for together, as a person would write it."""
    totals: dict[str, Decimal] = {}
    for pods in workload["spec"].get("podSets", ()):
        for container in pods["template"]["spec"].get("containers", ()):
            for resource, amount in container.get("resources", {}).get("requests", {}).items():
                totals[resource] = totals.get(resource, Decimal(0)) + quantity(amount) * int(pods.get("count", 1))
    return {resource: _written(resource, amount) for resource, amount in totals.items()}


def _entry(workload: Json, jobset: Json | None, line: Line) -> QueueEntry:
    metadata, spec = workload["metadata"], workload["spec"]
    has_quota = is_true(workload, "QuotaReserved")
    reserved = condition(workload, "QuotaReserved")
    return QueueEntry(
        position=0 if has_quota else line.position,
        name=metadata["name"] if jobset is None else jobset["metadata"]["name"],
        address="" if jobset is None else jobset["metadata"].get("annotations", {}).get(ADDRESS_ANNOTATION, ""),
        namespace=metadata["namespace"],
        priority=int(spec.get("priority", 0)),
        asks=asks(workload),
        since=str(reserved["lastTransitionTime"] if has_quota and reserved is not None else metadata["creationTimestamp"]),
        why=_why(workload, line),
    )


def _why(workload: Json, line: Line) -> str:
    if workload["spec"].get("active") is False:
        return "it is paused"
    if is_true(workload, "Evicted") and is_true(workload, "QuotaReserved"):
        return "it was preempted, and its pods are saving"
    if is_true(workload, "Admitted"):
        pools = ", ".join(sorted(_flavors(workload)))
        return f"it runs on {pools}" if is_true(workload, "PodsReady") else f"it is starting on {pools}"
    return why_queued(workload, line).text


def _flavors(workload: Json) -> set[str]:
    """Pools in which a Workload has got its place."""
    assignments = workload.get("status", {}).get("admission", {}).get("podSetAssignments", ())
    return {flavor for each in assignments for flavor in each.get("flavors", {}).values()}


def _key(workload: Json) -> str:
    return f"{workload['metadata']['namespace']}/{workload['metadata']['name']}"


def _job(workload: str) -> str:
    """The job of a Workload, by its name `jobset-{job}-{5 hexadecimal digits}`; of another's, the name itself."""
    return workload.removeprefix("jobset-").rpartition("-")[0] if workload.startswith("jobset-") else workload


def _waits(workload: Json) -> bool:
    return workload["spec"].get("active", True) and not is_true(workload, "Finished") and not is_true(workload, "QuotaReserved")


def _rank(workload: Json) -> tuple[int, str]:
    return -int(workload["spec"].get("priority", 0)), workload["metadata"]["creationTimestamp"]


def _written(resource: str, amount: Decimal) -> str:
    """Memory in GiB, everything else as a number."""
    return f"{float(amount) / 2**30:.4g} GiB" if resource == "memory" else f"{float(amount):g}"
