"""`marin`: exit codes and messages of the terminal; building through it is tested in tests/integration."""

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from marin_assets.cli import main
from marin_core.artifact import ArtifactId, Store


@pytest.fixture
def prefix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MARIN_PREFIX", str(tmp_path / "store"))
    return tmp_path / "store"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["materialize", "nonsense"], ["nothing is called 'nonsense'", "tutorial", "raw/python_stdlib@v1"]),
        (["materialize", "raw/python_stdlib@v9"], ["no experiment declares raw/python_stdlib@v9"]),
        (["materialize", "filtered/python_code@v1/00099"], ["no partition '00099'", "00000"]),
        (["materialize", "../x@v1"], ["artifact name", "'..'"]),
        (["materialize", "--rebuild", "raw/python_stdlib"], ["a fixed version is never rebuilt"]),
        (["status", "nonsense"], ["nothing is called"]),
    ],
)
def test_a_wrong_target_is_explained_and_exits_64(
    arguments: list[str], says: list[str], prefix: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 64
    error = capsys.readouterr().err
    assert all(word in error for word in [*says, "What to do"])


def test_a_prefix_that_cannot_be_written_is_said_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("MARIN_PREFIX", str(tmp_path / "file" / "store"))
    assert main(["materialize", "raw/python_stdlib"]) == 64
    assert "can't be written" in capsys.readouterr().err


def test_a_port_in_use_is_named_before_dagster_starts(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert main(["dev", "--port", str(port)]) == 64
    assert f"port {port} on 127.0.0.1 can't be used" in capsys.readouterr().err


def test_status_of_an_empty_store_lists_everything_as_missing(prefix: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status", "tutorial"]) == 0
    shown = capsys.readouterr().out
    assert "raw/python_stdlib@v1" in shown
    assert "0/4 built" in shown


def test_an_unknown_package_of_experiments_is_named(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "marin_assets.cli", "status", "x"],
        env={**os.environ, "MARIN_EXPERIMENTS": "no.such.package"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 64
    assert "no.such.package" in done.stderr


def in_group(process: psutil.Process, group: int) -> bool:
    """Whether a process of the group is alive; an orphan that nobody has reaped yet is not."""
    try:
        return os.getpgid(process.pid) == group and process.status() != psutil.STATUS_ZOMBIE
    except (ProcessLookupError, psutil.NoSuchProcess):
        return False


@pytest.mark.parametrize("sign", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_ends_the_command_its_workers_and_the_job(sign: signal.Signals, tmp_path: Path) -> None:
    store = Store(str(tmp_path / "store"))
    environment = {**os.environ, "MARIN_PREFIX": store.prefix, "DAGSTER_HOME": str(tmp_path)}
    (tmp_path / "dagster.yaml").write_text("telemetry: {enabled: false}\n")
    command = subprocess.Popen(
        [sys.executable, "-m", "marin_assets.cli", "materialize", "raw/python_stdlib"],
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    deadline = time.monotonic() + 60
    while not list((tmp_path / "store" / ".jobs").glob("*/messages")) and time.monotonic() < deadline:
        time.sleep(0.01)
    command.send_signal(sign)
    command.communicate(timeout=60)
    assert command.returncode == 130
    artifact = ArtifactId("raw/python_stdlib", "v1")
    assert store.record(artifact) is None
    left = [process for process in psutil.process_iter() if in_group(process, command.pid)]
    _, alive = psutil.wait_procs(left, timeout=20)  # helpers of multiprocessing end when they notice
    assert [process for process in alive if in_group(process, command.pid)] == []
    (folder,) = (tmp_path / "store" / ".jobs").glob("m-*")
    assert (folder / "outcome.json").exists()
