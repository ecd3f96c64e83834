"""Products by oneDNN: faster on a CPU, rounded otherwise, and never written to JAX's cache of programs."""

import warnings
from pathlib import Path

import jax
import numpy as np
import pytest

from marin_core.train import step as step_module
from marin_core.train.loop import TrainResult
from marin_core.train.metrics import read_metrics
from marin_core.train.step import abstract_batch, abstract_state, make_train_step
from tests.train.test_loop import Recorder, exact_rows
from tests.train.tiny_run import run, tiny_config

pytestmark = pytest.mark.slow


def losses(run_dir: Path) -> list[float]:
    return [float(row["loss"]) for row in read_metrics(run_dir / "metrics.jsonl")]


def test_a_run_learns_the_same_and_repeats_itself_bit_for_bit_across_a_stop(finished: tuple[Path, TrainResult], tmp_path: Path) -> None:
    by_eigen, by_onednn, stopped = finished[0], tmp_path / "onednn", tmp_path / "stopped"
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*compilation cache.*")  # JAX warns where it can't store a program
        result = run(by_onednn, cpu_products="onednn")
        with pytest.raises(Exception, match="after step 7 of 12"):
            run(stopped, Recorder(stop_after=6), cpu_products="onednn")
        step_module._make_train_step.cache_clear()
        jax.clear_caches()  # as in a new process, which compiles the step anew
        again = run(stopped, cpu_products="onednn")
    assert again.checkpoint_digests == result.checkpoint_digests
    assert exact_rows(stopped) == exact_rows(by_onednn)
    np.testing.assert_allclose(losses(by_onednn), losses(by_eigen), rtol=2e-3)
    assert losses(by_onednn) != losses(by_eigen), "the setting is dead"


def test_products_are_onednns_where_asked() -> None:
    for products in ("eigen", "onednn"):
        config = tiny_config(cpu_products=products)
        text = make_train_step(config).lower(abstract_state(config), abstract_batch(config)).compile().as_text()  # type: ignore[attr-defined]
        assert ("onednn_fusion" in text) == (products == "onednn")
