"""The command line, the native job backfill and the UI's buttons do the same thing on the same store; killing and cancelling included."""

import json
import os
import re
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from marin_assets.keys import asset_key
from marin_core.artifact import ArtifactGraph, ArtifactId, Store
from tests.integration.deployment import Deployment, running, wait_for
from tests.integration.experiments.small import EXPERIMENT

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500)]
GRAPH = ArtifactGraph(EXPERIMENT.targets)
EVERYTHING = [artifact for step in GRAPH for artifact in step.ids()]
TRAINING = ArtifactId("checkpoints/small", "v1")


@pytest.fixture(scope="module")
def deployment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    with running(tmp_path_factory.mktemp("three_ways")) as deployment:
        yield deployment


def digests(store: Store) -> dict[str, str]:
    """Content of everything that is committed."""
    return {str(artifact): record.content_digest for artifact in EVERYTHING if (record := store.record(artifact)) is not None}


def test_asset_materialize_then_job_backfill_then_materialize_all(deployment: Deployment, tmp_path_factory: pytest.TempPathFactory) -> None:
    deployment.command("dagster", "asset", "materialize", "-m", "marin_assets.definitions", "--select", 'key:"raw/topics-v1"')
    assert list(digests(deployment.store)) == ["raw/topics@v1"]

    shards = ["00000", "00001"]
    said = deployment.command(
        "dagster", "job", "backfill", "-j", "filter_topics", "--from", shards[0], "--to", shards[1], "--noprompt", "-w", "workspace.yaml"
    )
    assert re.search(r"backfill", said, re.IGNORECASE)
    built = [ArtifactId("filtered/topics", "v1", shard) for shard in shards]
    wait_for("the two shards of the backfill", lambda: all(deployment.store.record(each) for each in built))

    backfill = deployment.materialize_all([asset_key(step.id).path for step in GRAPH])
    assert deployment.finish_backfill(backfill) == "COMPLETED_SUCCESS"
    assert list(digests(deployment.store)) == [str(artifact) for artifact in EVERYTHING]
    for artifact in EVERYTHING:  # nothing was built twice, whoever asked
        assert [each.state for each in deployment.store.attempts(artifact)] == ["succeeded"], artifact

    other = Deployment(tmp_path_factory.mktemp("command_line"), 1, deployment.environment["MARIN_EXPERIMENTS"])
    (other.folder / "home").mkdir()
    (other.folder / "home" / "dagster.yaml").write_text((deployment.folder / "home" / "dagster.yaml").read_text())
    said = other.command("marin", "materialize", "small")
    assert "failed" not in said
    assert digests(other.store) == digests(deployment.store)


@pytest.fixture(scope="module")
def uninterrupted(deployment: Deployment) -> tuple[str, list[str]]:
    """Digest and losses of a training that nothing disturbed."""
    deployment.command("marin", "materialize", "checkpoints/small")
    return digests(deployment.store)[str(TRAINING)], losses(deployment)


def losses(deployment: Deployment) -> list[str]:
    """Per-step losses in full precision, as text."""
    record = deployment.store.record(TRAINING)
    assert record is not None
    rows = deployment.store.read_payload(record, "metrics.jsonl").decode().splitlines()
    return [repr(json.loads(row)["loss"]) for row in rows]


def start_over(deployment: Deployment) -> Path:
    """Delete the artifact by hand, as an operator would; its address."""
    address = deployment.folder / "store" / TRAINING.path
    shutil.rmtree(address)
    return address


def some_steps(address: Path) -> None:
    metrics = address / "attempt-1" / "metrics.jsonl"
    wait_for("some steps", lambda: metrics.exists() and metrics.read_bytes().count(b"\n") >= 12)


def test_terminate_in_the_ui_stops_the_whole_tree_and_a_new_run_resumes(
    deployment: Deployment, uninterrupted: tuple[str, list[str]]
) -> None:
    address = start_over(deployment)
    first = deployment.launch(asset_key(TRAINING).path)
    some_steps(address)
    process = psutil.Process(_pid(deployment, deployment.store.attempts(TRAINING)[-1].claim.job))
    tree = [process, *process.children(recursive=True)]
    deployment.terminate(first)
    wait_for("the run's end", lambda: deployment.status(first) == "CANCELED")
    wait_for("the end of the process tree", lambda: not any(each.is_running() and each.status() != "zombie" for each in tree))
    assert deployment.store.record(TRAINING) is None

    second = deployment.launch(asset_key(TRAINING).path)
    wait_for("the second run's end", lambda: deployment.status(second) in ("SUCCESS", "FAILURE"))
    assert deployment.status(second) == "SUCCESS"
    assert "Training checkpoints-small-v1 from step" in deployment.step_output(second)  # the job's log, in the UI
    assert (digests(deployment.store)[str(TRAINING)], losses(deployment)) == uninterrupted
    assert [(each.state, each.exit_code) for each in deployment.store.attempts(TRAINING)] == [("failed", 143), ("succeeded", 0)]


def test_a_training_killed_in_mid_run_resumes_from_its_newest_checkpoint_bit_for_bit(
    deployment: Deployment, uninterrupted: tuple[str, list[str]]
) -> None:
    address = start_over(deployment)
    run = deployment.launch(asset_key(TRAINING).path)
    some_steps(address)
    os.kill(_pid(deployment, deployment.store.attempts(TRAINING)[-1].claim.job), signal.SIGKILL)
    wait_for("the run's end", lambda: deployment.status(run) in ("SUCCESS", "FAILURE"))
    assert deployment.status(run) == "SUCCESS"
    attempts = deployment.store.attempts(TRAINING)
    assert [each.state for each in attempts] == ["lost", "succeeded"]
    resumed = (deployment.folder / "store" / ".jobs" / attempts[1].claim.job / "log").read_text()
    assert re.search(r"from step [1-9]\d* to 40", resumed), resumed
    assert (digests(deployment.store)[str(TRAINING)], losses(deployment)) == uninterrupted


def test_a_killed_run_worker_leaves_its_job_and_a_new_run_attaches_to_it(
    deployment: Deployment, uninterrupted: tuple[str, list[str]]
) -> None:
    start_over(deployment)
    first = deployment.launch(asset_key(TRAINING).path)
    attempt = wait_for("an attempt", lambda: deployment.store.attempts(TRAINING))[-1]
    job = wait_for("the job's process", lambda: _pid(deployment, attempt.claim.job))
    os.kill(psutil.Process(job).ppid(), signal.SIGKILL)  # the process that started the job is the run worker
    wait_for("Dagster's notice", lambda: deployment.status(first) == "FAILURE")
    assert psutil.pid_exists(job)
    second = deployment.launch(asset_key(TRAINING).path)
    wait_for("the second run's end", lambda: deployment.status(second) in ("SUCCESS", "FAILURE"))
    assert deployment.status(second) == "SUCCESS"
    assert [each.state for each in deployment.store.attempts(TRAINING)] == ["succeeded"]
    assert (digests(deployment.store)[str(TRAINING)], losses(deployment)) == uninterrupted


def _pid(deployment: Deployment, job: str) -> int:
    path = deployment.folder / "store" / ".jobs" / job / "process.json"
    return int(json.loads(path.read_text())["pid"]) if path.exists() else 0
