"""Objects below a prefix, on local files or any fsspec backend: whole reads, create-only writes, overwrites, listings.

Everything that must be decided once, for all builders on all machines, is decided by `create`: of many writers of one name exactly
one wins. Deletion decides nothing, because it can't be made conditional everywhere.
"""

import hashlib
import os
import secrets
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import fsspec

from marin_core.errors import ConfigError, InfrastructureError, MarinError


@dataclass(frozen=True)
class FileState:
    """A file as the backend knows it without reading it.

    Attributes:
        size: bytes.
        stamp: changes whenever the content does (modification time, object generation); empty where the backend has none.
    """

    size: int
    stamp: str


class Objects(Protocol):
    """Paths are relative to the prefix, with `/`. Every failure of the backend is an `InfrastructureError`."""

    url: str

    def read(self, path: str) -> bytes | None:
        """The whole object, or None if there is none."""

    def read_many(self, paths: Sequence[str]) -> dict[str, bytes]:
        """Those of many objects that exist, in as few round trips as the backend allows."""

    def create(self, path: str, data: bytes) -> bool:
        """Write an object that must not exist yet, all of it or nothing; False if another writer was first."""

    def replace(self, path: str, data: bytes) -> None:
        """Write an object, whether or not it exists; readers see the old or the new one."""

    def delete(self, path: str) -> None:
        """Remove an object; no error if it is gone already."""

    def delete_tree(self, path: str) -> None:
        """Remove everything below a folder; no error if there is nothing."""

    def names(self, folder: str) -> list[str]:
        """Names of what lies directly in a folder, sorted; empty if there is no such folder."""

    def files(self, folder: str) -> dict[str, FileState]:
        """All files below a folder by path relative to it."""

    def sha256(self, path: str) -> str | None:
        """Lower-case hex checksum of an object, read as a stream; None if there is none."""

    def upload(self, source: Path, path: str) -> None:
        """Copy a local file to an object."""

    def download(self, path: str, target: Path) -> None:
        """Copy an object to a local file, whose folder exists.

        Raises:
            FileNotFoundError: there is no such object.
        """


def open_objects(url: str) -> Objects:
    """The objects below a folder or fsspec URL (`file:///data/lab`, `gs://bucket/lab`, `memory://lab`).

    Raises:
        ConfigError: the URL names no backend that is installed.
    """
    if "://" not in url or url.startswith("file://"):
        return LocalObjects(Path(url.removeprefix("file://")).absolute())
    return RemoteObjects(url.rstrip("/"))


