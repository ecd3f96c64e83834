"""A run meets a spike: single updates are left out, and one that lasts sends it back to before it."""

import json
from pathlib import Path

import numpy as np
import pytest

from marin_core.data.batch import Batch
from marin_core.errors import DataError
from marin_core.train.checkpoint.config import CheckpointPolicy
from marin_core.train.config import RollBack
from marin_core.train.loop import train
from marin_core.train.metrics import read_metrics
from marin_core.train.optimizers.config import AdamW, SkipSpikes
from marin_core.train.schedules import Wsd
from tests.train.test_loop import Recorder, exact_rows
from tests.train.tiny_run import FINGERPRINT, batches, tiny_config

pytestmark = pytest.mark.slow
OPTIMIZER = AdamW(schedule=Wsd(warmup_steps=2), skip_spikes=SkipSpikes(window=4, sigmas=1e9))


def poisoned(*numbers: int) -> object:
    """The batches of the tiny run, where some have weights that are not finite."""

    def batch(index: int, host: int, hosts: int) -> Batch:
        sound = batches(index, host, hosts)
        return sound._replace(loss_weight=sound.loss_weight * np.float32(np.nan)) if index in numbers else sound

    return batch


def test_an_update_that_is_not_finite_is_left_out_and_the_run_goes_on(tmp_path: Path) -> None:
    config = tiny_config(optimizer=OPTIMIZER)
    train(config, poisoned(5), tmp_path, Recorder(), fingerprint=FINGERPRINT, run_name="tiny")  # type: ignore[arg-type]
    rows = read_metrics(tmp_path / "metrics.jsonl")
    assert [row["step"] for row in rows if row["skipped"]] == [5]
    assert [row["skipped_steps"] for row in rows] == [0] * 5 + [1] * 7
    assert all(np.isfinite(row["loss"]) for row in rows if row["step"] != 5)


def test_a_lasting_spike_sends_the_run_back_and_leaves_its_batches_out(tmp_path: Path) -> None:
    """The rest is the run that had never seen those batches."""
    policy = CheckpointPolicy(permanent_every_steps=3)
    config = tiny_config(optimizer=OPTIMIZER, roll_back=RollBack(after_skipped_steps=2), checkpoints=policy)
    reporter = Recorder()
    result = train(config, poisoned(6, 7), tmp_path / "run", reporter, fingerprint=FINGERPRINT, run_name="tiny")  # type: ignore[arg-type]
    rows = read_metrics(tmp_path / "run" / "metrics.jsonl")
    assert [row["step"] for row in rows] == list(range(12))
    assert [row["batch"] for row in rows] == [0, 1, 2, 3, 4, 5, 8, 9, 10, 11, 12, 13]
    skipped = [json.loads(line) for line in (tmp_path / "run" / "skipped_batches.jsonl").read_text().splitlines()]
    assert [(entry["at_step"], entry["batches"]) for entry in skipped] == [(6, 2)]
    assert any("Going back from step 7 to 6" in line and "batches 6 to 7 are left out" in line for line in reporter.lines)

    def without(index: int, host: int, hosts: int) -> Batch:
        return batches(index if index < 6 else index + 2, host, hosts)

    never_met = train(config, without, tmp_path / "other", Recorder(), fingerprint=FINGERPRINT, run_name="tiny")
    assert result is not None
    assert never_met is not None
    assert result.checkpoint_digests[12] == never_met.checkpoint_digests[12]
    losses = [[row["loss"] for row in exact_rows(tmp_path / name)] for name in ("run", "other")]
    assert losses[0] == losses[1]


def test_a_run_that_keeps_going_back_stops(tmp_path: Path) -> None:
    config = tiny_config(optimizer=OPTIMIZER, roll_back=RollBack(after_skipped_steps=1, at_most=2))
    with pytest.raises(DataError, match="has gone back 2 times already"):
        train(config, poisoned(*range(6, 40)), tmp_path, Recorder(), fingerprint=FINGERPRINT, run_name="tiny")  # type: ignore[arg-type]
