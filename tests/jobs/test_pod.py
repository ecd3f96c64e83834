"""A pod's keeper with real job processes: what they are told, what becomes of them, and what their words reach."""

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from marin_core.artifact import Claim, Store
from marin_core.artifact.job import JobSpec
from marin_core.artifact.job_folder import JobFolder, log_stream
from marin_core.errors import ExitCode
from marin_jobs.pod import Ended, Pod, clear_scratch
from tests.jobs.pods import Pods, RunningPod, is_alive, wait_until
from tests.storage.gcs import FakeGcs

INSTALL = "from tests.jobs import toy_pod; toy_pod.install()"

Make = Callable[..., Pods]


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """Pods of a toy job whose attempt 1 a launcher has claimed and written the spec of."""

    def pods(happens: str, job_folder: str = "", environment: dict[str, str] | None = None, prefix: str = "", **config: Any) -> Pods:
        spec = JobSpec(
            name="toys/pod",
            version="v1",
            partition=None,
            job="summary",
            prefix=prefix or f"file://{tmp_path}/store",
            config={"happens": happens, **config},
            fingerprint="f" * 16,
            identity={},
            inputs=(),
            attempt=1,
            scratch="/scratch/m-pod-a1",
            lease_seconds=1.2,
        )
        assert Store(spec.prefix).claim(spec.id, Claim(number=1, job="m-pod-a1", fingerprint="f" * 16, submitted_at="now", host="k8s"))
        made = Pods(tmp_path, spec, job_folder or f"file://{tmp_path}/store/.jobs/m-pod-a1", INSTALL, environment)
        assert made.folder.write_spec(spec.model_dump_json())
        return made

    return pods


def child_of(pod: RunningPod) -> int:
    """Process id of the job's own process, once it runs."""
    return int(pod.until("toy runs in ").split(",")[0])


def test_a_pod_commits_and_everything_it_said_is_in_the_jobs_folder(make: Make) -> None:
    pods = make("nothing")
    with pods.start() as pod:
        assert pod.end() == 0, pod.log()
    store = Store(pods.spec.prefix)
    record = store.record(pods.spec.id)
    assert record is not None
    store.require_intact(record, every_byte=True)
    (outcome,) = pods.folder.outcomes()
    assert record.payload == f"attempt-1/{outcome.generation}"
    assert (outcome.process, outcome.exit_code, outcome.message, outcome.pod, outcome.node) == (0, 0, None, pod.name, "node-1")
    assert pods.stream(log_stream(0)) == pod.log()
    assert "committed toys/pod@v1" in pod.log()
    messages = [json.loads(line) for line in pods.stream("messages").splitlines()]
    assert [messages[0]["method"], messages[-1]["method"]] == ["opened", "closed"]
    assert pod.told()["exit_code"] == 0


def test_a_preempted_pod_says_143_and_the_next_goes_on_with_what_it_saved(make: Make) -> None:
    pods = make("wait until told")
    store, attempt = Store(pods.spec.prefix), Path(pods.spec.prefix.removeprefix("file://")) / "toys/pod/v1/attempt-1"
    with pods.start() as first:
        child_of(first)
        first.process.terminate()
        assert first.end() == ExitCode.PREEMPTED
    assert store.end(pods.spec.id, 1) is None  # the attempt goes on
    assert first.told()["exit_code"] == ExitCode.PREEMPTED
    (saved,) = attempt.iterdir()
    with pods.start(MARIN_RESTART="1") as second:
        assert second.end() == 0, second.log()
    record = store.record(pods.spec.id)
    assert record is not None
    assert record.metrics == {"pods": 2}
    assert [outcome.exit_code for outcome in pods.folder.outcomes()] == [143, 0]
    assert [outcome.restart for outcome in pods.folder.outcomes()] == [0, 1]
    assert [f"attempt-1/{path.name}" for path in attempt.iterdir()] == [record.payload] != [f"attempt-1/{saved.name}"]


