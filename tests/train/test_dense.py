"""A dense model trains, reports and resumes like a mixture of experts, and says nothing of experts."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from marin_core.errors import PreemptedError
from marin_core.model.config import TransformerConfig
from marin_core.model.presets import llama_nano
from marin_core.train.inference import load_model
from marin_core.train.loop import TrainResult
from marin_core.train.metrics import read_metrics
from marin_jobs.train import report_of
from tests.train.test_loop import Recorder, exact_rows
from tests.train.tiny_run import STEPS, batches, run

pytestmark = pytest.mark.slow
Finished = tuple[Path, TrainResult]
ROUTING = {"load", "load_cv", "drop_fraction", "routing_entropy", "bias_range", "router_z_loss", "balance_loss", "saturated_experts"}


def model() -> TransformerConfig:
    return llama_nano(vocab_size=64, d_model=64, head_dim=32, feed_forward_width=96, max_sequence_length=128, window=128)


class Metrics(Recorder):
    """Keeps the numbers too."""

    def __init__(self, stop_after: int | None = None) -> None:
        super().__init__(stop_after)
        self.values: list[Mapping[str, float]] = []

    def metrics(self, values: Any, step: int) -> None:
        super().metrics(values, step)
        self.values.append(values)


@pytest.fixture(scope="module")
def dense(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    run_dir = tmp_path_factory.mktemp("dense") / "run"
    return run_dir, run(run_dir, model=model())


def test_it_learns(dense: Finished) -> None:
    rows = read_metrics(dense[0] / "metrics.jsonl")
    assert [row["step"] for row in rows] == list(range(STEPS))
    assert rows[-1]["loss"] < rows[0]["loss"] - 0.3
    assert rows[-1]["loss"] == rows[-1]["cross_entropy"]  # without a z-loss


def test_rows_plots_and_result_have_nothing_of_experts(dense: Finished) -> None:
    run_dir, result = dense
    assert result.routing is None
    assert not {"expert_load", "load_cv"} & result.plots.keys()
    assert result.plots["loss"].stat().st_size > 1_000
    assert not any(ROUTING & row.keys() for row in read_metrics(run_dir / "metrics.jsonl"))


def test_the_job_reports_and_checks_nothing_of_experts(dense: Finished, finished: Finished) -> None:
    report, with_experts = report_of(dense[1]), report_of(finished[1])
    assert [check.name for check in report.checks] == ["loss_fell"]
    assert report.checks[0].passed
    assert [check.name for check in with_experts.checks] == ["experts_in_use", "loss_fell"]
    assert with_experts.metrics.keys() - report.metrics.keys() == {"load_cv_start", "load_cv_end", "drop_fraction_end"}


def test_a_stopped_run_continues_bit_for_bit(dense: Finished, tmp_path: Path) -> None:
    run_dir, result = dense
    with pytest.raises(PreemptedError, match="after step 6 of 12"):
        run(tmp_path / "run", Recorder(stop_after=5), model=model())
    reporter = Metrics()
    resumed = run(tmp_path / "run", reporter, model=model())
    assert any("from step 6" in line for line in reporter.lines)
    assert exact_rows(tmp_path / "run") == exact_rows(run_dir)
    assert resumed.checkpoint_digests == result.checkpoint_digests
    assert all({"loss", "gradient_norm"} <= values.keys() and not ROUTING & values.keys() for values in reporter.values)


def test_a_checkpoint_scores_as_a_language_model(dense: Finished) -> None:
    run_dir, _ = dense
    language_model, batch = load_model(run_dir, STEPS), batches(1000)
    scores = language_model.score(batch.tokens, batch.segment_ids)
    counted = batch.loss_weight[:, :-1] > 0
    late = scores.logprobs[:, 1:][counted].mean()
    assert np.isfinite(scores.logprobs).all()
    assert late == pytest.approx(-read_metrics(run_dir / "metrics.jsonl")[-1]["cross_entropy"], abs=0.3)
