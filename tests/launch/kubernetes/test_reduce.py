"""Where a job stands, over the streams of objects that the real controllers made (spec/kubernetes.md §1.4, §3)."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from marin_assets.launch.kubernetes.pending import Line
from marin_assets.launch.kubernetes.reduce import Facts, Phase, reduce
from marin_core.artifact.job_folder import Outcome
from tests.launch.kubernetes.streams import ADMITTED, NOON, READY, WAITS, Json, exited, job, jobset, outcome, pod, workload

STARTED = (*ADMITTED, "PodsReady=True/Started")
PREEMPTED = ("Evicted=True/Preempted: Preempted to accommodate a workload", "Preempted=True/InClusterQueue: to accommodate m-prod")
FREED = (WAITS, "Admitted=False/NoReservation", *PREEMPTED, "Requeued=True/Preempted")
RESUMED = (*ADMITTED, "Evicted=False/Preempted: Previously: Preempted", "Preempted=False/InClusterQueue: Previously: InClusterQueue")


def facts(jobset: Json | None, workload: Json | None = None, **values: Any) -> Facts:
    return Facts(now=NOON + 100, jobset=jobset, workload=workload, **values)


def phase(*arguments: Any, **values: Any) -> Phase:
    return reduce(facts(*arguments, **values)).phase


def test_a_job_that_is_preempted_and_comes_back_never_looks_failed_nor_restarted() -> None:
    """Row 3 and the order of a preemption, with PodsReady flapping while the JobSet is suspended."""
    stopped = jobset(suspend=True)
    stream = [
        (jobset(), workload(*STARTED), READY, Phase.RUNNING),
        (jobset(), workload(*STARTED, *PREEMPTED), READY, Phase.PREEMPTED),
        (stopped, workload(*STARTED, *PREEMPTED), READY, Phase.PREEMPTED),
        (stopped, workload(*ADMITTED, "PodsReady=False/WaitForRecovery", *PREEMPTED), (), Phase.PREEMPTED),
        (stopped, workload(*FREED, "PodsReady=False/WaitForStart"), (), Phase.QUEUED),
        (stopped, workload(*FREED, "PodsReady=False/WaitForRecovery"), (), Phase.QUEUED),
        (stopped, workload(*RESUMED, "PodsReady=False/WaitForStart"), (), Phase.STARTING),
        (jobset(), workload(*RESUMED, "PodsReady=False/WaitForStart"), READY[:2], Phase.STARTING),
        (jobset(), workload(*RESUMED, "PodsReady=True/Started"), READY, Phase.RUNNING),
    ]
    saved = [outcome(process, 143, "saved") for process in range(4)]
    for js, wl, pods, expected in stream:
        found = reduce(facts(js, wl, pods=pods, outcomes=saved))
        assert found.phase == expected
        assert (found.application_restarts, found.infrastructure_restarts, found.failure) == (0, 0, None)


def test_a_preempted_job_says_who_took_its_place_and_then_what_it_waits_for() -> None:
    saving = reduce(facts(jobset(), workload(*STARTED, *PREEMPTED), pods=READY))
    assert saving.reason == "its pods are saving, after InClusterQueue: to accommodate m-prod"
    waiting = reduce(facts(jobset(suspend=True), workload(*FREED)))
    assert waiting.reason == "again: waits for 48 more nvidia.com/gpu in gb200"


def test_the_cause_of_an_eviction_without_preemption_is_its_own() -> None:
    late = "Evicted=True/PodsReadyTimeout: Exceeded the PodsReady timeout"
    old = "Preempted=False/InClusterQueue: Previously: InClusterQueue"
    found = reduce(facts(jobset(), workload(*ADMITTED, late, old)))
    assert (found.phase, found.reason) == (Phase.PREEMPTED, "its pods are saving, after PodsReadyTimeout: Exceeded the PodsReady timeout")


def test_reclaimed_quota_is_named() -> None:
    """Row 5."""
    reclaimed = ("Evicted=True/Preempted", "Preempted=True/InCohortReclamation: to accommodate m-owner")
    assert "InCohortReclamation" in reduce(facts(jobset(), workload(*STARTED, *reclaimed))).reason


def test_a_lost_node_is_a_restart_that_does_not_count() -> None:
    """Row 8: quota is kept, the whole gang starts anew."""
    lost = pod(3, "DisruptionTarget=True/DeletionByTaintManager: taint manager deletes it", leaving=True)
    anew = tuple(pod(process, "Ready=True", restart=1) for process in range(4))
    stream = [
        (jobset(), "PodsReady=True/Started", (*READY[:3], lost), Phase.RUNNING),  # nobody has noticed
        (jobset(), "PodsReady=False/WaitForRecovery", (*READY[:3], lost), Phase.RESTARTING),
        (jobset(restarts=1), "PodsReady=False/WaitForRecovery", anew[:2], Phase.RESTARTING),
        (jobset(restarts=1), "PodsReady=True/Started", anew[:2], Phase.RESTARTING),  # Kueue is behind
        (jobset(restarts=1), "PodsReady=True/Recovered", anew, Phase.RUNNING),
    ]
    for js, told, pods, expected in stream:
        assert phase(js, workload(*ADMITTED, told), pods=pods) == expected
    found = reduce(facts(stream[-1][0], workload(*ADMITTED, "PodsReady=True/Recovered"), pods=anew))
    assert (found.application_restarts, found.infrastructure_restarts) == (0, 1)
    assert (found.pods_ready, found.pods_total) == (4, 4)


def test_a_restart_counts_where_jobset_says_that_it_does_and_says_why_it_was() -> None:
    """Row 7: worker 1 exits 1; `restartsCountTowardsMax` is absent when it is 0."""
    anew = (pod(0, "Ready=True", restart=1), pod(1, restart=1))
    ended = [outcome(1, 1, "ZeroDivisionError"), outcome(0, 75, "lost process 1", peer_lost=True)]
    found = reduce(
        facts(
            jobset(restarts=1, restartsCountTowardsMax=1), workload(*ADMITTED, "PodsReady=False/WaitForRecovery"), pods=anew, outcomes=ended
        )
    )
    assert (found.phase, found.application_restarts, found.infrastructure_restarts) == (Phase.RESTARTING, 1, 0)
    assert (found.failure, found.process) == ("bug", 1)
    assert found.reason == "after process 1 of 4: ZeroDivisionError: 2 pods are starting"
    assert found.pods_ready == 1


@pytest.mark.parametrize(
    ("told", "expected"),
    [("PodsReady=False/WaitForStart", Phase.STARTING), ("PodsReady=False/WaitForRecovery", Phase.RESTARTING)],
)
def test_a_gang_that_was_never_ready_in_this_admission_starts_and_one_that_was_restarts(told: str, expected: Phase) -> None:
    assert phase(jobset(restarts=2), workload(*ADMITTED, told)) == expected


def test_pods_ready_is_not_read_while_the_job_is_not_admitted() -> None:
    for told in ("PodsReady=True/Started", "PodsReady=False/WaitForRecovery"):
        assert phase(jobset(suspend=True), workload(WAITS, told)) == Phase.QUEUED


def test_a_queued_job_says_why_and_since_when() -> None:
    """Row 2; and under StrictFIFO, where all but the head have no condition."""
    found = reduce(facts(jobset(suspend=True), workload(WAITS)))
    assert (found.phase, found.reason, found.since) == (Phase.QUEUED, "waits for 48 more nvidia.com/gpu in gb200", NOON)
    behind = reduce(facts(jobset(suspend=True), workload(), line=Line(cluster_queue="cq-a", position=2, head="m-big")))
    assert (behind.phase, behind.reason, behind.since) == (Phase.QUEUED, "number 2 in the queue of cq-a, behind m-big", NOON)


def test_a_job_that_kueue_does_not_see_is_new_and_then_stuck() -> None:
    js = jobset(suspend=True)
    assert reduce(Facts(now=NOON + 29, jobset=js)).phase == Phase.QUEUED
    found = reduce(Facts(now=NOON + 31, jobset=js, line=Line(priority_exists=False)))
    assert (found.phase, found.reason) == (Phase.STUCK, "Kueue doesn't see it: there is no such WorkloadPriorityClass")


def test_a_paused_job_is_paused_while_its_pods_save_and_afterwards() -> None:
    evicted = "Evicted=True/Deactivated: The workload is deactivated"
    for words in ((*STARTED, evicted), (WAITS, evicted)):
        assert phase(jobset(suspend=True), workload(*words, active=False)) == Phase.PAUSED


def test_a_deletion_says_which_pod_on_which_node_holds_it_open() -> None:
    found = reduce(facts(jobset(deleted=True), workload("Finished=True/OwnerNotFound"), pods=(pod(0), pod(3, leaving=True))))
    assert found.phase == Phase.STOPPING
    assert found.reason == "it is being deleted; pod m-train-k3v7q2xw7a-a1-rack-1-1-x0 on node-3 and 1 more must end first"
    assert phase(None) == Phase.VANISHED


@pytest.mark.parametrize("stored", [None, jobset(deleted=True), jobset(terminalState="Failed"), jobset(suspend=True)])
def test_the_record_decides_whatever_the_cluster_says(stored: Json | None) -> None:
    found = reduce(facts(stored, committed=True, outcomes=[outcome(0, 70)]))
    assert (found.phase, found.failure) == (Phase.SUCCEEDED, None)


def test_success_without_a_record_is_a_bug() -> None:
    found = reduce(facts(jobset("Completed=True/AllJobsCompleted", terminalState="Completed")))
    assert (found.phase, found.failure, found.exit_code) == (Phase.FAILED, "bug", 70)


def test_a_jobset_that_is_gone_without_a_record_is_infrastructure() -> None:
    found = reduce(facts(None))
    assert (found.phase, found.failure) == (Phase.VANISHED, "infrastructure")


FAILED = "Failed=True/FailJobSetFailurePolicyAction: jobset failed (first failed job: x)"
EXIT = "Container job for pod team-a/m-train-k3v7q2xw7a-a1-rack-1-0-x0 failed with exit code {} matching FailJob rule at index {}"


def failed(
    *, jobs: tuple[Json, ...] = (), pods: tuple[Json, ...] = (), outcomes: tuple[Outcome, ...] = ()
) -> tuple[str | None, int | None, str]:
    found = reduce(facts(jobset(FAILED, terminalState="Failed"), jobs=jobs, pods=pods, outcomes=outcomes))
    assert found.phase == Phase.FAILED
    return found.failure, found.process, found.reason


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (64, "config"),
        (65, "data"),
        (70, "bug"),
        (1, "bug"),
        (134, "bug"),
        (139, "bug"),
        (137, "bug"),
        (75, "infrastructure"),
        (143, "preempted"),
    ],
)
def test_a_failed_job_has_the_class_of_its_exit_code_however_it_is_known(code: int, expected: str) -> None:
    """Row 10. From the process's own word, from its pod, and from what the cluster says of the job when both are gone."""
    by_word = failed(outcomes=(outcome(2, code),))
    by_pod = failed(pods=(exited(2, code),))
    by_job = failed(jobs=(job("Failed=True/PodFailurePolicy: " + EXIT.format(code, 0)),))
    assert {by_word[:2], by_pod[:2], by_job[:2]} == {(expected, 2)}


