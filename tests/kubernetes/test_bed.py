"""The process-kubelet is a kubelet as far as the control plane and the pods can tell."""

import sys
from collections.abc import Callable

import pytest

from tests.kubernetes.bed.addresses import Addresses
from tests.kubernetes.bed.api import JOBSET, KUEUE, Api, ApiError, Manifest
from tests.kubernetes.bed.cluster import Bed
from tests.kubernetes.bed.pods import environment_of, expand
from tests.kubernetes.bed.programs import wait_until
from tests.kubernetes.jobs import Submitted, command, gpus, manifest

DIES_WITH_THREE = (
    "import os; open(os.environ['MARIN_TERMINATION_LOG'], 'w').write('the last word'); print('some output', flush=True); os._exit(3)"
)
SAVES_AND_SAYS_SO = """
import signal, sys
def save(*_):
    print("saved", flush=True)
    sys.exit(143)
signal.signal(signal.SIGTERM, save)
print("ready", flush=True)
signal.pause()
"""
IGNORES_THE_SIGNAL = (
    "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('ready', flush=True); [signal.pause() for _ in range(9)]"
)
# Process 0 serves on its own address; the others find it by the name that the launcher tells them.
MEETS_AT_THE_COORDINATOR = """
import os, socket, time
host, port = os.environ["MARIN_COORDINATOR"].rsplit(":", 1)
if os.environ["MARIN_POD_INDEX"] == "0":
    server = socket.create_server((os.environ["MARIN_POD_IP"], int(port)))
    for _ in range(int(os.environ["MARIN_NUM_PROCESSES"]) - 1):
        server.accept()[0].sendall(b"hello")
else:
    deadline = time.monotonic() + 60
    while True:
        try:
            with socket.create_connection((host, int(port))) as connection:
                assert connection.recv(5) == b"hello"
            break
        except ConnectionRefusedError:
            assert time.monotonic() < deadline
            time.sleep(0.1)
print("met", flush=True)
"""


def pod(name: str, code: str, **spec: object) -> Manifest:
    restricted = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    container = {"name": "job", "image": "none", "command": ["python", "-c", code], "securityContext": restricted}
    secure = {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "team-a"},
        "spec": {"restartPolicy": "Never", "nodeSelector": {"accel": "cpu"}, "securityContext": secure, "containers": [container], **spec},
    }


def state(bed: Bed, name: str) -> dict[str, object]:
    found = bed.api.get("v1", "Pod", name, "team-a").get("status", {}).get("containerStatuses", [])
    return found[0]["state"].get("terminated", {}) if found else {}


def log(bed: Bed, name: str, query: str = "") -> str:
    return str(bed.api.request("GET", f"/api/v1/namespaces/team-a/pods/{name}/log{query}")["text"])


@pytest.mark.kubernetes
def test_a_process_ends_its_pod_with_its_code_its_message_and_its_log(bed: Bed) -> None:
    bed.api.create(pod("dies", DIES_WITH_THREE))
    ended = wait_until("the pod to end", lambda: state(bed, "dies") or None)
    assert (ended["exitCode"], ended["message"]) == (3, "the last word")
    assert bed.api.get("v1", "Pod", "dies", "team-a")["status"]["phase"] == "Failed"
    assert log(bed, "dies") == "some output\n"
    bed.api.delete("v1", "Pod", "dies", "team-a")


@pytest.mark.kubernetes
def test_a_deleted_pod_gets_its_grace_and_then_no_more(bed: Bed) -> None:
    for name, code in (("saves", SAVES_AND_SAYS_SO), ("ignores", IGNORES_THE_SIGNAL)):
        bed.api.create(pod(name, code, terminationGracePeriodSeconds=2))
        wait_until(f"{name} to be ready", lambda name=name: bed.kubelet.log_of("team-a", name) and "ready" in log(bed, name))  # type: ignore[misc]
        bed.api.delete("v1", "Pod", name, "team-a")
        wait_until(f"{name} to be gone", lambda name=name: bed.api.find("v1", "Pod", name, "team-a") is None)  # type: ignore[misc]
    saved = bed.kubelet.log_of("team-a", "saves")
    assert saved is not None
    assert saved.read_text() == "ready\nsaved\n"
    assert not bed.kubelet.running()


