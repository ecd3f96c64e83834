"""Run workers are asked for by their process: which run is lost, which lives, and how one is ended that no code server knows."""

import json
import logging
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import dagster as dg
import psutil
import pytest
import yaml
from dagster._core.events import EngineEventData
from dagster._core.launcher import WorkerStatus
from dagster._core.storage.tags import GRPC_INFO_TAG
from dagster._daemon.monitoring.run_monitoring import execute_run_monitoring_iteration

from marin_assets.launch.workers import MachineRunLauncher, _living

WAITS = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); print(flush=True); signal.pause()"


@pytest.fixture
def instance(tmp_path: Path) -> Iterator[dg.DagsterInstance]:
    config = {
        "telemetry": {"enabled": False},
        "run_launcher": {"module": "marin_assets.launch.workers", "class": "MachineRunLauncher"},
        "run_monitoring": {"enabled": True},
    }
    (tmp_path / "dagster.yaml").write_text(yaml.safe_dump(config))
    with dg.DagsterInstance.from_config(str(tmp_path)) as made:
        yield made


@pytest.fixture
def worker() -> Iterator[subprocess.Popen[bytes]]:
    """A process that waits for an interrupt, and does so already."""
    with subprocess.Popen([sys.executable, "-c", WAITS], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield process
        process.kill()


def a_run(instance: dg.DagsterInstance, status: dg.DagsterRunStatus, pid: int | None, code_server: str | None = None) -> dg.DagsterRun:
    """A run of which a worker said what Dagster's workers say when they start, launched through the socket of a code server."""

    @dg.asset
    def thing() -> None: ...

    tags = {GRPC_INFO_TAG: json.dumps({"host": "localhost", "socket": code_server})} if code_server else {}
    run = instance.create_run_for_job(dg.Definitions([thing]).resolve_implicit_global_asset_job_def(), status=status, tags=tags)
    if pid is not None:
        instance.report_engine_event(f"Started process for run (pid: {pid}).", run, EngineEventData.in_process(pid))
        instance.report_engine_event("Executing steps in process", run, EngineEventData.in_process(pid))
    return run


def launcher(instance: dg.DagsterInstance) -> MachineRunLauncher:
    assert isinstance(instance.run_launcher, MachineRunLauncher)
    return instance.run_launcher


def monitor(instance: dg.DagsterInstance) -> None:
    """One look of Dagster's own run monitoring."""
    process_context = SimpleNamespace(instance=instance, create_request_context=lambda: None)
    assert [error for error in execute_run_monitoring_iteration(cast(Any, process_context), logging.getLogger(__name__)) if error] == []


def test_a_lost_worker_fails_its_run_at_the_next_look_and_no_other(instance: dg.DagsterInstance, worker: subprocess.Popen[bytes]) -> None:
    living = a_run(instance, dg.DagsterRunStatus.STARTED, os.getpid())
    lost = a_run(instance, dg.DagsterRunStatus.STARTED, worker.pid)
    without = a_run(instance, dg.DagsterRunStatus.STARTED, None)

    def statuses() -> list[dg.DagsterRunStatus]:
        return [cast(dg.DagsterRun, instance.get_run_by_id(run.run_id)).status for run in (living, lost, without)]

    monitor(instance)
    assert statuses() == [dg.DagsterRunStatus.STARTED] * 3
    worker.kill()
    psutil.wait_procs([psutil.Process(worker.pid)], timeout=30)
    monitor(instance)
    assert statuses() == [dg.DagsterRunStatus.STARTED, dg.DagsterRunStatus.FAILURE, dg.DagsterRunStatus.STARTED]
    failures = instance.get_records_for_run(lost.run_id, of_type=dg.DagsterEventType.RUN_FAILURE).records
    assert f"process {worker.pid} is gone" in (failures[0].event_log_entry.message or "")


def test_a_zombie_is_lost(instance: dg.DagsterInstance, worker: subprocess.Popen[bytes]) -> None:
    run = a_run(instance, dg.DagsterRunStatus.STARTED, worker.pid)
    worker.send_signal(signal.SIGKILL)
    os.waitid(os.P_PID, worker.pid, os.WEXITED | os.WNOWAIT)  # it is dead, and nobody has reaped it
    assert psutil.Process(worker.pid).status() == psutil.STATUS_ZOMBIE
    assert launcher(instance).check_run_worker_health(run).status == WorkerStatus.NOT_FOUND


def test_a_younger_process_with_the_same_pid_is_another_one() -> None:
    started = psutil.Process().create_time()
    assert _living(os.getpid(), started + 1) is not None
    assert _living(os.getpid(), started - 60) is None


def test_the_newest_worker_counts(instance: dg.DagsterInstance, worker: subprocess.Popen[bytes]) -> None:
    run = a_run(instance, dg.DagsterRunStatus.STARTED, worker.pid)
    worker.kill()
    worker.wait()
    assert launcher(instance).check_run_worker_health(run).status == WorkerStatus.NOT_FOUND
    instance.report_engine_event(f"Started process for run (pid: {os.getpid()}).", run, EngineEventData.in_process(os.getpid()))
    assert launcher(instance).check_run_worker_health(run).status == WorkerStatus.RUNNING


def test_a_loss_is_not_told_while_the_retry_could_not_be_launched(
    instance: dg.DagsterInstance, worker: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = a_run(instance, dg.DagsterRunStatus.STARTED, worker.pid, code_server="/nowhere/code")
    worker.kill()
    worker.wait()
    assert launcher(instance).check_run_worker_health(run).status == WorkerStatus.RUNNING
    monkeypatch.setattr("dagster._grpc.client.DagsterGrpcClient.get_server_id", lambda self, timeout: "the next one")
    assert launcher(instance).check_run_worker_health(run).status == WorkerStatus.NOT_FOUND


def test_a_run_whose_code_server_is_gone_can_be_terminated(instance: dg.DagsterInstance, worker: subprocess.Popen[bytes]) -> None:
    run = a_run(instance, dg.DagsterRunStatus.STARTED, worker.pid, code_server="/nowhere/code")
    assert launcher(instance).terminate(run.run_id)
    assert worker.wait(timeout=60) == -signal.SIGINT
    assert cast(dg.DagsterRun, instance.get_run_by_id(run.run_id)).status == dg.DagsterRunStatus.CANCELING
    assert not launcher(instance).terminate(run.run_id)  # nobody is left to be asked


def test_a_finished_run_is_left_alone(instance: dg.DagsterInstance, worker: subprocess.Popen[bytes]) -> None:
    run = a_run(instance, dg.DagsterRunStatus.SUCCESS, worker.pid)
    assert not launcher(instance).terminate(run.run_id)
    assert worker.poll() is None
