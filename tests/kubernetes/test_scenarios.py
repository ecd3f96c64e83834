"""What the real scheduler, JobSet and Kueue do with the launcher's manifests: the table of spec/kubernetes.md §3, row by row."""

import signal
from collections.abc import Iterator

import pytest

from tests.kubernetes.bed.api import JOBSET, KUEUE, ApiError, Manifest
from tests.kubernetes.bed.cluster import Bed
from tests.kubernetes.bed.nodes import NODE_POOL
from tests.kubernetes.bed.pods import Act
from tests.kubernetes.bed.programs import wait_until
from tests.kubernetes.jobs import JOB_INDEX, Submitted, bed_profile, domains, gpus, manifest, tpus

pytestmark = pytest.mark.kubernetes


def nodes_of(pods: list[Manifest]) -> set[str]:
    return {pod["spec"]["nodeName"] for pod in pods}


def test_a_gang_of_two_racks_gets_sixteen_nodes_of_each_and_a_smaller_one_is_halved(bed: Bed) -> None:
    """Row 1."""
    full = Submitted(bed, manifest("two-racks", gpus(32)))
    pods = full.wait_running()
    racks = domains(bed, pods)
    assert {job: len(found) for job, found in racks.items()} == {0: 1, 1: 1}
    assert racks[0] != racks[1]
    assert len(nodes_of(pods)) == 32
    full.delete()
    wait_until("the first gang to be gone", full.gone)

    halved = Submitted(bed, manifest("halved", gpus(24)))
    pods = halved.wait_running()
    racks = domains(bed, pods)
    assert racks[0].isdisjoint(racks[1])
    assert [sum(pod["metadata"]["labels"][JOB_INDEX] == job for pod in pods) for job in "01"] == [12, 12]


def test_a_gang_without_quota_has_no_pods_and_a_reason_to_read(bed: Bed) -> None:
    """Row 2."""
    Submitted(bed, manifest("holds-all", gpus(32))).wait_running()
    waiting = Submitted(bed, manifest("waits", gpus(16)))
    message = wait_until("a reason", lambda: waiting.condition("QuotaReserved").get("message"))
    assert "insufficient unused quota for nvidia.com/gpu in flavor gb200, 64 more needed" in message
    assert waiting.pods() == []


def test_production_preempts_batch_which_resumes_at_no_cost_to_its_own_restarts(bed: Bed) -> None:
    """Row 3. Kubernetes 1.36.3 judges the pods of a suspended Job by its podFailurePolicy too: the Job that comes back has failed with 143
    meanwhile, and JobSet starts the gang anew, once, which counts towards nothing.
    """
    batch = Submitted(bed, manifest("victim", gpus(32), Act(saving_seconds=1)))
    first = batch.wait_running()
    production = Submitted(bed, manifest("winner", gpus(32, priority="production")))
    production.wait_running()
    assert batch.object()["spec"]["suspend"] is True
    assert batch.restarts() == (0, 0)
    assert batch.condition("Evicted")["reason"] == "Preempted"
    assert batch.condition("Preempted")["reason"] == "InClusterQueue"
    production.delete()
    batch.wait_generation_after(first)
    counted, uncounted = batch.restarts()
    assert counted == 0
    assert uncounted <= 1
    assert batch.admitted()


def test_a_job_that_may_use_either_takes_h100_when_gb200_is_full(bed: Bed) -> None:
    """Row 4: 4 GPUs a process, two of which share an H100 node."""
    Submitted(bed, manifest("fills-gb200", gpus(32))).wait_running()
    either = Submitted(bed, manifest("either", gpus(4, "gb200", "h100", devices=4)))
    pods = either.wait_running()
    assert "h100" in either.flavors()
    assert all(node.startswith("h100-") for node in nodes_of(pods))
    assert len(nodes_of(pods)) == 2


def test_a_team_borrows_idle_quota_and_gives_it_back_when_its_owner_asks(bed: Bed) -> None:
    """Row 5: team b has no GPUs of its own."""
    borrower = Submitted(bed, manifest("borrows", gpus(32), on=bed_profile("team-b")))
    borrower.wait_running()
    owner = Submitted(bed, manifest("reclaims", gpus(32)))
    owner.wait_running()
    assert borrower.condition("Preempted")["reason"] == "InCohortReclamation"
    assert borrower.restarts() == (0, 0)
    wait_until("the borrower's pods to be gone", lambda: not borrower.pods())


