"""Why a job doesn't run yet, in a sentence: from the words of Kueue, the scheduler and the kubelet. Pure.

Kueue joins what it has to say of every flavor in one message. What comes first here outweighs the rest (spec/kubernetes.md §1.9): that a
job for GB200 may not run on H100 is no news, while racks are taken.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from marin_assets.launch.kubernetes.objects import Json, condition, container_state, is_true


class Cause(StrEnum):
    """What has to change for a job to start."""

    QUOTA = "quota"
    NEVER = "never"
    TOPOLOGY = "topology"
    FLAVOR = "flavor"
    RESOURCE = "resource"
    QUEUE = "queue"
    LINE = "line"
    SILENCE = "silence"
    CHECKS = "checks"
    PLACE = "place"
    IMAGE = "image"
    CLAIM = "claim"
    NODES = "nodes"
    NOTHING = "nothing"


@dataclass(frozen=True)
class Why:
    """Why a job waits.

    Attributes:
        text: a sentence for people.
        said: the API's own words; "" where it says nothing.
    """

    cause: Cause
    text: str
    said: str = ""


@dataclass(frozen=True)
class Line:
    """What is known of the queue besides the job's own objects; None = not asked.

    Attributes:
        cluster_queue: name of the ClusterQueue.
        position: of the job in it, from 1.
        head: name of the job that is first.
        namespace_selected: whether the ClusterQueue takes jobs of the namespace, and Kueue looks into it at all.
        queue_exists: whether the LocalQueue does.
        priority_exists: whether the WorkloadPriorityClass does.
    """

    cluster_queue: str | None = None
    position: int | None = None
    head: str | None = None
    namespace_selected: bool | None = None
    queue_exists: bool | None = None
    priority_exists: bool | None = None


NOT_ASKED = Line()

_UNUSED = re.compile(r"insufficient unused quota for (?P<resource>\S+) in flavor (?P<flavor>[^,\s]+), (?P<more>\S+) more needed")
_NEVER = re.compile(r"insufficient quota for (?P<resource>\S+) in flavor (?P<flavor>[^,\s]+)(?:.*?maximum capacity \((?P<most>[^)]*)\))?")
_VICTIMS = re.compile(r"Pending the preemption of (?P<count>\d+) workload")
_SOME_FIT = re.compile(r'topology "(?P<topology>[^"]+)" allows to fit only (?P<fit>\d+) out of (?P<asked>\d+) (?P<unit>\w+)')
_NONE_FIT = re.compile(r'topology "(?P<topology>[^"]+)" doesn\'t allow to fit(?: any of (?P<asked>\d+) (?P<unit>\w+))?')
_LEVEL = re.compile(r'[Ff]lavor "(?P<flavor>[^"]+)" does not contain the requested level')
_AFFINITY = re.compile(r"flavor (?P<flavor>\S+) doesn't match node affinity")
_UNTOLERATED = re.compile(r"untolerated taint")
_RESOURCE = re.compile(r"resource (?P<resource>\S+) unavailable in ClusterQueue")
_QUEUE = re.compile(r"(?P<kind>LocalQueue|ClusterQueue) (?P<name>\S+) (?P<what>doesn't exist|is inactive|not found)")


def why_queued(workload: Json | None, line: Line = NOT_ASKED) -> Why:
    """Why Kueue hasn't admitted a job."""
    if workload is None:
        return _silence(line)
    found = condition(workload, "QuotaReserved")
    said = "" if found is None or found["status"] == "True" else str(found.get("message", ""))
    if is_true(workload, "QuotaReserved"):
        return Why(Cause.CHECKS, "it has its quota and waits for the queue's admission checks", said)
    return _of_quota(said) or _of_topology(said) or _of_flavors(said) or _of_queue(said) or _of_line(said, line)


def why_not_running(pods: Sequence[Json]) -> Why:
    """Why the pods of a job that may run aren't ready."""
    for pod in pods:
        waiting = container_state(pod, "waiting")
        if (reason := str(waiting.get("reason", ""))) and reason not in ("ContainerCreating", "PodInitializing"):
            said = str(waiting.get("message", ""))
            return Why(Cause.IMAGE, f"pod {_name(pod)}: {reason}" + (f": {said}" if said else ""), said)
    unscheduled = [pod for pod in pods if (found := condition(pod, "PodScheduled")) is not None and found["status"] == "False"]
    gated = [pod for pod in unscheduled if (condition(pod, "PodScheduled") or {}).get("reason") == "SchedulingGated"]
    for pod in unscheduled:
        if pod not in gated:
            return _unscheduled(pod, len(unscheduled), len(pods))
    if gated:
        gates = ", ".join(gate["name"] for gate in gated[0]["spec"].get("schedulingGates") or ())
        return Why(Cause.PLACE, f"{len(gated)} of {len(pods)} pods wait to be told their node (gate {gates})")
    if pods:
        return Why(Cause.NOTHING, f"{len(pods)} pods are starting")
    return Why(Cause.NOTHING, "its pods are being made")


