"""Every line of spec/kubernetes.md §1.9: what Kueue 0.19.2, the scheduler and the kubelet say verbatim, and what people are told."""

import pytest

from marin_assets.launch.kubernetes.pending import Cause, Line, why_not_running, why_queued
from tests.launch.kubernetes.streams import ADMITTED, WAITS, Json, pod, workload

ASSIGN = "couldn't assign flavors to pod set rack: "
H100_TOO = "flavor h100 doesn't match node affinity, "
"""Kueue sorts what it has to say of each flavor, so a job for GB200 is told first that it isn't one for H100."""


def waiting(message: str, reason: str = "Pending") -> Json:
    return workload(f"QuotaReserved=False/{reason}: {message}")


@pytest.mark.parametrize(
    ("message", "cause", "text"),
    [
        (
            ASSIGN + "insufficient unused quota for nvidia.com/gpu in flavor gb200, 48 more needed",
            Cause.QUOTA,
            "waits for 48 more nvidia.com/gpu in gb200",
        ),
        (
            ASSIGN
            + "insufficient unused quota for nvidia.com/gpu in flavor gb200, 48 more needed. Pending the preemption of 1 workload(s)",
            Cause.QUOTA,
            "waits for 48 more nvidia.com/gpu in gb200; 1 job is being preempted for it and may save first",
        ),
        (
            ASSIGN + H100_TOO + "insufficient unused quota for nvidia.com/gpu in flavor gb200, 4 more needed. "
            "Pending the preemption of 2 workload(s)",
            Cause.QUOTA,
            "waits for 4 more nvidia.com/gpu in gb200; 2 jobs are being preempted for it and may save first",
        ),
        (
            ASSIGN + "insufficient unused quota for cpu in flavor gb200, 2048 more needed, "
            "insufficient unused quota for nvidia.com/gpu in flavor gb200, 48 more needed",
            Cause.QUOTA,
            "waits for 48 more nvidia.com/gpu in gb200",
        ),
        (
            ASSIGN + "insufficient quota for nvidia.com/gpu in flavor gb200, previously considered podsets requests (0) + "
            "current podset request (800) > maximum capacity (704)",
            Cause.NEVER,
            "will never start: it asks for more nvidia.com/gpu than gb200 can give, whose most is 704",
        ),
        (
            ASSIGN + 'topology "nvl72" allows to fit only 18 out of 19 pod(s)',
            Cause.TOPOLOGY,
            "only 18 of its 19 pods fit together on nvl72 now",
        ),
        (
            ASSIGN + 'topology "nvl72" doesn\'t allow to fit any of 2 slice(s). Total nodes: 36; excluded: taint "x": 36',
            Cause.TOPOLOGY,
            "none of its 2 slices fits on nvl72 now",
        ),
        (
            ASSIGN + 'Flavor "h100" does not contain the requested level',
            Cause.TOPOLOGY,
            "the topology of h100 has no level of the kind that it asks for",
        ),
        (
            ASSIGN + "flavor h100 doesn't match node affinity",
            Cause.FLAVOR,
            "its node selector excludes h100, and no other flavor would do",
        ),
        (
            ASSIGN + "resource amd.com/gpu unavailable in ClusterQueue",
            Cause.RESOURCE,
            "will never start: no flavor of its queue has amd.com/gpu",
        ),
        ("LocalQueue nope doesn't exist", Cause.QUEUE, "LocalQueue nope doesn't exist"),
        ("ClusterQueue cq-a is inactive", Cause.QUEUE, "ClusterQueue cq-a is stopped"),
        ("something that Kueue says tomorrow", Cause.LINE, "something that Kueue says tomorrow"),
    ],
)
def test_what_kueue_says_is_said_in_plain_words_and_kept(message: str, cause: Cause, text: str) -> None:
    found = why_queued(waiting(message))
    assert (found.cause, found.text, found.said) == (cause, text, message)


def test_quota_that_may_come_free_outweighs_a_flavor_that_is_too_small() -> None:
    """Two flavors would do: one is full, the other could never hold the job."""
    found = why_queued(
        waiting(
            ASSIGN + "insufficient quota for nvidia.com/gpu in flavor h100, previously considered podsets requests (0) + current podset "
            "request (128) > maximum capacity (32), insufficient unused quota for nvidia.com/gpu in flavor gb200, 48 more needed"
        )
    )
    assert found.text == "waits for 48 more nvidia.com/gpu in gb200"


