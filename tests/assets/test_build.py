"""The life of an asset: built once, served after, failing alone, resumed by whoever comes next."""

import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable
from pathlib import Path

import dagster as dg
import psutil
import pytest

from marin_assets.factory import code_versions
from marin_assets.launch.local import LocalLauncher, process_start
from marin_core.artifact import ArtifactGraph, ArtifactStep
from marin_core.experiment import LocalFiles, MinCharacters, PythonStdlib, filtered, raw_source
from marin_core.experiment.tokens import tokenizer
from tests.assets.conftest import LabUnderTest, checks, failure, metadata, prose, write_documents


def source(folder: Path, version: str = "v1") -> ArtifactStep:
    return raw_source("raw/local", version, LocalFiles(root=str(folder), pattern="*.jsonl.gz"), license="CC0-1.0")


@pytest.fixture
def files(tmp_path: Path) -> Path:
    for number in range(8):
        write_documents(tmp_path / "source" / f"part-{number}.jsonl.gz", prose(number))
    return tmp_path / "source"


def test_an_artifact_is_built_once_and_served_after(lab: LabUnderTest, files: Path) -> None:
    raw = source(files)
    first = lab.materialize(raw)
    assert first.success
    record = lab.record(raw)
    shown = metadata(first)
    assert not shown["reused"]
    assert shown["content_digest"] == record.content_digest
    assert shown["address"] == f"{lab.store.prefix}/raw/local/v1"
    second = lab.materialize(raw)
    assert second.success
    assert metadata(second)["reused"]
    assert lab.record(raw) == record
    assert len(lab.jobs()) == 1
    tags = [event.materialization.tags or {} for run in (first, second) for event in run.get_asset_materialization_events()]
    assert {each["dagster/data_version"] for each in tags} == {record.content_digest[:16]}
    graph = ArtifactGraph([raw])
    assert {each["dagster/code_version"] for each in tags} == {code_versions(graph)[raw.id]}
    assert record.fingerprint == graph.fingerprint(raw)


@pytest.mark.usefixtures("forked_jobs")
def test_every_file_of_an_artifact_is_in_its_manifest(lab: LabUnderTest, files: Path) -> None:
    raw = source(files)
    lab.materialize(raw)
    address = lab.folder / "store" / "raw" / "local" / "v1"
    on_disk = {path.relative_to(address).as_posix() for path in address.rglob("*") if path.is_file()}
    payload = {f"attempt-1/{file.path}" for file in lab.record(raw).files}
    kept = {"record.json", *(f"attempts/00001/{name}.json" for name in ("claim", "code", "end"))}
    assert on_disk == payload | {f".artifact/{name}" for name in kept}


