"""Bytes of a file that may be compressed, cut short, damaged or a bomb, as a stream of records in bounded memory."""

import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, Protocol

import zstandard

from marin_core.data.config import Limits
from marin_core.errors import DataError

READ_BYTES = 1 << 18
SLICE_BYTES = {"gzip": 1 << 16, "zstd": 1 << 12}
"""Compressed bytes fed at a time: zeros expand 1,028-fold in gzip and 32,573-fold in zstd, so one slice stays below about 130 MB."""

UNSUPPORTED = {b"\xfd7zXZ\x00": "xz", b"BZh": "bzip2", b"PK\x03\x04": "zip", b"PAR1": "Parquet", b"\x28\xb5\x2f\xfe": "unknown"}
UTF16_STARTS = {
    b"\xff\xfe": "UTF-16 little-endian",
    b"\xfe\xff": "UTF-16 big-endian",
    b"{\x00": "UTF-16 little-endian",
    b"\x00{": "UTF-16 big-endian",
}


class DamagedStreamError(Exception):
    """The rest of a stream can't be read; `reason` is `truncated_unit`, `damaged_unit` or `archive_bomb`."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason = reason
        self.detail = detail
        self.offset = 0


class _Decompressor(Protocol):
    @property
    def eof(self) -> bool: ...

    @property
    def unused_data(self) -> bytes: ...

    def decompress(self, data: bytes, /) -> bytes: ...


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
    """`gzip`, `zstd` or `plain`, by magic bytes, whatever the file is called.

    Raises:
        DataError: naming what it is, if it is something that is no stream of lines.
    """
    if head.startswith(b"\x1f\x8b"):
        return "gzip"
    if head.startswith(b"\x28\xb5\x2f\xfd") or (len(head) >= 4 and head[1:4] == b"\x2a\x4d\x18" and 0x50 <= head[0] <= 0x5F):
        return "zstd"
    for magic, name in UNSUPPORTED.items():
        if head.startswith(magic):
            raise DataError(f"it is {name} data", advice="Store documents as JSONL: plain, gzip or zstd.")
    return "plain"


def chunks(path: Path, limits: Limits) -> Iterator[bytes]:
    """Decompressed bytes of a file; all gzip members and zstd frames are read.

    Raises:
        DamagedStreamError: at the place where it ends early, is damaged or expands beyond the allowed ratio. What came before has
            been yielded: the usual readers return the first part of a cut zstd file without any error.
    """
    with path.open("rb") as file:
        kind = compression_of(file.read(8))
        file.seek(0)
        if kind == "plain":
            while chunk := file.read(READ_BYTES):
                yield chunk
            return
        slices = iter(lambda: file.read(SLICE_BYTES[kind]), b"")
        allowed = max(limits.bomb_floor_bytes, limits.bomb_ratio * path.stat().st_size)
        make = _gzip_member if kind == "gzip" else _zstd_frame
        size = 0
        for chunk in _decompressed(slices, make):
            size += len(chunk)
            if size > allowed:
                yield chunk[: allowed - size]
                raise DamagedStreamError("archive_bomb", f"more than {limits.bomb_ratio} times its {path.stat().st_size} compressed bytes")
            yield chunk


def _gzip_member() -> _Decompressor:
    return zlib.decompressobj(31)


def _zstd_frame() -> _Decompressor:
    return zstandard.ZstdDecompressor(max_window_size=1 << 27).decompressobj()


def _decompressed(slices: Iterator[bytes], make: Callable[[], _Decompressor]) -> Iterator[bytes]:
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
                chunk = decompressor.decompress(rest)
            except (zlib.error, zstandard.ZstdError) as error:
                raise DamagedStreamError("damaged_unit", str(error)) from error
            if chunk:
                yield chunk
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
            while (end := chunk.find(b"\n", start)) >= 0:
                line.add(chunk[start:end])
                yield from line.finished()
                line = _Growing(line.offset + line.length + 1, max_bytes)
                start = end + 1
            line.add(chunk[start:])
    except DamagedStreamError as error:
        error.offset = line.offset
        raise
    yield from line.finished()


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

    def finished(self) -> Iterator[Line]:
        """The line, unless it is blank."""
        if self.length > self._max_bytes:
            yield Line(None, self.offset, self.length, self._digest.hexdigest()[:16])
            return
        data = b"".join(self._pieces)
        mark = 0
        if self.offset == 0:
            refuse_utf16(data)
            mark = 3 if data.startswith(b"\xef\xbb\xbf") else 0
        if len(data) > mark and not data.isspace():
            yield Line(data[mark:], mark or self.offset, self.length - mark)
