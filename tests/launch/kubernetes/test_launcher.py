"""What the launcher makes of what an API server says: no job is lost, none is started twice, and none is given up for an outage."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from marin_assets.launch import Observation, State
from marin_assets.launch.kubernetes import launcher as launcher_module
from marin_assets.launch.kubernetes.client import FORBIDDEN_SECONDS
from marin_assets.launch.kubernetes.following import CONFIRM_SECONDS, LAST_WORDS_SECONDS
from marin_assets.launch.kubernetes.mirror import Mirror
from marin_core.artifact.step import Accelerators, Resources
from marin_core.errors import ConfigError, ExitCode, InfrastructureError
from tests.artifact.test_store import commit, record
from tests.launch.kubernetes.desk import ARTIFACT, PODS, WORKLOADS, Desk
from tests.launch.kubernetes.scripted_api import Fault, ScriptedApi


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    with ScriptedApi() as api:
        yield Desk(api, tmp_path)


@pytest.fixture
def gang(tmp_path: Path) -> Iterator[Desk]:
    with ScriptedApi() as api:
        yield Desk(api, tmp_path, resources=Resources(processes=3))


def phase(seen: Observation) -> str:
    assert seen.standing is not None
    return seen.standing.phase


# Into the cluster ------------------------------------------------------------------------------------------------------


def test_a_job_is_handed_over_suspended_with_its_spec_in_the_store(desk: Desk) -> None:
    desk.submit()
    made = desk.api.of("jobsets")[desk.name]
    assert made["spec"]["suspend"]
    assert made["metadata"]["annotations"]["marin-assets/address"] == desk.store.address(ARTIFACT)
    text = desk.job_folder.spec()
    assert text is not None
    assert f'"scratch":"{desk.profile.scratch}/{desk.name}"' in text
    assert phase(desk.see()) == "queued"


@pytest.mark.parametrize("status", [None, 500, 503, 429, 504])
def test_an_api_server_that_is_away_is_waited_for(desk: Desk, status: int | None) -> None:
    desk.api.fail(Fault("POST", "jobsets", status, "InternalError", 'failed calling webhook "mjobset.kb.io"', times=6))
    desk.submit()
    seen = desk.see(0)
    assert (seen.state, phase(seen), seen.is_mute) == (State.PENDING, "submitting", True)
    assert seen.standing is not None
    assert seen.standing.stale_since is not None
    desk.until(lambda seen: bool(desk.api.of("jobsets")), seconds=30)
    assert phase(desk.see()) == "queued"
    assert desk.api.requests["POST jobsets"] == 7


def test_a_server_that_asks_for_time_gets_it(desk: Desk) -> None:
    desk.api.fail(Fault("POST", "jobsets", 429, "TooManyRequests", headers={"Retry-After": "30"}))
    desk.submit()
    for _ in range(29):
        desk.see(1)
    assert desk.api.requests["POST jobsets"] == 1
    desk.see(2)
    assert desk.api.requests["POST jobsets"] == 2


def test_a_job_whose_creation_was_answered_to_nobody_is_found(desk: Desk) -> None:
    desk.api.fail(Fault("POST", "jobsets", late=True))
    desk.submit()
    assert desk.until(lambda seen: phase(seen) == "queued").state == State.PENDING
    assert len(desk.api.of("jobsets")) == 1


def test_a_job_of_this_name_that_is_being_deleted_is_waited_for(desk: Desk) -> None:
    desk.api.lingers.add(desk.name)
    older = desk.submit()
    desk.api.cluster().delete(desk.path, desk.api.objects[desk.path]["metadata"]["uid"])
    second = desk.launcher_anew()
    desk.submit(second)
    assert "still being deleted" in second.observe(older).reason
    desk.api.remove(desk.path)
    desk.see(2, second)
    assert "deletionTimestamp" not in desk.api.of("jobsets")[desk.name]["metadata"]


def test_another_job_of_this_name_is_left_alone(desk: Desk) -> None:
    desk.submit()
    desk.api.change(desk.path, lambda thing: thing["metadata"]["annotations"].update({"marin-assets/spec-sha256": "another's"}))
    second = desk.launcher_anew()
    desk.submit(second)
    seen = second.observe(desk.handle)
    assert (seen.state, seen.failure, seen.exit_code) == (State.FAILED, "config", ExitCode.BAD_CONFIG)
    assert "another's" in seen.reason
    assert desk.api.requests["DELETE jobsets"] == 0


def test_a_folder_with_another_spec_is_left_alone(desk: Desk) -> None:
    desk.submit()
    second = desk.launcher_anew()
    desk.submit(second, fingerprint="0" * 16)
    assert second.observe(desk.handle).failure == "config"
    assert desk.api.requests["POST jobsets"] == 1


@pytest.mark.parametrize(
    ("status", "message"),
    [(422, "spec.replicatedJobs[0].name: too long"), (403, 'admission webhook "vjobset.kb.io" denied the request: no')],
)
def test_what_the_cluster_refuses_is_a_matter_of_configuration(desk: Desk, status: int, message: str) -> None:
    desk.api.fail(Fault("POST", "jobsets", status, "Invalid", message))
    desk.submit()
    seen = desk.see()
    assert (seen.state, seen.failure, seen.exit_code) == (State.FAILED, "config", ExitCode.BAD_CONFIG)
    assert message in seen.reason
    assert desk.api.requests["POST jobsets"] == 1


def test_a_job_that_no_pool_can_hold_is_refused_before_anything_is_asked(tmp_path: Path) -> None:
    with ScriptedApi() as api:
        desk = Desk(api, tmp_path, resources=Resources(cpus=9))
        desk.submit()
        assert desk.see().failure == "config"
        assert api.total() == 0


@pytest.mark.parametrize(("claim", "processes"), [(None, 3), ("scratch", 3), (None, 1)])
def test_a_gang_whose_store_is_a_bucket_is_refused_unless_its_pods_share_a_file_system(
    tmp_path: Path, claim: str | None, processes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", "http://127.0.0.1:1")  # nobody is asked
    with ScriptedApi() as api:
        desk = Desk(api, tmp_path, {"scratch_claim": claim}, Resources(processes=processes))
        desk.submit(prefix="gs://lab/store")
        refused = claim is None and processes > 1
        assert (desk.name in api.of("jobsets")) != refused
        if refused:
            seen = desk.see()
            assert (seen.state, seen.exit_code) == (State.FAILED, ExitCode.BAD_CONFIG)
            assert "scratch_claim" in seen.reason


def test_without_an_image_a_job_is_refused_and_the_variable_named(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(desk.launcher, "_images", None)
    monkeypatch.delenv("MARIN_IMAGE_CPU", raising=False)
    desk.submit()
    assert "MARIN_IMAGE_CPU" in desk.see().reason


def test_a_launcher_that_died_between_spec_and_creation_is_followed_by_the_next(desk: Desk) -> None:
    desk.api.fail(Fault("POST", "jobsets", 503, times=1000))
    desk.submit()
    assert desk.api.of("jobsets") == {}
    assert desk.job_folder.spec() is not None
    desk.api.faults.clear()
    second = desk.launcher_anew("elsewhere")
    desk.submit(second)
    assert list(desk.api.of("jobsets")) == [desk.name]
    assert phase(desk.see(3, second)) == "queued"


def test_launchers_that_race_make_one_job(desk: Desk) -> None:
    launchers = [desk.launcher_anew(f"machine-{number}") for number in range(6)]
    with ThreadPoolExecutor(6) as pool:
        list(
            pool.map(
                lambda launcher: desk.submit(launcher, dagster_run_id=str(id(launcher)), lease_seconds=60 + id(launcher) % 7), launchers
            )
        )
    assert len(desk.api.of("jobsets")) == 1
    desk.time.now += 3
    assert {phase(launcher.observe(desk.handle)) for launcher in launchers} == {"queued"}


# How it stands ---------------------------------------------------------------------------------------------------------


def test_phases_are_told_as_the_cluster_says_them(desk: Desk) -> None:
    desk.submit()
    desk.workload(
        QuotaReserved=False,
        messages={
            "QuotaReserved": "couldn't assign flavors to pod set worker: insufficient unused quota for cpu in flavor cpu, 4 more needed"
        },
    )
    seen = desk.see()
    assert (phase(seen), seen.state, seen.is_mute) == ("queued", State.PENDING, True)
    assert "waits for 4 more cpu in cpu" in seen.reason
    desk.start()
    seen = desk.see()
    assert (phase(seen), seen.state, seen.is_mute) == ("running", State.RUNNING, False)
    assert seen.standing is not None
    assert (seen.standing.pods_ready, seen.standing.pods_total) == (1, 1)
    desk.workload(Admitted=True, QuotaReserved=True, Evicted=True, Preempted=True)
    assert (phase(desk.see(13)), desk.launcher.observe(desk.handle).is_mute) == ("preempted", True)


def test_one_read_that_finds_nothing_proves_nothing(desk: Desk) -> None:
    desk.submit()
    desk.start()
    assert desk.see().state == State.RUNNING
    desk.api.fail(Fault("GET", f"jobsets/{desk.name}", 404, "NotFound"))
    jobset = desk.api.objects.pop(desk.path)
    assert desk.see(13).state == State.RUNNING
    assert desk.see(CONFIRM_SECONDS / 2).state == State.RUNNING
    desk.api.objects[desk.path] = jobset
    assert desk.see(CONFIRM_SECONDS).state == State.RUNNING
    desk.api.remove(desk.path)
    seen = desk.until(lambda seen: seen.state.final)
    assert (seen.state, seen.failure) == (State.VANISHED, "infrastructure")


def test_a_list_that_is_behind_makes_no_job_vanish(desk: Desk) -> None:
    desk.submit()
    desk.start()
    desk.api.objects[desk.path]["metadata"]["labels"]["marin-assets/key"] = "hidden"  # from lists by label, as a stale cache would
    for _ in range(20):
        assert desk.see(5).state in (State.PENDING, State.RUNNING)


def test_a_job_that_was_claimed_and_not_submitted_is_left_to_its_lease(desk: Desk) -> None:
    for _ in range(10):
        seen = desk.see()
        assert (seen.state, phase(seen)) == (State.PENDING, "submitting")


def test_an_outage_keeps_the_last_state_and_says_since_when(desk: Desk) -> None:
    desk.submit()
    desk.start()
    assert desk.see().state == State.RUNNING
    began = desk.time.now
    desk.api.stop()
    for _ in range(40):
        seen = desk.see(30)
        assert (seen.state, phase(seen)) == (State.RUNNING, "running")
    assert seen.standing is not None
    assert seen.standing.stale_since is not None
    assert began < seen.standing.stale_since <= began + 30
    assert seen.is_mute  # so whoever follows it keeps its lease alive
    desk.api.start()
    seen = desk.until(lambda seen: not seen.is_mute)
    assert seen.standing is not None
    assert seen.standing.stale_since is None


def test_a_right_that_is_missing_is_told_once_it_has_been_denied_for_a_while(desk: Desk) -> None:
    desk.submit()
    desk.api.fail(Fault("GET", "workloads", 403, "Forbidden", 'User "marin" cannot list resource "workloads"', times=100))
    began = desk.time.now
    with pytest.raises(ConfigError, match="cannot list"):
        desk.until(lambda seen: False, seconds=5.0)
    assert desk.time.now - began > FORBIDDEN_SECONDS


def test_an_api_server_that_has_just_started_and_knows_no_roles_refuses_no_job(desk: Desk) -> None:
    denied = 'User "marin" cannot create resource "jobsets"'
    desk.api.fail(Fault("POST", "jobsets", 403, "Forbidden", denied, times=3))
    desk.submit()
    seen = desk.see()
    assert seen.state == State.PENDING
    assert denied in seen.reason
    desk.until(lambda seen: bool(desk.api.of("jobsets")), seconds=5.0)


def test_a_record_is_success_whatever_the_cluster_says(desk: Desk) -> None:
    desk.submit()
    desk.start()
    desk.see()
    commit(desk.store, record(ARTIFACT))
    assert desk.see(13).state == State.RUNNING  # its pods may have last words
    assert desk.see(LAST_WORDS_SECONDS + 13).state == State.SUCCEEDED
    desk.jobset(terminalState="Failed")
    assert desk.launcher_anew().observe(desk.handle).state in (State.PENDING, State.SUCCEEDED)


def test_processes_that_end_well_without_a_record_are_a_bug(desk: Desk) -> None:
    desk.submit()
    desk.start()
    desk.jobset(terminalState="Completed")
    seen = desk.see()
    assert (seen.state, seen.failure, seen.exit_code) == (State.FAILED, "bug", ExitCode.BUG)


def test_a_failure_is_judged_by_all_processes_and_blamed_on_one(gang: Desk) -> None:
    """The cluster saw the 75 first, which is infrastructure for it."""
    gang.submit()
    gang.start()
    gang.see()
    gang.leave(0, 75, "lost touch", peer_lost=True)
    gang.leave(1, 75, "lost touch", peer_lost=True)
    gang.leave(2, 70, "IndexError: list index out of range")
    gang.job_folder.put("log-2", f"{2:020d}", 0, b"what 2 printed\n")
    gang.jobset(terminalState="Failed")
    seen = gang.see()
    assert (seen.state, seen.failure) == (State.FAILED, "bug")
    assert "process 2 of 3: IndexError" in seen.reason
    assert gang.launcher.logs(gang.handle, 5) == "what 2 printed"


def test_a_job_with_bad_data_isnt_restarted_although_the_cluster_would(gang: Desk) -> None:
    gang.submit()
    gang.start()
    gang.see()
    gang.leave(0, 75, "lost touch", peer_lost=True)
    gang.leave(1, 65, "shard 7 is broken")
    gang.restart(1)
    seen = gang.see(13)
    assert (seen.state, seen.failure, seen.exit_code) == (State.FAILED, "data", ExitCode.BAD_DATA)
    assert "shard 7" in seen.reason
    assert gang.api.of("jobsets") == {}


def test_a_bug_that_looks_like_infrastructure_has_the_applications_budget(gang: Desk) -> None:
    gang.submit()
    gang.start()
    most = gang.api.of("jobsets")[gang.name]["spec"]["failurePolicy"]["maxRestarts"]
    assert most == 3
    for number in range(most + 1):
        assert gang.see(13).state == State.RUNNING
        gang.leave(0, 75, "lost touch", restart=number, peer_lost=True)
        gang.leave(1, 70, "IndexError", restart=number)
        gang.restart(number + 1)  # none of them counted
    seen = gang.see(13)
    assert (seen.state, seen.failure) == (State.FAILED, "bug")


def progress(desk: Desk, generation: int, done: int) -> None:
    payload = f'{{"kind": "progress", "done": {done}, "total": 100, "unit": "steps"}}'
    line = f'{{"method": "report_custom_message", "params": {{"payload": {payload}}}}}\n'
    desk.job_folder.put("messages", f"{generation:020d}", 0, line.encode())


def test_a_job_that_goes_round_is_stopped(desk: Desk) -> None:
    desk.submit()
    desk.start()
    desk.see()
    for number in range(5):
        progress(desk, number + 1, 40)
        desk.leave(0, 75, "the disk is gone", restart=number)
        assert desk.see(13).state == State.RUNNING
        desk.restart(number + 1)
    seen = desk.see(13)
    assert (seen.state, seen.failure, seen.exit_code) == (State.FAILED, "infrastructure", ExitCode.TRY_AGAIN)
    assert "restarted 5 times" in seen.reason
    assert "the disk is gone" in seen.reason
    assert desk.api.of("jobsets") == {}


def test_a_job_that_gets_on_is_restarted_without_limit(desk: Desk) -> None:
    desk.submit()
    desk.start()
    desk.see()
    for number in range(20):
        progress(desk, number + 1, 40 + number // 3)
        desk.leave(0, 75, "the disk is gone", restart=number)
        assert desk.see(13).state == State.RUNNING
        desk.restart(number + 1)


def tell_evictions(desk: Desk, count: int) -> None:
    """Kueue says how often it has taken the job's place."""
    told = {"evictions": [{"reason": "Preempted", "underlyingCause": "InClusterQueue", "count": count}]}
    desk.api.change(f"{WORKLOADS}/jobset-{desk.name}-1a2b3", lambda thing: thing["status"].update(schedulingStats=told))