def _unscheduled(pod: Json, count: int, of: int) -> Why:
    said = str((condition(pod, "PodScheduled") or {}).get("message", ""))
    told = said.lower().replace("no new claims to deallocate", "")  # which the scheduler of 1.36 says of every pod
    claim = "resourceclaim" in told or "claims" in told
    what = "no node can give it its ResourceClaim" if claim else "no node has room"
    return Why(Cause.CLAIM if claim else Cause.NODES, f"{count} of {of} pods are on no node: {what}: {said}", said)


def _silence(line: Line) -> Why:
    """Kueue says nothing of a JobSet that it doesn't see, or that names what isn't there: there is no Workload, and no event but one."""
    missing = [
        text
        for is_there, text in (
            (line.namespace_selected, "Kueue doesn't take jobs of this namespace"),
            (line.queue_exists, "there is no such LocalQueue"),
            (line.priority_exists, "there is no such WorkloadPriorityClass"),
        )
        if is_there is False
    ]
    if missing:
        return Why(Cause.SILENCE, f"Kueue doesn't see it: {'; '.join(missing)}")
    return Why(
        Cause.SILENCE,
        "Kueue doesn't see it: its manager may be down, the namespace not selected, "
        "the LocalQueue missing, or the WorkloadPriorityClass unknown",
    )


def _of_quota(said: str) -> Why | None:
    if found := _foremost(_UNUSED, said):
        text = f"waits for {found['more']} more {found['resource']} in {found['flavor']}"
        if victims := _VICTIMS.search(said):
            count = int(victims["count"])
            text += f"; {count} job{'s are' if count > 1 else ' is'} being preempted for it and may save first"
        return Why(Cause.QUOTA, text, said)
    if found := _foremost(_NEVER, said):
        most = f", whose most is {found['most']}" if found["most"] else ""
        return Why(Cause.NEVER, f"will never start: it asks for more {found['resource']} than {found['flavor']} can give{most}", said)
    return None


def _foremost(lack: re.Pattern[str], said: str) -> re.Match[str] | None:
    """What Kueue finds lacking: devices (`nvidia.com/gpu`) before cores, which it may name first and which nobody waits for alone."""
    return min(lack.finditer(said), key=lambda found: "/" not in found["resource"], default=None)


def _of_topology(said: str) -> Why | None:
    if found := _SOME_FIT.search(said):
        return Why(
            Cause.TOPOLOGY, f"only {found['fit']} of its {found['asked']} {found['unit']}s fit together on {found['topology']} now", said
        )
    if found := _NONE_FIT.search(said):
        asked = f"none of its {found['asked']} {found['unit']}s fits" if found["asked"] else "it doesn't fit"
        return Why(Cause.TOPOLOGY, f"{asked} on {found['topology']} now", said)
    if found := _LEVEL.search(said):
        return Why(Cause.TOPOLOGY, f"the topology of {found['flavor']} has no level of the kind that it asks for", said)
    return None


def _of_flavors(said: str) -> Why | None:
    if found := _AFFINITY.search(said):
        return Why(Cause.FLAVOR, f"its node selector excludes {found['flavor']}, and no other flavor would do", said)
    if _UNTOLERATED.search(said):
        return Why(Cause.FLAVOR, f"it doesn't tolerate a taint: {said}", said)
    if found := _RESOURCE.search(said):
        return Why(Cause.RESOURCE, f"will never start: no flavor of its queue has {found['resource']}", said)
    return None


def _of_queue(said: str) -> Why | None:
    if found := _QUEUE.search(said):
        what = "is stopped" if found["what"] == "is inactive" else "doesn't exist"
        return Why(Cause.QUEUE, f"{found['kind']} {found['name']} {what}", said)
    return None


def _of_line(said: str, line: Line) -> Why:
    """Under StrictFIFO only the head hears why; for the others it is that they aren't the head."""
    queue = f" of {line.cluster_queue}" if line.cluster_queue else ""
    if line.position is not None and line.position > 1:
        head = f", behind {line.head}" if line.head else ""
        return Why(Cause.LINE, f"number {line.position} in the queue{queue}{head}", said)
    if line.position == 1:
        return Why(Cause.LINE, f"first in the queue{queue}" + (f": {said}" if said else ""), said)
    return Why(Cause.LINE, said or f"waits in the queue{queue}", said)


def _name(pod: Json) -> str:
    return str(pod["metadata"]["name"])
