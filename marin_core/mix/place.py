"""Where a mix lies: a folder, a bucket, or for readers any web server. One conditional write more than a store of artifacts needs.

HEAD and the page are overwritten only if they still are what the writer has read. On Google Cloud Storage the condition is the object's
generation; on files it is the content, compared under a lock that the kernel frees when its holder dies.
"""

import base64
import fcntl
import hashlib
import json
import os
import secrets
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Protocol
from urllib.parse import quote, urlsplit

from marin_core.artifact.objects import GcsObjects, LocalObjects, open_objects
from marin_core.data.sources.urls import bare_url, refuse_credentials
from marin_core.errors import ConfigError, InfrastructureError, MarinError

HEAD_FILE = "HEAD.json"
PAGE_FILE = "index.html"
STATUS_FILE = "status.json"
COMMITS = "commits"

TIMEOUT_SECONDS = 30.0
"""Silence after which a web server is given up."""

LARGEST_BYTES = 256 << 20
"""A larger answer of a web server is nothing that was published."""

IMMUTABLE = "public, max-age=31536000, immutable"
NO_STORE = "no-store"
MINUTE = "public, max-age=60"


@dataclass(frozen=True)
class Stamped:
    """An object as it was read, and what tells whether it still is that one: its generation, or its digest."""

    data: bytes
    stamp: str


@dataclass(frozen=True)
class Stored:
    """What lies under a name: how many bytes, and since when."""

    bytes: int
    written_at: datetime


class Readable(Protocol):
    """What readers need."""

    url: str

    def read(self, path: str) -> bytes | None:
        """The whole object, or None if there is none."""


class Place(Readable, Protocol):
    """What publishers need. Every failure of the backend is an `InfrastructureError`."""

    def read_stamped(self, path: str) -> Stamped | None:
        """The whole object with its stamp, or None if there is none."""

    def create(self, path: str, data: bytes) -> bool:
        """Write an object that must not exist yet; False if another one is there."""

    def replace(self, path: str, data: bytes) -> None:
        """Write an object, whatever is there."""

    def swap(self, path: str, data: bytes, expected: str | None) -> bool:
        """Write an object if it still has the stamp (None: if there is none); False if it hasn't, whoever changed it.

        An error says nothing about whether it was written: the answer may have been lost.
        """

    def names(self, folder: str) -> list[str]:
        """Names of what lies directly in a folder, sorted."""


def open_place(url: str) -> "LocalPlace | GcsPlace":
    """The folder or bucket at a URL, to publish to.

    Raises:
        ConfigError: it holds credentials, or is nothing that can be overwritten under a condition.
    """
    refuse_credentials(url, "to")
    if url.startswith(("gs://", "gcs://")):
        return GcsPlace(url.rstrip("/"))
    if url.startswith("file://") or "://" not in url:
        objects = open_objects(url)
        if isinstance(objects, LocalObjects):
            return LocalPlace(objects.root)
    raise ConfigError(
        f"field 'to': a mix can't be published to {bare_url(url)}", advice="Give a folder, file:///data/mix, or a bucket, gs://bucket/mix."
    )


def open_readable(url: str) -> Readable:
    """The mix at a URL, to read from: a folder, a bucket, or http(s) without credentials."""
    if url.startswith(("https://", "http://")):
        refuse_credentials(url, "url")
        return WebPlace(url.rstrip("/"))
    return open_place(url)


class LocalPlace(LocalObjects):
    """A folder of this machine, or of a network file system with locks."""

    def read_stamped(self, path: str) -> Stamped | None:
        data = self.read(path)
        return None if data is None else Stamped(data, hashlib.sha256(data).hexdigest())

    def swap(self, path: str, data: bytes, expected: str | None) -> bool:
        with self._lock(path):
            found = self.read_stamped(path)
            if (None if found is None else found.stamp) != expected:
                return False
            self.replace(path, data)
            return True

    def stored(self, folder: str) -> dict[str, Stored]:
        """What lies directly in a folder, by name."""
        found = {}
        for name in self.names(folder):
            with suppress(FileNotFoundError):
                state = (self.root / folder / name).stat()
                found[name] = Stored(state.st_size, datetime.fromtimestamp(state.st_mtime, UTC))
        return found

    @contextmanager
    def _lock(self, path: str) -> Iterator[None]:
        lock = (self.root / path).with_name(f".{path.rsplit('/', 1)[-1]}.lock")
        try:
            lock.parent.mkdir(parents=True, exist_ok=True)
            file = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        except OSError as error:
            raise InfrastructureError(f"{lock} can't be opened: {error}", advice="Check the disk and its permissions.") from error
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield
        finally:
            os.close(file)  # which frees the lock