@pytest.mark.kubernetes
def test_the_pods_of_a_gang_meet_at_the_coordinators_name(bed: Bed) -> None:
    gang = Submitted(bed, command(manifest("meeting", gpus(3), act=None), sys.executable, "-c", MEETS_AT_THE_COORDINATOR))
    assert gang.wait_ended() == "Completed"
    for found in gang.pods():
        assert log(bed, found["metadata"]["name"], "?tailLines=1") == "met\n"


@pytest.mark.kubernetes
def test_fifty_nodes_are_ready(bed: Bed) -> None:
    lines = bed.kubectl("get", "nodes", "--no-headers").splitlines()
    assert len(lines) == 50
    assert all(line.split()[1] == "Ready" for line in lines)


def in_the_default_namespace(jobset: Manifest) -> Manifest:
    jobset["metadata"]["namespace"] = "default"
    return jobset


@pytest.mark.kubernetes
@pytest.mark.parametrize(
    "forbidden",
    [
        lambda api: api.list("v1", "Secret", "team-a"),
        lambda api: api.create(pod("mine", "")),
        lambda api: api.create(in_the_default_namespace(manifest("elsewhere", gpus(1)))),
        lambda api: api.delete("v1", "Node", "cpu-0"),
    ],
)
def test_the_launchers_account_may_do_no_more_than_it_needs(bed: Bed, forbidden: Callable[[Api], object]) -> None:
    with pytest.raises(ApiError, match="403"):
        forbidden(bed.launcher_api())


@pytest.mark.kubernetes
def test_the_launchers_account_submits_reads_the_queue_and_cancels(bed: Bed) -> None:
    api = bed.launcher_api()
    api.create(manifest("its-own", gpus(1)))
    assert api.list(KUEUE, "Workload", "team-a") is not None
    assert "items" in api.request("GET", "/apis/visibility.kueue.x-k8s.io/v1beta2/clusterqueues/cq-a/pendingworkloads")
    assert api.delete(JOBSET, "JobSet", manifest("its-own", gpus(1))["metadata"]["name"], "team-a") is not None


def test_variables_are_expanded_as_the_api_says() -> None:
    values = {"A": "1"}
    assert expand("$(A) $(B) $$(A) $A", values) == "1 $(B) $(A) $A"


def test_a_field_of_the_pod_becomes_a_variable_and_an_unknown_source_is_refused() -> None:
    made = pod("fields", "")
    made["metadata"] |= {"uid": "u", "labels": {"a/b": "7"}}
    made["spec"]["nodeName"] = "n"
    container = made["spec"]["containers"][0]
    container["env"] = [
        {"name": "LABEL", "valueFrom": {"fieldRef": {"fieldPath": "metadata.labels['a/b']"}}},
        {"name": "IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
        {"name": "BOTH", "value": "$(LABEL)@$(IP)"},
    ]
    assert environment_of(made, "127.1.0.1")["BOTH"] == "7@127.1.0.1"
    container["env"] = [{"name": "SECRET", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}]
    with pytest.raises(ValueError, match="SECRET"):
        environment_of(made, "127.1.0.1")


def test_a_name_keeps_its_address_within_a_generation_and_two_beds_share_none() -> None:
    one, other = Addresses(), Addresses()
    try:
        told = one.resolve("job-rack-0-0.job:8476", "job", "team-a", "0")
        assert told == f"{one.of('team-a', 'job', 'job-rack-0-0', '0')}:8476"
        assert told == one.resolve("job-rack-0-0.job.team-a.svc.cluster.local:8476", "job", "team-a", "0")
        assert told != one.resolve("job-rack-0-0.job:8476", "job", "team-a", "1")
        assert one.resolve("https://example.org/job", "job", "team-a", "0") == "https://example.org/job"
        assert told.split(".")[1] != other.of("x").split(".")[1]
    finally:
        one.release()
        other.release()
