"""Objects below a prefix, on local files or any fsspec backend: whole reads, create-only writes, overwrites, listings.

Everything that must be decided once, for all builders on all machines, is decided by `create`: of many writers of one name exactly
one wins. Deletion decides nothing, because it can't be made conditional everywhere.
"""

import base64
import hashlib
import os
import secrets
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from typing import Any, BinaryIO, Protocol

import fsspec

from marin_core.errors import ConfigError, InfrastructureError, MarinError

READ_BATCH = 1000
"""Objects read side by side; bounds the memory and the time of one call."""

TIMEOUT_VARIABLE = "MARIN_STORE_TIMEOUT_SECONDS"
TIMEOUT_SECONDS = 90.0
"""Bound of one call, retries and their pauses included, besides the time that its bytes take at `SLOWEST_BYTES_PER_SECOND`."""

TRY_SECONDS = 10.0
"""A connection that is silent for this long is given up and tried again; gcsfs alone would wait for ever."""

SLOWEST_BYTES_PER_SECOND = 2**20


@dataclass(frozen=True)
class FileState:
    """A file as the backend knows it without reading it.

    Attributes:
        size: bytes.
        stamp: changes whenever the content does (modification time, object generation); empty where the backend has none.
        md5: of its content, in hex; empty where the backend doesn't know it.
    """

    size: int
    stamp: str
    md5: str = ""


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

    def copy(self, source: str, path: str) -> None:
        """Copy an object to another without moving its bytes through this machine, where the backend can.

        Raises:
            FileNotFoundError: there is no such object.
        """

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
    return (GcsObjects if url.startswith(("gs://", "gcs://")) else RemoteObjects)(url.rstrip("/"))


class LocalObjects:
    """Files of this machine or a network file system, whose hard links are the create-only writes."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.url = f"file://{root}"

    def read(self, path: str) -> bytes | None:
        try:
            with FileIO(f"{self.root}/{path}") as file:  # half the time of a `Path` and a buffer, over the records of a large graph
                return file.readall()
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
            with _opened(temporary) as file:
                file.write(data)
                file.flush()
                if data:  # an empty file has nothing to lose
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

    def copy(self, source: str, path: str) -> None:
        self.upload(self.root / source, path)

    def download(self, path: str, target: Path) -> None:
        shutil.copyfile(self.root / path, target)


def _opened(path: Path) -> BinaryIO:
    """A new file, and its folder if need be: mostly it is there."""
    try:
        return path.open("xb")
    except FileNotFoundError:
        path.parent.mkdir(parents=True, exist_ok=True)
        return path.open("xb")


def local_state(path: Path) -> FileState:
    """State of a file on this machine; its stamp is the modification time in nanoseconds."""
    found = path.stat()
    return FileState(found.st_size, str(found.st_mtime_ns))


def is_copy(path: Path, state: FileState) -> bool:
    """Whether a file on this machine has the content of another, as far as that one's backend knows it."""
    return bool(state.md5) and path.stat().st_size == state.size and _md5(path) == state.md5


