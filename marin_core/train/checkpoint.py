"""Checkpoints: some kept for good, one rolling for resuming, all committed atomically and verified when read."""

import hashlib
import logging
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import jax
import numpy as np
from orbax.checkpoint import v1 as ocp

from marin_core.errors import InfrastructureError
from marin_core.report import Reporter
from marin_core.train.step import TrainState

Flat = dict[str, Any]
"""Slash-separated path → array."""

MODEL, TRAINING = "model", "training"
"""The two parts of a checkpoint: what inference needs (parameters, balancer state), and the rest (optimizer state, step)."""


class CheckpointStore:
    """The checkpoints of one run; `checkpoints/N` holds the state after N completed updates.

    Each carries the digest of its arrays, so damage that still parses is noticed. A checkpoint that can't be read is moved to
    `unreadable/` beside it and the one before is used.

    Args:
        read_only: leave the directory as it is; evaluations read runs that others may be writing or have committed.
    """

    def __init__(self, run_dir: Path, permanent_steps: tuple[int, ...], *, read_only: bool = False) -> None:
        logging.getLogger("absl").setLevel(logging.ERROR)  # Orbax logs a screenful for every checkpoint.
        self.directory = run_dir / "checkpoints"
        self.permanent_steps = permanent_steps
        policies = ocp.training.preservation_policies
        self._checkpointer = ocp.training.Checkpointer(
            self.directory.absolute(),
            save_decision_policy=ocp.training.save_decision_policies.FixedIntervalPolicy(1),
            preservation_policy=policies.AnyPreservationPolicy([policies.LatestN(1), policies.CustomSteps(list(permanent_steps))]),
            cleanup_tmp_directories=not read_only,
        )

    def steps(self) -> list[int]:
        """Steps of committed checkpoints, ascending."""
        return sorted(checkpoint.step for checkpoint in self._checkpointer.checkpoints)

    def save(self, step: int, state: TrainState) -> None:
        """Start saving; returns once the state's memory may be reused. A save in progress is waited for first."""
        model, training = split_state(state)
        digest = content_digest(model | training)
        self._checkpointer.save_checkpointables_async(
            step, {MODEL: model, TRAINING: training}, force=True, custom_metadata={"content_digest": digest}
        )

    def wait(self) -> None:
        """Return once everything saved is committed."""
        self._checkpointer.wait()

    def restore_newest(self, abstract: TrainState, reporter: Reporter) -> TrainState | None:
        """The newest committed state that can be read, or None where there is none; what can't be read is set aside and logged."""
        for step in reversed(self.steps()):
            try:
                return self.restore(step, abstract)
            except Exception as error:  # Orbax, TensorStore and XLA each have their own kinds; any of them means the same here.
                reason = f"{type(error).__name__}: {error}".splitlines()[0][:300]
                reporter.log(f"Checkpoint of step {step} can't be read and was moved to {self._set_aside(step)}: {reason}")
        return None

    def restore(self, step: int, abstract: TrainState) -> TrainState:
        """The state of one step, checked against its digest.

        Raises:
            InfrastructureError: when its contents are not what was saved.
        """
        model, training = split_state(abstract)
        items = self._checkpointer.load_checkpointables(step, {MODEL: model, TRAINING: training})
        flat = items[MODEL] | items[TRAINING]
        if content_digest(flat) != self.digest(step):
            raise InfrastructureError(f"Checkpoint of step {step} in {self.directory} is damaged", advice="Use an earlier checkpoint.")
        return join_state(flat, abstract)

    def restore_model(self, step: int, abstract: TrainState) -> TrainState:
        """Like `restore`, but reads the model part only; optimizer state and step stay abstract."""
        model, training = split_state(abstract)
        items = self._checkpointer.load_checkpointables(step, {MODEL: model})
        return join_state(items[MODEL] | training, abstract)

    def digest(self, step: int) -> str:
        """`content_digest` of a committed checkpoint, as it was when saved."""
        metadata = self._checkpointer.checkpointables_metadata(step).custom_metadata
        return str(metadata["content_digest"])

    def permanent_digests(self) -> dict[int, str]:
        """Digests of the kept checkpoints that exist."""
        return {step: self.digest(step) for step in self.steps() if step in self.permanent_steps}

    def _set_aside(self, step: int) -> Path:
        target = self.directory.parent / "unreadable" / str(step)
        number = 1
        while target.exists():
            number += 1
            target = target.with_name(f"{step}.{number}")
        target.parent.mkdir(exist_ok=True)
        (self.directory / str(step)).rename(target)
        self._checkpointer.reload()
        return target

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._checkpointer.close()


def split_state(state: TrainState) -> tuple[Flat, Flat]:
    """The flat arrays of a state (or of its shapes), as the model part and the training part."""
    return (
        flatten({"params": state.params, "balancer_state": state.balancer_state}),
        flatten({"optimizer_state": state.optimizer_state, "step": state.step}),
    )


def join_state(flat: Mapping[str, Any], like: TrainState) -> TrainState:
    """The inverse of `split_state`, for a state of the same structure."""
    paths, structure = jax.tree_util.tree_flatten_with_path(like._asdict())
    return TrainState(**jax.tree_util.tree_unflatten(structure, [flat[_name(path)] for path, _ in paths]))


def flatten(tree: Any) -> Flat:
    """Slash-separated path → leaf."""
    return {_name(path): leaf for path, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]}


def _name(path: tuple[Any, ...]) -> str:
    return jax.tree_util.keystr(path, simple=True, separator="/")


def content_digest(flat: Mapping[str, Any]) -> str:
    """SHA-256 over path, type, shape and bytes of all arrays, in order of paths."""
    digest = hashlib.sha256()
    for name in sorted(flat):
        array = np.ascontiguousarray(np.asarray(flat[name]))
        digest.update(f"{name}\0{array.dtype.str}\0{array.shape}\0".encode())
        digest.update(array.data)
    return digest.hexdigest()
