"""Why a job failed, by what is left of all its processes: their own last words, their pods, and what the cluster says of its jobs. Pure.

The cluster acts on the first job that fails, and a bug in one process makes others fail for want of it, often sooner (spec/kubernetes.md
§1.5). So the launcher judges by all of them, with the rule that a gang on one machine is judged by.
"""

import json
import re
import signal
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from marin_assets.launch.kubernetes.manifest import CONTAINER
from marin_assets.launch.kubernetes.objects import Json, condition, container_state, is_leaving, is_true, moment, newest, shape
from marin_core.artifact.ending import Ending, endings_of_pods, verdict
from marin_core.artifact.job_folder import Outcome
from marin_core.artifact.record import FailureClass, failure_class
from marin_core.errors import ExitCode

KILLED = 128 + signal.SIGKILL
"""Exit code of a process that was killed, most often for its memory."""

IMAGE_SECONDS = 600.0
"""How long an image may not be found before its name is held for wrong: it may still be on its way to the registry."""

_WANT = "it was killed for want of memory"
_WRONG_CONTAINER = ("InvalidImageName", "CreateContainerConfigError")
_NOT_FOUND = re.compile(r"not ?found|manifest unknown", re.IGNORECASE)
_EXIT_CODE = re.compile(rf"Container {CONTAINER} for pod \S+/(?P<pod>\S+) failed with exit code (?P<code>\d+)")
_DISRUPTED = re.compile(r"Pod \S+/(?P<pod>\S+) has condition DisruptionTarget")


@dataclass(frozen=True)
class Failure:
    """Why a job failed.

    Attributes:
        failure: its class; being out of memory is a bug, since trying again doesn't help.
        exit_code: of the process that was the cause.
        reason: one sentence.
        process: which was the cause; None = it isn't known.
    """

    failure: FailureClass
    exit_code: int
    reason: str
    process: int | None = None


def why_failed(jobset: Json, jobs: Sequence[Json], pods: Sequence[Json], outcomes: Sequence[Outcome]) -> Failure:
    """The class of a failed JobSet, by the gravest of its causes."""
    replicas, pods_per_job = shape(jobset)
    total = replicas * pods_per_job
    endings = _endings(newest(pods, pods_per_job), outcomes) or list(_from_jobs(jobs, pods_per_job))
    failed = [ending for ending in endings if ending.code]
    if not failed:
        return _without_evidence(jobset)
    code, reason = verdict(failed, total)
    cause = next(ending for ending in failed if ending.line(total) == reason)
    if cause.code == KILLED and code == ExitCode.BUG:
        limit = f"; it may use {_memory_limit(jobset)}" if cause.message == _WANT else ""  # its own word has the limit, and the peak
        return Failure("bug", KILLED, f"{reason}{limit}", cause.process)
    return Failure(failure_class(int(code)), int(code), str(reason), cause.process)


def why_restarted(jobset: Json, outcomes: Sequence[Outcome]) -> Failure | None:
    """Why the newest round of pods that has ended did; None if it left no word of a failure.

    What the cluster has restarted may be past help, since it acts on the first job that fails.
    """
    return why_failed(jobset, (), (), outcomes) if any(ending.code for ending in endings_of_pods(outcomes)) else None


def why_never(pods: Sequence[Json], now: float) -> Failure | None:
    """Why pods that wait will wait for ever: what they are told to run is wrong. The cluster itself goes on trying.

    Args:
        now: seconds since 1970.
    """
    for pod in pods:
        waiting = container_state(pod, "waiting")
        reason, said = str(waiting.get("reason", "")), str(waiting.get("message", ""))
        started = moment(pod["status"].get("startTime"))
        missing = reason in ("ErrImagePull", "ImagePullBackOff") and _NOT_FOUND.search(said) is not None
        late = started is not None and now - started > IMAGE_SECONDS
        if reason in _WRONG_CONTAINER or (missing and late):
            return Failure("config", int(ExitCode.BAD_CONFIG), f"pod {pod['metadata']['name']}: {reason}: {said}")
    return None


