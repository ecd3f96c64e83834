"""Objects as the real controllers leave them, in few words: what spec/kubernetes.md §3 saw, for tests that need no cluster."""

from datetime import UTC, datetime
from typing import Any

from marin_core.artifact.job_folder import Outcome

NAME = "m-train-k3v7q2xw7a-a1"
NOON = datetime(2026, 11, 30, 12, tzinfo=UTC).timestamp()

Json = dict[str, Any]


def at(seconds: float) -> str:
    """A time so many seconds after noon, as the API server writes it."""
    return datetime.fromtimestamp(NOON + seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def conditions(*words: str) -> list[Json]:
    """`QuotaReserved=False/Pending: the message`, each since so many seconds after noon as its place in the list says."""
    found = []
    for seconds, text in enumerate(words):
        head, _, message = text.partition(": ")
        kind, _, rest = head.partition("=")
        status, _, reason = rest.partition("/")
        found.append({"type": kind, "status": status, "reason": reason, "message": message, "lastTransitionTime": at(seconds)})
    return found


def jobset(*words: str, jobs: int = 2, pods: int = 2, suspend: bool = False, deleted: bool = False, **status: Any) -> Json:
    """A JobSet of `jobs` racks with `pods` each, made at noon; `status` as terminalState, restarts, restartsCountTowardsMax."""
    limits = {"resources": {"limits": {"memory": "800Gi"}}}
    template = {"spec": {"parallelism": pods, "template": {"spec": {"containers": [limits]}}}}
    return {
        "metadata": {"name": NAME, "creationTimestamp": at(0), **({"deletionTimestamp": at(60)} if deleted else {})},
        "spec": {"suspend": suspend, "replicatedJobs": [{"name": "rack", "replicas": jobs, "template": template}]},
        "status": {"conditions": conditions(*words), **status},
    }


def workload(*words: str, active: bool = True) -> Json:
    return {
        "metadata": {"name": f"jobset-{NAME}-1a2b3", "creationTimestamp": at(0)},
        "spec": {"active": active},
        "status": {"conditions": conditions(*words)},
    }


def pod(process: int, *words: str, restart: int = 0, pods_per_job: int = 2, leaving: bool = False, gate: str = "", **status: Any) -> Json:
    """The pod of a process; `waiting`, `terminated` are its container's state, anything else stands in its status."""
    job, index = divmod(process, pods_per_job)
    state = {name: status.pop(name) for name in ("waiting", "terminated") if name in status}
    return {
        "metadata": {
            "name": f"{NAME}-rack-{job}-{index}-x{restart}",
            "creationTimestamp": at(restart),
            "labels": {
                "jobset.sigs.k8s.io/job-global-index": str(job),
                "batch.kubernetes.io/job-completion-index": str(index),
                "jobset.sigs.k8s.io/restart-attempt": str(restart),
            },
            **({"deletionTimestamp": at(50)} if leaving else {}),
        },
        "spec": {"nodeName": f"node-{process}", **({"schedulingGates": [{"name": gate}]} if gate else {})},
        "status": {
            "phase": "Running",
            "conditions": conditions(*words),
            "containerStatuses": [{"name": "job", "state": state}],
            **status,
        },
    }


def exited(process: int, code: int, *words: str, reason: str = "Error", message: str = "", **values: Any) -> Json:
    return pod(process, *words, phase="Failed", terminated={"exitCode": code, "reason": reason, "message": message}, **values)


def job(*words: str) -> Json:
    return {"metadata": {"name": f"{NAME}-rack-0"}, "status": {"conditions": conditions(*words)}}


def outcome(process: int, code: int, message: str | None = "it says why", *, restart: int = 0, peer_lost: bool = False) -> Outcome:
    return Outcome(
        generation=f"{10**19 + restart * 1000 + process:020d}",
        process=process,
        exit_code=code,
        message=message,
        peer_lost=peer_lost,
        restart=restart,
        pod=f"{NAME}-rack-{process // 2}-{process % 2}-x{restart}",
        node=f"node-{process}",
        ended_at=datetime(2026, 11, 30, 12, tzinfo=UTC),
    )


READY = tuple(pod(process, "Ready=True") for process in range(4))
ADMITTED = ("QuotaReserved=True/QuotaReserved", "Admitted=True/Admitted")
WAITS = (
    "QuotaReserved=False/Pending: couldn't assign flavors to pod set rack: "
    "insufficient unused quota for nvidia.com/gpu in flavor gb200, 48 more needed"
)
