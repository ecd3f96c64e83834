"""The checkpoints of a run: saved beside the training, committed by their last file, verified when read."""

import contextlib
import logging
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self, cast

import jax
from jax.sharding import NamedSharding
from orbax.checkpoint import v1 as ocp

from marin_core import distributed
from marin_core.errors import ConfigError, InfrastructureError, MarinError
from marin_core.report import Reporter
from marin_core.train.checkpoint.config import CheckpointPolicy
from marin_core.train.checkpoint.digest import finish_digests, start_digests
from marin_core.train.checkpoint.metadata import (
    HELD_FILE,
    METADATA_FILE,
    UNFINISHED_FILE,
    CheckpointMetadata,
    Leaf,
    content_digest,
    files_below,
    hold,
    read_metadata,
    release,
    write_metadata,
)
from marin_core.train.checkpoint.mirror import UNREADABLE, Mirror
from marin_core.train.checkpoint.saving import SaveInProgress, describe
from marin_core.train.checkpoint.snapshot import Flat, Snapshot

MODEL_PARTS = ("params", "balancer_state")
"""The fields of a state that inference needs."""

CHUNK_BYTES = 64 * 2**20
"""Largest piece that is read as a whole: another mesh needs other parts of an array, and reads no more than their pieces."""

READ_BYTES = 2**30
"""Bytes on their way from the store to the devices while restoring: one rank of the large run once read itself out of memory (§9)."""

_NOT_THE_CHECKPOINTS_FAULT = ("RESOURCE_EXHAUSTED", "UNAVAILABLE", "DEADLINE_EXCEEDED", "PERMISSION_DENIED", "UNAUTHENTICATED")
"""In what TensorStore and XLA say when reading again may succeed."""

_log = logging.getLogger(__name__)


