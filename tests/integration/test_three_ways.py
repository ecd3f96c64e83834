"""The command line, the native job backfill and the UI's buttons do the same thing on the same store; killing and cancelling included."""

import os
import re
import signal
from collections.abc import Iterator

import psutil
import pytest

from marin_assets.keys import asset_key
from marin_core.artifact import ArtifactGraph, ArtifactId, Store
from tests.integration.deployment import Deployment, running, wait_for
from tests.integration.experiments.small import EXPERIMENT, run

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
    said = other.command("marin", "materialize", "small", timeout_seconds=600)
    assert "failed" not in said
    assert digests(other.store) == digests(deployment.store)


def test_terminate_in_the_ui_stops_the_whole_tree_and_a_new_run_resumes(deployment: Deployment) -> None:
    """Uses a store of its own copy of the training: the committed one is withdrawn by hand, as an operator would."""
    address = deployment.folder / "store" / TRAINING.path
    before = digests(deployment.store)[str(TRAINING)]
    for path in sorted(address.rglob("*"), reverse=True):
        path.unlink() if path.is_file() or path.is_symlink() else path.rmdir()
    first = deployment.launch(asset_key(TRAINING).path)
    metrics = address / "metrics.jsonl"
    wait_for("some steps", lambda: metrics.exists() and metrics.read_bytes().count(b"\n") >= 7)
    job = deployment.store.attempts(TRAINING)[-1].job
    process = psutil.Process(_pid(deployment, job))
    tree = [process, *process.children(recursive=True)]
    deployment.terminate(first)
    wait_for("the run's end", lambda: deployment.status(first) == "CANCELED")
    wait_for("the end of the process tree", lambda: not any(each.is_running() and each.status() != "zombie" for each in tree))

    second = deployment.launch(asset_key(TRAINING).path)
    wait_for("the second run's end", lambda: deployment.status(second) in ("SUCCESS", "FAILURE"))
    assert deployment.status(second) == "SUCCESS"
    assert digests(deployment.store)[str(TRAINING)] == before
    assert [each.state for each in deployment.store.attempts(TRAINING)] == ["failed", "succeeded"]


def test_a_killed_run_worker_is_retried_and_reattaches_to_its_job(deployment: Deployment) -> None:
    address = deployment.folder / "store" / TRAINING.path
    for path in sorted(address.rglob("*"), reverse=True):
        path.unlink() if path.is_file() or path.is_symlink() else path.rmdir()
    first = deployment.launch(asset_key(TRAINING).path)
    attempt = wait_for("an attempt", lambda: deployment.store.attempts(TRAINING))[-1]
    pid = wait_for("the job's process", lambda: _pid(deployment, attempt.job))
    worker = next(
        each
        for each in psutil.process_iter(["cmdline"])
        if any(first in part for part in each.info["cmdline"] or []) and "execute_run" in " ".join(each.info["cmdline"])
    )
    os.kill(worker.pid, signal.SIGKILL)
    assert psutil.pid_exists(pid)
    wait_for("the retried run's commit", lambda: deployment.store.record(TRAINING))
    wait_for("a successful run", lambda: any(each["status"] == "SUCCESS" and each["runId"] != first for each in deployment.runs()[:2]))
    assert len(deployment.store.attempts(TRAINING)) == 1
    assert run.id == TRAINING


def _pid(deployment: Deployment, job: str) -> int:
    import json

    path = deployment.folder / "store" / ".jobs" / job / "process.json"
    return int(json.loads(path.read_text())["pid"]) if path.exists() else 0