class LocalObjects:
    """Files of this machine or a network file system, whose hard links are the create-only writes."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.url = f"file://{root}"

    def read(self, path: str) -> bytes | None:
        try:
            return (self.root / path).read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise _failed(f"{self.root / path} can't be read", error) from error

    def read_many(self, paths: Sequence[str]) -> dict[str, bytes]:
        return {path: data for path in paths if (data := self.read(path)) is not None}

    def create(self, path: str, data: bytes) -> bool:
        """A hard link to a complete, synced file appears at once and only if the name is free, also after a power cut."""
        target = self.root / path
        with self._written(target, data) as temporary:
            try:
                os.link(temporary, target)
            except FileExistsError:
                return False
        return True

    def replace(self, path: str, data: bytes) -> None:
        target = self.root / path
        with self._written(target, data) as temporary:
            temporary.replace(target)

    @contextmanager
    def _written(self, target: Path, data: bytes) -> Iterator[Path]:
        temporary = target.with_name(f".{target.name}.{secrets.token_hex(4)}")
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            with temporary.open("xb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            yield temporary
        except OSError as error:
            raise _failed(f"{target} can't be written", error) from error
        finally:
            with suppress(OSError):
                temporary.unlink(missing_ok=True)

    def delete(self, path: str) -> None:
        with suppress(FileNotFoundError):
            (self.root / path).unlink()

    def delete_tree(self, path: str) -> None:
        shutil.rmtree(self.root / path, ignore_errors=True)

    def names(self, folder: str) -> list[str]:
        try:
            return sorted(entry.name for entry in os.scandir(self.root / folder))
        except (FileNotFoundError, NotADirectoryError):
            return []

    def files(self, folder: str) -> dict[str, FileState]:
        root = self.root / folder
        found = {}
        for parent, _, names in os.walk(root):
            for name in names:
                path = Path(parent, name)
                with suppress(FileNotFoundError):
                    found[path.relative_to(root).as_posix()] = local_state(path)
        return found

    def sha256(self, path: str) -> str | None:
        try:
            with (self.root / path).open("rb") as file:
                return hashlib.file_digest(file, "sha256").hexdigest()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise _failed(f"{self.root / path} can't be read", error) from error

    def upload(self, source: Path, path: str) -> None:
        target = self.root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, target)

    def download(self, path: str, target: Path) -> None:
        shutil.copyfile(self.root / path, target)


def local_state(path: Path) -> FileState:
    """State of a file on this machine; its stamp is the modification time in nanoseconds."""
    found = path.stat()
    return FileState(found.st_size, str(found.st_mtime_ns))


class RemoteObjects:
    """An fsspec backend; its create-only write must be one request (`gs://`: a generation precondition)."""

    def __init__(self, url: str) -> None:
        try:
            fs, root = fsspec.core.url_to_fs(url, **_storage_options(url))
        except (ValueError, ImportError) as error:
            raise ConfigError(
                f"the store prefix {url!r} can't be opened: {error}",
                advice="Set MARIN_PREFIX to a folder or an fsspec URL such as file:///data/lab or gs://bucket/lab.",
            ) from error
        self._fs: Any = fs
        self._root = root.rstrip("/")
        self.url = url

    def _at(self, path: str) -> str:
        return f"{self._root}/{path}".rstrip("/")

    def read(self, path: str) -> bytes | None:
        with self._failures("read", path):
            try:
                return bytes(self._fs.cat_file(self._at(path)))
            except FileNotFoundError:
                return None

    def read_many(self, paths: Sequence[str]) -> dict[str, bytes]:
        if not paths:
            return {}
        with self._failures("read", paths[0]):
            found = self._fs.cat([self._at(path) for path in paths], on_error="return")
        if isinstance(found, bytes):  # fsspec unwraps a list of one
            found = {self._at(paths[0]): found}
        read = {}
        for path in paths:
            data = found.get(self._fs._strip_protocol(self._at(path)))
            if isinstance(data, bytes):
                read[path] = data
            elif data is not None and not isinstance(data, FileNotFoundError):
                raise _failed(f"{self.url}/{path} can't be read", data) from data
        return read

    def create(self, path: str, data: bytes) -> bool:
        with self._failures("written", path):
            try:
                self._fs.pipe_file(self._at(path), data, mode="create")
            except FileExistsError:
                # The answer to our own write may have been lost, and a retry of it was refused: what is there tells.
                return self.read(path) == data
        return True

    def replace(self, path: str, data: bytes) -> None:
        with self._failures("written", path):
            self._fs.pipe_file(self._at(path), data)

    def delete(self, path: str) -> None:
        with self._failures("deleted", path), suppress(FileNotFoundError):
            self._fs.rm_file(self._at(path))

    def delete_tree(self, path: str) -> None:
        with self._failures("deleted", path):
            for name in self._fs.find(self._at(path)):
                with suppress(FileNotFoundError):
                    self._fs.rm_file(name)

    def names(self, folder: str) -> list[str]:
        with self._failures("listed", folder):
            try:
                return sorted({name.rstrip("/").rsplit("/", 1)[-1] for name in self._fs.ls(self._at(folder), detail=False)})
            except FileNotFoundError:
                return []

    def files(self, folder: str) -> dict[str, FileState]:
        root = self._fs._strip_protocol(self._at(folder))
        with self._failures("listed", folder):
            found = self._fs.find(root, detail=True)
        return {
            name.removeprefix(root).lstrip("/"): FileState(info["size"], str(info.get("generation") or info.get("created") or ""))
            for name, info in found.items()
        }

    def sha256(self, path: str) -> str | None:
        with self._failures("read", path):
            try:
                with self._fs.open(self._at(path), "rb") as file:
                    return hashlib.file_digest(file, "sha256").hexdigest()
            except FileNotFoundError:
                return None

    def upload(self, source: Path, path: str) -> None:
        with self._failures("written", path):
            self._fs.put_file(str(source), self._at(path))

    def download(self, path: str, target: Path) -> None:
        with self._failures("read", path):
            self._fs.get_file(self._at(path), str(target))

    @contextmanager
    def _failures(self, verb: str, path: str) -> Iterator[None]:
        """Every backend has errors of its own; to callers they are one kind, except that a missing object is a plain fact."""
        try:
            yield
        except (FileNotFoundError, MarinError):
            raise
        except PermissionError as error:
            raise ConfigError(
                f"{self.url}/{path} may not be {verb}: {error}", advice="Give this account access to the bucket, or log in with another."
            ) from error
        except Exception as error:
            raise _failed(f"{self.url}/{path} can't be {verb}", error) from error


def _failed(what: str, error: BaseException) -> InfrastructureError:
    reason = str(error).strip() or type(error).__name__
    return InfrastructureError(
        f"{what}: {reason[:500]}", advice="Try again when the store answers; if it stays, check disk, network and quota."
    )


def _storage_options(url: str) -> dict[str, Any]:
    if url.startswith(("gs://", "gcs://")):
        return {"use_listings_cache": False}
    return {}