class CheckpointStore:
    """The checkpoints of one run; `checkpoints/N` holds the state after N completed updates.

    A directory with `metadata.json` is a checkpoint, and one without is none: what an interrupted save left is cleared away.
    Permanent checkpoints stay. Of temporary ones only the newest does, and only while no newer checkpoint exists, unless it is held.
    One that can't be read is moved to `unreadable/` and the one before is used.

    With several processes all make the same calls in the same order, except that reading (`steps`, `metadata`) is free. A state may be
    saved from one mesh and restored to another, of more or fewer devices and processes.

    Args:
        run_dir: a directory that all processes share.
        policy: of a run that saves; None = leave the directory as it is, since evaluations read runs that others may be writing.
        fingerprint, source_commit: go into the metadata.
        mirror: of the run's directory in a store that is no file system, which the first process keeps up to date: a save is done when
            that has it.

    Raises:
        InfrastructureError: the directory can't be written.
    """

    def __init__(
        self,
        run_dir: Path,
        policy: CheckpointPolicy | None = None,
        *,
        fingerprint: str = "",
        source_commit: str | None = None,
        mirror: Mirror | None = None,
    ) -> None:
        logging.getLogger("absl").setLevel(logging.ERROR)  # Orbax logs a screenful for every checkpoint.
        self.directory = run_dir / "checkpoints"
        self._unfinished_file = run_dir / UNFINISHED_FILE
        self._mirror = mirror
        self._policy = policy
        self._origin: dict[str, Any] = {"fingerprint": fingerprint, "source_commit": source_commit}
        self._saving: SaveInProgress | None = None
        self._snapshot = Snapshot()
        if policy is not None:
            self._by_lead("open", self._open)

    # Looking -------------------------------------------------------------------------------------------------------------

    def steps(self) -> list[int]:
        """Steps of committed checkpoints, ascending."""
        return sorted(step for step in self._numbered() if (self._path(step) / METADATA_FILE).exists())

    def metadata(self, step: int) -> CheckpointMetadata:
        """What a committed checkpoint says about itself.

        Raises:
            ConfigError: there is none of that step.
            InfrastructureError: it can't be read.
        """
        if not self._path(step).is_dir():
            raise ConfigError(f"{self.directory.parent} has no checkpoint of step {step}", advice=f"Choose one of {self.steps()}.")
        try:
            return read_metadata(self._path(step))
        except (OSError, ValueError, ConfigError) as error:
            raise _damaged(self._path(step), f"{METADATA_FILE}: {describe(error)}") from error

    def permanent_digests(self) -> dict[int, str]:
        """Digests of the permanent checkpoints that exist."""
        found = {step: self.metadata(step) for step in self.steps()}
        return {step: metadata.content_digest for step, metadata in found.items() if not metadata.is_temporary}

    def held(self) -> list[int]:
        """Steps of the checkpoints that are held."""
        return [step for step in self.steps() if (self._path(step) / HELD_FILE).exists()]

    # Saving --------------------------------------------------------------------------------------------------------------

    def save(self, step: int, state: Any, temporary: bool) -> None:
        """Start saving; returns once the state's memory may be reused. A save in progress is waited for first.

        A checkpoint of that step is replaced.

        Raises:
            InfrastructureError: the save before failed or isn't done by its deadline, or this one's can't begin by its own.
        """
        policy = self._writable()
        self.wait()
        flat = self._snapshot.of(flatten(state))
        size = sum(array.nbytes for array in flat.values())
        what = f"checkpoint of step {step} ({size:,} bytes) in {self.directory}"
        digests: Future[dict[str, Any]] = Future()
        describe_it = partial(self._describe, step, temporary, flat, digests)
        saving = SaveInProgress(what, policy.deadline_seconds, partial(self._copy, step, flat, describe_it))
        saving.wait_until_copied()
        digests.set_result(start_digests(flat))  # behind the copy: on a CPU the two would share its cores while the training waits
        self._saving = saving

    def wait(self) -> None:
        """Return once what was saved is committed.

        Raises:
            InfrastructureError: it couldn't be, or isn't by the deadline.
        """
        saving, self._saving = self._saving, None  # drops what was written: kept, it made writers run out of memory (§9)
        if saving is not None:
            saving.wait()

    def hold(self, step: int, reason: str) -> None:
        """Keep a checkpoint until it is released, whatever else is saved: a cut-over may have to return to it.

        Raises:
            ConfigError: there is none of that step.
            InfrastructureError: it can't be read.
        """
        self.metadata(step)
        self._by_lead(f"hold {step}", lambda: hold(self._path(step), reason))

    def release(self, step: int) -> None:
        """Let a held checkpoint go the way of the others."""
        self._by_lead(f"release {step}", lambda: release(self._path(step)))

    def delete(self, step: int) -> None:
        """Remove a checkpoint, permanent or held ones too: a run that goes back to an earlier step must not find later ones."""
        self.wait()
        self._by_lead(f"delete {step}", lambda: self._remove(step))

    # Restoring -----------------------------------------------------------------------------------------------------------

    def restore_newest[S](self, abstract: S, reporter: Reporter) -> S | None:
        """The newest committed state that can be read, or None where there is none; what can't be read is set aside and logged.

        Raises:
            ConfigError: the state has other arrays than the checkpoint; nothing is set aside.
            InfrastructureError: memory ran out, or the store doesn't answer; nothing is set aside.
        """
        for step in reversed(self._agreed_steps()):
            reason = None
            try:
                state = self.restore(step, abstract)
            except Exception as error:  # Orbax, TensorStore and XLA each have their own kinds; any of them means the same here.
                _raise_what_a_checkpoint_cannot_help(step, error)
                reason = describe(error)
            reasons = distributed.from_each(reason)
            if not any(reasons):
                return state
            where = self._set_aside(step)
            first = next(filter(None, reasons))
            reporter.log(f"Checkpoint of step {step} can't be read{f' and was moved to {where}' if where else ''}: {first}")
        return None

    def restore[S](self, step: int, abstract: S) -> S:
        """The state of one step, checked against its digests. Arrays go to where `abstract` says, and on no host lies the whole.

        Args:
            abstract: a tree of `ShapeDtypeStruct` with shardings.

        Raises:
            ConfigError: the checkpoint has other arrays, or none of that step exists.
            InfrastructureError: its contents are not what was saved.
        """
        return self.restore_partial(step, abstract, lambda path: True)

    def restore_model[S](self, step: int, abstract: S) -> S:
        """Like `restore`, but reads what inference needs only; optimizer state and step stay abstract."""
        return self.restore_partial(step, abstract, lambda path: path.split("/")[0] in MODEL_PARTS)

    def restore_partial[S](self, step: int, abstract: S, wanted: Callable[[str], bool]) -> S:
        """Like `restore`, but reads only the arrays whose path is wanted; all others stay abstract.

        A new optimizer starts from a model like this: `wanted` is true of `params/…`, and everything else is made afresh.
        """
        everything = flatten(abstract)
        shapes = {path: leaf for path, leaf in everything.items() if wanted(path)}
        metadata = self.metadata(step)
        _check_fits(metadata, shapes, whole=len(shapes) == len(everything))
        _check_files(self._path(step), metadata)
        with _context(shapes):
            arrays = ocp.load(self._path(step).absolute(), shapes)
        found = finish_digests(start_digests(arrays))
        wrong = [path for path in sorted(found) if found[path] != metadata.leaves[path].digest]
        if wrong:
            raise _damaged(self._path(step), f"{wrong[0]} and {len(wrong) - 1} other arrays are not what was saved")
        return cast(S, jax.tree_util.tree_map_with_path(lambda path, leaf: arrays.get(_name(path), leaf), abstract))

    # The parts of a save, on its thread ---------------------------------------------------------------------------------

    def _copy(self, step: int, flat: Flat, describe_it: Callable[[], CheckpointMetadata]) -> Callable[[], None]:
        path, ends = self._path(step), time.monotonic() + self._writable().deadline_seconds
        if distributed.is_lead():
            self._mark_unfinished(step)
        with _context(flat, self._writable().deadline_seconds):
            writing = ocp.save_async(path.absolute(), flat, overwrite=True)

        def write() -> None:
            try:
                writing.result()
                if distributed.is_lead():
                    write_metadata(path, describe_it())
            except BaseException:
                if distributed.is_lead():
                    shutil.rmtree(path, ignore_errors=True)  # a full disk needs the room
                raise
            if distributed.is_lead():
                self._mark_unfinished(None)
                self._remove_older(lambda metadata: metadata.is_temporary)
                self._send(ends - time.monotonic())
            distributed.barrier(f"checkpoint {step}", self._writable().deadline_seconds)

        return write

    def _describe(self, step: int, temporary: bool, flat: Flat, started: Future[dict[str, Any]]) -> CheckpointMetadata:
        digests = finish_digests(started.result(self._writable().deadline_seconds))
        leaves = {path: Leaf(dtype=array.dtype.name, shape=array.shape, digest=digests[path]) for path, array in flat.items()}
        sharding = next((array.sharding for array in flat.values() if isinstance(array.sharding, NamedSharding)), None)
        return CheckpointMetadata(
            step=step,
            is_temporary=temporary,
            saved_at=time.time(),
            mesh={str(axis): size for axis, size in sharding.mesh.shape.items()} if sharding else {},
            processes=distributed.process_count(),
            bytes=sum(array.nbytes for array in flat.values()),
            leaves=leaves,
            files=files_below(self._path(step)),
            content_digest=content_digest(leaves),
            **self._origin,
        )

    # The directory --------------------------------------------------------------------------------------------------------

    def _send(self, seconds: float) -> None:
        if self._mirror is not None:
            self._mirror.update(self.directory.parent, seconds)

    def _open(self) -> None:
        """Clear away what interrupted saves left, and temporary checkpoints that are too old."""
        self.directory.mkdir(parents=True, exist_ok=True)
        step = self._unfinished()
        if step is not None and not (self._path(step) / METADATA_FILE).exists():
            shutil.rmtree(self._path(step), ignore_errors=True)
        self._mark_unfinished(None)
        oldest = time.time() - self._writable().temporary_days * 86_400
        self._remove_older(lambda metadata: metadata.is_temporary and metadata.saved_at < oldest)

    def _remove_older(self, condition: Callable[[CheckpointMetadata], bool]) -> None:
        """Remove checkpoints of which it is true, but for the newest and those that are held.

        A store that refuses, or a checkpoint that can't be read, costs room, not the run.
        """
        for step in self.steps()[:-1]:
            try:
                if not (self._path(step) / HELD_FILE).exists() and condition(self.metadata(step)):
                    self._remove(step)
            except (OSError, InfrastructureError) as error:
                _log.warning("Checkpoint of step %d in %s can't be removed: %s", step, self.directory, describe(error))

    def _remove(self, step: int) -> None:
        """Take back the commit first, so that a checkpoint which is half gone never looks like one."""
        self._mark_unfinished(step)
        (self._path(step) / METADATA_FILE).unlink(missing_ok=True)
        if self._path(step).exists():
            shutil.rmtree(self._path(step))
        self._mark_unfinished(None)

    def _mark_unfinished(self, step: int | None) -> None:
        """Note what is being saved or removed, so that a directory without metadata that nobody was at work on counts as damaged.

        Where that can't be noted, what an interrupted save left is set aside instead of being cleared away.
        """
        with contextlib.suppress(OSError):
            if step is None:
                self._unfinished_file.unlink(missing_ok=True)
            else:
                self._unfinished_file.write_text(str(step))

    def _unfinished(self) -> int | None:
        try:
            return int(self._unfinished_file.read_text())
        except (FileNotFoundError, ValueError):
            return None

    def _set_aside(self, step: int) -> str | None:
        """Move a checkpoint away; where to, unless nothing may be changed."""
        if self._policy is None:
            return None

        def move() -> str:
            target = self.directory.parent / UNREADABLE / str(step)
            number = 1
            while target.exists():
                number += 1
                target = target.with_name(f"{step}.{number}")
            target.parent.mkdir(exist_ok=True)
            self._path(step).rename(target)
            return str(target)

        return self._by_lead(f"set aside {step}", move)

    def _agreed_steps(self) -> list[int]:
        """Steps of checkpoints, ascending, as the lead sees them; for a writer also of those that lost their metadata."""
        found = self.steps() if self._policy is None else sorted(self._numbered())
        said = distributed.from_lead(" ".join(map(str, found)))
        return [int(step) for step in said.split()]

    def _numbered(self) -> list[int]:
        return [int(path.name) for path in self.directory.glob("*") if path.name.isdigit()]

    def _path(self, step: int) -> Path:
        return self.directory / str(step)

    def _writable(self) -> CheckpointPolicy:
        if self._policy is None:
            raise RuntimeError(f"{self.directory} was opened for reading only")
        return self._policy

    def _by_lead(self, what: str, action: Callable[[], Any]) -> str | None:
        """Have the lead do it, and the store know of it, while the others wait; what it says of it, in all processes.

        Raises:
            InfrastructureError: in all processes, when the lead couldn't.
        """
        said = failure = None
        if distributed.is_lead():
            try:
                said = action()
                self._send(self._writable().deadline_seconds)
            except (OSError, MarinError) as error:
                failure = describe(error)
        failure = distributed.from_lead(failure)
        if failure is not None:
            raise InfrastructureError(
                f"{self.directory} can't be written ({what}): {failure}", advice="Check the store's permissions and its free space."
            )
        return distributed.from_lead(None if said is None else str(said))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        try:
            self.wait()
        except MarinError as failure:
            if error is None:
                raise
            if failure is not error:
                _log.warning("While another error ended the run: %s", failure.message)


