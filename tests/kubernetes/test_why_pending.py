"""Each line of spec/kubernetes.md §1.9, said by the real Kueue, scheduler and kubelet, and put into a sentence by the launcher's code."""

from collections.abc import Callable

import pytest

from marin_assets.launch.kubernetes.pending import Cause, Line, Why, why_not_running, why_queued
from tests.kubernetes.bed.api import Manifest
from tests.kubernetes.bed.cluster import Bed
from tests.kubernetes.bed.nodes import NVLINK_DOMAIN
from tests.kubernetes.bed.pods import Act
from tests.kubernetes.bed.programs import wait_until
from tests.kubernetes.jobs import Submitted, gpus, manifest, pod_template, tpus

pytestmark = pytest.mark.kubernetes

TOPOLOGY = "kueue.x-k8s.io/podset-required-topology"
QUEUE_LABEL = "kueue.x-k8s.io/queue-name"
PRIORITY_LABEL = "kueue.x-k8s.io/priority-class"


def resized(jobset: Manifest, pods: int) -> None:
    spec = jobset["spec"]["replicatedJobs"][0]["template"]["spec"]
    spec["parallelism"] = spec["completions"] = pods


def asks_for_more_than_there_is(jobset: Manifest) -> None:
    jobset["spec"]["replicatedJobs"][0]["replicas"] = 3


def asks_for_a_larger_rack(jobset: Manifest) -> None:
    resized(jobset, 19)


def asks_for_a_rack_of_h100s(jobset: Manifest) -> None:
    template = pod_template(jobset)
    template["spec"]["nodeSelector"] = {"accel": "h100"}
    template["metadata"]["annotations"][TOPOLOGY] = NVLINK_DOMAIN


def asks_for_nodes_of_no_flavor(jobset: Manifest) -> None:
    template = pod_template(jobset)
    template["spec"]["nodeSelector"] = {"accel": "mi300"}
    del template["metadata"]["annotations"][TOPOLOGY]  # of which Kueue would have more to say


def asks_for_other_devices(jobset: Manifest) -> None:
    resources = pod_template(jobset)["spec"]["containers"][0]["resources"]
    for kind in ("requests", "limits"):
        resources[kind]["amd.com/gpu"] = resources[kind].pop("nvidia.com/gpu")


def asks_another_queue(jobset: Manifest) -> None:
    jobset["metadata"]["labels"][QUEUE_LABEL] = "nope"


@pytest.mark.parametrize(
    ("spoil", "cause", "says"),
    [
        (asks_for_more_than_there_is, Cause.NEVER, "gb200"),
        (asks_for_a_larger_rack, Cause.TOPOLOGY, "18 of its 19 pods"),
        (asks_for_a_rack_of_h100s, Cause.TOPOLOGY, "h100"),
        (asks_for_nodes_of_no_flavor, Cause.FLAVOR, "excludes"),
        (asks_for_other_devices, Cause.RESOURCE, "amd.com/gpu"),
        (asks_another_queue, Cause.QUEUE, "nope"),
    ],
)
def test_what_can_not_be_had_is_said(bed: Bed, spoil: Callable[[Manifest], None], cause: Cause, says: str) -> None:
    jobset = manifest("pending", gpus(16))
    spoil(jobset)
    job = Submitted(bed, jobset)

    def told() -> bool:
        why = said(job)
        return why is not None and why.cause is cause and says in why.text

    # What Kueue says changes within the first seconds, as it hears of the nodes.
    wait_until(f"Kueue to say something of {says}", told)
    assert job.pods() == []


def said(job: Submitted) -> Why | None:
    workload = job.workload()
    why = why_queued(workload) if workload is not None else None
    return why if why is not None and why.said else None


def test_a_full_queue_says_how_much_is_missing(bed: Bed) -> None:
    Submitted(bed, manifest("full", gpus(32))).wait_running()
    job = Submitted(bed, manifest("next", gpus(16)))
    why = wait_until("Kueue to say why", lambda: said(job))
    assert why.cause is Cause.QUOTA
    assert "insufficient unused quota for nvidia.com/gpu in flavor gb200, 64 more needed" in why.said


def test_who_waits_behind_another_is_told_its_place_by_kueues_own_list(bed: Bed) -> None:
    """Under StrictFIFO Kueue says nothing of it. The list is asked through the API server, as the launcher asks."""
    Submitted(bed, manifest("full", gpus(32, priority="production"))).wait_running()
    # Of two jobs that were made within one second either may be the first, but for their priorities.
    head = Submitted(bed, manifest("head", gpus(16, priority="production")))
    wait_until("the head to wait", lambda: said(head))
    job = Submitted(bed, manifest("behind", gpus(16)))

    def listed() -> list[str] | None:
        path = "/apis/visibility.kueue.x-k8s.io/v1beta2/clusterqueues/cq-a/pendingworkloads"
        found = [item["metadata"]["name"] for item in bed.api.request("GET", path)["items"]]
        return found if len(found) == 2 else None

    first, second = wait_until("both to be listed", listed)
    assert head.name in first
    assert job.name in second
    workload = job.workload()
    assert workload is not None
    why = why_queued(workload, Line(cluster_queue="cq-a", position=2, head=head.name))
    assert (why.cause, why.text) == (Cause.LINE, f"number 2 in the queue of cq-a, behind {head.name}")


@pytest.mark.parametrize(("label", "value"), [(PRIORITY_LABEL, "urgent"), (QUEUE_LABEL, None)])
def test_kueue_says_nothing_of_what_it_can_not_see(bed: Bed, label: str, value: str | None) -> None:
    """So the launcher checks before it submits: there is no Workload, and the JobSet stays suspended for ever."""
    jobset = manifest("unseen", gpus(2))
    if value is None:
        del jobset["metadata"]["labels"][label]
    else:
        jobset["metadata"]["labels"][label] = value
    job = Submitted(bed, jobset)
    # A job that was submitted later has come and gone, so Kueue has had its time.
    assert Submitted(bed, manifest("seen", gpus(2), Act(seconds=0.5))).wait_ended() == "Completed"
    assert job.workload() is None
    assert job.object()["spec"]["suspend"] is True
    assert why_queued(None).cause is Cause.SILENCE


def test_an_image_that_can_not_be_pulled_is_said(bed: Bed) -> None:
    job = Submitted(bed, manifest("no-image", gpus(2), Act(waiting="ImagePullBackOff")))

    def waiting() -> Why | None:
        why = why_not_running(job.pods())
        return why if why.cause is Cause.IMAGE else None

    assert "ImagePullBackOff" in wait_until("a pod to wait for its image", waiting).text


def test_pods_without_a_node_say_so(bed: Bed) -> None:
    """Admitted by quota, which counts devices and not memory. Kueue itself looks for room only where it knows the topology."""
    jobset = manifest("no-node", tpus(4))
    resources = pod_template(jobset)["spec"]["containers"][0]["resources"]
    resources["requests"]["memory"] = resources["limits"]["memory"] = "4000Gi"
    job = Submitted(bed, jobset)

    def unscheduled() -> Why | None:
        why = why_not_running(job.pods())
        return why if why.said else None

    why = wait_until("the scheduler to say why", unscheduled)
    assert "Insufficient memory" in why.said
    assert why.cause is Cause.NODES
