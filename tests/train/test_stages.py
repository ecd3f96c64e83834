"""A stage begins with what an earlier run has learnt, and with a schedule of its own."""

from pathlib import Path

import numpy as np
import pytest

from marin_core.errors import ConfigError
from marin_core.model.presets import moe_tiny
from marin_core.report import SilentReporter
from marin_core.train.checkpoint.store import CheckpointStore, flatten
from marin_core.train.config import StartFrom
from marin_core.train.loop import TrainResult, train
from marin_core.train.metrics import read_metrics
from marin_core.train.stages import first_state
from marin_core.train.step import abstract_state, initial_state
from tests.train.tiny_run import batches, tiny_config


@pytest.mark.parametrize("optimizer", ["fresh", "kept"])
def test_a_stage_takes_over_the_model_and_begins_at_step_0(finished: tuple[Path, TrainResult], optimizer: str) -> None:
    run_dir, _ = finished
    config = tiny_config(start_from=StartFrom(step=8, optimizer=optimizer))  # type: ignore[arg-type]
    state, earlier = flatten(first_state(config, None, run_dir)), flatten(CheckpointStore(run_dir).restore(8, abstract_state(config)))
    fresh = flatten(initial_state(config))
    for path, leaf in state.items():
        taken = path.startswith(("params/", "balancer_state/")) or (optimizer == "kept" and path.startswith("optimizer_state/inner/"))
        assert np.array_equal(leaf, (earlier if taken else fresh)[path]), path
    assert int(state["step"]) == int(state["optimizer_state/step"]) == 0
    assert any(not np.array_equal(fresh[path], earlier[path]) for path in state if path.startswith("optimizer_state/inner/"))


@pytest.mark.slow
def test_a_stage_goes_on_from_the_loss_that_was_reached(finished: tuple[Path, TrainResult], tmp_path: Path) -> None:
    run_dir, result = finished
    config = tiny_config(start_from=StartFrom(step=12))
    train(config, batches, tmp_path, SilentReporter(), fingerprint="stage", run_name="stage", earlier_run=run_dir)
    rows = read_metrics(tmp_path / "metrics.jsonl")
    assert rows[0]["loss"] < result.loss_start - 0.3
    assert rows[0]["learning_rate/adamw"] < rows[1]["learning_rate/adamw"]  # warm-up, once more


def test_a_model_of_another_shape_and_a_missing_checkpoint_are_refused(finished: tuple[Path, TrainResult]) -> None:
    run_dir, _ = finished
    wider = tiny_config(start_from=StartFrom(step=8), model=moe_tiny(64, layers=3))
    with pytest.raises(ConfigError, match=r"balancer_state/pending_beta, the run expects float32\[3, 16\]"):
        first_state(wider, None, run_dir)
    with pytest.raises(ConfigError, match="no checkpoint of step 5"):
        first_state(tiny_config(start_from=StartFrom(step=5)), None, run_dir)