def flatten(tree: Any) -> Flat:
    """Slash-separated path → leaf."""
    return {_name(path): leaf for path, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]}


def _name(path: tuple[Any, ...]) -> str:
    return jax.tree_util.keystr(path, simple=True, separator="/")


def _context(flat: Mapping[str, Any], deadline_seconds: float = 0) -> ocp.Context:
    """How Orbax saves and loads these arrays.

    Uncompressed: float32 weights shrink by 8 %, for three times the processor's time. Committed by a file, not by renaming.
    """
    context = ocp.Context()
    context.array.saving.use_compression = False
    context.array.saving.storage_options.chunk_byte_size = CHUNK_BYTES
    context.atomicity.mode = ocp.options.AtomicityMode.COMMIT_FILE
    context.pytree.loading.partial_load = True
    # A part of an array that alone is larger than the limit would never be read.
    parts = (leaf.dtype.itemsize * _elements(leaf.sharding.shard_shape(leaf.shape)) for leaf in flat.values())
    context.memory.read_concurrent_bytes = max(READ_BYTES, *(part + 1 for part in parts), 1)
    if deadline_seconds:
        context.asynchronous.timeout_secs = round(deadline_seconds) + 10  # ours comes first, and says more
    return context


def _elements(shape: Sequence[int]) -> int:
    count = 1
    for size in shape:
        count *= size
    return count