def _md5(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()


class RemoteObjects:
    """An fsspec backend, whose create-only write must be one atomic request."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._fs, root = self._open()
        self._root = root.rstrip("/")
        self._process = os.getpid()

    def _open(self) -> tuple[Any, str]:
        try:
            fs, root = fsspec.core.url_to_fs(self.url)
        except (ValueError, ImportError) as error:
            raise ConfigError(
                f"the store prefix {self.url!r} can't be opened: {error}",
                advice="Set MARIN_PREFIX to a folder or an fsspec URL such as file:///data/lab or gs://bucket/lab.",
            ) from error
        return fs, root

    @property
    def _backend(self) -> Any:
        if os.getpid() != self._process:  # connections don't survive a fork
            self._fs, _ = self._open()
            self._process = os.getpid()
        return self._fs

    def _limit(self, size: int = 0) -> dict[str, Any]:
        """Arguments that bound the time of one call which moves so many bytes; fsspec itself has none."""
        return {}

    def _at(self, path: str) -> str:
        return f"{self._root}/{path}".rstrip("/")

    def read(self, path: str) -> bytes | None:
        with self._failures("read", path):
            try:
                return bytes(self._backend.cat_file(self._at(path), **self._limit()))
            except FileNotFoundError:
                return None

    def read_many(self, paths: Sequence[str]) -> dict[str, bytes]:
        read: dict[str, bytes] = {}
        for start in range(0, len(paths), READ_BATCH):
            batch = paths[start : start + READ_BATCH]
            with self._failures("read", batch[0]):
                found = self._backend.cat([self._at(path) for path in batch], on_error="return", **self._limit())
            if isinstance(found, bytes | BaseException):  # some backends unwrap a list of one
                found = {self._backend._strip_protocol(self._at(batch[0])): found}
            for path in batch:
                data = found.get(self._backend._strip_protocol(self._at(path)))
                if isinstance(data, bytes):
                    read[path] = data
                elif data is not None and not isinstance(data, FileNotFoundError):
                    with self._failures("read", path):
                        raise data
        return read

    def create(self, path: str, data: bytes) -> bool:
        with self._failures("written", path, creates=True):
            try:
                self._backend.pipe_file(self._at(path), data, mode="create", **self._limit(len(data)))
            except FileExistsError:
                # The answer to our own write may have been lost, and a retry of it was refused: what is there tells.
                return self.read(path) == data
        return True

    def replace(self, path: str, data: bytes) -> None:
        with self._failures("written", path, creates=True):
            self._backend.pipe_file(self._at(path), data, **self._limit(len(data)))

    def delete(self, path: str) -> None:
        with self._failures("deleted", path), suppress(FileNotFoundError):
            self._backend.rm_file(self._at(path), **self._limit())

    def delete_tree(self, path: str) -> None:
        for name in self.files(path):
            self.delete(f"{path}/{name}")

    def names(self, folder: str) -> list[str]:
        root = self._backend._strip_protocol(self._at(folder))
        with self._failures("listed", folder):
            try:
                found = self._backend.ls(root, detail=False, **self._limit())
            except FileNotFoundError:
                return []
        return sorted({name.rstrip("/").rsplit("/", 1)[-1] for name in found if name.rstrip("/") != root})

    def files(self, folder: str) -> dict[str, FileState]:
        root = self._backend._strip_protocol(self._at(folder))
        with self._failures("listed", folder):
            found = self._backend.find(root, detail=True, **self._limit())
        return {name.removeprefix(root).lstrip("/"): _remote_state(info) for name, info in found.items()}

    def sha256(self, path: str) -> str | None:
        with self._failures("read", path):
            try:
                with self._backend.open(self._at(path), "rb") as file:
                    return hashlib.file_digest(file, "sha256").hexdigest()
            except FileNotFoundError:
                return None

    def upload(self, source: Path, path: str) -> None:
        with self._failures("written", path, creates=True):
            self._backend.makedirs(self._at(path).rsplit("/", 1)[0], exist_ok=True)
            self._backend.put_file(str(source), self._at(path), **self._limit(source.stat().st_size))

    def copy(self, source: str, path: str) -> None:
        with self._failures("copied", source):
            size = self._backend.info(self._at(source), **self._limit())["size"]
            self._backend.cp_file(self._at(source), self._at(path), **self._limit(size))

    def download(self, path: str, target: Path) -> None:
        with self._failures("read", path):
            self._backend.get_file(self._at(path), str(target), **self._limit())

    @contextmanager
    def _failures(self, verb: str, path: str, *, creates: bool = False) -> Iterator[None]:
        """Every backend has errors of its own; to callers they are one kind, except that a missing object is a plain fact."""
        try:
            yield
        except MarinError:
            raise
        except FileNotFoundError as error:
            if creates:  # an object can be missing from a read, but only its bucket from a write
                raise ConfigError(f"{self.url} doesn't exist: {error}", advice="Correct MARIN_PREFIX, or create the bucket.") from error
            raise
        except Exception as error:
            if _is_refusal(error):
                raise ConfigError(
                    f"{self.url}/{path} may not be {verb}: {error}",
                    advice="Give this account access to the bucket, or log in with another.",
                ) from error
            raise _failed(f"{self.url}/{path} can't be {verb}", error) from error


class GcsObjects(RemoteObjects):
    """Google Cloud Storage by gcsfs, which retries what may pass; every call ends within a bound.

    gcsfs keeps no time limit by itself, caches listings so that others' files stay invisible, hides an object that was written
    although the answer was lost behind an error, and cuts a body that contains its own boundary: each is dealt with here.
    """

    def _open(self) -> tuple[Any, str]:
        from aiohttp import ClientTimeout
        from gcsfs.core import GCSFileSystem  # the package's own class depends on an environment variable at import
        from google.auth.exceptions import DefaultCredentialsError

        limit = self._limit()["timeout"]
        silence = min(TRY_SECONDS, limit / 6)
        try:
            fs = GCSFileSystem(
                token="anon" if os.environ.get("STORAGE_EMULATOR_HOST") else "google_default",
                use_listings_cache=False,
                requests_timeout=ClientTimeout(sock_connect=silence, sock_read=silence),
            )
        except DefaultCredentialsError as error:
            raise ConfigError(
                f"there are no credentials for {self.url}",
                advice="Run `gcloud auth application-default login`, name a key's file in GOOGLE_APPLICATION_CREDENTIALS,"
                " or give this machine an account.",
            ) from error
        return fs, fs._strip_protocol(self.url)

    def _limit(self, size: int = 0) -> dict[str, Any]:
        text = os.environ.get(TIMEOUT_VARIABLE, "")
        try:
            seconds = float(text) if text else TIMEOUT_SECONDS
        except ValueError:
            raise ConfigError(f"{TIMEOUT_VARIABLE} is {text!r}", advice="Give a number of seconds, such as 90.") from None
        return {"timeout": seconds + size / SLOWEST_BYTES_PER_SECOND}

    def upload(self, source: Path, path: str) -> None:
        limit = self._limit(source.stat().st_size)
        try:
            with self._failures("written", path, creates=True):
                self._backend.put_file(str(source), self._at(path), consistency="md5", **limit)
        except InfrastructureError:
            if not self._holds(path, source):  # the last answer may have been lost
                raise

    def _holds(self, path: str, source: Path) -> bool:
        with self._failures("read", path):
            try:
                found = self._backend.info(self._at(path), **self._limit())
            except FileNotFoundError:
                return False
        return is_copy(source, _remote_state(found))

    def download(self, path: str, target: Path) -> None:
        with self._failures("read", path):
            info = self._backend.info(self._at(path), **self._limit())
            self._backend.get_file(self._at(path), str(target), concurrency=1, **self._limit(info["size"]))

    def locations(self) -> tuple[str, ...]:
        """Where the bucket lies, in lower case: its location, or the regions of a pair of the owner's choice; empty if this account may
        not ask.
        """
        bucket = self.url.split("://", 1)[1].split("/", 1)[0]
        try:
            with self._failures("located", ""):
                asked = {"fields": "location,customPlacementConfig"}
                document = self._backend.call("GET", "b/{}", bucket, json_out=True, **asked, **self._limit())
        except (ConfigError, FileNotFoundError):  # it takes storage.buckets.get, which readers of a public bucket don't have
            return ()
        pair = document.get("customPlacementConfig", {}).get("dataLocations") or [document["location"]]
        return tuple(each.lower() for each in pair)

    def sha256(self, path: str) -> str | None:
        """As a temporary file, since only whole transfers are bounded in time."""
        with tempfile.TemporaryDirectory() as folder:
            target = Path(folder, "object")
            try:
                self.download(path, target)
            except FileNotFoundError:
                return None
            with target.open("rb") as file:
                return hashlib.file_digest(file, "sha256").hexdigest()


def _remote_state(info: Mapping[str, Any]) -> FileState:
    """What fsspec says of an object; of one that was composed of parts Google knows no MD5."""
    md5 = base64.b64decode(info.get("md5Hash") or "").hex()
    return FileState(info["size"], str(info.get("generation") or info.get("created") or ""), md5)


def _is_refusal(error: Exception) -> bool:
    """Whether the account lacks the right; gcsfs says so in a plain OSError or in an HTTP code."""
    return isinstance(error, PermissionError) or str(error).startswith("Forbidden") or getattr(error, "code", None) in (401, 403)


def _failed(what: str, error: BaseException) -> InfrastructureError:
    reason = str(error).strip() or type(error).__name__
    return InfrastructureError(
        f"{what}: {reason[:500]}", advice="Try again when the store answers; if it stays, check disk, network and quota."
    )
