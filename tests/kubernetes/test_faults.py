"""A queue of small artifacts while everything fails that can: each of them is committed once."""

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import yaml

from marin_core.artifact import Store
from tests.integration.deployment import PROJECT
from tests.kubernetes.bed.api import ApiError
from tests.kubernetes.bed.cluster import Bed
from tests.kubernetes.bed.programs import write_kubeconfig
from tests.kubernetes.faulty_api import Fault, FaultyApi
from tests.kubernetes.jobs import IMAGE, PROFILES
from tests.kubernetes.many_builds import family

WAIT_SECONDS = 2400.0
"""For all of the artifacts; on two cores, together with others."""

PAUSE_SECONDS = (0.1, 0.8)
"""Between two faults; short enough for all of them before the last artifact is built."""

OF_THE_API: tuple[Fault, ...] = ("409", "410", "429", "500", "lost answer", "cut watch")


class Trouble:
    """Everything that may happen to a queue and to whoever follows it; each kind once before any comes again.

    Attributes:
        tally: how often each kind has happened.
    """

    def __init__(self, bed: Bed, proxy: FaultyApi, launch: Callable[[], "subprocess.Popen[bytes]"], seed: int) -> None:
        self.tally: Counter[str] = Counter()
        self.launching = launch()
        self._bed, self._proxy, self._launch = bed, proxy, launch
        self._random = random.Random(seed)
        self._deck: list[str] = []
        self._silent: str | None = None
        self._kinds: dict[str, Callable[[], bool]] = {
            "process killed": self._kill_process,
            "pod evicted": self._evict,
            "node lost": self._lose_node,
            "API server restarted": lambda: self._restart("kube-apiserver"),
            "Kueue restarted": lambda: self._restart("kueue"),
            "launcher killed": self._kill_launcher,
        }

    @property
    def total(self) -> int:
        return self.tally.total() + self._proxy.hits.total()

    def happen(self) -> None:
        """Let one thing happen, if there is somebody to whom it can."""
        if not self._deck:
            self._deck = [*self._kinds, *OF_THE_API]
            self._random.shuffle(self._deck)
        kind = self._deck.pop()
        if kind in OF_THE_API:
            self._proxy.next(kind)  # counted when it hits
        elif self._kinds[kind]():
            self.tally[kind] += 1

    def is_over(self) -> bool:
        """Wait for a moment; whether the launcher has ended because all is built. One that has died is started again."""
        try:
            code = self.launching.wait(self._random.uniform(*PAUSE_SECONDS))
        except subprocess.TimeoutExpired:
            return False
        assert code in (0, -signal.SIGKILL), f"the launcher ended with {code}"
        if code:
            self.launching = self._launch()
        return code == 0

    def _kill_process(self) -> bool:
        running = self._bed.kubelet.running()
        if running:
            self._random.choice(running).send(signal.SIGKILL)
        return bool(running)

    def _evict(self) -> bool:
        running = self._bed.kubelet.running()
        if not running:
            return False
        pod = self._random.choice(running).pod["metadata"]
        body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": pod["name"], "namespace": pod["namespace"]}}
        with suppress(ApiError):  # it has just gone
            self._bed.api.request("POST", f"/api/v1/namespaces/{pod['namespace']}/pods/{pod['name']}/eviction", body)
        return True

    def _lose_node(self) -> bool:
        """The node that was lost before comes back, as after a reboot."""
        if self._silent is not None:
            self._bed.kubelet.revive(self._silent)
        nodes = {runner.node for runner in self._bed.kubelet.running()}
        self._silent = self._random.choice(sorted(nodes)) if nodes else None
        if self._silent is not None:
            self._bed.kubelet.fail(self._silent)
        return self._silent is not None

    def calm(self) -> None:
        """Let the last node come back."""
        if self._silent is not None:
            self._bed.kubelet.revive(self._silent)
            self._silent = None

    def _restart(self, program: str) -> bool:
        self._bed.plane.daemons[program].stop(signal.SIGKILL)
        self._bed.plane.start(program)
        return True

    def _kill_launcher(self) -> bool:
        self.launching.kill()
        return True


@pytest.fixture
def proxy(bed: Bed) -> Iterator[FaultyApi]:
    with FaultyApi(bed.plane.ports.api_url, bed.plane.certificates.authority).serving() as proxy:
        yield proxy


@pytest.mark.kubernetes
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(("artifacts", "faults"), [(8, 24), pytest.param(60, 200, marks=pytest.mark.long)])
def test_every_artifact_of_a_queue_is_committed_once_whatever_fails(
    bed: Bed, proxy: FaultyApi, tmp_path: Path, capsys: pytest.CaptureFixture[str], artifacts: int, faults: int
) -> None:
    store = Store(f"file://{tmp_path}/store")
    trouble = Trouble(bed, proxy, lambda: launch(bed, proxy, tmp_path, store, artifacts), seed=artifacts)
    try:
        deadline = time.monotonic() + WAIT_SECONDS
        while not trouble.is_over():
            assert time.monotonic() < deadline, "the artifacts are never all built"
            if trouble.total < faults:
                trouble.happen()
            else:
                trouble.calm()
    finally:
        trouble.launching.kill()
        trouble.launching.wait()
    attempts = 0
    for artifact in family(artifacts).ids():
        record = store.record(artifact)
        assert record is not None, artifact
        store.require_intact(record, every_byte=True)
        tried = store.attempts(artifact)
        assert [attempt.number for attempt in tried if attempt.state == "succeeded"] == [record.attempt]
        attempts += len(tried)
    asked_again = (tmp_path / "launcher.log").read_text().count("asked for again")
    with capsys.disabled():
        print(f"\n{artifacts} artifacts committed once each, in {attempts} attempts, {asked_again} of them asked for again")
        print(f"{trouble.total} faults: {dict(sorted((trouble.tally + Counter(proxy.hits)).items()))}")
    assert trouble.total >= faults


def launch(bed: Bed, proxy: FaultyApi, folder: Path, store: Store, artifacts: int) -> "subprocess.Popen[bytes]":
    """A launcher with the rights of its account, and a way to the API server that may fail."""
    profile, kubeconfig = folder / "testbed.yaml", folder / "kubeconfig"
    if not profile.exists():
        values = yaml.safe_load((PROFILES / "testbed.yaml").read_text()) | {"scratch": str(folder / "scratch")}
        profile.write_text(yaml.safe_dump(values))
        write_kubeconfig(kubeconfig, proxy.url, bed.plane.certificates.authority, bed.launcher_token())
    environment = {**os.environ, "KUBECONFIG": str(kubeconfig), "MARIN_IMAGE_CPU": IMAGE, "DAGSTER_HOME": str(folder / "home")}
    with (folder / "launcher.log").open("ab") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "tests.kubernetes.many_builds", str(profile), store.prefix, str(artifacts)],
            cwd=PROJECT,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
        )