def _endings(pods: dict[int, Json], outcomes: Sequence[Outcome]) -> list[Ending]:
    """How each process ended: by its own words, unless its pod is a newer one than they are of."""
    said = {ending.process: ending for ending in endings_of_pods(outcomes)}
    speakers = {outcome.process: outcome.pod for outcome in sorted(outcomes, key=lambda outcome: outcome.generation)}
    found = {}
    for process in sorted({*said, *pods}):
        pod, own = pods.get(process), said.get(process)
        if pod is not None and own is not None and speakers[process] not in ("", pod["metadata"]["name"]):
            own = None
        ending = _of_pod(process, pod, own) if pod is not None else own
        if ending is not None:
            found[process] = ending
    return list(found.values())


def _of_pod(process: int, pod: Json, own: Ending | None) -> Ending | None:
    """How a process ended by its pod's status and, if it left any, its own words; None if it hasn't, as far as anyone knows."""
    ended = container_state(pod, "terminated")
    own = own or _termination_message(process, ended)
    code = own.code if own is not None else ended.get("exitCode")
    if code in (None, KILLED, 128 + signal.SIGTERM) and is_true(pod, "DisruptionTarget"):
        return _by_cluster(process, pod)
    if ended.get("reason") == "OOMKilled" or (code == KILLED and not is_leaving(pod)):
        said = own.message if own is not None and own.message is not None and "memory" in own.message else _WANT
        return Ending(process, KILLED, said, peer_lost=False, look=1)
    if code == KILLED:
        return Ending(process, -signal.SIGKILL, None, peer_lost=False, look=2, put_down=True)  # after what it was put down for
    if own is not None or code is None:
        return own
    return Ending(process, int(code), None, peer_lost=False, look=1)


def _termination_message(process: int, ended: Json) -> Ending | None:
    """A process's own words by way of the cluster, where the store didn't take them; the log's end is none (`FallbackToLogsOnError`)."""
    try:
        told = json.loads(ended.get("message", ""))
        code, message = int(told["exit_code"]), told.get("message")
    except (ValueError, TypeError, KeyError):
        return None
    if code != ended.get("exitCode"):  # a program's own output
        return None
    return Ending(process, code, None if message is None else str(message), peer_lost=told.get("peer_lost") is True, look=1)


def _by_cluster(process: int, pod: Json) -> Ending:
    disrupted = condition(pod, "DisruptionTarget") or {}
    node = pod["spec"].get("nodeName", "its node")
    why = ": ".join(str(disrupted[part]) for part in ("reason", "message") if disrupted.get(part)) or "DisruptionTarget"
    return Ending(process, -signal.SIGKILL, f"the cluster took its pod from {node}: {why}", peer_lost=False, look=1)


def _from_jobs(jobs: Sequence[Json], pods_per_job: int) -> Iterator[Ending]:
    """What the cluster says of failed jobs, whose pods are gone and left no word."""
    for job in jobs:
        failed = condition(job, "Failed")
        if failed is None or failed["status"] != "True":
            continue
        said = str(failed.get("message", ""))
        if found := _EXIT_CODE.search(said):
            yield Ending(_process(found["pod"], pods_per_job), int(found["code"]), None, peer_lost=False, look=1)
        elif found := _DISRUPTED.search(said):
            yield Ending(_process(found["pod"], pods_per_job), -signal.SIGKILL, said, peer_lost=False, look=1)


def _process(pod: str, pods_per_job: int) -> int:
    """Process of a pod by its name, `{jobset}-{replicated job}-{job}-{pod}-{5 random ones}`; in one ReplicatedJob jobs count from 0."""
    job, index = pod.rsplit("-", 3)[1:3]
    return int(job) * pods_per_job + int(index)


def _without_evidence(jobset: Json) -> Failure:
    failed = condition(jobset, "Failed") or {}
    said = str(failed.get("message", "")) or "the cluster says nothing about it"
    if failed.get("reason") == "FailJobSetFailurePolicyAction":  # of codes 64 and 65 alone, see the manifest
        return Failure("config", int(ExitCode.BAD_CONFIG), f"a process ended with code 64 or 65 and left no word: {said}")
    return Failure("bug", int(ExitCode.BUG), f"no process left a word: {said}")


def _memory_limit(jobset: Json) -> str:
    pod = jobset["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]
    limit = pod["containers"][0].get("resources", {}).get("limits", {}).get("memory")
    return f"at most {limit}" if limit else "what its node has"
