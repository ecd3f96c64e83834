"""The process-kubelet: a pod's command runs as a process of this machine, on nodes that are only names (spec/kubernetes.md §4.4).

To the control plane it is a kubelet: it registers nodes, renews their leases, starts what the scheduler bound to them, sends SIGTERM and
after the grace SIGKILL, and reports what the process did. There are no containers: pods share files, processors and memory; requests and
limits only count for the scheduler.
"""

import datetime
import os
import sys
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import urllib3

from tests.kubernetes.bed.addresses import Addresses
from tests.kubernetes.bed.api import Api, ApiError, Manifest
from tests.kubernetes.bed.logs import LogServer
from tests.kubernetes.bed.nodes import Machine
from tests.kubernetes.bed.pods import Act, annotated_act, now
from tests.kubernetes.bed.runner import Runner

RENEW_SECONDS = 6.0
LEASE_SECONDS = 40
LEASES = "kube-node-lease"
COORDINATION = "coordination.k8s.io/v1"


class Kubelet:
    """All nodes' kubelet.

    Attributes:
        act: decides which pods are acted instead of run; by default what annotations say.
        environment: variables that every process gets beside those of its pod: what a cloud gives its nodes, such as access to storage.

    Args:
        api: the administrator's; a kubelet's own rights are no matter here.
        folder: one folder a pod, with its log.
        server: certificate and key of the log server.
    """

    def __init__(self, api: Api, folder: Path, server: tuple[Path, Path]) -> None:
        self.api = api
        self.folder = folder
        self.act: Callable[[Manifest], Act | None] = annotated_act
        self.environment: dict[str, str] = {}
        self.addresses = Addresses()
        self.stopped = threading.Event()
        self.runners: dict[str, Runner] = {}
        self._machines: dict[str, Machine] = {}
        self._dead: set[str] = set()
        self._lock = threading.RLock()
        self._logs = LogServer(self.log_of, *server)
        self._threads = [threading.Thread(target=work, daemon=True) for work in (self._keep_nodes_alive, self._follow_pods)]

    def start(self, machines: Iterable[Machine]) -> None:
        """Register nodes and begin to run pods."""
        self._logs.start()
        self.add(machines)
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """End all pods' processes at once and report nothing."""
        self.stopped.set()
        with self._lock:
            for runner in self.runners.values():
                runner.abandon(kill=True)
        self._logs.stop()
        self.addresses.release()

    def add(self, machines: Iterable[Machine]) -> None:
        """Register more nodes."""
        for machine in machines:
            self.api.apply(machine.manifest())
            with self._lock:
                self._machines[machine.name] = machine
            self._make_lease(machine.name)
            self._renew(machine.name)
            self._report_node(machine)

    def remove(self, names: Iterable[str]) -> None:
        """Take nodes away for good, with what runs on them."""
        for name in names:
            self.fail(name)
            with self._lock:
                self._machines.pop(name)
                self._dead.discard(name)
            self.api.delete("v1", "Node", name)

    def fail(self, node: str, *, kill: bool = True) -> None:
        """Let a node go silent. Without `kill` its processes go on, as on a node that only lost its network."""
        with self._lock:
            self._dead.add(node)
            for runner in self.runners.values():
                if runner.node == node:
                    runner.abandon(kill=kill)

    def revive(self, node: str) -> None:
        """Let a silent node report again. What ran on it before is lost, as after a reboot."""
        with self._lock:
            self._dead.discard(node)
            machine = self._machines[node]
            for uid in [uid for uid, runner in self.runners.items() if runner.node == node]:
                self.runners.pop(uid).abandon(kill=True)
        self._renew(node)
        self._report_node(machine)
        for pod in self.api.list("v1", "Pod", fieldSelector=f"spec.nodeName={node}"):
            self._see(pod)

    def running(self, node: str | None = None) -> list[Runner]:
        """Return the pods that run now, of one node or of all."""
        with self._lock:
            return [runner for runner in self.runners.values() if runner.alive and node in (None, runner.node)]

    def log_of(self, namespace: str, name: str) -> Path | None:
        """Return the log file of the newest pod of that name."""
        logs = list(self.folder.glob(f"{namespace}/{name}/*/log"))
        return max(logs, key=lambda log: log.parent.stat().st_ctime_ns, default=None)

    def base_environment(self, home: Path) -> dict[str, str]:
        """Return what an image would set: where `python` is, and a home that can be written to."""
        interpreter = str(Path(sys.executable).parent)
        return {
            "PATH": os.pathsep.join([interpreter, "/usr/local/bin", "/usr/bin", "/bin"]),
            "HOME": str(home),
            "LANG": "C.UTF-8",
            # A container's is at /dev/termination-log.
            "MARIN_TERMINATION_LOG": str(home / "termination-log"),
            **self.environment,
        }

    def dead(self) -> list[str]:
        """Return the nodes that are silent."""
        with self._lock:
            return sorted(self._dead)

    def _keep_nodes_alive(self) -> None:
        while not self.stopped.wait(RENEW_SECONDS):
            with self._lock:
                alive = {name: machine for name, machine in self._machines.items() if name not in self._dead}
            # An API server that is away misses a beat, as it would of a real node.
            for name in alive:
                with suppress(ApiError, urllib3.exceptions.HTTPError):
                    self._renew(name)
            with suppress(ApiError, urllib3.exceptions.HTTPError):
                for node in self.api.list("v1", "Node"):
                    machine = alive.get(node["metadata"]["name"])
                    # Given up for too slow a beat: only the node itself can say that it is well.
                    if machine is not None and not _is_ready(node):
                        self._report_node(machine)

    def _renew(self, node: str) -> None:
        beat = {"spec": {"renewTime": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")}}
        self.api.merge(COORDINATION, "Lease", node, beat, LEASES)

    def _make_lease(self, node: str) -> None:
        spec = {"holderIdentity": node, "leaseDurationSeconds": LEASE_SECONDS}
        self.api.apply({"apiVersion": COORDINATION, "kind": "Lease", "metadata": {"name": node, "namespace": LEASES}, "spec": spec})

    def _report_node(self, machine: Machine) -> None:
        condition = {
            "type": "Ready",
            "status": "True",
            "reason": "KubeletReady",
            "message": "the process-kubelet runs",
            "lastHeartbeatTime": now(),
        }
        status = {
            "capacity": machine.capacity(),
            "allocatable": machine.capacity(),
            "conditions": [{**condition, "lastTransitionTime": now()}],
            "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}, {"type": "Hostname", "address": machine.name}],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": self._logs.port}},
            "nodeInfo": _node_information(machine),
        }
        self.api.request("PATCH", f"/api/v1/nodes/{machine.name}/status", {"status": status}, "application/strategic-merge-patch+json")

    def _follow_pods(self) -> None:
        while not self.stopped.is_set():
            # Too old a version, a cut stream, a server that restarts: all lead to a new list.
            with suppress(ApiError, urllib3.exceptions.HTTPError):
                listing = self.api.request("GET", "/api/v1/pods")
                present = {pod["metadata"]["uid"] for pod in listing["items"]}
                with self._lock:
                    missed = self.runners.keys() - present
                for uid in missed:
                    self._forget(uid)
                for pod in listing["items"]:
                    self._see(pod)
                for kind, pod in self.api.watch("v1", "Pod", listing["metadata"]["resourceVersion"]):
                    if kind == "DELETED":
                        self._forget(pod["metadata"]["uid"])
                    elif kind != "BOOKMARK":
                        self._see(pod)
            self.stopped.wait(0.5)

    def _see(self, pod: Manifest) -> None:
        uid = pod["metadata"]["uid"]
        node = pod["spec"].get("nodeName")
        with self._lock:
            if node not in self._machines or node in self._dead or self.stopped.is_set():
                return
            runner = self.runners.get(uid)
            if runner is not None:
                runner.see(pod)
                return
            runner = self.runners[uid] = Runner(self, pod)
            runner.start()

    def _forget(self, uid: str) -> None:
        """A pod is gone from the API: whatever is left of it ends. On a dead node nobody learns of it."""
        with self._lock:
            runner = self.runners.get(uid)
            if runner is not None and runner.node not in self._dead:
                self.runners.pop(uid)
                runner.abandon(kill=True)


def _is_ready(node: Manifest) -> bool:
    return any(each["type"] == "Ready" and each["status"] == "True" for each in node.get("status", {}).get("conditions", []))


def _node_information(machine: Machine) -> dict[str, Any]:
    information = dict.fromkeys(
        ["machineID", "systemUUID", "bootID", "kernelVersion", "containerRuntimeVersion", "kubeProxyVersion"], "bed"
    )
    return {**information, "osImage": "bed", "kubeletVersion": "v1.36.0", "operatingSystem": "linux", "architecture": machine.architecture}
