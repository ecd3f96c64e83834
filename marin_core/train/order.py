"""Which batch a step trains on: the one of its number, and after a roll-back that many further on."""

import json
import os
from pathlib import Path
from typing import Protocol

from marin_core.config import Config
from marin_core.data.batch import Batch
from marin_core.errors import DataError
from marin_core.train.config import TrainConfig
from marin_core.train.schedules import BatchStage


class Batches(Protocol):
    """Where batches come from; a pure function, so that a run that was killed sees the same ones."""

    def __call__(self, index: int, host: int, hosts: int, /) -> Batch:
        """Rows [host·B/hosts, (host + 1)·B/hosts) of batch `index`."""


class Skipped(Config):
    """Batches that a roll-back left out: before step `at_step`, `batches` of them.

    Attributes:
        reason: for people.
        losses: of the steps whose updates were left out, oldest first; None = not finite.
    """

    at_step: int
    batches: int
    reason: str
    losses: tuple[float | None, ...] = ()


class SkippedBatches:
    """`skipped_batches.jsonl`: what every attempt of a run leaves out. Written before the state goes back, so none is forgotten."""

    def __init__(self, run_dir: Path) -> None:
        self._path = run_dir / "skipped_batches.jsonl"
        lines = self._path.read_text(encoding="utf-8").splitlines() if self._path.exists() else []
        self.entries = [Skipped.from_json(json.loads(line)) for line in lines]

    def batch_of(self, step: int) -> int:
        """Number of the batch that a zero-based step trains on."""
        return step + sum(entry.batches for entry in self.entries if entry.at_step <= step)

    def add(self, entry: Skipped, *, write: bool) -> None:
        """Leave out more; one process of several writes it down."""
        self.entries.append(entry)
        if not write:
            return
        scratch = self._path.with_suffix(".jsonl.new")
        with scratch.open("w", encoding="utf-8") as file:
            file.writelines(json.dumps(entry.model_dump(mode="json")) + "\n" for entry in self.entries)
            file.flush()
            os.fsync(file.fileno())
        scratch.replace(self._path)


def checked_batch(config: TrainConfig, stage: BatchStage, batch: Batch, index: int, hosts: int) -> Batch:
    """A process's part of a batch.

    Raises:
        DataError: wrong shape, or token ids that the model doesn't know.
    """
    expected = (stage.global_batch_size // hosts, stage.sequence_length)
    for name, array in batch._asdict().items():
        if array.shape != expected:
            raise DataError(
                f"Batch {index}: {name} has shape {array.shape}, the run expects {expected}",
                advice="Make the loader and the run agree on global_batch_size and sequence_length.",
            )
    low, high = int(batch.tokens.min()), int(batch.tokens.max())
    if low < 0 or high >= config.model.vocab_size:
        raise DataError(
            f"Batch {index} has token ids from {low} to {high}, the model knows 0 to {config.model.vocab_size - 1}",
            advice="Train with the tokenizer that the data was tokenized with, and its vocab_size.",
        )
    return batch
