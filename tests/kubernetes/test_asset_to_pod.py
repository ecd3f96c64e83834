"""From the Dagster asset to the pod: an experiment is built on the cluster, interrupted, and ends with the bits of one machine's."""

import json
import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

import dagster as dg
import pytest
import yaml

from marin_assets.keys import asset_key
from marin_core.artifact import ArtifactGraph, Record, Resources, Store
from marin_core.artifact.job_folder import JobFolder, log_stream
from tests.integration.deployment import BIN, INSTANCE, PROJECT, Deployment, end_tree
from tests.kubernetes.bed.api import JOBSET
from tests.kubernetes.bed.cluster import Bed
from tests.kubernetes.bed.programs import wait_until
from tests.kubernetes.experiments.in_pods import EXPERIMENT, STEPS, run
from tests.kubernetes.jobs import IMAGE, PROFILES, Submitted, bed_profile, manifest
from tests.train.drill import committed, resumed_at
from tests.train.gang_run import quick_environment

WAIT_SECONDS = 900.0
"""For anything that this waits for; on two cores, together with others."""

NAMESPACE = "team-a"
QUOTA = 32
"""Cores of each team. Kueue interrupts nobody for a job that asks for more than its own team's (`borrowWithinCohort: Never`)."""

EVERYTHING = [artifact for step in ArtifactGraph(EXPERIMENT.targets) for artifact in step.ids()]


class JobOfAnAsset(Submitted):
    """The JobSet of a job that Dagster launched."""

    def __init__(self, bed: Bed, name: str) -> None:
        self.bed, self.name, self.namespace = bed, name, NAMESPACE
        jobset = wait_until(f"the JobSet {name}", lambda: bed.api.find(JOBSET, "JobSet", name, NAMESPACE), WAIT_SECONDS)
        self.uid = jobset["metadata"]["uid"]
        self.size = run.resources.processes


def lab(folder: Path, compiled: Path, **environment: str) -> Deployment:
    """A deployment with a home and a store of its own, which is given commands one by one."""
    (folder / "home").mkdir(parents=True)
    (folder / "home" / "dagster.yaml").write_text(INSTANCE)
    deployment = Deployment(folder, 1, "tests.kubernetes.experiments")
    deployment.environment |= quick_environment(1, compiled) | environment
    return deployment


@pytest.fixture
def compiled(tmp_path: Path) -> Path:
    return tmp_path / "compiled"


@pytest.fixture
def on_the_cluster(bed: Bed, tmp_path: Path, compiled: Path) -> Iterator[Deployment]:
    """A deployment whose jobs run on the bed, with the launcher's own account. Their store is a folder that all nodes share."""
    profile = yaml.safe_load((PROFILES / "testbed.yaml").read_text()) | {"scratch": str(tmp_path / "scratch")}
    (tmp_path / "testbed.yaml").write_text(yaml.safe_dump(profile))
    before, bed.kubelet.environment = bed.kubelet.environment, quick_environment(1, compiled)
    try:
        yield lab(
            tmp_path / "cluster",
            compiled,
            MARIN_LAUNCHER="kubernetes",
            MARIN_PROFILE=str(tmp_path / "testbed.yaml"),
            MARIN_IMAGE_CPU=IMAGE,
            KUBECONFIG=str(bed.launcher_kubeconfig()),
        )
    finally:
        bed.kubelet.environment = before