def _check_fits(metadata: CheckpointMetadata, shapes: Mapping[str, Any], *, whole: bool) -> None:
    """Refuse a state of other arrays: that is no damage, and setting checkpoints aside one by one would lose them all."""
    kept = {path: (leaf.dtype, leaf.shape) for path, leaf in metadata.leaves.items()}
    asked = {path: (leaf.dtype.name, tuple(leaf.shape)) for path, leaf in shapes.items()}
    paths = (kept.keys() | asked.keys()) if whole else asked.keys()
    for path in sorted(paths):
        if kept.get(path) != asked.get(path):
            raise ConfigError(
                f"Checkpoint of step {metadata.step} has {_shape(kept.get(path))} at {path}, the run expects {_shape(asked.get(path))}",
                advice="Restore it with the configuration and the code that saved it, or only the parts that both have.",
            )


def _shape(found: tuple[str, tuple[int, ...]] | None) -> str:
    return "nothing" if found is None else f"{found[0]}{list(found[1])}"


def _check_files(directory: Path, metadata: CheckpointMetadata) -> None:
    """Notice a missing or cut file before several processes begin to read, of which one would fail and the others wait for it."""
    found = files_below(directory)
    for file, size in metadata.files.items():
        if found.get(file) != size:
            has = f"has {found[file]} bytes instead of {size}" if file in found else "is missing"
            raise _damaged(directory, f"{file} {has}")


def _damaged(directory: Path, what: str) -> InfrastructureError:
    return InfrastructureError(f"Checkpoint {directory} is damaged: {what}", advice="Use an earlier checkpoint.")


def _raise_what_a_checkpoint_cannot_help(step: int, error: Exception) -> None:
    """Raise again what another attempt may not meet: such an error must not condemn a sound checkpoint."""
    if isinstance(error, ConfigError) or distributed.peer_lost(error):
        raise error
    text = f"{error!r} {error.__cause__!r}"
    if isinstance(error, (MemoryError, PermissionError)) or any(word in text for word in _NOT_THE_CHECKPOINTS_FAULT):
        raise InfrastructureError(
            f"Checkpoint of step {step} can't be read for now: {describe(error)}",
            advice="Try again where there is enough memory and the store answers; the checkpoint was left as it is.",
        ) from error