def test_a_gang_leaves_a_dead_node_for_another_of_its_rack_and_nothing_is_counted(bed: Bed) -> None:
    """Row 8. What an operator does with a node that won't come back is part of it: its pods stay until then."""
    gang = Submitted(bed, manifest("loses-a-node", gpus(8), max_restarts=0, node_loss_seconds=3))
    first = gang.wait_running()
    dead = first[0]["spec"]["nodeName"]
    bed.kubelet.fail(dead)
    wait_until("the node's pod to be given up", lambda: any("deletionTimestamp" in pod["metadata"] for pod in gang.pods()), 120)
    taint = {"key": "node.kubernetes.io/out-of-service", "value": "nodeshutdown", "effect": "NoExecute"}
    before = bed.api.get("v1", "Node", dead)["spec"].get("taints", [])
    bed.api.merge("v1", "Node", dead, {"spec": {"taints": [*before, taint]}})
    try:
        pods = gang.wait_generation_after(first, 120)
    finally:
        present = bed.api.get("v1", "Node", dead)["spec"].get("taints", [])
        bed.api.merge("v1", "Node", dead, {"spec": {"taints": [each for each in present if each["key"] != taint["key"]]}})
    assert dead not in nodes_of(pods)
    assert len(domains(bed, pods)[0]) == 1
    counted, uncounted = gang.restarts()
    assert counted == 0
    assert uncounted >= 1
    assert gang.admitted()


def test_an_evicted_pod_costs_a_new_generation_and_no_restart_that_counts(bed: Bed) -> None:
    """Row 9: what a drain does, twice."""
    gang = Submitted(bed, manifest("drained", gpus(2), max_restarts=0))
    pods = gang.wait_running()
    for _ in range(2):
        name = pods[0]["metadata"]["name"]
        eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name, "namespace": "team-a"}}
        bed.api.request("POST", f"/api/v1/namespaces/team-a/pods/{name}/eviction", eviction)
        pods = gang.wait_generation_after(pods)
    assert gang.restarts() == (0, 2)


@pytest.mark.parametrize("exit_code", [64, 65])
def test_bad_config_and_bad_data_fail_at_once(bed: Bed, exit_code: int) -> None:
    """Row 10."""
    gang = Submitted(bed, manifest(f"exits-{exit_code}", gpus(2), Act(seconds=0.5, exit_code=exit_code), max_restarts=1))
    assert gang.wait_ended() == "Failed"
    assert gang.restarts() == (0, 0)


@pytest.mark.parametrize(("exit_code", "reason"), [(70, None), (1, None), (137, "OOMKilled")])
def test_a_bug_and_too_little_memory_use_up_the_jobs_own_restarts(bed: Bed, exit_code: int, reason: str | None) -> None:
    """Row 10."""
    act = Act(seconds=0.5, exit_code=exit_code, reason=reason)
    gang = Submitted(bed, manifest(f"exits-{exit_code}", gpus(2), act, max_restarts=1))
    assert gang.wait_ended() == "Failed"
    assert gang.restarts() == (1, 0)


@pytest.mark.parametrize("exit_code", [75, 143])
def test_passing_trouble_restarts_the_gang_without_end(bed: Bed, exit_code: int) -> None:
    """Row 10: so the launcher has to watch for progress."""
    gang = Submitted(bed, manifest(f"exits-{exit_code}", gpus(2), Act(seconds=0.5, exit_code=exit_code), max_restarts=1))
    wait_until("four restarts", lambda: gang.restarts()[1] >= 4)
    assert gang.restarts()[0] == 0
    assert "terminalState" not in gang.status


def preempted_gang(bed: Bed) -> tuple[Submitted, list[Manifest], Submitted]:
    """A gang that is back in the queue, the pods that it had, and the job that took its place and leaves half of it free."""
    gang = Submitted(bed, manifest("big", gpus(32)))
    first = gang.wait_running()
    production = Submitted(bed, manifest("half", gpus(16, priority="production")))
    production.wait_running()
    wait_until("the gang to be back in the queue", lambda: gang.condition("Requeued").get("status") == "True")
    return gang, first, production