GRAVITY = [64, 65, 70, 75, 143]


@given(st.lists(st.sampled_from(GRAVITY), min_size=4, max_size=4), st.permutations(range(4)))
def test_the_gravest_of_all_processes_decides_in_whatever_order_they_are_seen(codes: list[int], order: list[int]) -> None:
    """64 > 65 > 70 > 75 > 143; the cluster goes by the first one (row 10, §1.5)."""
    ended = tuple(outcome(process, codes[process]) for process in order)
    failure, process, _ = failed(outcomes=ended)
    gravest = min(codes, key=GRAVITY.index)
    assert failure == {64: "config", 65: "data", 70: "bug", 75: "infrastructure", 143: "preempted"}[gravest]
    assert process is not None
    assert codes[process] == gravest


def test_a_bug_is_not_hidden_by_those_who_only_missed_its_process() -> None:
    """One process ends with 70, the others lose the collective and end with 75; the 75 won in the cluster 3 of 3 times."""
    others = tuple(outcome(process, 75, "lost process 2", peer_lost=True) for process in (0, 1, 3))
    assert failed(outcomes=(*others, outcome(2, 70, "KeyError: 'loss'"))) == ("bug", 2, "process 2 of 4: KeyError: 'loss'")
    assert failed(outcomes=others)[0] == "infrastructure"


