"""The training loop: make, restore, then batch, step, log, save."""

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import jax
import numpy as np

from marin_core.data.batch import Batch
from marin_core.errors import DataError, PreemptedError
from marin_core.report import Reporter
from marin_core.train.checkpoint import CheckpointStore
from marin_core.train.config import TrainConfig
from marin_core.train.metrics import MetricsFile, Row, step_metrics
from marin_core.train.plots import draw_plots
from marin_core.train.run_record import open_run
from marin_core.train.step import StepOutput, TrainState, abstract_state, initial_state, make_train_step
from marin_core.train.tracking import Tracker


@dataclass(frozen=True)
class RoutingResult:
    """What a finished run of a mixture of experts says about its routing.

    Attributes:
        load_cv_start, load_cv_end: spread of expert loads over the first and last (at most 10) steps.
        drop_fraction_end: share of assignments dropped over the last steps.
        idle_experts_end: (layer, expert) pairs that the last batch sent no token to.
    """

    load_cv_start: float
    load_cv_end: float
    drop_fraction_end: float
    idle_experts_end: int


@dataclass(frozen=True)
class TrainResult:
    """What a finished run amounts to.

    Attributes:
        steps, tokens: completed updates and the tokens they saw.
        loss_start, loss_end: mean loss of the first and last (at most 10) steps, nats per token.
        routing: what became of the experts; None of a dense model.
        tokens_per_second: median over the steps of this process but the first; 0 where it made fewer than two.
        plots: name → PNG file.
        content_digest: of the final checkpoint's arrays.
        checkpoint_digests: step → digest of each kept checkpoint.
        tracker_url: where W&B shows the run; None offline.
    """

    steps: int
    tokens: int
    loss_start: float
    loss_end: float
    routing: RoutingResult | None
    tokens_per_second: float
    plots: Mapping[str, Path]
    content_digest: str
    checkpoint_digests: Mapping[int, str]
    tracker_url: str | None


def train(
    config: TrainConfig,
    batches: Callable[[int], Batch],
    run_dir: Path,
    reporter: Reporter,
    *,
    fingerprint: str,
    run_name: str,
    tracker_dir: Path | None = None,
) -> TrainResult:
    """Train to `config.num_steps`, from the newest checkpoint in `run_dir` or from the start.

    A killed run that is started again makes the same losses, bit for bit, as one that was never killed.

    Args:
        batches: the batch of a zero-based step; a pure function of it.
        run_dir: holds run.json, metrics.jsonl, checkpoints/ and plots/.
        fingerprint: of the configuration; a directory of another run is refused.
        run_name: for people.
        tracker_dir: holds wandb/, whose service writes its logs even after the run has ended; `run_dir` if not given.

    Raises:
        ConfigError: `run_dir` belongs to another run.
        DataError: a batch doesn't fit the configuration, or gives a loss that is not finite; nothing is saved after it.
        PreemptedError: the reporter asked to stop; the state is saved.
    """
    record = open_run(run_dir, config, fingerprint=fingerprint, run_name=run_name)
    train_step = make_train_step(config)
    with CheckpointStore(run_dir, config.checkpoint_steps) as store, Tracker(record, tracker_dir or run_dir, reporter) as tracker:
        state = store.restore_newest(abstract_state(config), reporter)
        start = 0 if state is None else int(state.step)
        reporter.log(f"Training {run_name} from step {start} to {config.num_steps}")
        if state is None:
            state = initial_state(config)
        with MetricsFile(run_dir / "metrics.jsonl", start) as metrics:
            for step in range(start, config.num_steps):
                began = time.perf_counter()
                batch = checked_batch(config, batches, step)
                state, output = train_step(state, batch)
                row = finished_row(config, step, output, began)
                metrics.append(row)
                report(config, row, reporter, tracker)
                save_if_due(config, state, step + 1, store, metrics, reporter)
            store.wait()
            plots = draw_plots(metrics.rows, run_dir / "plots")
            return _result(config, metrics.rows, start, plots, store.permanent_digests(), tracker.url)


