"""What ingestion asks of a source of files: a listing, taken once, and each file's bytes with what identifies them."""

import hashlib
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event, Lock
from types import TracebackType
from typing import Any, Protocol, Self

from marin_core.errors import PreemptedError
from marin_core.report import Reporter

BLOCK_BYTES = 1 << 20


@dataclass(frozen=True)
class Listed:
    """A file as the listing has it.

    Attributes:
        name: its path in the source, with `/`; any characters, and never a path of ours.
        size: bytes, where the listing says so.
        key: what the source needs to find it again.
    """

    name: str
    size: int | None
    key: Any = None


@dataclass(frozen=True)
class Fetched:
    """A file as it was fetched; `size` and `sha256` are of the bytes on disk, the rest is what the source says about them.

    Attributes:
        etag: of the HTTP answer.
        generation: of the object on Google Cloud Storage.
        revision: commit of the repository.
        crc32c: as Google Cloud Storage gives it, base64.
    """

    size: int
    sha256: str
    etag: str | None = None
    generation: str | None = None
    revision: str | None = None
    crc32c: str | None = None


class Digest(Protocol):
    """A running checksum, as `hashlib` has them."""

    def update(self, data: bytes, /) -> None: ...


class Watch:
    """Progress of a whole ingestion in bytes, over all its threads, and the wish to stop it."""

    def __init__(self, reporter: Reporter) -> None:
        self._reporter = reporter
        self._lock = Lock()
        self._done = 0
        self._expected = 0
        self._ended = Event()

    def expect(self, size: int) -> None:
        """So many bytes more will come."""
        with self._lock:
            self._expected += size

    def advance(self, size: int) -> None:
        """So many bytes more are there; negative where a file begins anew.

        Raises:
            PreemptedError: the job was asked to stop, or another thread has failed.
        """
        self.check()
        with self._lock:
            self._done += size
            self._reporter.progress(self._done, max(self._done, self._expected), "bytes")

    def check(self) -> None:
        """Raise `PreemptedError` if the job was asked to stop, or another thread has failed."""
        if self._ended.is_set() or self._reporter.stop_requested():
            raise PreemptedError("ingestion was asked to stop", advice="Start it again.")

    def end(self) -> None:
        """Stop all threads at their next block."""
        self._ended.set()

    def log(self, message: str) -> None:
        """One line for people."""
        with self._lock:
            self._reporter.log(message)


@dataclass
class Target:
    """A file that is being written: what arrives is hashed on its way to the disk, so that nothing is read twice.

    Attributes:
        size: bytes written so far.
    """

    path: Path
    watch: Watch
    size: int = field(default=0, init=False)

    def __enter__(self) -> Self:
        self._file = self.path.open("wb")
        self._sha256 = hashlib.sha256()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._file.close()

    def write(self, data: bytes) -> None:
        """Append a block.

        Raises:
            OSError: the disk refuses it.
            PreemptedError: ingestion shall stop.
        """
        self._file.write(data)
        self._sha256.update(data)
        self.size += len(data)
        self.watch.advance(len(data))

    def restart(self) -> None:
        """Forget what was written: the source has other bytes now."""
        self._file.seek(0)
        self._file.truncate()
        self._sha256 = hashlib.sha256()
        self.watch.advance(-self.size)
        self.size = 0

    @property
    def sha256(self) -> str:
        """Lower-case hex digest of what was written."""
        return self._sha256.hexdigest()


class OpenedSource(Protocol):
    """A source of files, ready to be read.

    Attributes:
        connections: files that may be fetched side by side.
        skipped: reason → entries of the listing that are no files.
        notes: facts about the listing for the report.
    """

    connections: int
    skipped: Counter[str]
    notes: dict[str, str]

    def files(self, watch: Watch) -> list[Listed]:
        """All files, in any order, listed once.

        Raises:
            DataError: if there is none, or the source can't be read.
        """

    def still(self, listed: Listed, fetched: Fetched, watch: Watch) -> bool:
        """Whether a file is the one that an earlier try fetched; False where the source can't tell. Called from several threads."""

    def fetch(self, listed: Listed, path: Path, watch: Watch) -> Fetched:
        """Write a file's bytes to `path`; called from several threads.

        Raises:
            DataError: if it is not what was listed or promised.
            InfrastructureError: if it may work later.
        """