def test_a_lost_node_is_not_taken_for_a_bug_since_jax_aborts_the_others() -> None:
    """Processes that hear nothing of one for a minute are aborted by JAX (134), which is a bug only where there is no other cause."""
    aborted = tuple(exited(process, 134) for process in range(3))
    lost = pod(3, "DisruptionTarget=True/DeletionByTaintManager: its node is unreachable", leaving=True)
    failure, process, reason = failed(pods=(*aborted, lost))
    assert (failure, process) == ("infrastructure", 3)
    assert "took its pod from node-3: DeletionByTaintManager" in reason
    assert failed(pods=aborted)[0] == "bug"
    gone = job(
        "Failed=True/PodFailurePolicy: Pod team-a/m-train-k3v7q2xw7a-a1-rack-1-1-x0 has condition DisruptionTarget matching FailJob rule"
    )
    assert failed(jobs=(gone,))[:2] == ("infrastructure", 3)


def test_being_out_of_memory_is_the_applications_failure_and_names_the_limit() -> None:
    for pods, outcomes in [
        ((exited(1, 137, reason="OOMKilled"),), ()),
        ((exited(1, 137),), ()),
        ((exited(1, 137),), (outcome(1, 137, "killed by SIGKILL"),)),
    ]:
        found = reduce(facts(jobset(FAILED, terminalState="Failed"), pods=pods, outcomes=outcomes))
        assert (found.failure, found.exit_code, found.process) == ("bug", 137, 1)
        assert "want of memory" in found.reason
        assert "at most 800Gi" in found.reason
    own = outcome(1, 137, "it was killed by SIGKILL: 799 GiB of memory at its peak, 800 GiB allowed")
    assert failed(pods=(exited(1, 137, reason="OOMKilled"),), outcomes=(own,)) == ("bug", 1, f"process 1 of 4: {own.message}")
    assert failed(outcomes=(own,)) == ("bug", 1, f"process 1 of 4: {own.message}")


