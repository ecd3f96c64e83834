"""Bytes of a file that may be compressed, cut short, damaged or a bomb, as a stream of records in bounded memory."""

import bz2
import lzma
import re
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from hashlib import sha256
from itertools import chain
from pathlib import Path
from typing import Any, Protocol

import zstandard

from marin_core.data.limits import Limits
from marin_core.errors import DataError

READ_BYTES = 1 << 18
SLICE_BYTES = {"gzip": 1 << 16, "zstd": 1 << 12, "bzip2": 1 << 16, "xz": 1 << 16}
"""Compressed bytes fed at a time: zeros expand 1,028-fold in gzip and 32,573-fold in zstd, so one slice stays below about 130 MB.
bzip2 (884,955-fold) and xz are asked for a bounded output instead."""
XZ_MEMORY_BYTES = 256 << 20
HEAD_BYTES = 512
"""As much of a stream as tells what it is: the mark of a tar stands at 257."""

UNSUPPORTED = {b"\x28\xb5\x2f\xfe": "unknown"}
MAGIC = {b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstd", b"\xfd7zXZ\x00": "xz", b"BZh": "bzip2"}
CONTAINERS = {b"PK\x03\x04": "zip", b"PK\x05\x06": "zip", b"PAR1": "Parquet"}
UTF16_STARTS = {
    b"\xff\xfe": "UTF-16 little-endian",
    b"\xfe\xff": "UTF-16 big-endian",
    b"{\x00": "UTF-16 little-endian",
    b"\x00{": "UTF-16 big-endian",
}


class DamagedStreamError(Exception):
    """The rest of a stream can't be read; `reason` is `truncated_unit`, `damaged_unit` or `archive_bomb`.

    Attributes:
        offset: in the decompressed stream, where what could not be read begins.
        member: True if only a member of an archive is damaged, so that the members after it can be read; False if it is the archive;
            None while that is not known.
    """

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason = reason
        self.detail = detail
        self.offset = 0
        self.member: bool | None = None


class _Decompressor(Protocol):
    @property
    def eof(self) -> bool: ...

    @property
    def unused_data(self) -> bytes: ...

    def feed(self, data: bytes) -> Iterator[bytes]: ...


@dataclass(frozen=True)
class Line:
    """One line of a unit.

    Attributes:
        data: its bytes without the line feed; None if it was longer than allowed.
        offset: of its first byte in the decompressed stream.
        length: in bytes.
        digest: first 16 hex digits of the sha256 of a line that was too long, else "".
    """

    data: bytes | None
    offset: int
    length: int
    digest: str = ""


def compression_of(head: bytes) -> str:
    """`gzip`, `zstd`, `bzip2`, `xz` or `plain`, by magic bytes, whatever the file is called.

    Raises:
        DataError: if it is zstd data of a kind that nobody reads any more.
    """
    for magic, name in MAGIC.items():
        if head.startswith(magic):
            return name
    if len(head) >= 4 and head[1:4] == b"\x2a\x4d\x18" and 0x50 <= head[0] <= 0x5F:
        return "zstd"  # begins with a frame to be skipped
    for magic, name in UNSUPPORTED.items():
        if head.startswith(magic):
            raise DataError(f"it is {name} data", advice="Store it plain, or in gzip, zstd, bzip2 or xz.")
    return "plain"


def container_of(head: bytes) -> str | None:
    """`zip`, `tar` or `Parquet` if that is what decompressed bytes begin with."""
    if head[257:262] == b"ustar":
        return "tar"
    return next((name for magic, name in CONTAINERS.items() if head.startswith(magic)), None)


def chunks(path: Path, limits: Limits) -> Iterator[bytes]:
    """Decompressed bytes of a file; see `decompressed`."""
    with path.open("rb") as file:
        size = path.stat().st_size
        kind = compression_of(file.read(8))
        file.seek(0)
        yield from decompressed(iter(lambda: file.read(SLICE_BYTES.get(kind, READ_BYTES)), b""), kind, size, limits)


def decompressed(stream: Iterable[bytes], kind: str, size: int, limits: Limits) -> Iterator[bytes]:
    """Decompressed bytes of a stream; all gzip members, zstd frames, bzip2 and xz streams are read.

    Args:
        kind: as `compression_of` tells.
        size: of the stream in bytes; what it may expand to is measured by it.

    Raises:
        DamagedStreamError: at the place where it ends early, is damaged or expands beyond the allowed ratio. What came before has
            been yielded: the usual readers return the first part of a cut zstd file without any error.
    """
    if kind == "plain":
        yield from stream
        return
    allowed = max(limits.bomb_floor_bytes, limits.bomb_ratio * size)
    out = 0
    for chunk in _members(_slices(stream, SLICE_BYTES[kind]), _MAKE[kind]):
        out += len(chunk)
        if out > allowed:
            yield chunk[: len(chunk) - (out - allowed)]
            raise DamagedStreamError("archive_bomb", f"more than {limits.bomb_ratio} times its {size} compressed bytes")
        yield chunk


def peeked(stream: Iterator[bytes], size: int = HEAD_BYTES) -> tuple[bytes, Iterator[bytes]]:
    """The first bytes of a stream, and the whole stream."""
    held = []
    seen = 0
    for chunk in stream:
        held.append(chunk)
        seen += len(chunk)
        if seen >= size:
            break
    return b"".join(held)[:size], chain(held, stream)


def _slices(stream: Iterable[bytes], size: int) -> Iterator[bytes]:
    for chunk in stream:
        for start in range(0, len(chunk), size):
            yield chunk[start : start + size]


class _Sliced:
    """A decompressor that gives all that a slice expands to."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    @property
    def eof(self) -> bool:
        return bool(self._inner.eof)

    @property
    def unused_data(self) -> bytes:
        return bytes(self._inner.unused_data)

    def feed(self, data: bytes) -> Iterator[bytes]:
        yield self._inner.decompress(data)


class _Bounded(_Sliced):
    """A decompressor that gives what a slice expands to in pieces."""

    def feed(self, data: bytes) -> Iterator[bytes]:
        yield self._inner.decompress(data, READ_BYTES)
        while not self._inner.eof and not self._inner.needs_input:
            yield self._inner.decompress(b"", READ_BYTES)


_MAKE: dict[str, Callable[[], _Decompressor]] = {
    "gzip": lambda: _Sliced(zlib.decompressobj(31)),
    "zstd": lambda: _Sliced(zstandard.ZstdDecompressor(max_window_size=1 << 27).decompressobj()),
    "bzip2": lambda: _Bounded(bz2.BZ2Decompressor()),
    "xz": lambda: _Bounded(lzma.LZMADecompressor(memlimit=XZ_MEMORY_BYTES)),
}


def _members(slices: Iterator[bytes], make: Callable[[], _Decompressor]) -> Iterator[bytes]:
    """Decompress consecutive members or frames; the end of the last one must be seen."""
    decompressor: _Decompressor | None = None
    for data in slices:
        rest = data
        while rest:
            if decompressor is None:
                rest = rest.lstrip(b"\0")  # tapes and some writers pad with zeros after a member
                if not rest:
                    break
                decompressor = make()
            try:
                yield from filter(None, decompressor.feed(rest))
            except (zlib.error, zstandard.ZstdError, lzma.LZMAError, OSError, ValueError) as error:
                raise DamagedStreamError("damaged_unit", str(error)) from error
            rest = b""
            if decompressor.eof:
                rest = decompressor.unused_data
                decompressor = None
    if decompressor is not None:
        raise DamagedStreamError("truncated_unit", "the compressed stream ends before its end mark")


def refuse_utf16(head: bytes) -> None:
    """Raise DataError if the first bytes of a text are UTF-16."""
    for start, name in UTF16_STARTS.items():
        if head.startswith(start):
            raise DataError(f"encoding: it looks like {name}, not UTF-8", advice="Convert the file to UTF-8.")


_BLANK_LINES = re.compile(rb"[ \t\r\n]*\n")


def lines(stream: Iterator[bytes], max_bytes: int) -> Iterator[Line]:
    """Lines of a stream, empty ones left out; one longer than `max_bytes` is measured and hashed but never held.

    Raises:
        DamagedStreamError: from the stream, with `offset` set to the first byte that is not part of a yielded line.
        DataError: if the stream is UTF-16.
    """
    line = _Growing(0, max_bytes)
    try:
        for chunk in stream:
            start = 0
            while True:
                if not line.length and chunk[start : start + 1].isspace() and (blank := _BLANK_LINES.match(chunk, start)):
                    line = _Growing(line.offset + blank.end() - start, max_bytes)
                    start = blank.end()
                end = chunk.find(b"\n", start)
                if end < 0:
                    break
                line.add(chunk[start:end])
                yield from line.finished()
                line = _Growing(line.offset + line.length + 1, max_bytes)
                start = end + 1
            line.add(chunk[start:])
    except DamagedStreamError as error:
        error.offset = line.offset
        raise
    yield from line.finished()


def whole(stream: Iterable[bytes], max_bytes: int) -> Line:
    """A stream as one record; if it is longer than `max_bytes` it is measured and hashed but never held."""
    record = _Growing(0, max_bytes)
    for chunk in stream:
        record.add(chunk)
    return record.record()


class _Growing:
    """A line of which only a part has been seen."""

    def __init__(self, offset: int, max_bytes: int) -> None:
        self.offset = offset
        self.length = 0
        self._max_bytes = max_bytes
        self._pieces: list[bytes] = []
        self._digest: Any = None

    def add(self, piece: bytes) -> None:
        """Append bytes; once the line is too long they are only counted and hashed."""
        self.length += len(piece)
        self._pieces.append(piece)
        if self.length > self._max_bytes:
            self._digest = self._digest or sha256()
            for held in self._pieces:
                self._digest.update(held)
            self._pieces = []

    def record(self) -> Line:
        """What was added, blank or not."""
        if self.length > self._max_bytes:
            return Line(None, self.offset, self.length, self._digest.hexdigest()[:16])
        return Line(b"".join(self._pieces), self.offset, self.length)

    def finished(self) -> Iterator[Line]:
        """The line, unless it is blank; a byte order mark is no part of it."""
        line = self.record()
        if line.data is None:
            yield line
            return
        mark = 0
        if self.offset == 0:
            refuse_utf16(line.data)
            mark = 3 if line.data.startswith(b"\xef\xbb\xbf") else 0
        if len(line.data) > mark and not line.data.isspace():
            yield Line(line.data[mark:], mark or self.offset, self.length - mark)