@pytest.mark.parametrize(
    ("happens", "code", "message", "peer_lost"),
    [
        ("kill", 137, "it was killed by SIGKILL", False),
        ("exit", 3, "it ended with code 3 without a word: toy runs in", False),
        ("abort", ExitCode.TRY_AGAIN, "JAX ended it, since another process of the gang is gone", True),
        ("bad data", ExitCode.BAD_DATA, "DataError: shard 7 is broken", False),
        ("bad luck", ExitCode.TRY_AGAIN, "InfrastructureError: the disk is gone", False),
    ],
)
def test_however_a_process_ends_its_pod_says_how_and_leaves_the_attempt_open(
    make: Make, happens: str, code: int, message: str, peer_lost: bool
) -> None:
    pods = make(happens)
    with pods.start() as pod:
        assert pod.end() == code, pod.log()
    (outcome,) = pods.folder.outcomes()
    assert outcome.message is not None
    assert (outcome.exit_code, outcome.peer_lost) == (code, peer_lost)
    assert outcome.message.startswith(message)
    assert pod.told()["message"] == outcome.message
    assert f"process 0 of 1 ends with {int(code)}: {message}" in pods.stream(log_stream(0))
    assert Store(pods.spec.prefix).end(pods.spec.id, 1) is None


def test_a_process_that_is_deaf_is_killed_while_its_pod_can_still_say_so(make: Make) -> None:
    pods = make("ignore", environment={"MARIN_GRACE_SECONDS": "1"})
    with pods.start() as pod:
        child = child_of(pod)
        pod.until("deaf")
        pod.process.terminate()
        assert pod.end() == ExitCode.PREEMPTED
    assert not is_alive(child)
    assert pod.told()["message"] == "it didn't end when it was asked to, and was killed"


def test_a_pod_that_says_try_again_leaves_word_at_once_and_waits_before_it_ends(make: Make) -> None:
    pods = make("bad luck", environment={"MARIN_RETRY_DELAY_SECONDS": "100000"})
    with pods.start() as pod:
        wait_until(pods.folder.outcomes, "the outcome")
        assert pod.process.poll() is None
        pod.process.terminate()  # whoever deletes it needn't wait
        assert pod.end() == ExitCode.TRY_AGAIN


def test_no_job_outlives_a_killed_keeper(make: Make) -> None:
    with make("wait until told").start() as pod:
        child = child_of(pod)
        pod.process.kill()
        pod.process.wait()
        wait_until(lambda: not is_alive(child), "the job's end")


