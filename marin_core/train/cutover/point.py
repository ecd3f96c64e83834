"""Where a run is forked: a checkpoint, and the row of metrics before it."""

import json
import os
import shutil
from pathlib import Path
from typing import Any

from marin_core.config import Config
from marin_core.errors import ConfigError, DataError, InfrastructureError
from marin_core.train.checkpoint import metadata
from marin_core.train.checkpoint.metadata import HELD_FILE, METADATA_FILE, CheckpointMetadata, link_checkpoint, read_metadata
from marin_core.train.metrics import MetricsFile, Row, stream_metrics
from marin_core.train.order import SkippedBatches

FORK_FILE = "fork.json"
"""In the directory of a forked run, written last of what it inherits: the `ForkPoint` that it comes from."""

RUN_FILE, METRICS_FILE, SKIPPED_FILE = "run.json", "metrics.jsonl", "skipped_batches.jsonl"


class ForkPoint(Config):
    """A checkpoint with the history that led to it, which agree.

    Attributes:
        checkpoint: completed updates; the fork's first step has this number.
        history_row: step of the last row of metrics that the fork inherits. Kept beside `checkpoint`, though it is always one less, since
            trackers and checkpoints once disagreed by one and nobody noticed (`spec/training.md` §11).
        loss: of that row, nats per token.
        skipped_batches: that roll-backs have left out before the fork's first step.
        content_digest: of the checkpoint's arrays.
        is_temporary: whether the parent would remove it, if it weren't held.
        run_name, fingerprint, tracker_run_id: of the parent.
        source_commit: of the code that saved the checkpoint, if it is known.
    """

    checkpoint: int
    history_row: int
    loss: float
    skipped_batches: int
    content_digest: str
    is_temporary: bool
    run_name: str
    fingerprint: str
    tracker_run_id: str
    source_commit: str | None


def find_point(run_dir: Path, step: int) -> ForkPoint:
    """The checkpoint of a step, held against the history of its run. Reads metadata and metrics, no arrays.

    Raises:
        ConfigError: there is no such run, or it has no checkpoint of that step.
        DataError: checkpoint, run record, metrics and skipped batches disagree.
        InfrastructureError: the checkpoint's metadata can't be read.
    """
    saved, run = _metadata(run_dir, step), _run(run_dir)
    if saved.step != step:
        raise _disagree(run_dir, step, f"its metadata says that it holds {saved.step} updates")
    if saved.fingerprint != run["fingerprint"]:
        raise _disagree(run_dir, step, f"it was saved by a run with fingerprint {saved.fingerprint}, {RUN_FILE} has {run['fingerprint']}")
    skipped = SkippedBatches(run_dir)
    row = _row_before(run_dir, step)
    expected = skipped.batch_of(step - 1)
    if row.get("batch", expected) != expected:
        raise _disagree(run_dir, step, f"row {step - 1} trained on batch {row['batch']}, and by {SKIPPED_FILE} that is {expected}")
    return ForkPoint(
        checkpoint=step,
        history_row=row["step"],
        loss=row["loss"],
        skipped_batches=skipped.batch_of(step) - step,
        content_digest=saved.content_digest,
        is_temporary=saved.is_temporary,
        run_name=run["run_name"],
        fingerprint=run["fingerprint"],
        tracker_run_id=run["tracker_run_id"],
        source_commit=saved.source_commit,
    )


def hold(run_dir: Path, step: int, reason: str) -> None:
    """Keep a checkpoint until it is released, also for the store of a run that is training."""
    try:
        metadata.hold(_checkpoint(run_dir, step), reason)
    except OSError as error:
        raise _unwritable(_checkpoint(run_dir, step), error) from error


def release(run_dir: Path, step: int) -> bool:
    """Let a held checkpoint go the way of the others; whether it was held."""
    try:
        return metadata.release(_checkpoint(run_dir, step))
    except OSError as error:
        raise _unwritable(_checkpoint(run_dir, step), error) from error


def inherit(run_dir: Path, earlier_run: Path, step: int) -> None:
    """Begin a fork's directory with its parent's past: metrics before the checkpoint, batches left out until then, and `fork.json`.

    Safe to repeat, whenever it was interrupted.

    Raises:
        ConfigError, DataError, InfrastructureError: as `find_point`.
    """
    if (run_dir / FORK_FILE).exists():
        return
    point = find_point(earlier_run, step)
    _copy_history(earlier_run, run_dir, step)
    _write(run_dir / FORK_FILE, point.model_dump_json(indent=2) + "\n")


