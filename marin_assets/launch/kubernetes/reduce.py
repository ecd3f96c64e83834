"""Where a job stands, by all that the cluster and the store say of it: one function, first match wins (spec/kubernetes.md §1.4). Pure.

The same facts give the same answer, however they were come by: by a list, by a watch, or by a launcher that knows nothing of the one
before it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from marin_assets.launch.kubernetes.evidence import why_failed, why_never, why_restarted
from marin_assets.launch.kubernetes.objects import Json, changed_at, condition, is_true, moment, ready, shape
from marin_assets.launch.kubernetes.pending import NOT_ASKED, Line, why_not_running, why_queued
from marin_core.artifact.job_folder import Outcome
from marin_core.artifact.record import FailureClass
from marin_core.errors import ExitCode

UNSEEN_SECONDS = 30.0
"""How long Kueue may take to notice a JobSet."""


class Phase(StrEnum):
    """Where a job stands. SUCCEEDED, VANISHED and FAILED are final; STOPPING ends in VANISHED."""

    SUCCEEDED = "succeeded"
    VANISHED = "vanished"
    STOPPING = "stopping"
    FAILED = "failed"
    STUCK = "stuck"
    PAUSED = "paused"
    PREEMPTED = "preempted"
    QUEUED = "queued"
    STARTING = "starting"
    RESTARTING = "restarting"
    RUNNING = "running"

    @property
    def final(self) -> bool:
        return self in (Phase.SUCCEEDED, Phase.VANISHED, Phase.FAILED)


@dataclass(frozen=True)
class Facts:
    """All that is known of a job at one time. Times are in seconds since 1970.

    Attributes:
        jobset: None = there is none, as two reads a second apart agree.
        workload: Kueue's, which the JobSet owns.
        jobs, pods: of the JobSet.
        outcomes: from the job's folder.
        committed: whether the artifact has its record.
        kueue: whether the cluster has it.
        line: what else is known of the queue.
    """

    now: float
    jobset: Json | None
    workload: Json | None = None
    jobs: Sequence[Json] = ()
    pods: Sequence[Json] = ()
    outcomes: Sequence[Outcome] = ()
    committed: bool = False
    kueue: bool = True
    line: Line = NOT_ASKED


@dataclass(frozen=True)
class Reduced:
    """Where a job stands.

    Attributes:
        reason: one sentence: why it waits, or why it ended; "" where there is nothing to say.
        failure, exit_code, process: why it failed, and which process was the cause; of a job that isn't over, why it was restarted.
        pods_ready, pods_total: of its gang.
        application_restarts: those that count towards `maxRestarts`.
        infrastructure_restarts: the others. Kueue's preemptions are neither.
        since: when it came into this phase, as far as the cluster says, in seconds since 1970.
    """

    phase: Phase
    reason: str = ""
    failure: FailureClass | None = None
    exit_code: int | None = None
    process: int | None = None
    pods_ready: int = 0
    pods_total: int = 0
    application_restarts: int = 0
    infrastructure_restarts: int = 0
    since: float | None = None


def reduce(facts: Facts) -> Reduced:
    """Where a job stands."""
    if facts.jobset is None:
        if facts.committed:
            return Reduced(Phase.SUCCEEDED)
        return Reduced(Phase.VANISHED, "its JobSet is gone from the cluster", failure="infrastructure", exit_code=int(ExitCode.TRY_AGAIN))
    replicas, pods_per_job = shape(facts.jobset)
    status = facts.jobset.get("status", {})
    restarts, counted = int(status.get("restarts", 0)), int(status.get("restartsCountTowardsMax", 0))  # each absent when 0
    found = Reduced(Phase.SUCCEEDED) if facts.committed else _ended(facts, facts.jobset) or _waiting(facts, facts.jobset)
    return replace(
        found or _after_restart(facts, facts.jobset, restarts, _with_pods(facts, facts.jobset, restarts)),
        pods_ready=ready(facts.pods, restarts),
        pods_total=replicas * pods_per_job,
        application_restarts=counted,
        infrastructure_restarts=restarts - counted,
    )


def _ended(facts: Facts, jobset: Json) -> Reduced | None:
    if deleted := jobset["metadata"].get("deletionTimestamp"):
        return Reduced(Phase.STOPPING, _still_there(facts.pods), since=moment(deleted))
    terminal = jobset.get("status", {}).get("terminalState")
    if terminal == "Completed":
        return Reduced(
            Phase.FAILED,
            "all its processes ended well and there is no record, which is a bug in the job",
            failure="bug",
            exit_code=int(ExitCode.BUG),
            since=changed_at(condition(jobset, "Completed")),
        )
    failed = why_failed(jobset, facts.jobs, facts.pods, facts.outcomes) if terminal == "Failed" else why_never(facts.pods, facts.now)
    if failed is None:
        return None
    return Reduced(
        Phase.FAILED,
        failed.reason,
        failure=failed.failure,
        exit_code=failed.exit_code,
        process=failed.process,
        since=changed_at(condition(jobset, "Failed")),
    )


def _still_there(pods: Sequence[Json]) -> str:
    """A deletion waits for pods, those of dead nodes too: whom to look at (spec §1.7)."""
    if not pods:
        return "it is being deleted"
    pod = min(pods, key=lambda pod: str(pod["metadata"].get("deletionTimestamp", "~")))
    more = f" and {len(pods) - 1} more" if len(pods) > 1 else ""
    return f"it is being deleted; pod {pod['metadata']['name']} on {pod['spec'].get('nodeName', 'no node')}{more} must end first"


def _waiting(facts: Facts, jobset: Json) -> Reduced | None:
    """What Kueue says of a job that it hasn't let run; None if it has, or there is no Kueue."""
    if not facts.kueue:
        return None
    workload = facts.workload
    suspended = bool(jobset["spec"].get("suspend", False))
    if workload is None:
        return _unseen(facts, jobset) if suspended else None
    if workload["spec"].get("active") is False:
        return Reduced(Phase.PAUSED, "it is paused", since=changed_at(condition(workload, "Evicted")))
    reserved = is_true(workload, "QuotaReserved")
    evicted = condition(workload, "Evicted")
    if is_true(workload, "Evicted") and reserved:
        return Reduced(Phase.PREEMPTED, _why_evicted(workload), since=changed_at(evicted))
    if not reserved or not is_true(workload, "Admitted"):
        again = "again: " if is_true(workload, "Requeued") or is_true(workload, "Evicted") else ""
        since = changed_at(condition(workload, "QuotaReserved")) or moment(workload["metadata"].get("creationTimestamp"))
        return Reduced(Phase.QUEUED, again + why_queued(workload, facts.line).text, since=since)
    if suspended:
        return Reduced(Phase.STARTING, "it is admitted and about to start", since=changed_at(condition(workload, "Admitted")))
    return None


