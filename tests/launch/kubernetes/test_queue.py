"""The queue as people see it: `marin queue`, and what a waiting job says of itself."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from marin_assets.cli.main import main
from marin_assets.launch.kubernetes.queue import QueueOrder, asks, queue
from marin_core.artifact.step import Resources
from marin_core.errors import ConfigError
from tests.launch.kubernetes.desk import LOCAL_QUEUE, WORKLOADS, Desk
from tests.launch.kubernetes.scripted_api import Fault, Json, ScriptedApi

PENDING = "/apis/visibility.kueue.x-k8s.io/v1beta2/clusterqueues/cq-a/pendingworkloads"
PRIORITIES = "/apis/kueue.x-k8s.io/v1beta2/workloadpriorityclasses"
NAMESPACE = "/api/v1/namespaces/team-a"


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    with ScriptedApi() as api:
        api.put(LOCAL_QUEUE, {"kind": "LocalQueue", "metadata": {"name": "train"}, "spec": {"clusterQueue": "cq-a"}})
        yield Desk(api, tmp_path, resources=Resources(cpus=6, memory_gib=12, processes=3))


def workload(desk: Desk, name: str, *, priority: int = 100, ago: float = 0, flavor: str | None = None, active: bool = True) -> Json:
    """A Workload of somebody else's."""
    conditions = [{"type": "QuotaReserved", "status": "True", "lastTransitionTime": desk.time.stamp(ago)}] if flavor else []
    conditions += [{"type": "Admitted", "status": "True"}, {"type": "PodsReady", "status": "True"}] if flavor else []
    admission = {"admission": {"podSetAssignments": [{"flavors": {"cpu": flavor}}]}} if flavor else {}
    metadata = {"name": name, "namespace": "team-a", "creationTimestamp": desk.time.stamp(ago)}
    template = {"spec": {"containers": [{"resources": {"requests": {"cpu": "500m"}}}]}}
    return desk.api.put(
        f"{WORKLOADS}/{name}",
        {
            "kind": "Workload",
            "metadata": metadata,
            "spec": {"priority": priority, "queueName": "train", "active": active, "podSets": [{"count": 2, "template": template}]},
            "status": {"conditions": conditions, **admission},
        },
    )


def visible(*names: str) -> Json:
    items = [
        {"metadata": {"name": name, "namespace": namespace}, "positionInClusterQueue": place}
        for place, (namespace, name) in enumerate(each.split("/") for each in names)
    ]
    return {"metadata": {"name": "cq-a"}, "items": items}


def test_entries_say_who_asks_for_what_since_when_and_why(desk: Desk) -> None:
    desk.submit()
    said = "couldn't assign flavors to pod set worker: insufficient unused quota for cpu in flavor cpu, 4 more needed"
    name = desk.workload(QuotaReserved=False, messages={"QuotaReserved": said})
    workload(desk, "other", ago=60, flavor="cpu")
    desk.api.texts[PENDING] = json.dumps(visible("team-b/first", f"team-a/{name}"))
    running, ours = queue(desk.api.cluster(), desk.profile)
    assert (running.name, running.position, running.why, dict(running.asks)) == ("other", 0, "it runs on cpu", {"cpu": "1"})
    assert (ours.name, ours.position, ours.priority, ours.namespace) == (desk.name, 2, 100, "team-a")
    assert ours.address == desk.store.address(desk.spec().id)
    assert dict(ours.asks) == {"cpu": "6", "memory": "12 GiB"}
    assert ours.why == "waits for 4 more cpu in cpu"
    assert ours.since == desk.time.stamp()


def test_where_kueue_doesnt_tell_the_order_is_computed(desk: Desk) -> None:
    workload(desk, "young", ago=10)
    workload(desk, "old", ago=100)
    workload(desk, "urgent", priority=1000)
    workload(desk, "paused", ago=200, active=False)
    workload(desk, "running", ago=300, flavor="cpu")
    for status in (404, 503, 403):
        desk.api.fail(Fault("GET", "pendingworkloads", status))
        found = queue(desk.api.cluster(), desk.profile)
        assert [(each.name, each.position) for each in found] == [("running", 0), ("urgent", 1), ("old", 2), ("young", 3), ("paused", None)]
    assert found[-1].why == "it is paused"


def test_a_pool_shows_what_runs_there_or_waits_for_what_it_has(desk: Desk) -> None:
    workload(desk, "here", flavor="cpu")
    workload(desk, "elsewhere", flavor="cpu-large")
    workload(desk, "waits")
    assert [each.name for each in queue(desk.api.cluster(), desk.profile, "cpu")] == ["here", "waits"]
    with pytest.raises(ConfigError, match="no pool 'gb200'"):
        queue(desk.api.cluster(), desk.profile, "gb200")


