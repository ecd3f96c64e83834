"""Which process a pod is, and what its variables must say together; and what several pods' last words say of their gang."""

from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from marin_core.artifact import Claim, Store
from marin_core.artifact.ending import endings_of_pods, verdict
from marin_core.artifact.job_folder import JobFolder, Outcome
from marin_core.errors import ConfigError, ExitCode, SupersededError
from marin_jobs.fence import Fence
from marin_jobs.output import prepare_output
from marin_jobs.pod import Pod
from tests.artifact.test_store import lost
from tests.jobs.test_gang import spec_of

GIVEN = {
    "MARIN_JOB_FOLDER": "gs://lab/.jobs/m-a1",
    "MARIN_SCRATCH": "/scratch/pod",
    "MARIN_COORDINATOR": "m-a1-rack-0-0.m-a1:8476",
    "MARIN_NUM_PROCESSES": "176",
    "MARIN_PODS_PER_JOB": "16",
    "MARIN_JOB_INDEX": "2",
    "MARIN_POD_INDEX": "3",
    "MARIN_RESTART": "1",
    "MARIN_POD_IP": "10.0.0.7",
}


def test_a_pod_knows_its_place_from_its_environment() -> None:
    pod = Pod.from_environment(GIVEN)
    assert (pod.process, pod.processes, pod.restart) == (35, 176, 1)
    assert (pod.coordinator, pod.bind) == ("m-a1-rack-0-0.m-a1:8476", "10.0.0.7:8476")
    assert Pod.from_environment({**GIVEN, "MARIN_POD_IP": "fd00::7"}).bind == "[fd00::7]:8476"
    alone = {"MARIN_NUM_PROCESSES": "1", "MARIN_PODS_PER_JOB": "1", "MARIN_JOB_INDEX": "0", "MARIN_POD_INDEX": "0", "MARIN_COORDINATOR": ""}
    pod = Pod.from_environment(GIVEN | alone)
    assert (pod.process, pod.coordinator, pod.bind) == (0, None, None)


