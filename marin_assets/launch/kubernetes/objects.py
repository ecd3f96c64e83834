"""Reading what the API server says of a job's objects. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from marin_assets.launch.kubernetes.manifest import CONTAINER
from marin_assets.launch.kubernetes.names import JOB_INDEX, POD_INDEX, RESTART, process_of

type Json = Mapping[str, Any]


def condition(thing: Json | None, kind: str) -> Json | None:
    """A condition of an object by its type."""
    conditions = () if thing is None else thing.get("status", {}).get("conditions") or ()
    return next((each for each in conditions if each["type"] == kind), None)


def is_true(thing: Json | None, kind: str) -> bool:
    """Whether an object has a condition that holds; one that is missing doesn't."""
    found = condition(thing, kind)
    return found is not None and found["status"] == "True"


def moment(text: str | None) -> float | None:
    """A time as the API server writes it, in seconds since 1970."""
    return None if text is None else datetime.fromisoformat(text).timestamp()


def changed_at(found: Json | None) -> float | None:
    """Since when a condition has had its status, in seconds since 1970."""
    return None if found is None else moment(found.get("lastTransitionTime"))


def shape(jobset: Json) -> tuple[int, int]:
    """Jobs of a JobSet, and pods of each."""
    replicated = jobset["spec"]["replicatedJobs"][0]
    return int(replicated.get("replicas", 1)), int(replicated["template"]["spec"].get("parallelism", 1))


def process(pod: Json, pods_per_job: int) -> int:
    """Which process of the gang a pod runs."""
    labels = pod["metadata"].get("labels", {})
    return process_of(int(labels.get(JOB_INDEX, 0)), int(labels.get(POD_INDEX, 0)), pods_per_job)


def newest(pods: Iterable[Json], pods_per_job: int) -> dict[int, Json]:
    """The newest pod of each process."""
    found: dict[int, Json] = {}
    for pod in sorted(pods, key=lambda pod: (_restart(pod), str(pod["metadata"].get("creationTimestamp", "")))):
        found[process(pod, pods_per_job)] = pod
    return dict(sorted(found.items()))


def ready(pods: Sequence[Json], restarts: int) -> int:
    """Pods of the JobSet's present round that are ready, or have done their part."""
    return sum(_restart(pod) >= restarts and (is_true(pod, "Ready") or pod["status"].get("phase") == "Succeeded") for pod in pods)


def evictions(workload: Json | None) -> int:
    """How often Kueue has taken a Workload's place away."""
    told = (workload or {}).get("status", {}).get("schedulingStats", {}).get("evictions") or ()
    return sum(int(each.get("count", 0)) for each in told)


def container_state(pod: Json, state: str) -> Json:
    """The container's state by its name, `waiting` or `terminated`; empty where it is in another."""
    for status in pod["status"].get("containerStatuses") or ():
        if status["name"] == CONTAINER:
            found: Json = status.get("state", {}).get(state) or {}
            return found
    return {}


def is_leaving(pod: Json) -> bool:
    """Whether a pod is being deleted, or the cluster wants it gone: drained, preempted by the scheduler, on a lost node."""
    return "deletionTimestamp" in pod["metadata"] or is_true(pod, "DisruptionTarget")


def _restart(pod: Json) -> int:
    return int(pod["metadata"].get("labels", {}).get(RESTART, 0))