@pytest.mark.parametrize(
    ("line", "text"),
    [
        (Line(cluster_queue="cq-a", position=3, head="m-big-k3v7q2xw7a-a1"), "number 3 in the queue of cq-a, behind m-big-k3v7q2xw7a-a1"),
        (Line(position=2), "number 2 in the queue"),
        (Line(cluster_queue="cq-a", position=1), "first in the queue of cq-a"),
        (Line(), "waits in the queue"),
    ],
)
def test_a_job_that_is_not_at_the_head_has_no_condition_and_hears_its_place(line: Line, text: str) -> None:
    """Under StrictFIFO the real Kueue writes no QuotaReserved condition at all (spec §1.4)."""
    found = why_queued(workload(), line)
    assert (found.cause, found.text) == (Cause.LINE, text)


@pytest.mark.parametrize(
    ("line", "text"),
    [
        (Line(namespace_selected=False), "Kueue doesn't take jobs of this namespace"),
        (Line(queue_exists=False, priority_exists=True), "there is no such LocalQueue"),
        (Line(priority_exists=False), "there is no such WorkloadPriorityClass"),
    ],
)
def test_where_kueue_is_silent_what_was_checked_says_why(line: Line, text: str) -> None:
    found = why_queued(None, line)
    assert (found.cause, found.text) == (Cause.SILENCE, f"Kueue doesn't see it: {text}")


def test_where_nothing_was_checked_all_that_is_silent_is_named() -> None:
    text = why_queued(None).text
    assert all(word in text for word in ("manager", "namespace", "LocalQueue", "WorkloadPriorityClass"))


def test_quota_without_admission_waits_for_checks() -> None:
    assert why_queued(workload("QuotaReserved=True/QuotaReserved: fine")).cause == Cause.CHECKS
    assert why_queued(workload(*ADMITTED)).cause == Cause.CHECKS


def test_a_message_of_a_condition_that_holds_is_no_reason_to_wait() -> None:
    assert why_queued(workload(WAITS.replace("False", "True"))).cause == Cause.CHECKS


NOT_SCHEDULED = "PodScheduled=False/Unschedulable: "


@pytest.mark.parametrize(
    ("pods", "cause", "text"),
    [
        (
            [pod(n, "PodScheduled=False/SchedulingGated", gate="kueue.x-k8s.io/topology") for n in range(4)],
            Cause.PLACE,
            "4 of 4 pods wait to be told their node (gate kueue.x-k8s.io/topology)",
        ),
        (
            [pod(0, "Ready=True"), pod(1, NOT_SCHEDULED + "0/50 nodes are available: 50 Insufficient nvidia.com/gpu.")],
            Cause.NODES,
            "1 of 2 pods are on no node: no node has room: 0/50 nodes are available: 50 Insufficient nvidia.com/gpu.",
        ),
        (
            [pod(0, NOT_SCHEDULED + "0/50 nodes are available: 50 Insufficient memory. no new claims to deallocate, preemption: 0/50.")],
            Cause.NODES,
            "1 of 1 pods are on no node: no node has room: 0/50 nodes are available: 50 Insufficient memory. no new claims to deallocate, "
            "preemption: 0/50.",
        ),
        (
            [pod(0, NOT_SCHEDULED + "0/50 nodes are available: 50 cannot allocate all claims.")],
            Cause.CLAIM,
            "1 of 1 pods are on no node: no node can give it its ResourceClaim: 0/50 nodes are available: 50 cannot allocate all claims.",
        ),
        (
            [pod(0, waiting={"reason": "ImagePullBackOff", "message": "Back-off pulling image"})],
            Cause.IMAGE,
            "pod m-train-k3v7q2xw7a-a1-rack-0-0-x0: ImagePullBackOff: Back-off pulling image",
        ),
        ([pod(0, waiting={"reason": "ContainerCreating"}), pod(1)], Cause.NOTHING, "2 pods are starting"),
        ([], Cause.NOTHING, "its pods are being made"),
    ],
)
def test_an_admitted_job_whose_pods_do_not_run_says_what_they_wait_for(pods: list[Json], cause: Cause, text: str) -> None:
    found = why_not_running(pods)
    assert (found.cause, found.text) == (cause, text)


def test_a_pod_that_no_node_takes_outweighs_those_whose_turn_has_not_come() -> None:
    gated = pod(0, "PodScheduled=False/SchedulingGated", gate="kueue.x-k8s.io/topology")
    assert why_not_running([gated, pod(1, NOT_SCHEDULED + "no room")]).cause == Cause.NODES
