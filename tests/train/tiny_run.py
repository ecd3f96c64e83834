"""A run of a few seconds: `python tiny_run.py RUN_DIR` trains it in a process of its own, which tests may kill."""

import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from marin_core.data.batch import Batch
from marin_core.model.config import MoEConfig
from marin_core.model.presets import moe_tiny
from marin_core.report import SilentReporter
from marin_core.train.checkpoint.config import CheckpointPolicy
from marin_core.train.config import TrackerConfig, TrainConfig
from marin_core.train.loop import TrainResult, train
from marin_core.train.optimizers.config import AdamW
from marin_core.train.schedules import Wsd

STEPS = 12
FINGERPRINT = "f1"


def tiny_config(**changes: Any) -> TrainConfig:
    """Big enough products that XLA's threads share them, few enough features that it compiles quickly."""
    moe = MoEConfig(experts=8, experts_per_token=2, expert_width=64, capacity_factor=1.1)
    model = moe_tiny(64, layers=2, short_conv_kernel=0, gated_norm_rank=0, xsa=False, head_gate=False, window=16, moe=moe)
    values: dict[str, Any] = {
        "model": model,
        "optimizer": AdamW(schedule=Wsd(warmup_steps=2)),
        "num_steps": STEPS,
        "global_batch_size": 8,
        "sequence_length": 64,
        "checkpoints": CheckpointPolicy(permanent_every_steps=4, temporary_every_steps=1),
        "log_every_steps": 4,
        "tracker": TrackerConfig(mode="disabled"),
    }
    return TrainConfig(**(values | changes))


def batches(step: int, host: int = 0, hosts: int = 1) -> Batch:
    """Sequences that count upwards, so that there is something to learn."""
    rng = np.random.default_rng([7, step])
    tokens = (rng.integers(0, 64, size=(8, 1)) + np.arange(64) * rng.integers(1, 4, size=(8, 1))) % 64
    segments = np.tile(np.arange(64) // 32, (8, 1))
    weight = np.ones((8, 64), np.float32)
    weight[:, [31, 63]] = 0
    rows = slice(host * 8 // hosts, (host + 1) * 8 // hosts)
    return Batch(tokens[rows].astype(np.int32), segments[rows].astype(np.int32), weight[rows])


def run(run_dir: Path, reporter: SilentReporter | None = None, **changes: Any) -> TrainResult:
    result = train(tiny_config(**changes), batches, run_dir, reporter or SilentReporter(), fingerprint=FINGERPRINT, run_name="tiny")
    assert result is not None, "the only process is the first"
    return result


class SlowReporter(SilentReporter):
    """Leaves a watcher time to kill the process at the step of its choice."""

    def progress(self, done: int, total: int, unit: str) -> None:
        time.sleep(0.05)


if __name__ == "__main__":
    run(Path(sys.argv[1]), SlowReporter())
