"""Objects below a prefix of a bucket: listed once, and on Google Cloud Storage read in the generation that was listed."""

import base64
import hashlib
import os
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import fsspec

from marin_core.artifact.region import EgressGuard
from marin_core.data.sources.config import BucketFiles
from marin_core.data.sources.interface import BLOCK_BYTES, Fetched, Listed, Watch
from marin_core.data.sources.patterns import Patterns
from marin_core.errors import ConfigError, DataError, InfrastructureError

SILENCE_SECONDS = 10.0
"""A connection that is silent for this long is given up and tried again; gcsfs alone would wait for ever."""
SECONDS_OF_A_CALL = 90.0
SLOWEST_BYTES_PER_SECOND = 2**20

_STAMPS = ("size", "ETag", "etag", "mtime", "LastModified", "last_modified", "updated")
"""What backends of fsspec call that which changes with the content; of `created` some give a number and a text by turns."""


class OpenedBucketFiles:
    """The objects below a prefix that match a pattern."""

    def __init__(self, source: BucketFiles) -> None:
        self._source = source
        self._is_gcs = source.prefix.startswith(("gs://", "gcs://"))
        self._fs, self._root = _opened(source.prefix)
        self.connections = source.connections
        self.skipped: Counter[str] = Counter()
        self.notes: dict[str, str] = {}

    def files(self, watch: Watch) -> list[Listed]:
        """The objects.

        Raises:
            DataError: if nothing matches.
            ConfigError: if they are more than may be read from the bucket's region.
            InfrastructureError: if the store doesn't answer.
        """
        root, wanted = self._root, Patterns([self._source.pattern])
        entries = {}
        with _store_errors(self._source.prefix), suppress(FileNotFoundError):  # some backends have no bucket, others nothing in it
            entries = self._fs.find(root, detail=True)
        found = []
        for path, info in entries.items():
            name = path.removeprefix(root).lstrip("/")
            if info["type"] != "file" or not name or name.endswith("/"):
                self.skipped["no_file"] += 1
            elif name not in wanted:
                self.skipped["other_pattern"] += 1
            else:
                found.append(Listed(name, info["size"], info))
        if not found:
            raise DataError(
                f"no object below {self._source.prefix} matches {self._source.pattern!r}", advice="Correct 'prefix' or 'pattern'."
            )
        EgressGuard().require(self._source.prefix, sum(each.size or 0 for each in found), f"what is listed below {self._source.prefix}")
        return found

    def still(self, listed: Listed, fetched: Fetched, watch: Watch) -> bool:
        """Where the generation, or what another store has of the kind, was the same."""
        return (
            fetched.generation == str(listed.key["generation"])
            if self._is_gcs
            else fetched.etag is not None and fetched.etag == _etag(listed.key)
        )

    def fetch(self, listed: Listed, path: Path, watch: Watch) -> Fetched:
        """Fetch an object in the state that was listed.

        Raises:
            DataError: if it was overwritten or deleted since, or its bytes aren't what the store's checksum says.
            InfrastructureError: if the store doesn't answer.
        """
        watch.check()
        info = listed.key
        key = f"{self._root}/{listed.name}"
        generation = str(info["generation"]) if self._is_gcs else None
        # Of the store of Google only one request at a time is bounded, and asks for the generation that it is given.
        options = {"concurrency": 1, "generation": generation, **self._limit(info["size"])} if self._is_gcs else {}
        with _store_errors(self._source.prefix):
            try:
                self._fs.get_file(key, str(path), **options)
                unchanged = self._is_gcs or _stamp(self._fs.info(key)) == _stamp(info)
            except FileNotFoundError:
                unchanged = False
        if not unchanged:
            raise DataError(
                f"{self._source.prefix}/{listed.name} was overwritten or deleted since it was listed",
                advice="Ingest when nothing writes below the prefix.",
            )
        size, sha256, crc32c = self._digests(path)
        watch.advance(size)
        expected = info.get("crc32c") if self._is_gcs else None
        if size != info["size"] or (expected is not None and crc32c != expected):
            raise DataError(
                f"{self._source.prefix}/{listed.name} came as {size} bytes with crc32c {crc32c}, "
                f"but {info['size']} with {expected} are listed",
                advice="It was overwritten, or damaged on its way: try again when nothing writes below the prefix.",
            )
        return Fetched(size, sha256, etag=None if self._is_gcs else _etag(info), generation=generation, crc32c=expected)

    def _digests(self, path: Path) -> tuple[int, str, str]:
        """Size, sha256 (hex) and on Google Cloud Storage crc32c (base64) of a file."""
        import google_crc32c

        sha256, size, crc = hashlib.sha256(), 0, 0
        with path.open("rb") as file:
            while block := file.read(BLOCK_BYTES):
                sha256.update(block)
                size += len(block)
                if self._is_gcs:
                    crc = google_crc32c.extend(crc, block)
        return size, sha256.hexdigest(), base64.b64encode(crc.to_bytes(4, "big")).decode()

    def _limit(self, size: int) -> dict[str, Any]:
        return {"timeout": SECONDS_OF_A_CALL + size / SLOWEST_BYTES_PER_SECOND}


def _opened(prefix: str) -> tuple[Any, str]:
    """The file system of a prefix, and the prefix as it names it.

    Raises:
        ConfigError: if no backend that is installed has such URLs.
    """
    if prefix.startswith(("gs://", "gcs://")):
        from aiohttp import ClientTimeout
        from gcsfs.core import GCSFileSystem  # the package's own class depends on an environment variable at import

        fs = GCSFileSystem(
            token="anon" if os.environ.get("STORAGE_EMULATOR_HOST") else None,
            use_listings_cache=False,
            requests_timeout=ClientTimeout(sock_connect=SILENCE_SECONDS, sock_read=SILENCE_SECONDS),
        )
        return fs, fs._strip_protocol(prefix)
    try:
        fs, root = fsspec.core.url_to_fs(prefix, use_listings_cache=False)
    except (ValueError, ImportError) as error:
        raise ConfigError(
            f"field 'prefix': {prefix!r} can't be opened ({error})", advice="Give an fsspec URL such as gs://bucket/folder."
        ) from None
    return fs, root.rstrip("/")


@contextmanager
def _store_errors(prefix: str) -> Iterator[None]:
    """Every backend has errors of its own; here they are two kinds, besides the missing object."""
    try:
        yield
    except (FileNotFoundError, DataError):
        raise
    except Exception as error:
        if isinstance(error, PermissionError) or str(error).startswith("Forbidden") or getattr(error, "code", None) in (401, 403):
            raise DataError(
                f"{prefix} may not be read", advice="Give this account access to the bucket, or log in with another."
            ) from error
        reason = str(error).strip() or type(error).__name__
        raise InfrastructureError(f"{prefix} can't be read: {reason[:500]}", advice="Try again when the store answers.") from error


def _stamp(info: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(info.get(name) for name in _STAMPS)


def _etag(info: dict[str, Any]) -> str | None:
    found = info.get("ETag") or info.get("etag")
    return str(found) if found else None