@pytest.mark.slow
@pytest.mark.usefixtures("forked_jobs")
def test_one_cut_shard_of_eight_fails_alone_and_a_backfill_completes_the_family(lab: LabUnderTest, files: Path) -> None:
    broken = files / "part-5.jsonl.gz"
    whole = broken.read_bytes()
    broken.write_bytes(whole[: len(whole) // 2])
    raw = source(files, "dev")
    shards = filtered("filtered/local", "dev", raw, shards=8, filters=[MinCharacters(characters=10)])
    assert lab.materialize(raw).success
    results = {key: lab.materialize(shards, key) for key in shards.partitions}
    assert [key for key, result in results.items() if not result.success] == ["00005"]
    message = failure(results["00005"])
    assert "part-5.jsonl.gz" in message
    assert "truncated" in message or "cut" in message
    attempts = lab.store.attempts(shards.ids()[5])
    assert [(each.state, each.exit_code) for each in attempts] == [("failed", 65)]

    consumer = tokenizer("tokenizer/local", "dev", [shards], vocab_size=300)
    blocked = failure(lab.materialize(consumer))
    assert "filtered/local@dev/00005" in blocked
    assert "part-5.jsonl.gz" in blocked

    broken.write_bytes(whole)
    assert lab.materialize(raw, rebuild=True).success
    assert lab.materialize(shards, "00005").success
    assert all(lab.store.record(artifact) for artifact in shards.ids())
    assert lab.materialize(consumer).success


@pytest.mark.usefixtures("forked_jobs")
def test_a_changed_literal_is_served_with_a_warning_that_names_the_field(lab: LabUnderTest, files: Path) -> None:
    raw = source(files)
    assert lab.materialize(raw).success
    before = filtered("filtered/local", "v1", raw, shards=8, filters=[MinCharacters(characters=10)])
    after = filtered("filtered/local", "v1", raw, shards=8, filters=[MinCharacters(characters=99)])
    assert checks(lab.materialize(before, "00000"))["drift"].passed
    result = lab.materialize(after, "00000")
    assert result.success
    drift = checks(result)["drift"]
    assert not drift.passed
    assert drift.severity == dg.AssetCheckSeverity.WARN
    differences = drift.metadata["differences"]
    assert isinstance(differences, dg.TableMetadataValue)
    expected = {
        "kind": "config",
        "artifact": "filtered/local@v1",
        "field": "filter.filters.0.characters",
        "recorded": "10",
        "declared": "99",
    }
    assert [record.data for record in differences.records] == [expected]


@pytest.mark.usefixtures("forked_jobs")
def test_a_dev_artifact_is_rebuilt_on_request_and_a_fixed_one_never(lab: LabUnderTest, files: Path) -> None:
    for version, allowed in (("dev", True), ("v1", False)):
        raw = source(files, version)
        assert lab.materialize(raw).success
        before = lab.record(raw)
        result = lab.materialize(raw, rebuild=True)
        assert result.success == allowed
        assert (lab.record(raw).attempt > before.attempt) == allowed
        if not allowed:
            assert "never rebuilt" in failure(result)


def when(condition: Callable[[], bool], act: Callable[[], None]) -> threading.Thread:
    """Act in another thread as soon as a condition holds."""

    def wait() -> None:
        deadline = time.monotonic() + 300
        while not condition() and time.monotonic() < deadline:
            time.sleep(0.002)
        act()

    thread = threading.Thread(target=wait)
    thread.start()
    return thread


def job_process(lab: LabUnderTest, number: int) -> int:
    return int(json.loads((lab.jobs()[number] / "process.json").read_text())["pid"])


@pytest.mark.parametrize("instant", ["started", "opened", "writing"])
def test_a_killed_job_is_started_again_and_its_attempt_is_kept(lab: LabUnderTest, instant: str) -> None:
    raw = raw_source("raw/stdlib", "v1", PythonStdlib(domains=("topics", "code")), license="PSF-2.0")
    payload = lab.folder / "store" / "raw" / "stdlib" / "v1" / "attempt-1" / "units"

    def ready() -> bool:
        jobs = lab.jobs()
        reached = {"started": "process.json", "opened": "messages"}.get(instant)
        return bool(jobs) and (jobs[0] / "process.json").exists() and ((jobs[0] / reached).exists() if reached else payload.exists())

    killer = when(ready, lambda: os.kill(job_process(lab, 0), signal.SIGKILL))
    result = lab.materialize(raw)
    killer.join()
    assert result.success
    attempts = lab.store.attempts(raw.id)
    assert [each.state for each in attempts] == ["lost", "succeeded"]
    assert "SIGKILL" in (attempts[0].error or "")
    assert lab.record(raw).attempt == 2


def test_a_job_asked_to_stop_is_resumed_as_a_new_attempt(lab: LabUnderTest, files: Path) -> None:
    """SIGTERM to a job that nobody cancelled is a preemption."""
    raw = raw_source("raw/stdlib", "v1", PythonStdlib(domains=("docstrings",)), license="PSF-2.0")
    killer = when(lambda: bool(lab.jobs()) and (lab.jobs()[0] / "messages").exists(), lambda: os.kill(job_process(lab, 0), signal.SIGTERM))
    result = lab.materialize(raw)
    killer.join()
    assert result.success
    assert [each.exit_code for each in lab.store.attempts(raw.id)] in (
        [143, 0],
        [-signal.SIGTERM, 0],  # it had not begun
        [0],  # it had all but finished
    )


TWICE = """
    import sys
    from pathlib import Path
    import dagster as dg
    from tests.assets.conftest import LabUnderTest
    from tests.assets.test_build import source
    folder, files = Path(sys.argv[1]), Path(sys.argv[2])
    with dg.instance_for_test() as instance:
        lab = LabUnderTest(folder, instance)
        assert lab.materialize(source(files)).success
"""


def test_two_run_workers_at_once_build_it_once(lab: LabUnderTest, files: Path) -> None:
    command = [sys.executable, "-c", textwrap.dedent(TWICE), str(lab.folder), str(files)]
    workers = [subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) for _ in range(2)]
    for worker in workers:
        _, errors = worker.communicate(timeout=300)
        assert worker.returncode == 0, errors.decode()
    assert [each.state for each in lab.store.attempts(source(files).id)] == ["succeeded"]
    assert len(lab.jobs()) == 1


def test_a_killed_run_worker_leaves_its_job_and_the_next_one_attaches(lab: LabUnderTest, files: Path) -> None:
    worker = subprocess.Popen([sys.executable, "-c", textwrap.dedent(TWICE), str(lab.folder), str(files)], stderr=subprocess.DEVNULL)
    when(lambda: bool(lab.jobs()) and (lab.jobs()[0] / "process.json").exists(), worker.kill).join()
    worker.wait()
    result = lab.materialize(source(files))
    assert result.success
    assert len(lab.jobs()) == 1
    assert [each.number for each in lab.store.attempts(source(files).id)] == [1]


def test_missing_inputs_are_all_named(lab: LabUnderTest, files: Path) -> None:
    shards = filtered("filtered/local", "v1", source(files), shards=8)
    assert "raw/local@v1" in failure(lab.materialize(shards, "00000"))
    consumer = tokenizer("tokenizer/local", "v1", [shards], vocab_size=300)
    message = failure(lab.materialize(consumer))
    assert all(str(artifact) in message for artifact in shards.ids())


def test_a_store_that_cannot_be_written_is_said_before_any_job(tmp_path: Path, lab: LabUnderTest, files: Path) -> None:
    (tmp_path / "store").write_text("a file where the store should be")
    assert "can't be written" in failure(lab.materialize(source(files)))


def test_cancel_ends_the_whole_process_tree(tmp_path: Path) -> None:
    """A job that ignores SIGTERM and has a child in a session of its own is gone after cancel."""
    script = "import subprocess, sys, signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
    script += "subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'], start_new_session=True); time.sleep(600)"
    launcher = LocalLauncher(tmp_path)
    handle = launcher.handle("m-stubborn")
    handle.folder.mkdir()
    job = psutil.Popen([sys.executable, "-c", script], start_new_session=True)
    (handle.folder / "process.json").write_text(json.dumps({"pid": job.pid, "started": process_start(job.pid)}))
    deadline = time.monotonic() + 300
    while not job.children() and time.monotonic() < deadline:
        time.sleep(0.01)
    (child,) = job.children()
    launcher.cancel(handle, grace_seconds=0.5)
    assert not child.is_running() or child.status() == psutil.STATUS_ZOMBIE
    assert not job.is_running()
    launcher.cancel(handle)