def test_a_store_that_goes_away_ends_nothing_and_loses_nothing(make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    talk, go = tmp_path / "talk", tmp_path / "go"
    with FakeGcs(backend="filesystem", folder=tmp_path / "gcs") as server:
        environment = server.environment() | {"MARIN_STORE_TIMEOUT_SECONDS": "5"}
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        pods = make("talk", "gs://lab/.jobs/m-pod-a1", environment, talk=str(talk), file=str(go))
        with pods.start() as pod:
            child_of(pod)
            server.stop()
            talk.touch()
            pod.until("can't be written, and the job goes on")
            pod.until("line 499")
            server.start()
            go.touch()
            assert pod.end() == 0, pod.log()
        said = pods.stream(log_stream(0)).splitlines()
        assert [line for line in said if line.startswith("line ")] == [f"line {number}" for number in range(500)]
        assert pods.stream("messages").count('"line ') == 500
        assert [outcome.exit_code for outcome in pods.folder.outcomes()] == [0]


def test_a_pod_builds_in_a_bucket(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    with FakeGcs() as server:
        for name, value in server.environment().items():
            monkeypatch.setenv(name, value)
        pods = make("nothing", "gs://lab/store/.jobs/m-pod-a1", server.environment(), prefix="gs://lab/store")
        with pods.start() as pod:
            assert pod.end() == 0, pod.log()
        store = Store(pods.spec.prefix)
        record = store.record(pods.spec.id)
        assert record is not None
        assert record.payload == f"attempt-1/{pods.folder.outcomes()[0].generation}"
        store.require_intact(record, every_byte=True)


def test_a_pod_that_was_given_up_and_wakes_later_changes_nothing(make: Make, tmp_path: Path) -> None:
    """The first pod's process sleeps, as on a node that nobody reaches, while a second one begins, commits and ends."""
    go = tmp_path / "go"
    pods = make("wait for a file", file=str(go))
    store, attempt = Store(pods.spec.prefix), tmp_path / "store/toys/pod/v1/attempt-1"
    with pods.start() as asleep:
        job = psutil.Process(child_of(asleep))
        job.suspend()
        go.touch()
        with pods.start() as second:
            assert second.end() == 0, second.log()
        record = store.record(pods.spec.id)
        job.resume()
        assert asleep.end() == ExitCode.BAD_CONFIG, asleep.log()
    assert record is not None
    assert store.record(pods.spec.id) == record
    store.require_intact(record, every_byte=True)
    assert "superseded: generation" in str(asleep.told()["message"])
    assert [f"attempt-1/{path.name}" for path in attempt.iterdir()] == [record.payload]  # nor has it left anything


def test_two_pods_at_once_the_older_one_stops(make: Make, tmp_path: Path) -> None:
    pods = make("wait for a file", file=str(tmp_path / "go"))
    with pods.start() as older:
        child_of(older)
        with pods.start() as newer:
            assert older.end() == ExitCode.BAD_CONFIG, older.log()
            (tmp_path / "go").touch()
            assert newer.end() == 0, newer.log()
    assert "superseded: generation" in str(older.told()["message"])
    assert Store(pods.spec.prefix).record(pods.spec.id) is not None


def test_a_pod_clears_its_part_of_a_shared_file_system_and_what_killed_ones_left(make: Make, tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    for path, days in ((f"long-dead/{1:020d}", 3), (f"just-killed/{1:020d}", 1), ("somebodys/store", 3)):
        (shared / path).mkdir(parents=True)
        (shared / path / "saved").write_text("1")
        os.utime((shared / path).parent, times=(time.time() - days * 86_400,) * 2)
    with make("nothing").start(MARIN_SHARED_SCRATCH=str(shared), MARIN_SCRATCH=str(shared / "mine")) as pod:
        assert pod.end() == 0, pod.log()
    assert sorted(path.name for path in shared.iterdir()) == ["just-killed", "somebodys"]


@pytest.mark.parametrize(("process", "code", "stays"), [(0, 0, False), (0, 70, True), (1, 70, False), (0, 143, False)])
def test_the_folder_of_a_lead_that_failed_stays_for_those_who_still_write_there(
    tmp_path: Path, process: int, code: int, stays: bool
) -> None:
    """What they would otherwise fail with would be graver than what the lead failed with."""
    given = {
        "MARIN_JOB_INDEX": "0",
        "MARIN_RESTART": "0",
        "MARIN_POD_INDEX": str(process),
        "MARIN_PODS_PER_JOB": "2",
        "MARIN_NUM_PROCESSES": "2",
    }
    place = {"MARIN_SCRATCH": str(tmp_path / "mine"), "MARIN_SHARED_SCRATCH": str(tmp_path), "MARIN_COORDINATOR": "host:1"}
    pod = Pod.from_environment({**given, **place, "MARIN_JOB_FOLDER": "gs://lab/.jobs/m"})
    (work := tmp_path / "mine" / "1").mkdir(parents=True)
    clear_scratch(pod, work, Ended(code))
    assert (tmp_path / "mine").exists() == work.exists() == stays


def test_a_wrong_number_of_processes_is_refused_before_anything_begins(make: Make) -> None:
    pods = make("nothing")
    with pods.start(MARIN_NUM_PROCESSES="2", MARIN_PODS_PER_JOB="2", MARIN_COORDINATOR="127.0.0.1:1") as pod:
        assert pod.end() == ExitCode.BAD_CONFIG
    (outcome,) = pods.folder.outcomes()
    assert "built by 1 processes, and MARIN_NUM_PROCESSES=2" in str(outcome.message)
    assert "toy runs" not in pod.log()


def test_a_missing_variable_is_named_in_the_termination_message(make: Make) -> None:
    with make("nothing").start(MARIN_POD_INDEX="") as pod:
        assert pod.end() == ExitCode.BAD_CONFIG
    assert "MARIN_POD_INDEX is not set" in str(pod.told()["message"])


def test_a_job_without_a_spec_is_refused(make: Make, tmp_path: Path) -> None:
    pods = make("nothing")
    with pods.start(MARIN_JOB_FOLDER=f"file://{tmp_path}/nothing") as pod:
        assert pod.end() == ExitCode.BAD_CONFIG
    (outcome,) = JobFolder(f"file://{tmp_path}/nothing").outcomes()
    assert "holds no spec.json" in str(outcome.message)
