"""Kill -9 at any instant, start again, and nothing differs from a run that was never killed."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from marin_core.train.loop import TrainResult
from tests.train import tiny_run
from tests.train.test_loop import exact_rows

ROOT = Path(__file__).parents[2]


def start(run_dir: Path) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-m", "tests.train.tiny_run", str(run_dir)], cwd=ROOT)


def kill_once_it_has_rows(process: subprocess.Popen[bytes], run_dir: Path, rows: int) -> None:
    """SIGKILL as soon as metrics.jsonl has that many lines."""
    metrics, deadline = run_dir / "metrics.jsonl", time.monotonic() + 300
    while not (metrics.exists() and metrics.read_bytes().count(b"\n") >= rows):
        assert process.poll() is None, "the run ended before it could be killed"
        assert time.monotonic() < deadline
        time.sleep(0.002)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL


def test_a_killed_run_continues_bit_for_bit(finished: tuple[Path, TrainResult], tmp_path: Path) -> None:
    run_dir, result = finished
    killed = tmp_path / "run"
    kill_once_it_has_rows(start(killed), killed, rows=6)
    assert len(exact_rows(killed)) < tiny_run.STEPS
    resumed = tiny_run.run(killed)
    assert exact_rows(killed) == exact_rows(run_dir)
    assert resumed.checkpoint_digests == result.checkpoint_digests


@pytest.mark.slow
@pytest.mark.parametrize("rows", [3, pytest.param(9, marks=pytest.mark.long)])
def test_a_run_killed_again_and_again_continues_bit_for_bit(finished: tuple[Path, TrainResult], tmp_path: Path, rows: int) -> None:
    run_dir, result = finished
    killed = tmp_path / "run"
    for target in {max(rows - 2, 1), rows}:
        kill_once_it_has_rows(start(killed), killed, target)
    assert start(killed).wait() == 0
    assert exact_rows(killed) == exact_rows(run_dir)
    assert tiny_run.run(killed).checkpoint_digests == result.checkpoint_digests
