"""The real control plane as processes on free ports of 127.0.0.1 (spec/kubernetes.md §4.3)."""

import json
import random
import signal
import socket
import ssl
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Self

from tests.kubernetes.bed.certificates import Certificates
from tests.kubernetes.controlplane.build import PROGRAMS, build

START_SECONDS = 180.0
STOP_SECONDS = 20.0
ADMIN_TOKEN = "admin"  # noqa: S105 -- of an API server that lives as long as the tests, on 127.0.0.1

# These three copy pods' addresses into Endpoints, which refuse loopback addresses and fill the log with it.
NO_ENDPOINTS = "*,-endpoints-controller,-endpointslice-controller,-endpointslice-mirroring-controller"


@dataclass
class Daemon:
    """One process that can be stopped and started again with the same ports and files.

    Attributes:
        command: binary and arguments.
        ready: address that answers 200 when the program works.
        folder: working directory; the log is `log` in it.
    """

    command: list[str]
    ready: str
    folder: Path
    process: subprocess.Popen[bytes] | None = field(default=None, init=False)

    @property
    def name(self) -> str:
        return Path(self.command[0]).name

    @property
    def alive(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def start(self) -> None:
        """Launch the program without waiting for it."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(
                self.command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=self.folder, start_new_session=True
            )

    def wait_ready(self) -> None:
        """Wait until the program answers. Raises `RuntimeError` with the end of its log if it ends or takes too long."""
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline and self.alive:
            if _answers(self.ready):
                return
            time.sleep(0.1)
        raise RuntimeError(f"{self.name} doesn't work; its log ends with:\n{self.tail()}")

    def stop(self, ending: signal.Signals = signal.SIGTERM) -> None:
        """End the process and wait for it."""
        process, self.process = self.process, None
        if process is None:
            return
        process.send_signal(ending)
        try:
            process.wait(timeout=STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def tail(self, characters: int = 3000) -> str:
        return (self.folder / "log").read_text(errors="replace")[-characters:]


@dataclass(frozen=True)
class Ports:
    """A port for everything that listens."""

    etcd: int
    etcd_peers: int
    api: int
    controllers: int
    scheduler: int
    jobset_webhook: int
    jobset_health: int
    kueue_webhook: int
    kueue_health: int
    kueue_visibility: int

    @classmethod
    def free(cls) -> Self:
        """Choose ports that nobody listens on, below those that connections get: a program that restarts has to find its own free."""
        found: list[int] = []
        with ExitStack() as held:
            for port in random.sample(range(20000, 32768), 1000):
                probe = held.enter_context(socket.socket())
                with suppress(OSError):
                    probe.bind(("127.0.0.1", port))
                    found.append(port)
                if len(found) == len(fields(cls)):
                    return cls(*found)
        raise RuntimeError("no free ports on 127.0.0.1")

    @property
    def api_url(self) -> str:
        return f"https://127.0.0.1:{self.api}"


class ControlPlane:
    """All programs of one cluster. `daemons` has them by name: `etcd`, `kube-apiserver`, …, `jobset` and `kueue`.

    Args:
        folder: for keys, data and logs.
        certificates: of this cluster.
    """

    def __init__(self, folder: Path, certificates: Certificates) -> None:
        self.folder = folder
        self.certificates = certificates
        self.ports = Ports.free()
        self.kubeconfig = folder / "kubeconfig"
        write_kubeconfig(self.kubeconfig, self.ports.api_url, certificates.authority, ADMIN_TOKEN)
        (folder / "tokens.csv").write_text(f'{ADMIN_TOKEN},admin,admin,"system:masters"\n')
        binaries = {program.name: str(build(program)) for program in PROGRAMS}
        self.daemons = {name: Daemon([binaries[name], *arguments], ready, folder / name) for name, arguments, ready in self._commands()}

    def start(self, *names: str) -> None:
        """Start the named programs, all at once, and wait until each answers."""
        for name in names:
            self.daemons[name].start()
        for name in names:
            self.daemons[name].wait_ready()

    def restore(self) -> None:
        """Start again what was started once and doesn't run."""
        self.start(*(name for name, daemon in self.daemons.items() if (daemon.folder / "log").exists() and not daemon.alive))

    def stop(self) -> None:
        """End everything that was started, the last first."""
        for daemon in reversed(self.daemons.values()):
            daemon.stop()

    def _commands(self) -> Iterator[tuple[str, list[str], str]]:
        ports, keys = self.ports, self.certificates
        clients, peers = f"http://127.0.0.1:{ports.etcd}", f"http://127.0.0.1:{ports.etcd_peers}"
        yield "etcd", [
            f"--data-dir={self.folder / 'etcd' / 'data'}", f"--listen-client-urls={clients}", f"--advertise-client-urls={clients}",
            f"--listen-peer-urls={peers}", f"--initial-advertise-peer-urls={peers}", f"--initial-cluster=default={peers}",
            "--unsafe-no-fsync", "--log-level=warn",
        ], f"{clients}/health"  # fmt: skip
        yield "kube-apiserver", [
            f"--etcd-servers={clients}", "--bind-address=127.0.0.1", f"--secure-port={ports.api}",
            f"--tls-cert-file={keys.server}", f"--tls-private-key-file={keys.server_key}",
            f"--token-auth-file={self.folder / 'tokens.csv'}", "--authorization-mode=RBAC",
            "--service-account-issuer=https://kubernetes.default.svc", f"--service-account-key-file={keys.accounts}",
            f"--service-account-signing-key-file={keys.accounts_key}", "--service-cluster-ip-range=10.0.0.0/16",
            "--endpoint-reconciler-type=none", "--allow-privileged=true", "--profiling=false",
            # The process-kubelet serves logs on 127.0.0.1, whatever the node is called.
            "--kubelet-preferred-address-types=InternalIP",
            # What a server behind an APIService needs to believe the API server who the user is.
            f"--requestheader-client-ca-file={keys.authority}", "--requestheader-username-headers=X-Remote-User",
            "--requestheader-group-headers=X-Remote-Group", "--requestheader-extra-headers-prefix=X-Remote-Extra-",
            f"--proxy-client-cert-file={keys.proxy}", f"--proxy-client-key-file={keys.proxy_key}",
        ], f"{ports.api_url}/readyz"  # fmt: skip
        fast = ["--leader-elect=false", "--bind-address=127.0.0.1", "--kube-api-qps=200", "--kube-api-burst=300"]
        yield "kube-controller-manager", [
            f"--kubeconfig={self.kubeconfig}", *fast, f"--secure-port={ports.controllers}",
            f"--service-account-private-key-file={keys.accounts_key}", f"--root-ca-file={keys.authority}",
            "--node-monitor-grace-period=40s", "--node-monitor-period=2s", f"--controllers={NO_ENDPOINTS}",
        ], f"https://127.0.0.1:{ports.controllers}/healthz"  # fmt: skip
        scheduler = [f"--kubeconfig={self.kubeconfig}", *fast, f"--secure-port={ports.scheduler}"]
        yield "kube-scheduler", scheduler, f"https://127.0.0.1:{ports.scheduler}/healthz"
        for name, port in (("jobset", ports.jobset_health), ("kueue", ports.kueue_health)):
            arguments = [f"--config={self.folder / name / 'config.json'}", f"--kubeconfig={self.kubeconfig}", "--zap-log-level=2"]
            yield name, arguments, f"http://127.0.0.1:{port}/readyz"


def controller_configuration(
    manager: dict[str, Any], certificates: Certificates, *, webhook: int, health: int, visibility: int | None = None
) -> dict[str, Any]:
    """Add to a controller's configuration what differs between a cluster and 127.0.0.1: ports, keys, no election."""
    local: dict[str, Any] = {
        "health": {"healthProbeBindAddress": f"127.0.0.1:{health}"},
        "metrics": {"bindAddress": "0"},
        "webhook": {"host": "127.0.0.1", "port": webhook, "certDir": str(certificates.folder)},
        "leaderElection": {"leaderElect": False},
        "internalCertManagement": {"enable": False},
    }
    if visibility is not None:
        local["visibilityServer"] = {"bindAddress": "127.0.0.1", "bindPort": visibility}
    return {**manager, **local}


def write_kubeconfig(path: Path, url: str, authority: Path, token: str) -> None:
    """Write what kubectl and every client library reads; its only context is `bed`."""
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "bed", "cluster": {"server": url, "certificate-authority": str(authority)}}],
        "users": [{"name": "user", "user": {"token": token}}],
        "contexts": [{"name": "bed", "context": {"cluster": "bed", "user": "user"}}],
        "current-context": "bed",
    }
    path.write_text(json.dumps(document))


def wait_until[T](what: str, look: Callable[[], T | None], seconds: float = 120.0) -> T:
    """Look until there is something other than None or False to see, and return it. Raises `TimeoutError` that names what was awaited."""
    deadline = time.monotonic() + seconds
    while True:
        seen = look()
        if seen is not None and seen is not False:
            return seen
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited {seconds:.0f} s for {what}")
        time.sleep(0.1)


def _answers(address: str) -> bool:
    """Whether a server says 200. Its certificate isn't checked: the controller manager signs its own."""
    trusting = ssl.create_default_context()
    trusting.check_hostname = False
    trusting.verify_mode = ssl.CERT_NONE
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=trusting))
    with suppress(OSError, urllib.error.HTTPError), opener.open(address, timeout=5) as answer:
        return bool(answer.status == 200)
    return False