def _unseen(facts: Facts, jobset: Json) -> Reduced:
    made = moment(jobset["metadata"].get("creationTimestamp"))
    if made is not None and facts.now - made > UNSEEN_SECONDS:
        return Reduced(Phase.STUCK, why_queued(None, facts.line).text, since=made)
    return Reduced(Phase.QUEUED, "it was submitted, and Kueue hasn't noticed it yet", since=made)


def _why_evicted(workload: Json) -> str:
    """Who took the job's place. Conditions that are over stay, so only one that holds is asked."""
    preempted = condition(workload, "Preempted")
    evicted = condition(workload, "Evicted") or {}
    found = preempted if preempted is not None and preempted["status"] == "True" else evicted
    said = f": {found['message']}" if found.get("message") else ""
    return f"its pods are saving, after {found.get('reason', 'Evicted')}{said}"


def _with_pods(facts: Facts, jobset: Json, restarts: int) -> Reduced:
    """A job that may run: how far its pods are."""
    workload = facts.workload
    replicas, pods_per_job = shape(jobset)
    all_ready = ready(facts.pods, restarts) >= replicas * pods_per_job
    told = condition(workload, "PodsReady") if facts.kueue and is_true(workload, "Admitted") else None
    since = changed_at(told) or moment(jobset["metadata"].get("creationTimestamp"))
    if told is None:
        if all_ready:
            return Reduced(Phase.RUNNING, since=since)
        unplaced = facts.pods and all((condition(pod, "PodScheduled") or {}).get("reason") == "Unschedulable" for pod in facts.pods)
        phase = Phase.QUEUED if unplaced else Phase.RESTARTING if restarts else Phase.STARTING
    elif told["status"] == "True":
        if all_ready or not restarts or not facts.pods:
            return Reduced(Phase.RUNNING, since=since)
        phase = Phase.RESTARTING
    else:
        phase = Phase.STARTING if told.get("reason") == "WaitForStart" else Phase.RESTARTING
    return Reduced(phase, why_not_running(facts.pods).text, since=since)


def _after_restart(facts: Facts, jobset: Json, restarts: int, found: Reduced) -> Reduced:
    """A job that may run, with why it was restarted, if it was."""
    last = why_restarted(jobset, facts.outcomes) if restarts or found.phase == Phase.RESTARTING else None
    if last is None:
        return found
    reason = f"after {last.reason}: {found.reason}" if found.phase == Phase.RESTARTING else found.reason
    return replace(found, reason=reason, failure=last.failure, exit_code=last.exit_code, process=last.process)
