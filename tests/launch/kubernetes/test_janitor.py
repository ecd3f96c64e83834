"""What is swept up behind jobs, and what is left alone."""

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import dagster as dg
import pytest

from marin_assets.automation import cluster as cluster_module
from marin_assets.automation.cluster import cluster_sensors
from marin_assets.launch.kubernetes.following import Connection
from marin_assets.launch.kubernetes.janitor import SWEEP_SECONDS, TERMINATING_SECONDS, Finding, Janitor
from marin_assets.place import LOCAL
from tests.artifact.test_store import commit, record
from tests.launch.kubernetes.desk import ARTIFACT, BEGAN, PODS, Desk
from tests.launch.kubernetes.scripted_api import Fault, ScriptedApi

DOMAINS = "/apis/resource.nvidia.com/v1beta1/namespaces/team-a/computedomains"
RACKS = {
    "name": "gb200", "kind": "gb200", "layout": "racks", "nodes": 18, "nodes_per_domain": 16, "nodes_installed_per_domain": 18,
    "resource": "nvidia.com/gpu", "devices_per_node": 4, "domain_label": "rack", "imex": "per_jobset", "image": "cuda", "cpus": 8,
    "memory_gib": 16, "grace_seconds": 40,
}  # fmt: skip
CPUS = {"name": "cpu", "kind": "cpu", "nodes": 2, "image": "cpu", "cpus": 8, "memory_gib": 16, "grace_seconds": 40}


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    with ScriptedApi() as api:
        yield Desk(api, tmp_path, {"pools": [RACKS, CPUS]})


def sweep(desk: Desk) -> list[Finding]:
    return Janitor(desk.api.cluster(), desk.profile, desk.time).sweep()


def test_a_committed_artifacts_jobset_is_deleted_some_minutes_later(desk: Desk) -> None:
    desk.submit()
    desk.start()
    commit(desk.store, record(ARTIFACT, ended_at=datetime.fromtimestamp(BEGAN, UTC).isoformat()))
    desk.time.now += SWEEP_SECONDS - 1
    assert sweep(desk) == []
    desk.time.now += 2
    assert sweep(desk) == [Finding(desk.name, "deleted", f"{ARTIFACT} is committed")]
    assert desk.api.of("jobsets") == {}
    assert sweep(desk) == []


def test_what_another_profile_or_nobody_of_ours_launched_is_left_alone(desk: Desk) -> None:
    desk.submit()
    commit(desk.store, record(ARTIFACT, ended_at=datetime.fromtimestamp(BEGAN, UTC).isoformat()))
    desk.time.now += 10 * SWEEP_SECONDS
    for labels in ({"marin-assets/managed": "another"}, {}):
        desk.api.change(desk.path, lambda thing, labels=labels: thing["metadata"].update(labels=labels))  # type: ignore[misc]
        assert sweep(desk) == []
    assert len(desk.api.of("jobsets")) == 1


def test_a_job_that_isnt_committed_stays(desk: Desk) -> None:
    desk.submit()
    desk.jobset(terminalState="Failed")
    desk.time.now += 100 * SWEEP_SECONDS
    assert sweep(desk) == []


def test_quota_that_is_held_without_pods_is_given_back(desk: Desk) -> None:
    desk.submit()
    desk.api.change(desk.path, lambda thing: thing["spec"].update(suspend=False))
    desk.workload(Admitted=True, Evicted=True, QuotaReserved=True)
    assert sweep(desk) == []
    desk.time.now += SWEEP_SECONDS + 1
    pod = desk.pod(0)
    assert sweep(desk) == []
    desk.api.remove(f"{PODS}/{pod}")
    found = sweep(desk)
    assert [(each.name, each.done) for each in found] == [(desk.name, "deleted")]
    assert desk.api.of("jobsets") == {}


def test_a_pod_that_doesnt_end_is_told_of_and_not_touched(desk: Desk) -> None:
    desk.submit()
    pod = desk.pod(0)
    desk.api.change(f"{PODS}/{pod}", lambda thing: thing["metadata"].update(deletionTimestamp=desk.time.stamp()))
    desk.time.now += TERMINATING_SECONDS
    assert sweep(desk) == []
    desk.time.now += 2
    found = sweep(desk)
    assert [(each.name, each.done) for each in found] == [(pod, "told")]
    assert "node-0" in found[0].message
    assert pod in desk.api.of("pods")


def test_a_compute_domain_without_its_jobset_goes(desk: Desk) -> None:
    desk.submit()
    uid = desk.api.of("jobsets")[desk.name]["metadata"]["uid"]
    labels = {"marin-assets/managed": "toy"}
    for name, owner in (("kept", uid), ("orphan", "of-long-ago")):
        metadata = {"name": name, "namespace": "team-a", "labels": labels, "ownerReferences": [{"uid": owner}]}
        desk.api.put(f"{DOMAINS}/{name}", {"kind": "ComputeDomain", "metadata": metadata})
    assert sweep(desk) == []
    desk.time.now += SWEEP_SECONDS + 1
    assert [each.name for each in sweep(desk)] == ["orphan"]
    assert list(desk.api.of("computedomains")) == ["kept"]


def test_one_damaged_record_keeps_nothing_else_from_being_swept(desk: Desk) -> None:
    desk.submit()
    meta = Path(desk.store.address(ARTIFACT).removeprefix("file://")) / ".artifact"
    meta.mkdir(parents=True)
    (meta / "record.json").write_text("{")
    pod = desk.pod(0)
    desk.api.change(f"{PODS}/{pod}", lambda thing: thing["metadata"].update(deletionTimestamp=desk.time.stamp()))
    desk.time.now += TERMINATING_SECONDS + 2
    assert {(each.name, each.done) for each in sweep(desk)} == {(desk.name, "told"), (pod, "told")}


def test_two_janitors_at_once_harm_nobody(desk: Desk) -> None:
    desk.submit()
    commit(desk.store, record(ARTIFACT, ended_at=datetime.fromtimestamp(BEGAN, UTC).isoformat()))
    desk.time.now += SWEEP_SECONDS + 1
    desk.api.fail(Fault("DELETE", "jobsets", 404, "NotFound"), Fault("DELETE", "jobsets", 409, "Conflict"))
    for _ in range(2):
        assert [each.done for each in sweep(desk)] == ["deleted"]


def test_the_sensor_sweeps_and_is_off(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    assert cluster_sensors(LOCAL) == []
    connection = Connection.open(desk.profile, desk.api.cluster(), watch=False)
    monkeypatch.setattr(cluster_module, "open_connection", lambda launcher: connection)
    [sensor] = cluster_sensors("toy")
    assert sensor.default_status == dg.DefaultSensorStatus.STOPPED
    desk.submit()
    pod = desk.pod(0)
    desk.api.change(f"{PODS}/{pod}", lambda thing: thing["metadata"].update(deletionTimestamp="2020-01-01T00:00:00Z"))
    with dg.DagsterInstance.ephemeral() as instance:
        told = sensor(dg.build_sensor_context(instance))
    assert isinstance(told, dg.SensorResult)
    assert pod in str(told.skip_reason)