def test_a_job_that_is_preempted_before_it_gets_on_is_not_held_to_go_round(desk: Desk) -> None:
    """Each time it comes back costs a restart that counts towards nothing."""
    desk.submit()
    desk.start()
    desk.see()
    for number in range(20):
        desk.leave(0, 143, "asked to stop", restart=number)
        tell_evictions(desk, number + 1)
        assert desk.see(13).state == State.RUNNING
        desk.restart(number + 1)
    assert desk.see(13).state == State.RUNNING


def test_an_image_of_no_legal_name_ends_the_job(desk: Desk) -> None:
    desk.submit()
    desk.start(ready=False)
    waiting = [{"name": "job", "state": {"waiting": {"reason": "InvalidImageName", "message": "couldn't parse image name"}}}]
    desk.pod(0, ready=False, phase="Pending", containerStatuses=waiting)
    seen = desk.see()
    assert (seen.state, seen.failure) == (State.FAILED, "config")
    assert desk.api.of("jobsets") == {}


def test_what_pods_say_is_copied_once_by_however_many_follow(desk: Desk) -> None:
    desk.submit()
    desk.start()
    others = [desk.launcher_anew(), desk.launcher_anew("elsewhere")]
    for number in range(3):
        progress(desk, 1, 10) if number == 0 else None
        desk.job_folder.put("log-0", f"{1:020d}", number, f"line {number}\n".encode())
        desk.time.now += 13
        for launcher in (desk.launcher, *others):
            launcher.observe(launcher.handle(desk.name))
    assert (desk.handle.folder / "log").read_text() == "line 0\nline 1\nline 2\n"
    assert (others[1].handle(desk.name).folder / "log").read_text() == "line 0\nline 1\nline 2\n"
    (desk.handle.folder / "log").write_text("line 0\nline 1\nline 2\nhalf of a pie")  # killed in the middle
    desk.job_folder.put("log-0", f"{1:020d}", 3, b"line 3\n")
    desk.see(13)
    assert (desk.handle.folder / "log").read_text() == "line 0\nline 1\nline 2\nline 3\n"
    (desk.handle.folder / "log").unlink()
    desk.see(13)
    assert (desk.handle.folder / "log").read_text() == "line 0\nline 1\nline 2\nline 3\n"