class GcsPlace(GcsObjects):
    """A bucket. Each kind of object says how long it may be kept: public objects default to an hour, HEAD among them."""

    def read_stamped(self, path: str) -> Stamped | None:
        with self._failures("read", path):
            try:
                headers, data = self._backend.call("GET", self._backend.url(self._at(path)), **self._limit())
            except FileNotFoundError:
                return None
        return Stamped(bytes(data), str(headers["X-Goog-Generation"]))

    def create(self, path: str, data: bytes) -> bool:
        try:
            return self._write(path, data, "0")
        except InfrastructureError:
            if self.read(path) == data:  # the answer was lost, the object wasn't
                return True
            raise

    def replace(self, path: str, data: bytes) -> None:
        self._write(path, data, None)

    def swap(self, path: str, data: bytes, expected: str | None) -> bool:
        return self._write(path, data, expected or "0")

    def stored(self, folder: str) -> dict[str, Stored]:
        """What lies directly in a folder, by name."""
        with self._failures("listed", folder):
            try:
                found = self._backend.ls(self._at(folder), detail=True, **self._limit())
            except FileNotFoundError:
                return {}
        return {each["name"].rsplit("/", 1)[-1]: Stored(each["size"], each["ctime"]) for each in found if each["type"] == "file"}

    def _write(self, path: str, data: bytes, generation: str | None) -> bool:
        """One multipart request, the only kind of upload that takes condition, headers and checksum together."""
        bucket, name, _ = self._backend.split_path(self._at(path))
        content_type, cache_control = headers_of(path)
        checksum = base64.b64encode(hashlib.md5(data, usedforsecurity=False).digest()).decode()
        metadata = {"name": name, "contentType": content_type, "cacheControl": cache_control, "md5Hash": checksum}
        boundary = secrets.token_hex(16)  # a fixed one, such as gcsfs's own, could stand in a message
        head = f"--{boundary}\r\nContent-Type: application/json; charset=UTF-8\r\n\r\n{json.dumps(metadata)}\r\n"
        head += f"--{boundary}\r\nContent-Type: {content_type}\r\n\r\n"
        with self._failures("written", path, creates=True):
            try:
                self._backend.call(
                    "POST",
                    f"{self._backend._location}/upload/storage/v1/b/{quote(bucket)}/o",
                    uploadType="multipart",
                    headers={"Content-Type": f'multipart/related; boundary="{boundary}"'},
                    data=head.encode() + data + f"\r\n--{boundary}--\r\n".encode(),
                    json_out=True,
                    **({} if generation is None else {"ifGenerationMatch": generation}),
                    **self._limit(len(data)),
                )
            except FileExistsError:  # what gcsfs calls 412
                return False
        return True


def headers_of(path: str) -> tuple[str, str]:
    """Content type and Cache-Control of an object of a mix."""
    if path == PAGE_FILE:
        return "text/html; charset=utf-8", MINUTE
    return "application/json", IMMUTABLE if path.startswith(f"{COMMITS}/") else NO_STORE


class WebPlace:
    """A mix behind any web server, read without credentials."""

    def __init__(self, url: str) -> None:
        self.url = url

    def read(self, path: str) -> bytes | None:
        url = f"{self.url}/{quote(path)}"
        request = urllib.request.Request(url, headers={"Cache-Control": "no-cache"} if path == HEAD_FILE else {})  # noqa: S310
        try:
            with urllib.request.urlopen(request, timeout=TIMEOUT_SECONDS) as answer:  # noqa: S310 - `open_readable` has seen the scheme
                if urlsplit(answer.url).scheme not in ("http", "https"):
                    raise ConfigError(f"{url} leads to {bare_url(answer.url)}", advice="Give the address of the mix itself.")
                data: bytes = answer.read(LARGEST_BYTES + 1)
        except urllib.error.HTTPError as error:
            with error:
                if error.code in (404, 410):
                    return None
                raise _refusal(url, error.code) from error
        except (OSError, ValueError) as error:
            raise InfrastructureError(f"{url} can't be read: {error}", advice="Try again when the server answers.") from error
        if len(data) > LARGEST_BYTES:
            raise ConfigError(f"{url} has more than {LARGEST_BYTES:,} bytes", advice="Give the address of a mix.")
        return data


def _refusal(url: str, status: int) -> MarinError:
    """A public bucket that doesn't let strangers list answers 403 for what isn't there, too."""
    if status in (401, 403):
        return ConfigError(f"{url} isn't there, or may not be read ({status})", advice="Correct the URL, or make the mix public.")
    return InfrastructureError(f"{url} can't be read: HTTP status {status}", advice="Try again when the server answers.")