def test_a_pod_that_was_killed_because_the_cluster_wanted_it_gone_is_not_out_of_memory() -> None:
    drained = exited(1, 137, "DisruptionTarget=True/EvictionByEvictionAPI: Eviction API: evicting", leaving=True)
    assert failed(pods=(drained,))[:2] == ("infrastructure", 1)
    stopped = exited(1, 137, leaving=True)  # its gang had failed, and it didn't end in time
    assert failed(pods=(stopped, exited(0, 65)))[:2] == ("data", 0)
    assert failed(pods=(stopped, exited(0, 1)))[:2] == ("bug", 0)
    assert failed(pods=(stopped,))[0] == "infrastructure"


def test_a_word_of_an_older_pod_says_nothing_of_the_newer_one() -> None:
    old = outcome(1, 65, "a bad shard")
    new = exited(1, 70, restart=1)
    assert failed(pods=(new,), outcomes=(old,))[0] == "bug"
    runs = pod(1, "Ready=True", restart=1)
    assert failed(pods=(runs,), outcomes=(old, outcome(0, 70, "boom", restart=1)))[:2] == ("bug", 0)


def test_words_that_the_store_did_not_take_are_read_from_the_pods() -> None:
    lost, broken = (outcome(0, 75, "lost process 1", peer_lost=True), outcome(1, 70, "KeyError: 'loss'"))
    pods = tuple(exited(each.process, each.exit_code, message=each.model_dump_json()) for each in (lost, broken))
    assert failed(pods=pods) == ("bug", 1, "process 1 of 4: KeyError: 'loss'")
    assert failed(pods=pods[:1])[0] == "infrastructure"


@pytest.mark.parametrize(
    "message", ["Traceback (most recent call last):", "[1]", "7", '{"exit_code": null}', '{"message": "x"}', '{"exit_code": 0}', ""]
)
def test_what_is_no_word_of_a_keeper_is_no_evidence_but_the_code_is(message: str) -> None:
    """With `FallbackToLogsOnError` it is the end of the log, of a process that may print anything."""
    assert failed(pods=(exited(1, 65, message=message),)) == ("data", 1, "process 1 of 4: it ended with code 65 without a word")


