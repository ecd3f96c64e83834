"""The least that makes a `ScriptedApi` run jobs: a JobSet's pods are processes of this machine. Judges nothing, restarts nothing.

How real controllers behave is not to be seen here, but in tests/kubernetes.
"""

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.launch.kubernetes.scripted_api import Json, ScriptedApi

PROJECT = Path(__file__).resolve().parents[3]

LOOK_SECONDS = 0.05


class ToyCluster:
    """Runs what is in a namespace of a scripted API, until it is left.

    Attributes:
        started: names of the pods that were ever started.
        held: whether new JobSets stay as they are, as if there were no room.
    """

    def __init__(self, api: ScriptedApi, folder: Path, namespace: str) -> None:
        self.started: list[str] = []
        self.held = False
        self._api = api
        self._folder = folder
        self._namespace = namespace
        self._running: dict[str, list[tuple[str, subprocess.Popen[bytes]]]] = {}
        self._left = threading.Event()
        self._thread = threading.Thread(target=self._run, name="toy cluster", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._left.set()
        self._thread.join()
        for _, process in (pod for pods in self._running.values() for pod in pods):
            process.kill()
            process.wait()

    def kill(self, jobset: str) -> None:
        """Take a job out of the cluster without a word, its pods and all."""
        for path in list(self._api.objects):
            if path.endswith(f"/{jobset}") or f"/{jobset}-" in path:
                self._api.remove(path)
        for _, process in self._running.get(jobset, []):
            process.kill()
            process.wait()

    def _run(self) -> None:
        while not self._left.wait(LOOK_SECONDS):
            for name, jobset in self._api.of("jobsets").items():
                self._care(name, jobset)

    def _care(self, name: str, jobset: Json) -> None:
        self._api.lingers.add(name)
        pods = self._running.get(name)
        if "deletionTimestamp" in jobset["metadata"]:
            self._end(name, pods or [])
        elif pods is None:
            if not self.held:
                self._running[name] = self._start(name, jobset)
        elif jobset.get("status", {}).get("terminalState") is None and all(process.poll() is not None for _, process in pods):
            self._finish(name, pods)

    def _start(self, name: str, jobset: Json) -> list[tuple[str, subprocess.Popen[bytes]]]:
        replicated = jobset["spec"]["replicatedJobs"][0]
        count = int(replicated["template"]["spec"]["parallelism"])
        return [self._start_pod(name, jobset, index) for index in range(count)]

    def _start_pod(self, name: str, jobset: Json, index: int) -> tuple[str, subprocess.Popen[bytes]]:
        replicated = jobset["spec"]["replicatedJobs"][0]
        template = replicated["template"]["spec"]["template"]
        container = template["spec"]["containers"][0]
        pod = f"{name}-{replicated['name']}-0-{index}-{len(self.started):05d}"
        labels = {
            **template["metadata"]["labels"],
            "jobset.sigs.k8s.io/jobset-name": name,
            "jobset.sigs.k8s.io/job-global-index": "0",
            "batch.kubernetes.io/job-completion-index": str(index),
            "jobset.sigs.k8s.io/restart-attempt": "0",
        }
        own = {"MARIN_JOB_INDEX": "0", "MARIN_POD_INDEX": str(index), "MARIN_RESTART": "0", "MARIN_NODE": "node-1", "MARIN_POD": pod}
        own |= {"MARIN_POD_IP": "127.0.0.1", "MARIN_TERMINATION_LOG": str(self._folder / f"{pod}.end"), "MARIN_RETRY_DELAY_SECONDS": "0"}
        given = {each["name"]: each["value"].replace("$(MARIN_POD)", pod) for each in container["env"] if "value" in each}
        kept = {key: value for key, value in os.environ.items() if not key.startswith(("MARIN_", "DAGSTER_"))}
        self._folder.mkdir(parents=True, exist_ok=True)
        with (self._folder / f"{pod}.log").open("wb") as log:
            command = [sys.executable, *container["command"][1:]]
            process = subprocess.Popen(command, cwd=PROJECT, env=kept | given | own, stdout=log, stderr=subprocess.STDOUT)
        self.started.append(pod)
        status = {"phase": "Running", "startTime": self._api.stamp(), "conditions": [{"type": "Ready", "status": "True"}]}
        metadata = {"name": pod, "namespace": self._namespace, "labels": labels}
        self._api.put(self._path("pods", pod), {"kind": "Pod", "metadata": metadata, "spec": {"nodeName": "node-1"}, "status": status})
        return pod, process

    def _end(self, name: str, pods: list[tuple[str, subprocess.Popen[bytes]]]) -> None:
        for pod, process in pods:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
            else:
                self._api.remove(self._path("pods", pod))
        if all(process.poll() is not None for _, process in pods):
            self._running.pop(name, None)
            self._api.remove(self._path("jobsets", name, "/apis/jobset.x-k8s.io/v1alpha2"))

    def _finish(self, name: str, pods: list[tuple[str, subprocess.Popen[bytes]]]) -> None:
        codes = [process.returncode for _, process in pods]
        for (pod, _), code in zip(pods, codes, strict=True):
            terminated = {"exitCode": code if code >= 0 else 128 - code, "reason": "Completed" if code == 0 else "Error"}
            ended = {
                "phase": "Succeeded" if code == 0 else "Failed",
                "containerStatuses": [{"name": "job", "state": {"terminated": terminated}}],
            }
            self._api.change(self._path("pods", pod), lambda thing, ended=ended: thing["status"].update(ended))  # type: ignore[misc]
        state = "Failed" if any(codes) else "Completed"
        status = {"terminalState": state, "conditions": [{"type": state, "status": "True", "lastTransitionTime": self._api.stamp()}]}
        path = self._path("jobsets", name, "/apis/jobset.x-k8s.io/v1alpha2")
        self._api.change(path, lambda thing: thing.setdefault("status", {}).update(status))

    def _path(self, plural: str, name: str, root: str = "/api/v1") -> str:
        return f"{root}/namespaces/{self._namespace}/{plural}/{name}"