# Out of the cluster ----------------------------------------------------------------------------------------------------


def passing(desk: Desk, monkeypatch: pytest.MonkeyPatch, then: dict[int, str] | None = None) -> list[float]:
    """Let the desk's time pass where the launcher sleeps, and objects go after so many sleeps; returns the sleeps."""
    waits: list[float] = []

    def sleep(seconds: float) -> None:
        waits.append(seconds)
        desk.time.now += seconds
        if then and len(waits) in then:
            desk.api.remove(then[len(waits)])

    monkeypatch.setattr("marin_assets.launch.kubernetes.launcher.time.sleep", sleep)
    return waits


def test_the_folder_of_a_job_without_pods_is_read_once_after_them_and_then_left_alone(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    pulls: list[float] = []
    pull = Mirror.pull

    def counted(mirror: Mirror) -> None:
        pulls.append(desk.time.now)
        pull(mirror)

    monkeypatch.setattr(Mirror, "pull", counted)
    desk.submit()
    desk.workload(QuotaReserved=False)
    for _ in range(10):
        assert desk.see().state == State.PENDING
    assert len(pulls) == 1
    desk.start()
    desk.until(lambda seen: seen.state == State.RUNNING)
    while_running = len(pulls)
    assert while_running > 1
    desk.job_folder.put("log-0", "0" * 20, 0, b"a last word\n")
    desk.api.change(desk.path, lambda thing: thing["spec"].update(suspend=True))
    for path in [path for path in desk.api.objects if path.startswith(PODS)]:
        desk.api.remove(path)
    desk.workload(QuotaReserved=False, Evicted=True)
    for _ in range(10):
        desk.see(12.0)
    assert (desk.handle.folder / "log").read_text() == "a last word\n"
    assert len(pulls) <= while_running + 2


def test_cancel_returns_when_the_pods_are_gone(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    desk.submit()
    desk.start()
    desk.api.lingers.add(desk.name)
    pod = f"{PODS}/{desk.name}-worker-0-0-00000"
    waits = passing(desk, monkeypatch, {3: desk.path, 6: pod})
    desk.launcher.cancel(desk.handle)
    assert len(waits) >= 7
    assert desk.api.requests["DELETE jobsets"] == 1
    desk.launcher.cancel(desk.handle)
    assert desk.api.requests["DELETE jobsets"] == 1


def test_cancel_says_which_pod_on_which_node_does_not_end_and_forces_nothing(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    desk.submit()
    desk.start()
    desk.api.lingers.add(desk.name)
    passing(desk, monkeypatch)
    with pytest.raises(InfrastructureError, match=f"pod {desk.name}-worker-0-0-00000 on node-0"):
        desk.launcher.cancel(desk.handle, grace_seconds=5)
    assert desk.api.requests["DELETE pods"] == 0
    seen = desk.see(13)
    assert (phase(seen), seen.state) == ("stopping", State.PENDING)
    assert "node-0" in seen.reason


def test_cancel_survives_an_outage(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    desk.submit()
    desk.api.fail(Fault("GET", "jobsets/", times=3), Fault("DELETE", "jobsets", 500, times=2), Fault("GET", "jobsets/", 404, "NotFound"))
    passing(desk, monkeypatch)
    desk.launcher.cancel(desk.handle)
    assert desk.api.of("jobsets") == {}


def test_a_job_that_never_reached_the_cluster_is_cancelled_too(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    desk.api.fail(Fault("POST", "jobsets", 503, times=1))
    desk.submit()
    passing(desk, monkeypatch)
    desk.launcher.cancel(desk.handle)
    for _ in range(20):
        desk.see(60)
    assert desk.api.of("jobsets") == {}


def test_a_paused_job_is_activated_some_seconds_after_its_last_pod(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    desk.submit()
    desk.start()
    name = desk.workload(Admitted=True, QuotaReserved=True)
    desk.launcher.pause(desk.handle)
    desk.launcher.pause(desk.handle)
    assert desk.api.requests["PATCH workloads"] == 1
    assert desk.api.of("workloads")[name]["spec"]["active"] is False
    waits = passing(desk, monkeypatch, {4: f"{PODS}/{desk.name}-worker-0-0-00000"})
    assert phase(desk.see(13)) == "paused"
    desk.launcher.unpause(desk.handle)
    assert desk.api.of("workloads")[name]["spec"]["active"] is True
    assert waits[-1] == launcher_module.REST_SECONDS


def test_a_job_that_isnt_there_cant_be_paused(desk: Desk) -> None:
    with pytest.raises(ConfigError, match="no job"):
        desk.launcher.pause(desk.handle)


# What it printed, and what it costs ------------------------------------------------------------------------------------


def test_logs_come_from_the_folder_then_from_the_pod_then_from_its_last_word(desk: Desk) -> None:
    desk.submit()
    desk.start()
    assert desk.launcher.logs(desk.handle, 3) == ""
    pod = f"{PODS}/{desk.name}-worker-0-0-00000"
    terminated = [{"name": "job", "state": {"terminated": {"exitCode": 1, "message": '{"exit_code": 1}'}}}]
    desk.api.change(pod, lambda thing: thing["status"].update(containerStatuses=terminated))
    assert desk.launcher.logs(desk.handle, 3) == '{"exit_code": 1}'
    desk.api.texts[f"{pod}/log"] = "from the pod"
    assert desk.launcher.logs(desk.handle, 3) == "from the pod"
    for number in range(4):
        desk.job_folder.put("log-0", f"{1:020d}", number, f"line {number}\n".encode())
    assert desk.launcher.logs(desk.handle, 3) == "line 1\nline 2\nline 3"
    desk.api.stop()
    assert desk.launcher.logs(desk.handle, 1) == "line 3"


def test_requests_do_not_grow_with_the_jobs_that_are_followed(tmp_path: Path) -> None:
    with ScriptedApi() as api:
        desks = [Desk(api, tmp_path / f"{number}") for number in range(70)]
        time, launcher = desks[0].time, desks[0].launcher
        for desk in desks:
            desk.time, desk.launcher, desk.handle = time, launcher, launcher.handle(desk.name)
            desk.submit()
            desk.workload(QuotaReserved=False)
        before = api.total()
        for _ in range(40):  # for twenty seconds, as many builders in one process would look
            time.now += 0.5
            for desk in desks:
                launcher.observe(desk.handle)
        asked = api.total() - before
        assert asked <= 40  # 2 lists every 2 s at most, and the queue's order every 10 s
        time.now += 100
        assert {phase(launcher.observe(desk.handle)) for desk in desks} == {"queued"}


def test_a_queue_is_looked_at_less_often_the_longer_it_lasts(desk: Desk) -> None:
    desk.submit()
    desk.workload(QuotaReserved=False)

    def lists(seconds: int) -> int:
        before = desk.api.requests["GET jobsets"]
        for _ in range(seconds):
            desk.see(1)
        return desk.api.requests["GET jobsets"] - before

    assert 10 <= lists(30) <= 30
    lists(60)
    assert 5 <= lists(100) <= 15
    desk.time.now += 3600
    lists(60)
    assert 3 <= lists(300) <= 8


def test_secondary_objects_are_the_jobsets_own(tmp_path: Path) -> None:
    pools = [
        {"name": "gb200", "kind": "gb200", "layout": "racks", "nodes": 18, "nodes_per_domain": 16, "nodes_installed_per_domain": 18,
         "resource": "nvidia.com/gpu", "devices_per_node": 4, "architecture": "arm64", "domain_label": "rack", "preferred_label": "row",
         "imex": "per_jobset", "image": "cuda", "cpus": 8, "memory_gib": 16, "grace_seconds": 40},
    ]  # fmt: skip
    resources = Resources(accelerators=Accelerators(kinds=("gb200",), nodes=2))
    with ScriptedApi() as api:
        desk = Desk(api, tmp_path, {"pools": pools}, resources)
        api.fail(Fault("POST", "computedomains", 503))
        desk.submit()
        assert api.of("computedomains") == {}
        desk.until(lambda seen: bool(api.of("computedomains")))
        owner = api.of("computedomains")[desk.name]["metadata"]["ownerReferences"][0]
        assert owner["uid"] == api.of("jobsets")[desk.name]["metadata"]["uid"]
        assert phase(desk.see()) == "queued"