@given(st.integers(1, 12), st.integers(1, 18))
def test_processes_are_numbered_rack_by_rack_without_a_gap(racks: int, width: int) -> None:
    shape = {"MARIN_NUM_PROCESSES": str(racks * width), "MARIN_PODS_PER_JOB": str(width)}
    places = [{"MARIN_JOB_INDEX": str(rack), "MARIN_POD_INDEX": str(pod)} for rack in range(racks) for pod in range(width)]
    assert [Pod.from_environment(GIVEN | shape | place).process for place in places] == list(range(racks * width))


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"MARIN_NUM_PROCESSES": "32"}, "MARIN_NUM_PROCESSES=32"),  # job 2 is one too many
        ({"MARIN_POD_INDEX": "16"}, "MARIN_POD_INDEX=16"),
        ({"MARIN_NUM_PROCESSES": "170"}, "MARIN_NUM_PROCESSES=170"),  # a job would be short
        ({"MARIN_NUM_PROCESSES": "0"}, "MARIN_NUM_PROCESSES is '0'"),
        ({"MARIN_POD_INDEX": "-1"}, "MARIN_POD_INDEX is '-1'"),
        ({"MARIN_JOB_INDEX": "one"}, "MARIN_JOB_INDEX is 'one'"),
        ({"MARIN_JOB_INDEX": ""}, "MARIN_JOB_INDEX is not set"),
        ({"MARIN_COORDINATOR": ""}, "MARIN_COORDINATOR is not set"),
        ({"MARIN_SCRATCH": ""}, "MARIN_SCRATCH is not set"),
        ({"MARIN_GRACE_SECONDS": "soon"}, "MARIN_GRACE_SECONDS is 'soon'"),
        ({"MARIN_RETRY_DELAY_SECONDS": "-5"}, "MARIN_RETRY_DELAY_SECONDS is '-5'"),
    ],
)
def test_a_variable_that_is_missing_or_does_not_fit_is_named(changes: Mapping[str, str], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        Pod.from_environment({**GIVEN, **changes})


# The gang's verdict -----------------------------------------------------------------------------------------------------


def said(process: int, code: int, began: int = 1, restart: int = 0, *, peer_lost: bool = False) -> Outcome:
    now = datetime(2026, 11, 30, tzinfo=UTC)
    return Outcome(
        generation=f"{began:020d}",
        process=process,
        exit_code=code,
        message=f"says {code}",
        peer_lost=peer_lost,
        restart=restart,
        ended_at=now,
    )


@pytest.mark.parametrize(
    ("outcomes", "code", "culprit"),
    [
        ([said(0, 75, peer_lost=True), said(1, 70), said(2, 143)], ExitCode.BUG, 1),
        ([said(0, 75, peer_lost=True), said(1, 75)], ExitCode.TRY_AGAIN, 1),
        ([said(0, 143), said(1, 143)], ExitCode.PREEMPTED, 0),
        ([said(0, 143), said(1, 137)], ExitCode.BUG, 1),  # memory, unless its pod was deleted (§1.5)
        ([said(0, 70), said(1, 65, 1), said(0, 75, 2, 1), said(1, 143, 2, 1)], ExitCode.TRY_AGAIN, 0),  # an older restart says nothing
        ([said(0, 143), said(1, 143), said(1, 70, 2)], ExitCode.BUG, 1),  # resumed, and process 0 left no word
        ([said(1, 75, peer_lost=True)], ExitCode.TRY_AGAIN, 1),
    ],
)
def test_the_gravest_word_of_the_newest_round_of_pods_decides(outcomes: list[Outcome], code: ExitCode, culprit: int) -> None:
    found, message = verdict(endings_of_pods(outcomes), processes=4)
    assert found == code
    assert message is not None
    assert message.startswith(f"process {culprit} of 4: says ")


def test_the_newest_word_of_the_lead_is_the_gangs() -> None:
    assert verdict(endings_of_pods([said(0, 143), said(0, 0, 2), said(1, 143)])) == (ExitCode.DONE, None)


# The output of several pods ---------------------------------------------------------------------------------------------


def carry_over(earlier: Path, output: Path) -> None:
    (output / "saved").write_text((earlier / "saved").read_text() + "+")


@pytest.fixture
def fences(tmp_path: Path) -> list[Fence]:
    """Of four pods of one attempt, one after the other."""
    return [Fence(JobFolder(str(tmp_path / "jobs")), f"{number:020d}") for number in range(1, 5)]


def test_pods_go_on_from_each_other_and_clear_only_what_can_not_be_committed(tmp_path: Path, fences: list[Fence]) -> None:
    spec = spec_of(tmp_path, {})
    store = Store(spec.prefix)
    assert store.claim(spec.id, Claim(number=1, job="m-1", fingerprint="f" * 16, submitted_at="now", host="k8s"))
    outputs = []
    for number, fence in enumerate(fences[:3]):
        fence.seal_older()
        outputs.append(prepare_output(spec, store, tmp_path / "scratch", carry_over if number else None, fence))
        if not number:
            (outputs[0] / "saved").write_text("1")
        if number == 1:
            fence.begin_commit()
    assert [output.exists() for output in outputs] == [False, True, True]  # the second may have committed what it has
    assert (outputs[2] / "saved").read_text() == "1++"
    with pytest.raises(SupersededError):
        fences[0].begin_commit()
    prepare_output(spec, store, tmp_path / "scratch", None, fences[0])  # it slept between its two steps, and wakes
    assert outputs[1].exists()
    assert (outputs[2] / "saved").read_text() == "1++"
    fences[3].seal_older()
    last = prepare_output(spec, store, tmp_path / "scratch", None, fences[3])
    assert sorted(path.name for path in last.parent.iterdir()) == [fences[1].generation, fences[3].generation]
    assert list(last.iterdir()) == []


def test_a_later_attempt_goes_on_from_the_newest_pod_of_the_one_before(tmp_path: Path, fences: list[Fence]) -> None:
    first = spec_of(tmp_path, {})
    store = Store(first.prefix)
    assert store.claim(first.id, Claim(number=1, job="m-1", fingerprint="f" * 16, submitted_at="now", host="k8s"))
    for number, fence in enumerate(fences[:2]):
        fence.seal_older()
        output = prepare_output(first, store, tmp_path / "scratch", carry_over if number else None, fence)
        if not number:
            (output / "saved").write_text("1")
    store.close(first.id, 1, lost())
    second = first.model_copy(update={"attempt": 2})
    output = prepare_output(second, store, tmp_path / "scratch", carry_over, None)  # on one machine, say
    assert (output / "saved").read_text() == "1++"
    assert output.name == "attempt-2"
