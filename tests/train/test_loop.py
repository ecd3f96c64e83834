"""The loop learns, records, stops and refuses as it should."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from marin_core.data.batch import Batch
from marin_core.errors import ConfigError, DataError, PreemptedError
from marin_core.report import SilentReporter
from marin_core.train.checkpoint.config import CheckpointPolicy
from marin_core.train.checkpoint.store import CheckpointStore
from marin_core.train.inference import load_model
from marin_core.train.loop import TrainResult, train
from marin_core.train.metrics import read_metrics
from tests.train.tiny_run import FINGERPRINT, STEPS, batches, run, tiny_config

Finished = tuple[Path, TrainResult]


class Recorder(SilentReporter):
    """Keeps what it is told, and asks to stop after `stop_after` steps."""

    def __init__(self, stop_after: int | None = None) -> None:
        self.lines: list[str] = []
        self.metric_steps: list[int] = []
        self.done = 0
        self._stop_after = stop_after

    def log(self, message: str) -> None:
        self.lines.append(message)

    def progress(self, done: int, total: int, unit: str) -> None:
        assert (total, unit) == (STEPS, "steps")
        self.done = done

    def metrics(self, values: object, step: int) -> None:
        self.metric_steps.append(step)

    def stop_requested(self) -> bool:
        return self._stop_after is not None and self.done >= self._stop_after


def exact_rows(run_dir: Path) -> list[dict[str, object]]:
    """All that a row says except how long it took."""
    measured = ("throughput/", "memory/", "time")
    rows = read_metrics(run_dir / "metrics.jsonl")
    return [{name: value for name, value in row.items() if not name.startswith(measured)} for row in rows]


def test_the_run_learns_and_reports(finished: Finished) -> None:
    run_dir, result = finished
    rows = read_metrics(run_dir / "metrics.jsonl")
    assert [row["step"] for row in rows] == list(range(STEPS))
    assert rows[-1]["loss"] < rows[0]["loss"] - 0.3
    assert (result.steps, result.tokens) == (STEPS, STEPS * 8 * 64)
    assert result.tokens_per_second > 0
    assert [row["step"] for row in rows if "load" in row] == [0, 4, 8, 11]
    for row in rows:
        assert float(np.float32(row["loss"])) == row["loss"]
        assert 0 <= row["dropped_weight_mass"] <= 1
        assert 0 < row["routing_entropy"] <= np.log(8) + 1e-6


def test_kept_checkpoints_are_the_scheduled_ones_with_their_digests(finished: Finished) -> None:
    run_dir, result = finished
    assert sorted(result.checkpoint_digests) == [4, 8, 12]
    assert sorted(int(path.name) for path in (run_dir / "checkpoints").iterdir()) == [4, 8, 12]
    assert result.content_digest == result.checkpoint_digests[12]
    assert len(set(result.checkpoint_digests.values())) == 3


def test_plots_are_small_and_deterministic(finished: Finished, tmp_path: Path) -> None:
    from marin_core.train.plots import draw_plots

    run_dir, result = finished
    again = draw_plots(read_metrics(run_dir / "metrics.jsonl"), tmp_path)
    assert sorted(again) == sorted(result.plots)
    assert {"loss", "load_cv", "expert_load"} <= set(again)
    for name, path in again.items():
        assert path.read_bytes() == result.plots[name].read_bytes()
        assert 1_000 < path.stat().st_size < 100_000


def test_a_finished_run_started_again_does_nothing_new(finished: Finished, tmp_path: Path) -> None:
    run_dir, result = finished
    copy = tmp_path / "run"
    shutil.copytree(run_dir, copy)
    again = run(copy)
    assert again.content_digest == result.content_digest
    assert again.loss_end == result.loss_end
    assert exact_rows(copy) == exact_rows(run_dir)


def test_a_stop_request_saves_and_the_next_start_continues_bit_for_bit(finished: Finished, tmp_path: Path) -> None:
    run_dir, result = finished
    with pytest.raises(PreemptedError, match="after step 7 of 12"):
        run(tmp_path / "run", Recorder(stop_after=6), checkpoints=CheckpointPolicy(permanent_every_steps=4))
    reporter = Recorder()
    resumed = run(tmp_path / "run", reporter, checkpoints=CheckpointPolicy(permanent_every_steps=4))
    assert any("from step 7" in line for line in reporter.lines)
    assert exact_rows(tmp_path / "run") == exact_rows(run_dir)
    assert resumed.checkpoint_digests == result.checkpoint_digests
    assert reporter.metric_steps == [8, 11]


def test_a_damaged_checkpoint_is_set_aside_and_the_one_before_is_used(finished: Finished, tmp_path: Path) -> None:
    run_dir, result = finished
    copy = tmp_path / "run"
    shutil.copytree(run_dir, copy)
    for path in (copy / "checkpoints" / "12").rglob("*"):
        if path.is_file() and path.stat().st_size > 10_000:
            path.write_bytes(path.read_bytes()[:100])
    reporter = Recorder()
    again = run(copy, reporter)
    assert any("step 12 can't be read" in line for line in reporter.lines)
    assert (copy / "unreadable" / "12").is_dir()
    assert again.checkpoint_digests == result.checkpoint_digests
    assert exact_rows(copy) == exact_rows(run_dir)


def test_an_uncommitted_checkpoint_does_not_exist(finished: Finished, tmp_path: Path) -> None:
    run_dir, _ = finished
    copy = tmp_path / "run"
    shutil.copytree(run_dir, copy)
    (copy / "checkpoints" / "12" / "metadata.json").unlink()
    with CheckpointStore(copy) as store:
        assert store.steps() == [4, 8]


def test_a_directory_of_another_run_is_refused(finished: Finished) -> None:
    run_dir, _ = finished
    with pytest.raises(ConfigError, match=r"fingerprint f1, not 'other' with f2"):
        train(tiny_config(), batches, run_dir, SilentReporter(), fingerprint="f2", run_name="other")


def test_a_loss_that_is_not_finite_stops_before_any_save(tmp_path: Path) -> None:
    def poisoned(step: int, host: int, hosts: int) -> Batch:
        batch = batches(step, host, hosts)
        return batch._replace(loss_weight=batch.loss_weight * np.float32(np.nan)) if step == 5 else batch

    with pytest.raises(DataError, match="loss of step 5 is nan on batch 5"):
        train(tiny_config(), poisoned, tmp_path / "run", SilentReporter(), fingerprint=FINGERPRINT, run_name="tiny")
    with CheckpointStore(tmp_path / "run") as store:
        assert store.steps() == [4, 5]
    assert len(read_metrics(tmp_path / "run" / "metrics.jsonl")) == 5


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tokens": np.full((8, 64), 64, np.int32)}, "token ids from 64 to 64, the model knows 0 to 63"),
        ({"segment_ids": np.zeros((8, 32), np.int32)}, r"segment_ids has shape \(8, 32\), the run expects \(8, 64\)"),
    ],
)
def test_a_batch_that_does_not_fit_is_refused(tmp_path: Path, change: dict[str, np.ndarray], message: str) -> None:
    with pytest.raises(DataError, match=message):
        train(
            tiny_config(),
            lambda step, host, hosts: batches(step, host, hosts)._replace(**change),
            tmp_path / "run",
            SilentReporter(),
            fingerprint="f",
            run_name="r",
        )


def test_a_checkpoint_scores_as_a_language_model(finished: Finished) -> None:
    run_dir, _ = finished
    model, early = load_model(run_dir, STEPS), load_model(run_dir, 4)
    batch = batches(1000)
    scores = model.score(batch.tokens, batch.segment_ids)
    assert (model.vocab_size, model.sequence_length) == (64, 128)
    assert scores.logprobs.shape == scores.greedy.shape == (8, 64)
    np.testing.assert_array_equal(scores.logprobs[:, 0], 0)
    assert not scores.greedy[:, 0].any()
    counted = batch.loss_weight[:, :-1] > 0
    late, before = (m.score(batch.tokens, batch.segment_ids).logprobs[:, 1:][counted].mean() for m in (model, early))
    assert late > before
    assert late == pytest.approx(-read_metrics(run_dir / "metrics.jsonl")[-1]["cross_entropy"], abs=0.2)
    with pytest.raises(ConfigError, match="no checkpoint of step 5"):
        load_model(run_dir, 5)
    with pytest.raises(ConfigError, match="exceed the model's context of 128"):
        model.score(np.zeros((1, 129), np.int32), np.zeros((1, 129), np.int32))


def test_the_run_record_names_the_run_and_no_secret(finished: Finished) -> None:
    record = json.loads((finished[0] / "run.json").read_text())
    assert record["fingerprint"] == FINGERPRINT
    assert record["run_name"] == "tiny"
    assert sorted(record) == ["config", "fingerprint", "run_name", "tracker_run_id"]