def test_a_failure_of_which_nothing_is_left_has_the_class_of_the_clusters_rule() -> None:
    assert failed()[0] == "config"
    spent = reduce(
        facts(jobset("Failed=True/ReachedMaxRestarts: jobset failed due to reaching max number of restarts", terminalState="Failed"))
    )
    assert (spent.failure, spent.reason) == ("bug", "no process left a word: jobset failed due to reaching max number of restarts")


@pytest.mark.parametrize("reason", ["InvalidImageName", "CreateContainerConfigError"])
def test_a_container_that_can_never_be_made_fails_its_job_at_once(reason: str) -> None:
    waits = pod(0, waiting={"reason": reason, "message": "no such key"})
    found = reduce(facts(jobset(), workload(*ADMITTED, "PodsReady=False/WaitForStart"), pods=(waits,)))
    assert (found.phase, found.failure) == (Phase.FAILED, "config")
    assert "no such key" in found.reason


@pytest.mark.parametrize(
    ("message", "minutes", "expected"),
    [
        ('failed to pull "x": not found', 9, Phase.STARTING),
        ('failed to pull "x": not found', 11, Phase.FAILED),
        ("manifest unknown", 11, Phase.FAILED),
        ("429 Too Many Requests", 60, Phase.STARTING),
    ],
)
def test_an_image_that_is_not_found_may_still_come_for_ten_minutes(message: str, minutes: int, expected: Phase) -> None:
    waits = pod(0, waiting={"reason": "ImagePullBackOff", "message": message}, startTime="2026-11-30T12:00:00Z")
    seen = Facts(now=NOON + 60 * minutes, jobset=jobset(), workload=workload(*ADMITTED, "PodsReady=False/WaitForStart"), pods=(waits,))
    assert reduce(seen).phase == expected


NO_ROOM = "PodScheduled=False/Unschedulable: 0/4 nodes are available"


@pytest.mark.parametrize(
    ("pods", "restarts", "expected"),
    [
        ((), 0, Phase.STARTING),
        (tuple(pod(n, NO_ROOM) for n in range(4)), 0, Phase.QUEUED),
        ((pod(0, "Ready=True"), *(pod(n, NO_ROOM) for n in range(1, 4))), 0, Phase.STARTING),
        (READY, 0, Phase.RUNNING),
        (tuple(pod(n, restart=1) for n in range(4)), 1, Phase.RESTARTING),
    ],
)
def test_without_kueue_the_pods_tell_where_a_job_stands(pods: tuple[Json, ...], restarts: int, expected: Phase) -> None:
    assert phase(jobset(restarts=restarts), pods=pods, kueue=False) == expected


def test_a_process_that_has_done_its_part_counts_as_ready() -> None:
    done = (*READY[:3], pod(3, phase="Succeeded"))
    assert reduce(facts(jobset(), workload(*STARTED), pods=done)).pods_ready == 4


SOME_CONDITIONS = st.lists(
    st.sampled_from([*STARTED, *FREED, *RESUMED, "PodsReady=False/WaitForStart", "PodsReady=False/WaitForRecovery"]),
    unique=True,
    max_size=5,
)


@given(
    st.sampled_from([None, "Completed", "Failed"]),
    st.booleans(),
    st.one_of(st.none(), SOME_CONDITIONS),
    st.lists(st.sampled_from([*READY, exited(0, 70), exited(1, 137), pod(2, leaving=True)]), max_size=5),
    st.lists(st.builds(outcome, st.integers(0, 3), st.sampled_from([64, 65, 70, 75, 143])), max_size=5),
)
def test_any_facts_give_an_answer_and_a_job_is_over_only_by_its_end_or_its_record(
    terminal: str | None, suspended: bool, told: list[str] | None, pods: list[Json], outcomes: list[Outcome]
) -> None:
    js = jobset(suspend=suspended, terminalState=terminal)
    seen = facts(js, None if told is None else workload(*told), pods=pods, outcomes=outcomes)
    found = reduce(seen)
    assert found.phase.final == (terminal is not None)
    assert (found.failure is not None) or not found.phase.final
    assert reduce(seen) == found