def hand_off(run_dir: Path, step: int, target: Path) -> None:
    """Copy of a run as it was at a checkpoint, for forks of a run that isn't committed; its files outlive the run's attempts.

    Checkpoints are hard links where the file system has them, since nobody rewrites them. It appears by a rename; one that is there stays.
    """
    if target.exists():
        return
    fresh = target.with_name(f"{target.name}.new")
    shutil.rmtree(fresh, ignore_errors=True)
    try:
        fresh.mkdir(parents=True)
        shutil.copy2(run_dir / RUN_FILE, fresh / RUN_FILE)
        _copy_history(run_dir, fresh, step)
        link_checkpoint(_checkpoint(run_dir, step), _checkpoint(fresh, step))
        (_checkpoint(fresh, step) / HELD_FILE).unlink(missing_ok=True)
        fresh.rename(target)
    except OSError as error:
        raise _unwritable(target, error) from error


def _copy_history(source: Path, target: Path, step: int) -> None:
    """Rows before a step, and the batches that were left out until then: what comes later is the parent's own future."""
    inherited = SkippedBatches(target)
    for entry in [each for each in SkippedBatches(source).entries if each.at_step <= step][len(inherited.entries) :]:
        inherited.add(entry, write=True)
    shutil.copyfile(source / METRICS_FILE, target / METRICS_FILE)
    with MetricsFile(target / METRICS_FILE, step):
        pass  # opening it drops the rows from `step` on


def _row_before(run_dir: Path, step: int) -> Row:
    """The row before a checkpoint; all rows up to it must be there."""
    rows, last = 0, None
    for row in stream_metrics(run_dir / METRICS_FILE):
        if row["step"] >= step:
            break
        if row["step"] != rows:
            raise _disagree(run_dir, step, f"row {rows} of {METRICS_FILE} is of step {row['step']}")
        rows, last = rows + 1, row
    if last is None or rows != step:
        raise _disagree(run_dir, step, f"{METRICS_FILE} has {rows} rows before it, not {step}")
    return last


def _metadata(run_dir: Path, step: int) -> CheckpointMetadata:
    directory = _checkpoint(run_dir, step)
    if not (directory / METADATA_FILE).exists():
        steps = sorted(int(path.parent.name) for path in run_dir.glob(f"checkpoints/*/{METADATA_FILE}") if path.parent.name.isdigit())
        raise ConfigError(f"{run_dir} has no checkpoint of step {step}", advice=f"Fork from one of {steps}.")
    try:
        return read_metadata(directory)
    except (OSError, ValueError, ConfigError) as error:
        raise InfrastructureError(
            f"The metadata of checkpoint {directory} can't be read: {error}", advice="Fork from an earlier checkpoint."
        ) from error


def _run(run_dir: Path) -> dict[str, Any]:
    """`run.json` as far as a fork needs it; `read_run` would load JAX."""
    try:
        values: dict[str, Any] = json.loads((run_dir / RUN_FILE).read_bytes())
        return {name: values[name] for name in ("run_name", "fingerprint", "tracker_run_id")}
    except FileNotFoundError:
        raise ConfigError(f"{run_dir} holds no training run (no {RUN_FILE})", advice="Fork from a training run.") from None
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(f"{run_dir / RUN_FILE} is damaged: {error!r}", advice="Restore the file from a backup.") from error


def _checkpoint(run_dir: Path, step: int) -> Path:
    return run_dir / "checkpoints" / str(step)


def _write(path: Path, text: str) -> None:
    """All of a file or nothing, durably."""
    scratch = path.with_name(f"{path.name}.new")
    try:
        with scratch.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        scratch.replace(path)
    except OSError as error:
        raise _unwritable(path, error) from error


def _unwritable(path: Path, error: OSError) -> InfrastructureError:
    return InfrastructureError(f"{path} can't be written: {error}", advice="Check its permissions and the free space.")


def _disagree(run_dir: Path, step: int, what: str) -> DataError:
    return DataError(
        f"Checkpoint of step {step} of {run_dir} and its history disagree: {what}",
        advice="Fork from another checkpoint; a fork with another past than its parameters can't be compared with anything.",
    )
