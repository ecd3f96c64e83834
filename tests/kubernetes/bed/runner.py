"""One pod on the process-kubelet: from bound to gone."""

import os
import signal
import subprocess
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import urllib3

from tests.kubernetes.bed.api import ApiError, Manifest
from tests.kubernetes.bed.pods import Act, command_of, ended_status, environment_of, now, running_status, waiting_status

if TYPE_CHECKING:
    from tests.kubernetes.bed.kubelet import Kubelet

MESSAGE_BYTES = 4096
MESSAGE_FROM_LOG_BYTES = 2048
TERMINATED = 128 + signal.SIGTERM


class Runner:
    """Starts a pod's process, or acts one, and reports to the API server until the pod is gone.

    Args:
        kubelet: whose node it is on.
        pod: as the API server gave it, bound to a node.
    """

    def __init__(self, kubelet: "Kubelet", pod: Manifest) -> None:
        self.kubelet = kubelet
        self.pod = pod
        self.node: str = pod["spec"]["nodeName"]
        self.namespace: str = pod["metadata"]["namespace"]
        self.uid: str = pod["metadata"]["uid"]
        self.folder: Path = kubelet.folder / self.namespace / pod["metadata"]["name"] / self.uid
        self.process: subprocess.Popen[bytes] | None = None
        self.alive = False
        self._started = now()
        self._abandoned = threading.Event()
        self._deleted = threading.Event()
        self._woken = threading.Event()
        self._grace = float(pod["spec"].get("terminationGracePeriodSeconds", 30))
        self.see(pod)

    def see(self, pod: Manifest) -> None:
        """Take note of the pod's newest state: the wish to delete it."""
        if "deletionTimestamp" in pod["metadata"]:
            self._grace = float(pod["metadata"].get("deletionGracePeriodSeconds", self._grace))
            self._deleted.set()
            self._woken.set()

    def abandon(self, *, kill: bool) -> None:
        """Report nothing more, and end what runs if told to."""
        self._abandoned.set()
        if kill:
            self.send(signal.SIGKILL)
            self.alive = False
        self._woken.set()

    def send(self, number: signal.Signals) -> None:
        """Send a signal to the pod's process and all that it started."""
        if self.process is not None and self.process.poll() is None:
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, number)

    def start(self) -> None:
        """Begin with the pod, and see it to its end in a thread of its own."""
        threading.Thread(target=self._run, daemon=True, name=f"pod {self.pod['metadata']['name']}").start()

    def _run(self) -> None:
        phase = self.pod.get("status", {}).get("phase")
        if phase == "Running":  # by a process that this kubelet doesn't know: its node was silent meanwhile
            self._report(ended_status(self.pod, 128 + signal.SIGKILL, self._started, "the node went away"))
        elif phase not in ("Succeeded", "Failed"):
            self._live()
        self._wait_for_deletion()
        if not self._abandoned.is_set():
            self._let_go()

    def _live(self) -> None:
        """Run or act the pod until its end, and report that."""
        act = self.kubelet.act(self.pod)
        address = self._address()
        if act is not None and act.waiting is not None:
            self._report(waiting_status(self.pod, act.waiting, "as the bed was asked for"))
            return
        try:
            environment = self._resolved(environment_of(self.pod, address))
            if act is None and not command_of(self.pod, environment):
                raise ValueError("there are no images here, so a container has to name its command")
        except (KeyError, ValueError) as error:
            self._report(waiting_status(self.pod, "CreateContainerConfigError", str(error)))
            return
        self.alive = True
        try:
            exit_code, message = self._perform(act, address) if act is not None else self._execute(environment, address)
        finally:
            self.alive = False
        reason = act.reason if act is not None and exit_code == act.exit_code else None
        self._report(ended_status(self.pod, exit_code, self._started, message, reason))

    def _perform(self, act: Act, address: str) -> tuple[int, str]:
        if not self._deleted.is_set():
            self._report(running_status(self.pod, address, self._started))
        self._woken.wait(act.seconds)
        if self._deleted.is_set():
            self._abandoned.wait(min(act.saving_seconds, self._grace))
            return TERMINATED, ""
        return act.exit_code, ""

    def _execute(self, environment: dict[str, str], address: str) -> tuple[int, str]:
        self.folder.mkdir(parents=True, exist_ok=True)
        complete = {**self.kubelet.base_environment(self.folder), **environment}
        command = [self._resolve(part) for part in command_of(self.pod, environment)]
        with (self.folder / "log").open("ab") as log:
            try:
                self.process = subprocess.Popen(
                    command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=self.folder, env=complete, start_new_session=True
                )
            except OSError as error:
                return 127, f"{command[0]}: {error}"
        threading.Thread(target=self._wake_at_end, daemon=True).start()
        self._report(running_status(self.pod, address, self._started))
        self._woken.wait()
        if self._deleted.is_set():
            self.send(signal.SIGTERM)
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(timeout=self._grace)
            self.send(signal.SIGKILL)
        code = self.process.wait()
        with suppress(ProcessLookupError):  # a container ends with its first process
            os.killpg(self.process.pid, signal.SIGKILL)
        return (code if code >= 0 else 128 - code), self._message(code)

    def _wake_at_end(self) -> None:
        if self.process is not None:
            self.process.wait()
        self._woken.set()

    def _message(self, code: int) -> str:
        """What the process left for the pod's status: its termination file, else, after a failure, the end of its log if asked for."""
        for source, size, wanted in (
            (self.folder / "termination-log", MESSAGE_BYTES, True),
            (self.folder / "log", MESSAGE_FROM_LOG_BYTES, code != 0 and self._falls_back()),
        ):
            if wanted and source.exists() and source.stat().st_size:
                return source.read_bytes()[-size:].decode(errors="replace")
        return ""

    def _falls_back(self) -> bool:
        return bool(self.pod["spec"]["containers"][0].get("terminationMessagePolicy") == "FallbackToLogsOnError")

    def _address(self) -> str:
        spec = self.pod["spec"]
        if "subdomain" in spec and "hostname" in spec:
            return self.kubelet.addresses.of(self.namespace, spec["subdomain"], spec["hostname"], self._generation())
        return self.kubelet.addresses.of(self.uid)

    def _generation(self) -> str:
        return str(self.pod["metadata"].get("labels", {}).get("jobset.sigs.k8s.io/restart-attempt", ""))

    def _resolve(self, text: str) -> str:
        subdomain = self.pod["spec"].get("subdomain")
        return text if subdomain is None else self.kubelet.addresses.resolve(text, subdomain, self.namespace, self._generation())

    def _resolved(self, environment: dict[str, str]) -> dict[str, str]:
        return {name: self._resolve(value) for name, value in environment.items()}

    def _wait_for_deletion(self) -> None:
        while not (self._deleted.is_set() or self._abandoned.is_set()):
            self._woken.clear()
            # Both may have been set between the look and the clearing.
            if not (self._deleted.is_set() or self._abandoned.is_set()):
                self._woken.wait()

    def _report(self, status: dict[str, Any]) -> None:
        """Tell the API server, however long it is away."""
        path = f"/api/v1/namespaces/{self.namespace}/pods/{self.pod['metadata']['name']}/status"
        change = {"metadata": {"uid": self.uid}, "status": status}
        self._insist("PATCH", path, change, "application/strategic-merge-patch+json")

    def _let_go(self) -> None:
        path = f"/api/v1/namespaces/{self.namespace}/pods/{self.pod['metadata']['name']}"
        self._insist("DELETE", path, {"gracePeriodSeconds": 0, "preconditions": {"uid": self.uid}}, "application/json")

    def _insist(self, method: str, path: str, body: object, content_type: str) -> None:
        """Ask until it is answered, unless the pod is gone or its node silent."""
        while not (self._abandoned.is_set() or self.kubelet.stopped.is_set()):
            try:
                self.kubelet.api.request(method, path, body, content_type)
            except ApiError as error:
                if error.status in (404, 409):  # gone, or another pod has its name
                    return
                if error.status < 500 and error.status != 429:
                    raise
            except urllib3.exceptions.HTTPError:
                pass
            else:
                return
            time.sleep(0.5)
