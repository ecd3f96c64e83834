"""A run that is killed or asked to stop at random instants, again and again, is to the bit one that never was.

Trainers are forked from a process that has imported everything but started nothing: a start then costs no import.
"""

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from marin_core.errors import ExitCode, PreemptedError
from marin_core.report import SilentReporter
from marin_core.train.checkpoint.config import CheckpointPolicy
from marin_core.train.checkpoint.store import CheckpointStore
from tests.train import tiny_run
from tests.train.gang_run import quick_environment
from tests.train.test_loop import exact_rows

ROOT = Path(__file__).parents[2]
STEPS_A_KILL = 8
"""More than a trainer makes before it is killed, so that a run never ends before its kills do."""

WAIT_SECONDS = 600


class Asked(SilentReporter):
    """Asks to stop once SIGTERM has come, and writes down with which step it began."""

    def __init__(self, run_dir: Path) -> None:
        self._begun = run_dir.with_name("begun")
        self._stop = threading.Event()
        signal.signal(signal.SIGTERM, lambda number, frame: self._stop.set())

    def log(self, message: str) -> None:
        if "from step" in message:
            with self._begun.open("a") as file:
                file.write(message.split("from step ")[1].split()[0] + "\n")

    def stop_requested(self) -> bool:
        return self._stop.is_set()


def fork_trainer(run_dir: Path, steps: int) -> int:
    """Start a trainer; its pid."""
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        policy = CheckpointPolicy(permanent_every_steps=steps // 4, temporary_every_steps=3)
        tiny_run.run(run_dir, Asked(run_dir), num_steps=steps, checkpoints=policy)
        code = 0
    except PreemptedError:
        code = int(ExitCode.PREEMPTED)
    finally:
        os._exit(code)


def rows_in(run_dir: Path) -> int:
    metrics = run_dir / "metrics.jsonl"
    return metrics.read_bytes().count(b"\n") if metrics.exists() else 0


def wait_for_rows(pid: int, run_dir: Path, rows: int) -> None:
    deadline = time.monotonic() + WAIT_SECONDS
    while rows_in(run_dir) < rows:
        assert os.waitpid(pid, os.WNOHANG) == (0, 0), "the trainer ended before it was killed"
        assert time.monotonic() < deadline, "the trainer makes no steps"
        time.sleep(0.001)


def kill_trainers(folder: str, kills: str, seed: str) -> None:
    """Train once undisturbed, then again with kills; prints what each of them met."""
    rng, steps = random.Random(int(seed)), STEPS_A_KILL * int(kills)
    whole, run_dir = Path(folder, "whole"), Path(folder, "run")
    assert ended(fork_trainer(whole, steps)) == 0
    Path(folder, "begun").unlink()
    for number in range(int(kills)):
        pid = fork_trainer(run_dir, steps)
        if rng.random() < 0.75:
            wait_for_rows(pid, run_dir, rows_in(run_dir) + rng.randint(1, 3))
        time.sleep(rng.uniform(0, 0.1))  # the random instant
        # The first comes by SIGTERM and the second by SIGKILL, whatever the seed.
        chosen = (signal.SIGTERM, signal.SIGKILL)[number] if number < 2 else rng.choice((signal.SIGTERM, signal.SIGKILL))
        os.kill(pid, chosen)
        code = ended(pid)
        told = {"signal": int(chosen), "code": code, "rows": rows_in(run_dir), "newest": max(CheckpointStore(run_dir).steps(), default=0)}
        print(json.dumps(told), flush=True)
    assert ended(fork_trainer(run_dir, steps)) == 0


def ended(pid: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("kills", [3, pytest.param(20, marks=pytest.mark.long)])
def test_random_kills_and_requests_to_stop_change_no_bit(tmp_path: Path, kills: int) -> None:
    script = "import sys; from tests.train import test_kills as t; t.kill_trainers(*sys.argv[1:])"
    environment = os.environ | quick_environment(8, tmp_path / "xla")
    command = [sys.executable, "-c", script, str(tmp_path), str(kills), "1"]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
    met: list[dict[str, Any]] = [json.loads(line) for line in done.stdout.splitlines()]
    begun = [int(line) for line in (tmp_path / "begun").read_text().split()]
    assert len(met) == kills
    for each in met:
        if each["signal"] == signal.SIGTERM:
            assert each["code"] in (ExitCode.PREEMPTED, -signal.SIGTERM)  # the latter before there is a handler
            if each["code"] == ExitCode.PREEMPTED:
                assert each["rows"] == each["newest"], "a request to stop cost a step"
        else:
            assert each["code"] == -signal.SIGKILL
            assert 0 <= each["rows"] - each["newest"] <= 2 * 3, "more was lost than lies between two checkpoints and one in the making"
    # Every start went on from the newest checkpoint of then; those killed before they had begun wrote nothing.
    assert set(begun) <= {0, *(each["newest"] for each in met)}
    assert begun[-1] == met[-1]["newest"]
    whole, run = tmp_path / "whole", tmp_path / "run"
    assert exact_rows(run) == exact_rows(whole)
    assert CheckpointStore(run).permanent_digests() == CheckpointStore(whole).permanent_digests()
