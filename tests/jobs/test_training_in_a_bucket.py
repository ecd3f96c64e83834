"""Trainings whose store is a bucket: killed or preempted on one machine, gone on with on another, which has nothing of theirs."""

import os
import random
import shutil
import signal
import threading
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

import pytest

from marin_assets.builder import Builder, QuietEvents, Retries
from marin_assets.launch import LocalLauncher
from marin_assets.launch.contract import NOTHING_SPECIAL, Handle
from marin_core.artifact import ArtifactGraph, ArtifactId, ArtifactStep, Record, Resources, Store
from marin_core.artifact.job import JobSpec
from marin_core.artifact.job_folder import log_stream
from marin_core.artifact.store import META
from marin_core.errors import ExitCode
from marin_core.train.checkpoint.metadata import METADATA_FILE
from marin_core.train.checkpoint.mirror import Mirror
from tests.jobs.pods import wait_until
from tests.jobs.test_pod_gang import PodLauncher, preempted, rows_in
from tests.storage.gcs import FakeGcs
from tests.train.drill import Lab, committed, resumed_at
from tests.train.gang_run import quick_environment
from tests.train.test_loop import exact_rows

pytestmark = [pytest.mark.slow, pytest.mark.timeout(2400)]


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Lab:
    folder = tmp_path_factory.mktemp("lab")
    lab = Lab(folder / "lab", folder / "xla")
    lab.build_data()
    return lab


@pytest.fixture(scope="module")
def undisturbed(lab: Lab) -> Record:
    step = lab.training("undisturbed")
    return lab.builder(step, QuietEvents()).build(step, step.id)[0]


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    with FakeGcs() as server:
        for name, value in server.environment().items():
            monkeypatch.setenv(name, value)
        yield Store("gs://lab/lab")


def newest_in(store: Store, folder: str, place: Path) -> int:
    """The newest checkpoint that another machine would find in an attempt's folder."""
    Mirror(store.objects, folder).fetch(place)
    return max(committed(place), default=0)


def require_same(lab: Lab, undisturbed: Record, store: Store, record: Record, folder: Path) -> None:
    """It has every loss and every array of a run that nothing happened to, and nothing else is left in the store."""
    assert record.content_digest == undisturbed.content_digest
    store.require_intact(record, every_byte=True)
    store.download(record, folder)
    lab.store.download(undisturbed, folder.with_name("undisturbed"))
    assert exact_rows(folder) == exact_rows(folder.with_name("undisturbed"))
    there = set(store.objects.files(f"{record.id.path}/attempt-{record.attempt}"))
    inside = record.payload.partition("/")[2]
    assert there == {f"{inside}/{file.path}".lstrip("/") for file in record.files}
    assert store.objects.names(record.id.path) == [META, f"attempt-{record.attempt}"]


class Machines(LocalLauncher):
    """Starts each attempt as if on another machine, where nothing is left of the others, and kills the first ones with -9.

    Attributes:
        newest: the newest checkpoint in the bucket when each attempt but the first began.
    """

    def __init__(self, folder: Path, kills: int, rng: random.Random, store: Store, artifact: ArtifactId) -> None:
        super().__init__(folder / "jobs", "machine")
        self.folders: list[Path] = []
        self.newest: list[int] = []
        self._folder = folder
        self._kills = kills
        self._rng = rng
        self._store = store
        self._artifact = artifact

    def submit(self, name: str, spec: JobSpec, environment: Mapping[str, str], resources: Resources = NOTHING_SPECIAL) -> Handle:
        for folder in self.folders:
            shutil.rmtree(folder / "output", ignore_errors=True)
        if spec.attempt > 1:
            earlier = Mirror(self._store.objects, f"{self._artifact.path}/attempt-{spec.attempt - 1}")
            place = self._folder / f"seen-{spec.attempt}"
            self.newest.append(newest_in(self._store, earlier.folder, place) if earlier.stands() else self.newest[-1] if self.newest else 0)
        handle = super().submit(name, spec, environment, resources)
        self.folders.append(handle.folder)
        if spec.attempt <= self._kills:
            threading.Thread(target=self._kill, args=(handle,), daemon=True).start()
        return handle

    def _kill(self, handle: Handle) -> None:
        """At a random instant after it has sent a newer checkpoint than it began with: while it computes, saves, or sends the next."""
        log, folder = handle.folder / "log", f"{self._artifact.path}/attempt-{len(self.folders)}/checkpoints"
        wait_until(lambda: "from step" in log.read_text(), "the training's begin")
        begun, objects = resumed_at(log.read_text()), self._store.objects

        def has_sent() -> bool:
            newer = [step for step in objects.names(folder) if int(step) > begun]
            return bool(objects.read_many([f"{folder}/{step}/{METADATA_FILE}" for step in newer]))

        wait_until(has_sent, "a newer checkpoint in the bucket")
        threading.Event().wait(self._rng.uniform(0, 0.5))  # the random instant
        with suppress(ProcessLookupError):
            os.killpg(self._children[handle.name].pid, signal.SIGKILL)


