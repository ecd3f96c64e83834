"""Dagster's storage with connections that stay open: the same databases, seen from several processes, closed when it is told so."""

import multiprocessing
import os
import signal
import sqlite3
import threading
from collections.abc import Iterator
from pathlib import Path

import dagster as dg
import pytest
import yaml

from marin_assets import sqlite
from marin_assets.sqlite import LabEventLogStorage

PROJECT = Path(__file__).resolve().parents[2]
TIMEOUT_SECONDS = 300


def write_home(folder: Path, storage: str = "LabStorage") -> Path:
    home = folder / storage
    home.mkdir()
    custom = {"module": "marin_assets.sqlite", "class": storage, "config": {"base_dir": str(folder / "storage")}}
    (home / "dagster.yaml").write_text(yaml.safe_dump({"telemetry": {"enabled": False}, "storage": {"custom": custom}}))
    return home


@pytest.fixture
def instance(tmp_path: Path) -> Iterator[dg.DagsterInstance]:
    with dg.DagsterInstance.from_config(str(write_home(tmp_path))) as made:
        yield made


def a_run(instance: dg.DagsterInstance) -> dg.DagsterRun:
    @dg.asset
    def thing() -> None: ...

    return instance.create_run_for_job(dg.Definitions([thing]).resolve_implicit_global_asset_job_def())


def messages(instance: dg.DagsterInstance, run: dg.DagsterRun) -> list[str]:
    """Of the events that tests report."""
    records = instance.get_records_for_run(run.run_id, of_type=dg.DagsterEventType.ENGINE_EVENT).records
    return [record.event_log_entry.message for record in records]


def open_databases(folder: Path) -> set[str]:
    """Databases below a folder that this process holds open."""
    found = set()
    for descriptor in Path("/proc/self/fd").iterdir():
        try:
            target = descriptor.readlink()
        except FileNotFoundError:  # the listing's own
            continue
        if target.is_relative_to(folder) and target.suffix == ".db":
            found.add(target.stem)
    return found


def test_the_embedded_default_uses_it_and_run_workers_get_it_too(instance: dg.DagsterInstance) -> None:
    declared = yaml.safe_load((PROJECT / "dagster.yaml").read_text())["storage"]["custom"]
    assert (declared["module"], declared["class"]) == ("marin_assets.sqlite", "LabStorage")
    with dg.DagsterInstance.from_ref(instance.get_ref()) as worker:
        assert type(worker.event_log_storage) is LabEventLogStorage


def test_dagsters_own_storage_reads_what_it_wrote_and_the_other_way_round(instance: dg.DagsterInstance, tmp_path: Path) -> None:
    run = a_run(instance)
    instance.report_engine_event("of the lab", run)
    with dg.DagsterInstance.from_config(str(write_home(tmp_path, "DagsterSqliteStorage"))) as stock:
        assert type(stock.event_log_storage) is not LabEventLogStorage
        assert messages(stock, run)[-1] == "of the lab"
        stock.report_engine_event("of Dagster", run)
    assert messages(instance, run)[-2:] == ["of the lab", "of Dagster"]


def test_connections_are_few_and_are_closed_at_the_end(
    instance: dg.DagsterInstance, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite, "OPEN_DATABASES", 3)
    runs = [a_run(instance) for _ in range(5)]
    for run in [*runs, *runs]:
        instance.report_engine_event("hello", run)
        assert len(open_databases(tmp_path)) <= 3 + 2  # runs and schedules have databases of their own
    assert all(messages(instance, run)[-2:] == ["hello", "hello"] for run in runs)
    instance.dispose()
    assert not open_databases(tmp_path) & {run.run_id for run in runs}


def test_a_wiped_event_log_starts_anew(instance: dg.DagsterInstance) -> None:
    run = a_run(instance)
    instance.report_engine_event("before", run)
    instance.event_log_storage.wipe()
    assert messages(instance, run) == []
    instance.report_engine_event("after", run)
    assert messages(instance, run) == ["after"]


def _open(home: str, together: threading.Barrier) -> None:
    together.wait(TIMEOUT_SECONDS)
    with dg.DagsterInstance.from_config(home) as instance:
        instance.get_runs_count()


def test_processes_that_open_a_new_home_at_once_all_find_it_whole(tmp_path: Path) -> None:
    home = str(write_home(tmp_path))
    server = multiprocessing.get_context("forkserver")
    server.set_forkserver_preload(["dagster"])
    together = server.Barrier(4)
    processes = [server.Process(target=_open, args=(home, together)) for _ in range(4)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(TIMEOUT_SECONDS)
    assert [process.exitcode for process in processes] == [0] * 4


def _report(home: str, run_id: str, count: int) -> None:
    with dg.DagsterInstance.from_config(home) as instance:
        run = instance.get_run_by_id(run_id)
        assert run is not None
        for number in range(count):
            instance.report_engine_event(f"{os.getpid()} {number}", run)
        os.kill(os.getpid(), signal.SIGKILL)  # an event that was reported is there, however its process ends


def test_events_of_killed_writers_are_kept_and_seen_while_they_come(instance: dg.DagsterInstance, tmp_path: Path) -> None:
    run = a_run(instance)
    seen: list[str] = []
    complete = threading.Event()

    def see(entry: dg.EventLogEntry, cursor: str) -> None:
        if entry.dagster_event_type == dg.DagsterEventType.ENGINE_EVENT:
            seen.append(entry.message)
        if len(seen) == 3 * 20:
            complete.set()

    instance.watch_event_logs(run.run_id, None, see)
    server = multiprocessing.get_context("forkserver")
    server.set_forkserver_preload(["dagster"])
    home = str(tmp_path / "LabStorage")
    writers = [server.Process(target=_report, args=(home, run.run_id, 20)) for _ in range(3)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(TIMEOUT_SECONDS)
    assert [writer.exitcode for writer in writers] == [-signal.SIGKILL] * 3
    assert complete.wait(TIMEOUT_SECONDS)
    wanted = sorted(f"{writer.pid} {number}" for writer in writers for number in range(20))
    assert sorted(seen) == wanted
    assert sorted(messages(instance, run)) == wanted
    with sqlite3.connect(tmp_path / "storage" / "history" / "runs" / f"{run.run_id}.db") as database:
        assert database.execute("pragma integrity_check").fetchone() == ("ok",)


def test_threads_share_the_connection(instance: dg.DagsterInstance) -> None:
    run = a_run(instance)
    failed: list[BaseException] = []

    def report(name: str) -> None:
        try:
            for number in range(25):
                instance.report_engine_event(f"{name} {number}", run)
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=report, args=(name,)) for name in "abcd"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(TIMEOUT_SECONDS)
    assert not failed
    assert sorted(messages(instance, run)) == sorted(f"{name} {number}" for name in "abcd" for number in range(25))
