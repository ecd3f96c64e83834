"""Five thousand steps with a hundred checkpoints: memory, files and threads stay what they were."""

import json
import os
import statistics
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import psutil
import pytest

from marin_core.report import SilentReporter
from marin_core.train.checkpoint.config import CheckpointPolicy
from marin_core.train.health.config import HealthConfig
from marin_core.train.loop import train
from marin_core.train.metrics import read_metrics
from tests.train.gang_run import gang_config, quick_environment
from tests.train.tiny_run import batches

ROOT = Path(__file__).parents[2]
STEPS = 5_000
SETTLED = 1_000
"""From here on every part has run: the first plots, alerts and checkpoints, the first thinning of what is drawn."""

WINDOW = 500
MOST_GROWTH = 0.02


class Counting(SilentReporter):
    """Writes down open files and threads whenever metrics are reported."""

    def __init__(self) -> None:
        self._process = psutil.Process()
        self.seen: list[tuple[int, int, int]] = []

    def metrics(self, values: Mapping[str, float], step: int) -> None:
        self.seen.append((step, self._process.num_fds(), self._process.num_threads()))


def soak(run_dir: str) -> None:
    policy = CheckpointPolicy(permanent_every_steps=1_000, temporary_every_steps=50)
    often: dict[str, object] = {"health": HealthConfig(interval_seconds=10), "plot_every_seconds": 30.0, "log_every_steps": 10}
    reporter = Counting()
    train(
        gang_config(None, num_steps=STEPS, checkpoints=policy, **often), batches, Path(run_dir), reporter, fingerprint="s", run_name="soak"
    )
    print(json.dumps(reporter.seen))


def counted(rows: list[tuple[int, int, int]], what: int, first: int) -> int:
    """The most that there were at once within a window of steps."""
    return max(row[what] for row in rows if first <= row[0] < first + WINDOW)


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.timeout(3600)
def test_five_thousand_steps_leave_memory_files_and_threads_as_they_were(tmp_path: Path) -> None:
    script = "import sys; from tests.train import test_soak as t; t.soak(*sys.argv[1:])"
    environment = os.environ | quick_environment(1, tmp_path / "xla")
    command = [sys.executable, "-c", script, str(tmp_path / "run")]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    rows = read_metrics(tmp_path / "run" / "metrics.jsonl")
    assert len(rows) == STEPS
    resident = [row["memory/host_rss_bytes"] for row in rows]
    before, after = (statistics.median(resident[first : first + WINDOW]) for first in (SETTLED, STEPS - WINDOW))
    print(f"host RSS {before / 2**20:.1f} MiB at step {SETTLED}, {after / 2**20:.1f} MiB at the end: {100 * (after / before - 1):+.2f} %")
    assert after <= before * (1 + MOST_GROWTH)
    seen = [tuple(each) for each in json.loads(done.stdout.splitlines()[-1])]
    for what, name in ((1, "open files"), (2, "threads")):
        assert counted(seen, what, STEPS - WINDOW) <= counted(seen, what, SETTLED), name