@pytest.mark.parametrize("kills", [2, pytest.param(5, marks=pytest.mark.long)])
def test_a_training_that_is_killed_goes_on_on_machines_that_have_nothing_of_it(
    lab: Lab, undisturbed: Record, bucket: Store, kills: int, tmp_path: Path
) -> None:
    step = lab.training(f"moved_{kills}")
    machines = Machines(tmp_path, kills, random.Random(kills), bucket, step.id)
    events, environment = QuietEvents(), quick_environment(1, lab.compiled)
    events.environment = {name: value for name, value in environment.items() if name != "JAX_NUM_CPU_DEVICES"}
    retries = Retries(infrastructure=kills, first_delay_seconds=0.001)
    record, _ = Builder(ArtifactGraph([step]), lab.store, bucket, machines, events, retries, 60.0).build(step, step.id)
    assert record.attempt == kills + 1
    begun = [resumed_at((folder / "log").read_text()) for folder in machines.folders]
    assert begun == [0, *machines.newest]
    assert begun == sorted(set(begun)), "what an attempt had saved wasn't found"
    require_same(lab, undisturbed, bucket, record, tmp_path / "payload")


def in_pods(lab: Lab, undisturbed: Record, bucket: Store, step: ArtifactStep, folder: Path) -> None:
    """Train in pods, one of which is drained, and each of which finds nothing of those before it on its own disk."""
    environment = quick_environment(1, lab.compiled)
    launcher = PodLauncher(folder, {name: value for name, value in environment.items() if name != "JAX_NUM_CPU_DEVICES"})
    record, newest = preempted(lab, step, bucket, launcher, lambda: rows_of_pods(folder))
    assert launcher.pods is not None
    pods = launcher.pods.spec.processes
    assert [outcome.exit_code for outcome in launcher.pods.folder.outcomes()] == [ExitCode.PREEMPTED] * pods + [ExitCode.DONE] * pods
    assert record.attempt == 1
    assert resumed_at(launcher.pods.stream(log_stream(0))) == newest >= 8
    require_same(lab, undisturbed, bucket, record, folder / "payload")


def test_a_preempted_pod_goes_on_at_its_step_on_a_node_that_has_nothing_of_it(
    lab: Lab, undisturbed: Record, bucket: Store, tmp_path: Path
) -> None:
    in_pods(lab, undisturbed, bucket, lab.training("in_a_pod"), tmp_path)


@pytest.mark.long
def test_a_gang_writes_checkpoints_on_a_disk_that_its_pods_share_and_goes_on_from_the_bucket(
    lab: Lab, bucket: Store, tmp_path: Path
) -> None:
    """As with `scratch_claim` of a cluster's profile."""
    undisturbed = lab.training("undisturbed_gang", 2)
    record = lab.builder(undisturbed, QuietEvents()).build(undisturbed, undisturbed.id)[0]
    in_pods(lab, record, bucket, lab.training("gang_in_pods", 2), tmp_path)


def rows_of_pods(folder: Path) -> int:
    return max((rows_in(output) for output in folder.glob("pods/*/scratch/*/output")), default=0)