def checked_batch(config: TrainConfig, batches: Callable[[int], Batch], step: int) -> Batch:
    """The batch of a step.

    Raises:
        DataError: wrong shape, or token ids that the model doesn't know.
    """
    batch = batches(step)
    expected = (config.global_batch_size, config.sequence_length)
    for name, array in batch._asdict().items():
        if array.shape != expected:
            raise DataError(
                f"Batch {step}: {name} has shape {array.shape}, the run expects {expected}",
                advice="Make the loader and the run agree on global_batch_size and sequence_length.",
            )
    low, high = int(batch.tokens.min()), int(batch.tokens.max())
    if low < 0 or high >= config.model.vocab_size:
        raise DataError(
            f"Batch {step} has token ids from {low} to {high}, the model knows 0 to {config.model.vocab_size - 1}",
            advice="Train with the tokenizer that the data was tokenized with, and its vocab_size.",
        )
    return batch


def finished_row(config: TrainConfig, step: int, output: StepOutput, began: float) -> Row:
    """Wait for a step and turn its output into a row of the metrics file.

    Raises:
        DataError: loss or gradient is not finite.
    """
    arrays = {name: np.asarray(value) for name, value in jax.device_get(output).items()}
    seconds = time.perf_counter() - began
    values = step_metrics(arrays, config.model.moe)
    for name in ("loss", "gradient_norm"):
        if not math.isfinite(values[name]):
            raise DataError(
                f"{name} of step {step} is {values[name]} on batch {step}; nothing was saved after it",
                advice="Look at that batch; if it is sound, lower the learning rate or clip gradients, under a new version.",
            )
    row: Row = {
        "step": step,
        **values,
        "tokens": (step + 1) * config.tokens_per_step,
        "tokens_per_second": config.tokens_per_step / seconds,
    }
    if config.model.moe is not None and (step % config.log_every_steps == 0 or step + 1 == config.num_steps):
        row["load"] = arrays["load"].tolist()
    return row


def report(config: TrainConfig, row: Row, reporter: Reporter, tracker: Tracker) -> None:
    """Tell the outside about a finished step."""
    done = row["step"] + 1
    reporter.progress(done, config.num_steps, "steps")
    if row["step"] % config.log_every_steps == 0 or done == config.num_steps:
        numbers = {name: float(value) for name, value in row.items() if name not in ("step", "load")}
        reporter.metrics(numbers, row["step"])
        tracker.log(numbers, row["step"])


def save_if_due(
    config: TrainConfig, state: TrainState, done: int, store: CheckpointStore, metrics: MetricsFile, reporter: Reporter
) -> None:
    """Save after `done` updates where the schedule or a request to stop says so.

    Raises:
        PreemptedError: a stop was requested; raised once the checkpoint is committed.
    """
    stopping = reporter.stop_requested() and done < config.num_steps
    interval = config.temporary_checkpoint_every_steps
    if stopping or done in config.checkpoint_steps or (interval is not None and done % interval == 0):
        metrics.sync()
        store.save(done, state)
    if stopping:
        store.wait()
        raise PreemptedError(
            f"Training was asked to stop and saved a checkpoint after step {done} of {config.num_steps}",
            advice=f"Start the same run again; it continues from step {done}.",
        )


def _result(
    config: TrainConfig, rows: list[Row], start: int, plots: Mapping[str, Path], digests: Mapping[int, str], url: str | None
) -> TrainResult:
    rates = [row["tokens_per_second"] for row in rows[start + 1 :]]
    return TrainResult(
        steps=config.num_steps,
        tokens=config.num_steps * config.tokens_per_step,
        loss_start=_mean(rows[:10], "loss"),
        loss_end=_mean(rows[-10:], "loss"),
        routing=None if config.model.moe is None else _routing_result(rows),
        tokens_per_second=float(median(rates)) if rates else 0.0,
        plots=plots,
        content_digest=digests[config.num_steps],
        checkpoint_digests=digests,
        tracker_url=url,
    )


def _routing_result(rows: list[Row]) -> RoutingResult:
    return RoutingResult(
        load_cv_start=_mean(rows[:10], "load_cv"),
        load_cv_end=_mean(rows[-10:], "load_cv"),
        drop_fraction_end=_mean(rows[-10:], "drop_fraction"),
        idle_experts_end=int(np.sum(np.asarray(rows[-1]["load"]) == 0)),
    )


def _mean(rows: list[Row], name: str) -> float:
    return float(np.mean([row[name] for row in rows]))