@pytest.mark.kubernetes
@pytest.mark.timeout(3000)
def test_an_experiment_interrupted_by_production_ends_with_the_bits_of_a_single_machines(
    bed: Bed, on_the_cluster: Deployment, tmp_path: Path, compiled: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Rows 6 and 3 of spec/kubernetes.md §3, through Dagster: two pods of JAX stop at one step, save, wait, and go on from there."""
    log = tmp_path / "materialize.log"
    with materialize(on_the_cluster, log) as materializing:

        def not_over(seen: object) -> object:
            assert materializing.poll() is None, log.read_text()
            return seen or None

        # The other team uses its cores, so that there are none to borrow.
        Submitted(bed, manifest("neighbour", Resources(cpus=QUOTA, save_seconds=30), on=bed_profile("team-b"))).wait_running()
        store = on_the_cluster.store
        wait_until("the training's turn", lambda: not_over(store.attempts(run.id)), WAIT_SECONDS)
        victim = JobOfAnAsset(bed, store.attempts(run.id)[0].claim.job)
        first = victim.wait_running(WAIT_SECONDS)
        wait_until("some steps", lambda: not_over(steps_done(store) >= 8), WAIT_SECONDS)

        production = Submitted(bed, manifest("production", Resources(cpus=QUOTA, processes=2, priority="production", save_seconds=30)))
        production.wait_running(WAIT_SECONDS)
        wait_until("the training's pods to have saved", lambda: not victim.pods(), WAIT_SECONDS)
        assert (victim.condition("Evicted")["reason"], victim.condition("Preempted")["reason"]) == ("Preempted", "InClusterQueue")
        saved = max(checkpoints(store))
        assert 8 <= saved < STEPS
        wait_until("Dagster to say why it waits", lambda: not_over(any("again" in why for why in told(on_the_cluster))), WAIT_SECONDS)
        production.delete()
        released = time.monotonic()
        victim.wait_generation_after(first, WAIT_SECONDS)
        resumed_after = time.monotonic() - released
        counted, uncounted = victim.restarts()
        assert counted == 0
        assert uncounted <= 1  # of a Job that failed with 143 while it was suspended (test_scenarios.py, row 3)
        assert materializing.wait(WAIT_SECONDS) == 0, log.read_text()

    job = JobFolder(f"{store.prefix}/.jobs/{victim.name}")
    assert [outcome.exit_code for outcome in job.outcomes()] == [143, 143, 0, 0]
    assert [outcome.restart for outcome in job.outcomes()] == [0, 0, uncounted, uncounted]
    assert resumed_at(log_of(job, 0)) == saved
    assert [attempt.state for attempt in store.attempts(run.id)] == ["succeeded"]

    on_one_machine = lab(tmp_path / "machine", compiled)
    on_one_machine.command("marin", "materialize", EXPERIMENT.name, timeout_seconds=2 * WAIT_SECONDS)
    assert losses(store) == losses(on_one_machine.store)
    assert len(losses(store)) == STEPS
    assert digests(store) == digests(on_one_machine.store)
    with capsys.disabled():
        print(f"\n{STEPS} steps in two pods, interrupted after {saved}: {uncounted} uncounted restart, ", end="")
        print(f"both pods run again {resumed_after:.1f} s after their cores were free; losses and digests are those of one machine")


@contextmanager
def materialize(deployment: Deployment, log: Path) -> Iterator["subprocess.Popen[bytes]"]:
    """The command at work; what is left of it at the end of the block is ended."""
    with log.open("wb") as output:
        process = subprocess.Popen(
            [str(BIN / "marin"), "materialize", EXPERIMENT.name],
            cwd=PROJECT,
            env=deployment.environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    try:
        yield process
    finally:
        if process.poll() is None:
            end_tree(process.pid)
        process.wait(timeout=30)


def told(deployment: Deployment) -> list[str]:
    """What Dagster's event log says of the training's standing in the cluster."""
    with patch.dict(os.environ, DAGSTER_HOME=deployment.environment["DAGSTER_HOME"]), dg.DagsterInstance.get() as instance:
        observed = [record.asset_observation for record in instance.fetch_observations(asset_key(run.id), limit=1000).records]
    return [str(each.metadata["why"].value) for each in observed if each is not None and "why" in each.metadata]


def checkpoints(store: Store) -> list[int]:
    """Steps of the checkpoints that the training's pods have committed."""
    return [step for generation in output(store).iterdir() for step in committed(generation)]


def steps_done(store: Store) -> int:
    """Steps of which the training's pods have said the loss."""
    return max((path.read_bytes().count(b"\n") for path in output(store).glob("*/metrics.jsonl")), default=0)


def output(store: Store) -> Path:
    """Where the training's first attempt writes; each generation of its pods has a folder in it."""
    path = store.output_path(run.id, 1)
    assert path is not None
    return path


def log_of(job: JobFolder, process: int) -> str:
    """All that a process has printed, in all its pods."""
    stream = log_stream(process)
    return b"".join(job.read(stream, chunk) for chunk in job.chunks(stream)).decode()


def digests(store: Store) -> dict[str, str]:
    """Content of everything that the experiment has."""
    return {str(artifact): committed_record.content_digest for artifact, committed_record in records(store).items()}


def records(store: Store) -> dict[object, Record]:
    found = {artifact: store.record(artifact) for artifact in EVERYTHING}
    assert None not in found.values()
    return {artifact: record for artifact, record in found.items() if record is not None}


def losses(store: Store) -> list[str]:
    """The loss of every step in full precision, as text."""
    rows = store.read_payload(records(store)[run.id], "metrics.jsonl").decode().splitlines()
    return [repr(json.loads(row)["loss"]) for row in rows]
