"""The bed: a whole Kubernetes cluster with JobSet and Kueue on this machine, with nodes that are only names.

`python -m tests.kubernetes.bed.cluster` keeps one up to look at with kubectl.
"""

import json
import signal
import subprocess
import tempfile
import threading
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import yaml
from kubernetes.client import ApiClient, Configuration

from tests.kubernetes.bed.api import JOBSET, KUEUE, Api, Manifest
from tests.kubernetes.bed.certificates import make_certificates
from tests.kubernetes.bed.kubelet import Kubelet
from tests.kubernetes.bed.manifests import DEPLOYMENT, apply_all, apply_when_served, kustomize, served_at, visibility_service, with_changes
from tests.kubernetes.bed.nodes import Machine, fifty_nodes
from tests.kubernetes.bed.programs import ADMIN_TOKEN, ControlPlane, controller_configuration, wait_until, write_kubeconfig
from tests.kubernetes.controlplane.build import PROGRAMS, module_folder

TEAMS = ("team-a", "team-b")
LAUNCHER = "system:serviceaccount:marin:launcher"
"""The launcher's account, with the rights that `deploy/kubernetes` gives it and no others."""

CLEAR_SECONDS = 120.0
"""For what a test leaves to be gone, and a second more for each object: a test of load leaves hundreds."""

JOBSET_CONFIGURATION = {"apiVersion": "config.jobset.x-k8s.io/v1alpha1", "kind": "Configuration"}