def test_a_waiting_job_knows_its_place(desk: Desk) -> None:
    desk.submit()
    name = desk.workload(QuotaReserved=False)
    desk.api.texts[PENDING] = json.dumps(visible("team-a/jobset-m-other-abcdefghij-a1-77777", f"team-a/{name}"))
    seen = desk.see()
    assert seen.standing is not None
    assert seen.standing.position == 2
    assert seen.reason == "number 2 in the queue of cq-a, behind m-other-abcdefghij-a1"


def test_the_order_is_asked_seldom_and_its_absence_hurts_nobody(desk: Desk) -> None:
    desk.submit()
    desk.workload(QuotaReserved=False)
    desk.api.remove(LOCAL_QUEUE)
    for _ in range(30):
        assert desk.see(1).standing is not None
    assert desk.api.requests["GET localqueues"] <= 4


def test_a_job_that_kueue_doesnt_see_says_what_is_missing(desk: Desk) -> None:
    desk.api.put(f"{PRIORITIES}/batch", {"metadata": {"name": "batch"}})
    desk.api.put(NAMESPACE, {"metadata": {"name": "team-a", "labels": {"kueue-managed": "true"}}})
    desk.submit()
    desk.see(1)
    assert "its manager may be down" in desk.see(70).reason
    for path, words in ((f"{PRIORITIES}/batch", "WorkloadPriorityClass"), (LOCAL_QUEUE, "LocalQueue"), (NAMESPACE, "namespace")):
        desk.api.change(path, lambda thing: thing["metadata"].update(labels={})) if path == NAMESPACE else desk.api.remove(path)
        seen = desk.see(70)
        assert seen.standing is not None
        assert (seen.standing.phase, words in seen.reason) == ("stuck", True)


def test_quantities_of_all_pods_are_added_up() -> None:
    def pods(count: int, **requests: str) -> Json:
        return {"count": count, "template": {"spec": {"containers": [{"resources": {"requests": requests}}]}}}

    assert asks({"spec": {"podSets": [pods(16, cpu="128", memory="800Gi"), pods(1, cpu="500m", memory="512Mi")]}}) == {
        "cpu": "2048.5",
        "memory": "1.28e+04 GiB",
    }


def test_a_position_is_none_for_what_isnt_in_the_line(desk: Desk) -> None:
    order = QueueOrder(desk.api.cluster(), desk.profile).order()
    assert order.line(workload(desk, "new")).position is None


@pytest.fixture
def deployment(desk: Desk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Desk:
    """A deployment that launches on the desk's cluster."""
    import marin_assets.launch.kubernetes as package

    path = tmp_path / "profile.yaml"
    path.write_text(desk.profile.model_dump_json())
    monkeypatch.setenv("MARIN_LAUNCHER", "kubernetes")
    monkeypatch.setenv("MARIN_PROFILE", str(path))
    monkeypatch.setattr(package, "open_kubernetes_launcher", lambda launcher, prefix: desk.launcher)
    return desk


def test_the_command_prints_a_table_and_a_document(deployment: Desk, capsys: pytest.CaptureFixture[str]) -> None:
    deployment.submit()
    deployment.workload(QuotaReserved=False)
    assert main(["queue"]) == 0
    table = capsys.readouterr().out
    assert deployment.name in table
    assert "place" in table
    assert main(["queue", "cpu", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["cluster"], document["namespace"]) == ("toy", "team-a")
    assert document["jobs"][0]["name"] == deployment.name
    assert set(document["jobs"][0]) == {"position", "name", "address", "namespace", "priority", "asks", "since", "why"}


def test_the_command_pauses_and_unpauses(deployment: Desk, capsys: pytest.CaptureFixture[str]) -> None:
    deployment.submit()
    name = deployment.workload(QuotaReserved=False)
    assert main(["queue", "--pause", deployment.name]) == 0
    assert "it is paused" in capsys.readouterr().out
    assert deployment.api.of("workloads")[name]["spec"]["active"] is False
    assert main(["queue", "--unpause", deployment.name]) == 0
    assert deployment.api.of("workloads")[name]["spec"]["active"] is True


def test_on_one_machine_there_is_no_queue(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.delenv("MARIN_LAUNCHER", raising=False)
    assert main(["queue"]) == 64
    assert "MARIN_LAUNCHER=kubernetes" in capsys.readouterr().err


def test_without_kueue_there_is_no_queue(tmp_path: Path) -> None:
    with ScriptedApi() as api:
        desk = Desk(api, tmp_path, {"kueue": False, "queue": None, "priorities": []})
        with pytest.raises(ConfigError, match="no Kueue"):
            queue(api.cluster(), desk.profile)
