"""The watchdog ends what hangs, with stacks and exit code 75, and leaves alone what was only asleep."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marin_core.errors import ExitCode
from marin_core.train.watchdog import Silence, Watchdog

PROGRAM = """
import sys, threading
from pathlib import Path
from marin_core.train import watchdog
from marin_core.train.watchdog import Watchdog

watchdog.REPORT_SECONDS = 2.0
mode, folder, deadline = sys.argv[1], Path(sys.argv[2]), float(sys.argv[3])

def told(hang):
    (folder / "told.txt").write_text(f"{hang.step} {hang.stacks.name}")
    if mode == "deaf":
        threading.Event().wait()

def hang_in_a_collective():
    threading.Event().wait()

startup = 600 if mode == "beats" else None
with Watchdog(deadline, folder, told, startup_seconds=startup) as dog:
    if mode != "start":
        dog.beat(41)
    if mode == "beats":
        for line in sys.stdin:
            dog.beat(int(line))
            print(line.strip(), flush=True)
        sys.exit(0)
    hang_in_a_collective()
"""


def start(mode: str, folder: Path, deadline: float) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", PROGRAM, mode, str(folder), str(deadline)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_a_hang_ends_with_75_and_the_stacks(tmp_path: Path) -> None:
    process = start("hang", tmp_path, 0.3)
    _, errors = process.communicate(timeout=300)
    assert process.returncode == ExitCode.TRY_AGAIN
    (line,) = errors.splitlines()
    assert "after step 41; stacks of all threads are in" in line
    stacks = (tmp_path / "hang-1.txt").read_text()
    assert stacks.startswith("No step for 0 seconds after step 41 (process ")
    assert "in hang_in_a_collective" in stacks
    assert (tmp_path / "told.txt").read_text() == "41 hang-1.txt"


def test_a_start_that_hangs_is_ended_too_and_keeps_the_stacks_of_others(tmp_path: Path) -> None:
    (tmp_path / "hang-1.txt").write_text("of another attempt")
    process = start("start", tmp_path, 0.3)
    process.communicate(timeout=300)
    assert process.returncode == ExitCode.TRY_AGAIN
    assert "after the start" in (tmp_path / "hang-2.txt").read_text()
    assert (tmp_path / "hang-1.txt").read_text() == "of another attempt"


def test_a_process_that_was_stopped_for_longer_than_the_deadline_goes_on(tmp_path: Path) -> None:
    deadline = 2.0
    process = start("beats", tmp_path, deadline)
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write("42\n")
    process.stdin.flush()
    assert process.stdout.readline() == "42\n"
    os.kill(process.pid, signal.SIGSTOP)
    os.waitpid(process.pid, os.WUNTRACED)
    time.sleep(1.25 * deadline)  # the length of the stop, which is what is tested
    os.kill(process.pid, signal.SIGCONT)
    process.stdin.write("43\n")
    process.stdin.flush()
    assert process.stdout.readline() == "43\n"
    process.stdin.close()
    assert process.wait(timeout=300) == 0
    assert list(tmp_path.iterdir()) == []


def test_whoever_is_told_and_never_returns_holds_nothing_up(tmp_path: Path) -> None:
    process = start("deaf", tmp_path, 0.3)
    process.communicate(timeout=300)
    assert process.returncode == ExitCode.TRY_AGAIN


def test_stacks_that_cannot_be_written_go_to_the_log(tmp_path: Path) -> None:
    folder = tmp_path / "file"
    folder.write_text("no folder")
    process = start("hang", folder, 0.3)
    _, errors = process.communicate(timeout=300)
    assert process.returncode == ExitCode.TRY_AGAIN
    assert "in hang_in_a_collective" in errors
    assert "stacks are above" in errors


def test_leaving_ends_the_watch() -> None:
    with Watchdog(0.2, Path("/nonexistent")) as watchdog:
        watchdog.beat(1)
    assert not watchdog._thread.is_alive()


@settings(max_examples=200, deadline=None)
@given(gaps=st.lists(st.floats(0.0, 1e6), min_size=1, max_size=30))
def test_only_witnessed_time_counts(gaps: list[float]) -> None:
    """However long nobody looked, that look adds one tick; so a hang needs as many looks as there are ticks in its deadline."""
    silence, now = Silence(0.0, tick_seconds=5.0), 0.0
    for gap in gaps:
        now += gap
        silence.look(now, beats=0)
    assert silence.seconds == pytest.approx(sum(min(gap, 5.0) for gap in gaps))
    assert silence.look(now + 5.0, beats=1) == 0.0
    assert silence.look(now + 8.0, beats=1) == pytest.approx(3.0)