class Bed:
    """One cluster, from `start` to `stop`; a context manager.

    Attributes:
        api: the administrator's view, as plain JSON.
        kubelet: runs pods, and lets nodes die and come back.
        plane: the control plane's programs, to stop and start one by one.
        kubeconfig: the administrator's.

    Args:
        folder: for keys, data and logs; kept.
        machines: the cluster's nodes.
        kueue: whether jobs are queued.
        bare: whether there are only nodes: no controllers, and nothing of this project.
    """

    def __init__(self, folder: Path, machines: Iterable[Machine] | None = None, *, kueue: bool = True, bare: bool = False) -> None:
        self.folder = folder
        self.kueue = kueue
        self._bare = bare
        self._machines = fifty_nodes() if machines is None else list(machines)
        self._certificates = make_certificates(folder / "keys")
        self.plane = ControlPlane(folder, self._certificates)
        self.kubeconfig = self.plane.kubeconfig
        self.api = Api(self.plane.ports.api_url, self._certificates.authority, ADMIN_TOKEN)
        self.kubelet = Kubelet(self.api, folder / "pods", (self._certificates.server, self._certificates.server_key))

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.stop()

    def start(self) -> None:
        """Bring everything up; returns when jobs can be submitted, or in a bare cluster when there are nodes."""
        self.plane.start("etcd")
        self.plane.start("kube-apiserver")
        self.plane.start("kube-controller-manager", "kube-scheduler")
        self.kubelet.start(self._machines)
        if self._bare:
            return
        self.start_jobset()
        if self.kueue:
            changes = DEPLOYMENT / "kueue"
            configuration = yaml.safe_load((changes / "controller_manager_config.yaml").read_text())
            self.start_kueue(with_changes(self.folder / "kueue-release", release("kueue"), changes), configuration)
        # This project's queues, teams and rights. Without Kueue its objects are unknown to the API server.
        ours = kustomize(binary("kubectl"), DEPLOYMENT / "overlays" / "testbed")
        self.apply(*(each for each in ours if self.kueue or "kueue" not in each["apiVersion"]))

    def stop(self) -> None:
        """End all processes that the bed started, pods first."""
        self.kubelet.stop()
        self.plane.stop()

    def client(self, user: str | None = None) -> ApiClient:
        """Return a client of the `kubernetes` library: the administrator's, or the administrator's in the name of another user."""
        configuration = Configuration()
        configuration.host = self.plane.ports.api_url
        configuration.ssl_ca_cert = str(self._certificates.authority)
        configuration.api_key = {"authorization": f"Bearer {ADMIN_TOKEN}"}
        client = ApiClient(configuration)
        if user is not None:
            client.set_default_header("Impersonate-User", user)
        return client

    def launcher_token(self) -> str:
        """Return a token of the launcher's account, as its pod would have one."""
        namespace, name = LAUNCHER.split(":")[2:]
        path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{name}/token"
        request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"expirationSeconds": 86400}}
        return str(self.api.request("POST", path, request)["status"]["token"])

    def launcher_kubeconfig(self) -> Path:
        """Return a kubeconfig of the launcher's account."""
        path = self.folder / "kubeconfig-launcher"
        write_kubeconfig(path, self.plane.ports.api_url, self._certificates.authority, self.launcher_token())
        return path

    def launcher_api(self) -> Api:
        """Return the launcher's own view of the API."""
        return Api(self.plane.ports.api_url, self._certificates.authority, self.launcher_token())

    def kubectl(self, *arguments: str) -> str:
        """Return what kubectl prints, as the administrator."""
        command = [str(binary("kubectl")), f"--kubeconfig={self.kubeconfig}", *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout

    def apply(self, *manifests: Manifest) -> None:
        """Make objects be as given, once the webhooks that judge them answer."""
        for manifest in manifests:
            apply_when_served(self.api, manifest)

    def clear(self) -> None:
        """Start what was stopped, revive dead nodes, delete all jobs of all teams, and wait until nothing of a job is left."""
        self.plane.restore()
        for node in self.kubelet.dead():
            self.kubelet.revive(node)
        deleted = 0
        for team in TEAMS:
            for kind, version in (("JobSet", JOBSET), ("Job", "batch/v1"), ("Pod", "v1")):
                for found in self.api.list(version, kind, team):
                    self.api.delete(version, kind, found["metadata"]["name"], team)
                    deleted += 1
        wait_until("all jobs, pods and workloads to be gone", self._empty, CLEAR_SECONDS + deleted)

    def _empty(self) -> bool:
        kinds = [(JOBSET, "JobSet"), ("batch/v1", "Job"), ("v1", "Pod"), *([(KUEUE, "Workload")] if self.kueue else [])]
        return not any(self.api.list(version, kind, team) for team in TEAMS for version, kind in kinds)

    def start_jobset(self) -> None:
        """Install JobSet and start it."""
        ports = self.plane.ports
        self._install("jobset", release("jobset"), ports.jobset_webhook)
        self._start("jobset", JOBSET_CONFIGURATION, ports.jobset_webhook, ports.jobset_health)

    def start_kueue(self, tree: Path, configuration: dict[str, Any], manager: str = "bed") -> None:
        """Install Kueue as a kustomize tree has it, and start it.

        Args:
            configuration: of its manager.
            manager: in whose name it is installed; `kubectl` where that has installed it before.
        """
        ports = self.plane.ports
        self._install("kueue", tree, ports.kueue_webhook, manager)
        self._start("kueue", configuration, ports.kueue_webhook, ports.kueue_health, ports.kueue_visibility)
        self.apply(*visibility_service(ports.kueue_visibility))

    def _install(self, name: str, tree: Path, webhook: int, manager: str = "bed") -> None:
        """Make a controller's CRDs, roles and webhooks."""
        (self.plane.folder / name).mkdir(parents=True, exist_ok=True)
        apply_all(self.api, list(served_at(kustomize(binary("kubectl"), tree), webhook, self._certificates.authority)), manager)

    def _start(self, name: str, configuration: dict[str, Any], webhook: int, health: int, visibility: int | None = None) -> None:
        folder = self.plane.folder / name
        (folder / "certificates").symlink_to(self._certificates.folder)
        complete = controller_configuration(configuration, self._certificates, webhook=webhook, health=health, visibility=visibility)
        (folder / "config.json").write_text(json.dumps(complete))
        self.plane.start(name)


def release(name: str) -> Path:
    """Return the manifests that come with a controller's module."""
    return module_folder(next(program for program in PROGRAMS if program.name == name)) / "config" / "default"


def binary(name: str) -> Path:
    return next(program.binary for program in PROGRAMS if program.name == name)


def main() -> int:
    """Keep a bed up until it is interrupted."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with suppress(KeyboardInterrupt), tempfile.TemporaryDirectory(prefix="bed-") as folder, Bed(Path(folder)) as bed:
        print(f"export KUBECONFIG={bed.kubeconfig}", flush=True)
        threading.Event().wait()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
