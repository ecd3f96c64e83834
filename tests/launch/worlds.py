"""One machine, and a cluster, as the tests of the launchers' contract see them alike."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from marin_assets.launch import Handle, Launcher, LocalLauncher, Observation, State
from marin_assets.launch.contract import job_name
from marin_assets.launch.kubernetes.following import Connection
from marin_assets.launch.kubernetes.launcher import KubernetesLauncher
from marin_assets.launch.kubernetes.profile import Profile
from marin_core.artifact import ArtifactId, Store
from marin_core.artifact.job import JobSpec
from marin_core.artifact.record import Claim
from marin_core.artifact.step import Resources
from tests.launch.kubernetes.scripted_api import ScriptedApi
from tests.launch.kubernetes.toy_cluster import ToyCluster

PROJECT = Path(__file__).resolve().parents[2]
WAIT_SECONDS = 120.0
TOY = ArtifactId("toys/pod", "v1")
DIGEST = f"registry.example/marin@sha256:{'a' * 64}"


def toy_profile(folder: Path, **values: Any) -> Profile:
    pools = [{"name": "cpu", "kind": "cpu", "nodes": 2, "image": "cpu", "cpus": 8, "memory_gib": 16, "grace_seconds": 40}]
    given: dict[str, Any] = {"name": "toy", "namespace": "team-a", "kueue": False, "scratch": str(folder / "scratch"), "pools": pools}
    return Profile.from_json(given | values)


@dataclass
class World:
    """A place where jobs run, and a store in which they build.

    Attributes:
        make: a launcher as a new process would have it.
        started: how many pods or processes of a job were ever started.
        lose: take a job away without a word, its processes and all.
    """

    folder: Path
    make: Callable[[], Launcher]
    started: Callable[[Handle], int]
    lose: Callable[[Handle], None]
    launcher: Launcher = field(init=False)

    def __post_init__(self) -> None:
        self.launcher = self.make()
        self.store = Store(f"file://{self.folder}/store")

    def name(self, attempt: int = 1) -> str:
        return job_name(TOY, self.store.address(TOY), attempt, "2026-11-30T12:00:00+00:00")

    def spec(self, happens: str, attempt: int = 1, **config: str) -> JobSpec:
        """A toy's job, of which the attempt is claimed."""
        claim = Claim(number=attempt, job=self.name(attempt), fingerprint="f" * 16, submitted_at="2026-11-30T12:00:00+00:00")
        self.store.claim(TOY, claim)
        return JobSpec(
            name=TOY.name,
            version=TOY.version,
            partition=None,
            job="summary",
            prefix=self.store.prefix,
            config={"happens": happens, **config},
            fingerprint="f" * 16,
            identity={},
            inputs=(),
            attempt=attempt,
            scratch=str(self.launcher.handle(self.name(attempt)).folder),
        )

    def submit(self, happens: str, launcher: Launcher | None = None, **config: str) -> Handle:
        customized = self.folder / "python"
        customized.mkdir(exist_ok=True)
        (customized / "sitecustomize.py").write_text("from tests.jobs import toy_pod; toy_pod.install()")
        environment = {"PYTHONPATH": f"{customized}:{PROJECT}"}
        return (launcher or self.launcher).submit(self.name(), self.spec(happens, 1, **config), environment, Resources())

    def until(self, handle: Handle, wanted: Callable[[Observation], bool], launcher: Launcher | None = None) -> Observation:
        """Look until what is seen is what is wanted."""
        deadline = time.monotonic() + WAIT_SECONDS
        while not wanted(seen := (launcher or self.launcher).observe(handle)):
            assert time.monotonic() < deadline, seen
            time.sleep(0.05)
        return seen

    def end(self, handle: Handle, launcher: Launcher | None = None) -> Observation:
        return self.until(handle, lambda seen: seen.state.final, launcher)

    def until_it_runs(self, handle: Handle) -> None:
        """Wait for the job's own first word."""
        self.until(handle, lambda seen: seen.state == State.RUNNING)
        deadline = time.monotonic() + WAIT_SECONDS
        while "toy runs" not in self.launcher.logs(handle, 20):
            assert time.monotonic() < deadline
            time.sleep(0.05)


@contextmanager
def local(folder: Path) -> Iterator[World]:
    import psutil

    def processes(handle: Handle) -> list[psutil.Process]:
        spec = str(handle.folder / "spec.json")
        return [each for each in psutil.process_iter(["cmdline"]) if spec in (each.info["cmdline"] or [])]

    def lose(handle: Handle) -> None:
        for process in processes(handle):
            process.kill()  # its launcher, which is its parent, wants to wait for it itself

    world = World(folder, lambda: LocalLauncher(folder / "jobs"), lambda handle: len(processes(handle)), lose)
    try:
        yield world
    finally:
        lose(world.launcher.handle(world.name()))


@contextmanager
def kubernetes(folder: Path) -> Iterator[World]:
    profile = toy_profile(folder)
    with ScriptedApi() as api, ToyCluster(api, folder / "pods", profile.namespace) as cluster:

        def make() -> Launcher:
            connection = Connection.open(profile, api.cluster(), watch=False)
            return KubernetesLauncher(connection, f"file://{folder}/store/.jobs", folder / "mirrors", {"cpu": DIGEST})

        yield World(
            folder,
            make,
            lambda handle: sum(pod.startswith(handle.name) for pod in cluster.started),
            lambda handle: cluster.kill(handle.name),
        )
