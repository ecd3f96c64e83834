"""`metadata.json`: written last into a checkpoint's directory, and without it the directory is none. Imports no JAX."""

import hashlib
import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path

from marin_core.config import Config

METADATA_FILE = "metadata.json"

UNFINISHED_FILE = "checkpoints.unfinished"
"""Beside the checkpoints: names the step that is being saved or removed."""

HELD_FILE = "held"
"""Pins a checkpoint while it exists; says why."""


class Leaf(Config):
    """An array of a checkpoint: its NumPy type's name, its shape, and the digest of its content (`digest.py`)."""

    dtype: str
    shape: tuple[int, ...]
    digest: str


class CheckpointMetadata(Config):
    """What a checkpoint says about itself.

    Attributes:
        step: completed updates.
        is_temporary: whether a later checkpoint replaces it.
        saved_at: when it was committed, in seconds since the epoch.
        fingerprint: of the run's configuration.
        source_commit: of the code that saved it; None outside a checkout.
        mesh: name → size of the axes of the devices' mesh that it was saved from; empty of a single device.
        processes: that saved it together.
        bytes: of all arrays.
        leaves: path → array.
        files: path in the directory → bytes, of everything but this file.
        content_digest: of all arrays' paths, types, shapes and content; the same however they were spread over devices.
    """

    step: int
    is_temporary: bool
    saved_at: float
    fingerprint: str
    source_commit: str | None
    mesh: dict[str, int]
    processes: int
    bytes: int
    leaves: dict[str, Leaf]
    files: dict[str, int]
    content_digest: str


def content_digest(leaves: Mapping[str, Leaf]) -> str:
    """SHA-256 over path, type, shape and digest of all arrays, in the order of their paths."""
    digest = hashlib.sha256()
    for path in sorted(leaves):
        leaf = leaves[path]
        digest.update(f"{path}\0{leaf.dtype}\0{leaf.shape}\0{leaf.digest}\n".encode())
    return digest.hexdigest()


def read_metadata(directory: Path) -> CheckpointMetadata:
    """The metadata of a committed checkpoint.

    Raises:
        OSError: there is none.
        ValueError: it is no JSON, or its digests don't belong together.
        ConfigError: it isn't what this version writes.
    """
    metadata = CheckpointMetadata.from_json(json.loads((directory / METADATA_FILE).read_bytes()))
    if content_digest(metadata.leaves) != metadata.content_digest:
        raise ValueError("content_digest isn't that of the leaves")
    return metadata


def write_metadata(directory: Path, metadata: CheckpointMetadata) -> None:
    """Commit a checkpoint, durably.

    Not by renaming, which a bucket that forbids deletion refuses (spec/training.md §9). Half a file, of a machine that lost power
    between two pages of it, is no JSON: the checkpoint counts as unreadable, and the one before is still there.
    """
    content = (metadata.model_dump_json() + "\n").encode()
    with (directory / METADATA_FILE).open("wb", buffering=0) as file:
        file.write(content)
        os.fsync(file.fileno())
    sync_directory(directory)
    sync_directory(directory.parent)


def hold(directory: Path, reason: str) -> None:
    """Keep a checkpoint until it is released, whatever else is saved.

    Raises:
        OSError: the directory can't be written.
    """
    # In place: that the file exists is what holds, and another name left behind would look like damage to the checkpoint.
    with (directory / HELD_FILE).open("w", encoding="utf-8") as file:
        file.write(reason + "\n")
        file.flush()
        os.fsync(file.fileno())


def release(directory: Path) -> bool:
    """Let a held checkpoint go the way of the others; whether it was held.

    Raises:
        OSError: the directory can't be written.
    """
    held = (directory / HELD_FILE).exists()
    (directory / HELD_FILE).unlink(missing_ok=True)
    return held


def link_checkpoint(source: Path, target: Path) -> None:
    """A checkpoint's directory in another place: hard links where the file system has them, since nobody rewrites its files."""
    shutil.copytree(source, target, copy_function=_link_or_copy)


def _link_or_copy(source: str, target: str) -> str:
    try:
        os.link(source, target)
    except OSError:  # a file system without hard links
        shutil.copy2(source, target)
    return target


def sync_directory(directory: Path) -> None:
    """Make the names in a directory survive a power failure."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def files_below(directory: Path) -> dict[str, int]:
    """Path → bytes of all files of a checkpoint but its metadata and its pin."""
    sizes = {path.relative_to(directory).as_posix(): path.stat().st_size for path in sorted(directory.rglob("*")) if path.is_file()}
    return {path: size for path, size in sizes.items() if path not in (METADATA_FILE, HELD_FILE)}
