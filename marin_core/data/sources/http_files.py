"""Files of web servers, given one by one or by an index."""

import tempfile
import zlib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote, urljoin, urlsplit

from marin_core.data.limits import MIB
from marin_core.data.sources.config import HttpFile, HttpFiles
from marin_core.data.sources.content import check_content
from marin_core.data.sources.http import Http
from marin_core.data.sources.interface import BLOCK_BYTES, Fetched, Listed, Target, Watch
from marin_core.data.sources.patterns import Patterns
from marin_core.data.sources.urls import bare_url, checked_http_url
from marin_core.errors import ConfigError, DataError

MAX_INDEX_BYTES = 1024 * MIB
"""Of an unpacked index; ten million lines of a hundred characters."""


class OpenedHttpFiles:
    """The files of a configuration, or those of an index that match a pattern."""

    def __init__(self, source: HttpFiles, http: Http | None = None) -> None:
        self._source = source
        self._http = http or Http(allow_private=source.allow_private)
        self.connections = source.connections
        self.skipped: Counter[str] = Counter()
        self.notes: dict[str, str] = {}

    def files(self, watch: Watch) -> list[Listed]:
        """The files' names; an index is fetched for them.

        Raises:
            DataError: if the index isn't what it must be, or no line of it matches.
        """
        source = self._source
        if source.index is None:
            return [Listed(file.path, None, file) for file in source.files]
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "index")
            fetched = self._fetch(source.index, path, watch)
            self.notes["index_sha256"] = fetched.sha256
            return self._of_index(path, source.base or "")

    def _of_index(self, path: Path, base: str) -> list[Listed]:
        wanted = Patterns([self._source.pattern])
        root = urlsplit(base)
        found: dict[str, Listed] = {}
        for number, line in enumerate(_lines(path), 1):
            url = urljoin(base, line)
            parts = urlsplit(url)
            below = parts[:2] == root[:2] and parts.path.startswith(root.path)
            name = unquote(parts.path.removeprefix(root.path) if below else parts.path.lstrip("/"))
            if name not in wanted:
                self.skipped["other_pattern"] += 1
                continue
            try:
                file = HttpFile(url=checked_http_url(url, "index"), name=name)
            except (ConfigError, ValueError):
                raise DataError(f"line {number} of the index is no address of a file: {bare_url(url)}", advice="Correct 'base'.") from None
            if name in found:
                raise DataError(f"line {number} of the index names {name!r} again", advice="Use another index.")
            found[name] = Listed(name, None, file)
        if not found:
            raise DataError(f"no line of the index matches {self._source.pattern!r}", advice="Correct 'pattern' or 'base'.")
        return list(found.values())

    def still(self, listed: Listed, fetched: Fetched, watch: Watch) -> bool:
        """Where the checksum is the declared one, or else the server says that its ETag stands."""
        file: HttpFile = listed.key
        if file.sha256 is not None:
            return fetched.sha256 == file.sha256
        return fetched.etag is not None and self._http.stands(file.url, fetched.etag, watch)

    def fetch(self, listed: Listed, path: Path, watch: Watch) -> Fetched:
        """Fetch a file.

        Raises:
            DataError: if its checksum isn't the configured one, or a page was served instead.
        """
        return self._fetch(listed.key, path, watch)

    def _fetch(self, file: HttpFile, path: Path, watch: Watch) -> Fetched:
        with Target(path, watch) as target:
            answer = self._http.fetch(file.url, target)
        try:
            check_content(path, urlsplit(file.url).path if file.name is None else file.name, served=True)
        except DataError as error:
            raise DataError(f"{bare_url(file.url)}: {error.message}", advice=error.advice) from None
        if file.sha256 is not None and target.sha256 != file.sha256:
            raise DataError(
                f"{bare_url(file.url)} has sha256 {target.sha256}, not {file.sha256}",
                advice="Its bytes are others than were declared: find out which are right before anything is built of them.",
            )
        return Fetched(target.size, target.sha256, etag=answer.etag)


def _lines(path: Path) -> Iterator[str]:
    """Lines of a text file, plain or gzip (of any number of members), without blank ones.

    Raises:
        DataError: if it is damaged, too large or not UTF-8.
    """
    size, rest = 0, b""
    try:
        for block in _unpacked(path):
            size += len(block)
            if size > MAX_INDEX_BYTES:
                raise DataError(f"the index has more than {MAX_INDEX_BYTES} bytes", advice="Use one of a part of the source.")
            *whole, rest = (rest + block).split(b"\n")
            yield from (line for raw in whole if (line := raw.decode().strip()))
        if last := rest.decode().strip():
            yield last
    except (zlib.error, EOFError, UnicodeDecodeError) as error:
        raise DataError(f"the index can't be read ({error})", advice="Give the address of a text file, plain or gzip.") from None


def _unpacked(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        packed = file.read(2) == b"\x1f\x8b"
        file.seek(0)
        if not packed:
            while block := file.read(BLOCK_BYTES):
                yield block
            return
        member = zlib.decompressobj(zlib.MAX_WBITS | 16)
        data = file.read(BLOCK_BYTES)
        while data:
            yield member.decompress(data, BLOCK_BYTES)
            if member.eof:
                data = member.unused_data or file.read(BLOCK_BYTES)
                member = zlib.decompressobj(zlib.MAX_WBITS | 16) if data else member
            else:
                data = member.unconsumed_tail or file.read(BLOCK_BYTES)
        if not member.eof:
            raise EOFError("gzip is cut short")