def test_a_small_job_does_not_slip_in_before_a_gang_that_waits(bed: Bed) -> None:
    """Row 11: with StrictFIFO a gang that was preempted comes first, whatever would fit meanwhile."""
    gang, first, production = preempted_gang(bed)
    small = Submitted(bed, manifest("small", gpus(16)))
    wait_until("the small job to be known to the queue", small.workload)
    # A job of the queue's other flavor comes and goes, so the queue has been looked through since.
    passing = Submitted(bed, manifest("passing", gpus(2, "h100", priority="production"), Act(seconds=1)))
    assert passing.wait_ended() == "Completed"
    assert not small.admitted()
    production.delete()
    gang.wait_generation_after(first)
    assert not small.admitted()
    assert small.pods() == []


@pytest.fixture
def best_effort(bed: Bed) -> Iterator[None]:
    """The team's queue lets whatever fits pass what waits, which `deploy/kubernetes` doesn't."""
    change_queueing(bed, "BestEffortFIFO")
    yield
    change_queueing(bed, "StrictFIFO")


def change_queueing(bed: Bed, strategy: str) -> None:
    bed.api.merge(KUEUE, "ClusterQueue", "cq-a", {"spec": {"queueingStrategy": strategy}})


@pytest.mark.usefixtures("best_effort")
def test_with_best_effort_a_small_job_passes_a_gang_that_waits(bed: Bed) -> None:
    """Row 11, and why `deploy/kubernetes` has StrictFIFO: as long as small jobs come the gang waits, though it was there before them."""
    gang, first, production = preempted_gang(bed)
    small = Submitted(bed, manifest("small", gpus(16)))
    small.wait_running()
    production.delete()
    wait_until("production to be gone", production.gone)
    another = Submitted(bed, manifest("another", gpus(16)))
    another.wait_running()
    assert not gang.admitted()
    for each in (small, another):
        each.delete()
    gang.wait_generation_after(first)


def test_each_tpu_slice_is_one_node_pool(bed: Bed) -> None:
    """Spec §2.3: with quota alone the pods of a slice are scattered."""
    slices = Submitted(bed, manifest("slices", tpus(8)))
    pools = domains(bed, slices.wait_running(), NODE_POOL)
    assert {job: len(found) for job, found in pools.items()} == {0: 1, 1: 1}
    assert pools[0] != pools[1]


def test_a_stopped_queue_blocks_its_own_namespaces_only_and_runs_on_where_it_was(bed: Bed) -> None:
    """Row 13, with the selectors of spec §2.6: a job elsewhere needs no Kueue."""
    running = Submitted(bed, manifest("goes-on", gpus(2)))
    pods = running.wait_running()
    bed.plane.daemons["kueue"].stop()
    try:
        with pytest.raises(ApiError, match="failed calling webhook"):
            bed.api.create(manifest("comes-too-early", gpus(2)))
        job = {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": {"name": "elsewhere", "namespace": "default"},
            "spec": {"template": {"spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": "none"}]}}},
        }
        bed.api.create(job)
        bed.api.delete("batch/v1", "Job", "elsewhere", "default")
        assert {pod["metadata"]["uid"] for pod in running.running() or []} == {pod["metadata"]["uid"] for pod in pods}
    finally:
        bed.plane.start("kueue")

    def submitted() -> Submitted | None:
        try:
            return Submitted(bed, manifest("comes-again", gpus(2)))
        except ApiError:
            return None

    wait_until("Kueue's webhook to answer again", submitted, 60).wait_running()
    assert running.restarts() == (0, 0)


def test_a_job_runs_on_while_the_api_server_is_away_and_ends_as_it_would(bed: Bed) -> None:
    gang = Submitted(bed, manifest("outlives", gpus(2), Act(seconds=20)))
    gang.wait_running()
    bed.plane.daemons["kube-apiserver"].stop(signal.SIGKILL)
    wait_until("the pods to end unheard", lambda: not bed.kubelet.running())
    bed.plane.start("kube-apiserver")
    assert gang.wait_ended() == "Completed"
    assert gang.restarts() == (0, 0)


def test_a_cancelled_job_stays_until_its_last_pod_is_gone(bed: Bed) -> None:
    """Spec §1.7: so its absence means that nothing of it writes any more."""
    gang = Submitted(bed, manifest("cancelled", gpus(4), Act(saving_seconds=1)))
    gang.wait_running()
    gang.delete()

    wait_until("the JobSet to be gone", lambda: bed.api.find(JOBSET, "JobSet", gang.name, gang.namespace) is None)
    assert gang.pods() == []
    wait_until("its Workload to be gone", lambda: gang.workload() is None)
