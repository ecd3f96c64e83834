"""The store: `{prefix}/{name}/{version}` on local files or any fsspec URL, with create-only commits."""

import os
import secrets
from pathlib import Path
from typing import Any

import fsspec
from pydantic import ValidationError

from marin_core.artifact.canonical import canonical_json
from marin_core.artifact.identity import ArtifactId
from marin_core.artifact.record import Attempt, Record
from marin_core.errors import ConfigError, DataError, InfrastructureError

META = ".artifact"
"""Folder of an artifact's own bookkeeping; everything else at the address is payload."""


class Store:
    """Reads and writes artifacts below one prefix.

    Args:
        prefix: folder or fsspec URL (`file:///data/lab`, `gs://bucket/lab`, `memory://lab`).
    """

    def __init__(self, prefix: str) -> None:
        try:
            fs, root = fsspec.core.url_to_fs(prefix)
        except (ValueError, ImportError) as error:
            raise ConfigError(
                f"the store prefix {prefix!r} can't be opened: {error}",
                advice="Set MARIN_PREFIX to a folder or an fsspec URL such as file:///data/lab or gs://bucket/lab.",
            ) from error
        self.is_local = fs.protocol == "file" or "file" in fs.protocol
        self._fs: Any = fs
        self._root = root.rstrip("/")
        self.prefix = f"file://{self._root}" if self.is_local else prefix.rstrip("/")

    def address(self, artifact: ArtifactId) -> str:
        return f"{self.prefix}/{artifact.path}"

    def local_path(self, url: str) -> Path | None:
        """Path of an address on this machine's disk, or None if it lies elsewhere."""
        return Path(url.removeprefix("file://")) if self.is_local else None

    def ensure_writable(self) -> None:
        """Fail early, and for the right reason, when nothing could be saved.

        Raises:
            ConfigError: the prefix can't be created or written.
        """
        probe = f"{self._root}/.write-probe-{secrets.token_hex(4)}"
        try:
            self._fs.makedirs(self._root, exist_ok=True)
            self._fs.pipe_file(probe, b"")
            self._fs.rm_file(probe)
        except Exception as error:  # every backend has errors of its own here
            raise ConfigError(
                f"the store prefix {self.prefix} can't be written: {error}",
                advice="Point MARIN_PREFIX at a place this user may write, or correct its permissions.",
            ) from error

    # Records -----------------------------------------------------------------------------------------------------

    def record(self, artifact: ArtifactId) -> Record | None:
        """The committed record, or None if the artifact was never committed.

        Raises:
            DataError: a record is there but can't be read.
        """
        path = self._meta(artifact, "record.json")
        data = self._read(path)
        if data is None:
            return None
        try:
            return Record.model_validate_json(data)
        except ValidationError as error:
            raise DataError(
                f"the record of {artifact} at {path} is damaged: {error}",
                advice="Restore the file from a backup, or give the artifact a new version; it is never guessed.",
            ) from error

    def commit(self, record: Record) -> bool:
        """Publish the record; False if another builder has committed first, whose record stays."""
        return self._create(self._meta(record.id, "record.json"), _document(record))

    def withdraw(self, artifact: ArtifactId) -> None:
        """Take back the commit of a `dev` artifact so that it can be rebuilt; its payload is debris from here on."""
        if artifact.version != "dev":
            raise ConfigError(f"{artifact} has a fixed version and is never rebuilt", advice="Give it a new version.")
        self._fs.rm_file(self._meta(artifact, "record.json"))

    # Attempts ----------------------------------------------------------------------------------------------------

    def attempts(self, artifact: ArtifactId) -> list[Attempt]:
        """All attempts so far, in order."""
        folder = self._meta(artifact, "attempts")
        try:
            paths = self._fs.ls(folder, detail=False)
        except FileNotFoundError:
            return []
        documents = (self._read(path) for path in sorted(paths) if path.endswith(".json"))
        return [Attempt.model_validate_json(data) for data in documents if data is not None]

    def begin_attempt(self, artifact: ArtifactId, attempt: Attempt) -> bool:
        """Claim an attempt number; False if someone else has claimed it."""
        return self._create(self._attempt_path(artifact, attempt.number), _document(attempt))

    def end_attempt(self, artifact: ArtifactId, attempt: Attempt) -> None:
        self._replace(self._attempt_path(artifact, attempt.number), _document(attempt))

    # Payload -----------------------------------------------------------------------------------------------------

    def upload(self, folder: Path, artifact: ArtifactId) -> None:
        """Copy a locally built payload to a remote address."""
        target = f"{self._root}/{artifact.path}"
        for path in sorted(folder.rglob("*")):
            if path.is_file():
                relative = path.relative_to(folder).as_posix()
                self._fs.makedirs(f"{target}/{relative}".rsplit("/", 1)[0], exist_ok=True)
                self._fs.put_file(str(path), f"{target}/{relative}")

    def download(self, artifact_path: str, folder: Path) -> None:
        """Copy the payload below an address (relative to the prefix) to a local folder, records included."""
        source = f"{self._root}/{artifact_path}"
        for path in self._fs.find(source):
            target = folder / path.removeprefix(source).lstrip("/")
            target.parent.mkdir(parents=True, exist_ok=True)
            self._fs.get_file(path, str(target))

    def read_payload(self, artifact: ArtifactId, path: str) -> bytes:
        """Bytes of one payload file.

        Raises:
            DataError: the file is gone although the artifact is committed.
        """
        data = self._read(f"{self._root}/{artifact.path}/{path}")
        if data is None:
            raise DataError(f"{artifact} has lost its file {path}", advice="Restore it, or build a new version.")
        return data

    # Files -------------------------------------------------------------------------------------------------------

    def _meta(self, artifact: ArtifactId, name: str) -> str:
        return f"{self._root}/{artifact.path}/{META}/{name}"

    def _attempt_path(self, artifact: ArtifactId, number: int) -> str:
        return self._meta(artifact, f"attempts/{number:05d}.json")

    def _read(self, path: str) -> bytes | None:
        try:
            return bytes(self._fs.cat_file(path))
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise InfrastructureError(f"{path} can't be read: {error}", advice="Try again when the store answers.") from error

    def _create(self, path: str, data: bytes) -> bool:
        """Write a file that must not exist yet, all of it or nothing; False if it exists."""
        if self.is_local:
            return _create_local(Path(path), data)
        try:
            self._fs.pipe_file(path, data, mode="create")
        except FileExistsError:
            return False
        return True

    def _replace(self, path: str, data: bytes) -> None:
        if not self.is_local:
            self._fs.pipe_file(path, data)
            return
        target = Path(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        temporary = target.with_name(f".{target.name}.{secrets.token_hex(4)}")
        temporary.write_bytes(data)
        temporary.replace(target)


def _document(document: Record | Attempt) -> bytes:
    return canonical_json(document.model_dump(mode="json"))


def _create_local(path: Path, data: bytes) -> bool:
    """A hard link to a complete, synced file appears at once and only if the name is free, also after a power cut."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        with temporary.open("xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        try:
            os.link(temporary, path)
        except FileExistsError:
            return False
        return True
    finally:
        temporary.unlink(missing_ok=True)
