"""Pods of a job on this machine: the real keeper with the environment that a launcher renders, each in a process of its own."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Self

from dagster_pipes import PipesContextData, encode_param

from marin_core.artifact.job import JobSpec
from marin_core.artifact.job_folder import JobFolder

PROJECT = Path(__file__).resolve().parents[2]
WAIT_SECONDS = 600.0
"""For anything that a test waits for; on two cores, together with others."""

PIPES = PipesContextData(
    asset_keys=["toys", "pod"],
    code_version_by_asset_key=None,
    provenance_by_asset_key=None,
    partition_key=None,
    partition_key_range=None,
    partition_time_window=None,
    run_id="run",
    job_name=None,
    retry_number=0,
    extras={},
)


class RunningPod:
    """One pod; a context manager that leaves no process behind."""

    def __init__(self, process: "subprocess.Popen[bytes]", name: str, log: Path, termination_log: Path) -> None:
        self.process = process
        self.name = name
        self._log = log
        self._termination_log = termination_log

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.process.kill()
        self.process.wait()

    def log(self) -> str:
        return self._log.read_text()

    def until(self, text: str) -> str:
        """Wait for a text in what the pod prints; the rest of its line."""
        wait_until(lambda: text in self.log() or self.process.poll() is not None, f"{text!r} in the log of {self.name}")
        assert text in self.log(), self.log()
        return self.log().partition(text)[2].partition("\n")[0]

    def end(self) -> int:
        """Wait for its end; its exit code as Kubernetes sees it."""
        code = self.process.wait(WAIT_SECONDS)
        return code if code >= 0 else 128 - code

    def told(self) -> dict[str, object]:
        """Its termination message."""
        text = self._termination_log.read_text()
        assert len(text.encode()) <= 4096
        assert text.endswith("\n")
        told: dict[str, object] = json.loads(text)
        return told


class Pods:
    """Makes the pods of one job.

    Args:
        job_folder: URL of what they have in common with the launcher.
        install: Python statement that every process runs first.
    """

    def __init__(self, folder: Path, spec: JobSpec, job_folder: str, install: str, environment: Mapping[str, str] | None = None) -> None:
        self.spec = spec
        self.folder = JobFolder(job_folder)
        self._folder = folder
        self._made = 0
        customized = folder / "python"
        customized.mkdir(exist_ok=True)
        (customized / "sitecustomize.py").write_text(install)
        self._environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith(("MARIN_", "DAGSTER_"))},
            "PYTHONPATH": f"{customized}:{PROJECT}",
            "DAGSTER_PIPES_CONTEXT": encode_param({"data": PIPES}),
            "DAGSTER_PIPES_MESSAGES": encode_param({"path": "/nowhere/on/the/launchers/machine"}),
            "MARIN_JOB_FOLDER": job_folder,
            "MARIN_NUM_PROCESSES": str(spec.processes),
            "MARIN_PODS_PER_JOB": str(spec.processes),
            "MARIN_JOB_INDEX": "0",
            "MARIN_RESTART": "0",
            "MARIN_RETRY_DELAY_SECONDS": "0",
            **(environment or {}),
        }

    def start(self, process: int = 0, **environment: str) -> RunningPod:
        """A new pod with a name of its own."""
        self._made += 1
        name = f"{self.folder.url.rsplit('/', 1)[1]}-worker-0-{process}-{self._made}"
        place = self._folder / "pods" / name
        place.mkdir(parents=True)
        own = {
            "MARIN_POD_INDEX": str(process),
            "MARIN_POD": name,
            "MARIN_NODE": "node-1",
            "MARIN_SCRATCH": str(place / "scratch"),
            "MARIN_TERMINATION_LOG": str(place / "termination-log"),
        }
        with (place / "log").open("wb") as log:
            started = subprocess.Popen(
                [sys.executable, "-m", "marin_jobs", f"{self.folder.url}/spec.json"],
                cwd=PROJECT,
                env=self._environment | own | environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        return RunningPod(started, name, place / "log", place / "termination-log")

    def stream(self, name: str) -> str:
        """All that a stream of the job's folder holds."""
        return b"".join(self.folder.read(name, chunk) for chunk in self.folder.chunks(name)).decode()


def wait_until(condition: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + WAIT_SECONDS
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited {WAIT_SECONDS:.0f} s for {what}")
        time.sleep(0.02)


def is_alive(pid: int) -> bool:
    with suppress(ProcessLookupError):
        os.kill(pid, 0)
        return True
    return False
