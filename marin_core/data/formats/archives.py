"""Files inside archives, as streams: no member is ever written under its own name, or at all."""

import errno
import struct
import tarfile
import zipfile
import zlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from io import BytesIO
from itertools import pairwise
from pathlib import PurePosixPath
from typing import IO, Any, cast

from marin_core.data.formats.config import Archived
from marin_core.data.formats.items import Piece
from marin_core.data.limits import MIB, Limits
from marin_core.data.streams import (
    READ_BYTES,
    DamagedStreamError,
    compression_of,
    container_of,
    decompressed,
    peeked,
    whole,
)

MAX_NESTING = 2
HEADER_BYTES = 4 * MIB
"""More than that between two members of a tar is no header: long names and extended headers are read into memory."""
DIRECTORY_BYTES = 128 * MIB
"""Longest directory of a zip; zipfile reads all of it into memory."""
READABLE = {zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED}
"""What zipfile expands in bounded memory; its bzip2 turns 4 KiB into gigabytes at once."""


@dataclass(frozen=True)
class Opener:
    """Opens units that may be archives.

    Attributes:
        config: which members are read, and how many at most.
        notes: counts members that are left out: `member_skipped_<why>`.
    """

    config: Archived
    limits: Limits
    notes: Counter[str]

    def pieces(self, piece: Piece, size: int, depth: int = 0) -> Iterator[Piece]:
        """The piece itself, or the members of the archive that it is, in their order there.

        Args:
            piece: its stream is decompressed.
            size: of the unit or member as stored, in bytes.

        Raises:
            DamagedStreamError: the archive is cut, damaged or a bomb.
        """
        head, stream = peeked(piece.stream)
        kind = container_of(head)
        piece = replace(piece, stream=stream)
        if kind not in ("tar", "zip"):
            yield piece
            return
        if depth == MAX_NESTING:
            raise DamagedStreamError("archive_bomb", f"archives nested more than {MAX_NESTING} deep")
        members = self._tar_members(piece) if kind == "tar" else self._zip_members(piece, size)
        for member, member_size in members:
            yield from self._opened(member, member_size, depth + 1)

    def _opened(self, member: Piece, size: int, depth: int) -> Iterator[Piece]:
        try:
            head, stream = peeked(member.stream)
            inner = _of_member(decompressed(stream, compression_of(head), size, self.limits))
            for piece in self.pieces(replace(member, stream=inner), size, depth):
                if piece.unit != member.unit or fnmatchcase(piece.name, self.config.members):
                    yield piece
                else:
                    self.notes["member_skipped_pattern"] += 1
        except DamagedStreamError as error:
            if error.member is False or error.reason == "archive_bomb":
                raise
            error.member = True
            yield replace(member, stream=_failing(error))

    def _wanted(self, name: str) -> bool:
        """Whether a member may be read by its name; counts it if not."""
        if name.startswith("/") or ".." in PurePosixPath(name.replace("\\", "/")).parts or name[1:2] == ":":
            self.notes["member_skipped_unsafe_name"] += 1
            return False
        return True

    def _tar_members(self, archive: Piece) -> Iterator[tuple[Piece, int]]:
        source = _Budgeted(archive.stream, self.config.max_expanded_bytes)
        try:
            with tarfile.open(fileobj=cast(IO[bytes], source), mode="r|", errors="surrogateescape") as tar:
                seen = 0
                while (info := tar.next()) is not None:
                    tar.members = []  # type: ignore[attr-defined]  # else it keeps all of them
                    seen += 1
                    if seen > self.config.max_members:
                        raise DamagedStreamError("archive_bomb", f"tar: more than {self.config.max_members} members")
                    source.allow(info.size)
                    if info.isdir():
                        continue
                    if not info.isreg() or info.issparse():
                        self.notes["member_skipped_link" if info.issym() or info.islnk() else "member_skipped_special"] += 1
                    elif self._wanted(info.name):
                        file = tar.extractfile(info)
                        assert file is not None  # noqa: S101  # it is regular
                        yield _member(archive, info.name, _read(file)), info.size
                source.finish(tar.fileobj)
        except (tarfile.TarError, EOFError) as error:
            reason = "truncated_unit" if "unexpected end" in str(error) or isinstance(error, EOFError) else "damaged_unit"
            raise DamagedStreamError(reason, f"tar: {error}") from error

    def _zip_members(self, archive: Piece, size: int) -> Iterator[tuple[Piece, int]]:
        file = self._seekable(archive)
        try:
            self._check_directory(file)
            with zipfile.ZipFile(file) as opened:
                out = 0
                overlapping = _overlapping(opened.infolist())
                for info in opened.infolist():
                    if info.is_dir() or not self._wanted(info.filename):
                        continue
                    if why := _unreadable(info, overlapping):
                        self.notes[f"member_skipped_{why}"] += 1
                        continue
                    allowed = min(max(self.limits.bomb_floor_bytes, self.limits.bomb_ratio * size), self.config.max_expanded_bytes) - out
                    stream = _counted(opened, info, allowed)
                    yield _member(archive, info.filename, stream), info.compress_size
                    out += info.file_size
        except (zipfile.BadZipFile, NotImplementedError, struct.error, zlib.error, EOFError) as error:
            raise DamagedStreamError("damaged_unit", f"zip: {error}") from error
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
            raise DamagedStreamError("damaged_unit", "zip: an offset in its directory is negative") from error
        finally:
            file.close()

    def _seekable(self, archive: Piece) -> IO[bytes]:
        """The bytes of a zip: its directory stands at the end."""
        if archive.path is not None:
            with archive.path.open("rb") as file:
                if compression_of(file.read(8)) == "plain":
                    return archive.path.open("rb")
        held = whole(archive.stream, self.limits.record_bytes)
        if held.data is None:
            raise DamagedStreamError("archive_bomb", f"a zip of {held.length} bytes inside another archive")
        return BytesIO(held.data)

    def _check_directory(self, file: IO[bytes]) -> None:
        """Refuse a directory that would not fit into memory, before zipfile reads it."""
        size = file.seek(0, 2)
        file.seek(max(0, size - 65_557))
        tail = file.read()
        at = tail.rfind(b"PK\x05\x06")
        if at < 0 or len(tail) < at + 22:
            raise DamagedStreamError("truncated_unit", "zip: its directory is missing")
        entries, directory = struct.unpack("<HI", tail[at + 10 : at + 16])
        wide = tail.rfind(b"PK\x06\x06", 0, at)
        if wide >= 0 and at - wide >= 56:
            entries, directory = struct.unpack("<QQ", tail[wide + 32 : wide + 48])
        if entries > self.config.max_members or directory > DIRECTORY_BYTES:
            raise DamagedStreamError("archive_bomb", f"zip: {entries} members, a directory of {directory} bytes")


def _member(archive: Piece, name: str, stream: Iterator[bytes]) -> Piece:
    shown = name.encode(errors="surrogateescape").decode(errors="backslashreplace")
    escaped = "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in shown)
    return Piece(unit=f"{archive.unit}!/{escaped}", name=escaped, path=None, stream=stream)


def _read(file: IO[bytes]) -> Iterator[bytes]:
    """Bytes of a tar's member. What goes wrong here goes wrong for the archive."""
    try:
        yield from iter(lambda: file.read(READ_BYTES), b"")
    except tarfile.TarError as error:
        damaged = DamagedStreamError("truncated_unit", f"tar: {error}")
        damaged.member = False
        raise damaged from error
    except DamagedStreamError as error:
        error.member = False
        raise


def _of_member(stream: Iterator[bytes]) -> Iterator[bytes]:
    """What goes wrong here, and not already with the archive, goes wrong for one member alone."""
    try:
        yield from stream
    except DamagedStreamError as error:
        if error.member is None and error.reason != "archive_bomb":
            error.member = True
        raise


def _failing(error: DamagedStreamError) -> Iterator[bytes]:
    yield b""
    raise error


def _counted(archive: zipfile.ZipFile, info: zipfile.ZipInfo, allowed: int) -> Iterator[bytes]:
    """Bytes of a zip's member, at most as many as are allowed; its checksum is verified at the end."""
    out = 0
    try:
        with archive.open(info) as file:
            for chunk in iter(lambda: file.read(READ_BYTES), b""):
                out += len(chunk)
                if out > allowed:
                    raise DamagedStreamError("archive_bomb", f"zip: member of {info.compress_size} bytes expands beyond the limit")
                yield chunk
    except (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError, ValueError, OSError) as error:
        if isinstance(error, OSError) and error.errno != errno.EINVAL:
            raise  # a disk's error; a negative offset is the archive's
        raise DamagedStreamError("damaged_unit", f"member: {error}") from error


def _unreadable(info: zipfile.ZipInfo, overlapping: frozenset[int]) -> str:
    """Why a member of a zip is left out; "" if it isn't."""
    mode = info.external_attr >> 16
    if mode & 0o170000 == 0o120000:
        return "link"
    if mode & 0o170000 not in (0, 0o100000):
        return "special"
    if info.flag_bits & 0x41:
        return "encrypted"
    if info.header_offset in overlapping:
        return "overlapping"
    return "" if info.compress_type in READABLE else "unsupported"


def _overlapping(members: list[zipfile.ZipInfo]) -> frozenset[int]:
    """Offsets of members that reach into the next one, by which a small zip expands without end (Fifield, "A better zip bomb", 2019)."""
    ordered = sorted(members, key=lambda info: info.header_offset)
    found = set()
    for info, following in pairwise(ordered):
        if info.header_offset + 30 + len(info.orig_filename.encode(errors="replace")) + info.compress_size > following.header_offset:
            found |= {info.header_offset}
    return frozenset(found)


class _Budgeted:
    """A stream with a `read`, which ends with an error once more is asked for than members may hold."""

    def __init__(self, stream: Iterator[bytes], max_bytes: int) -> None:
        self._stream = stream
        self._held = b""
        self._tail = b""
        self._max_bytes = max_bytes
        self._out = 0
        self._budget = HEADER_BYTES

    def allow(self, size: int) -> None:
        """Note that a member of `size` bytes follows, and then a header."""
        self._budget = self._out + size + HEADER_BYTES

    def read(self, size: int = -1) -> bytes:
        """Up to `size` bytes; fewer only at the end."""
        pieces = [self._held]
        have = len(self._held)
        while have < size and (chunk := next(self._stream, None)) is not None:
            pieces.append(chunk)
            have += len(chunk)
        data = b"".join(pieces)
        self._held = data[size:]
        data = data[:size]
        self._out += len(data)
        if self._out > self._max_bytes:
            raise DamagedStreamError("archive_bomb", f"tar: more than {self._max_bytes} bytes")
        if self._out > self._budget:
            raise DamagedStreamError("archive_bomb", f"tar: a header of more than {HEADER_BYTES} bytes")
        self._tail = (self._tail + data)[-512:]
        return data

    def finish(self, tar: Any) -> None:
        """Read the rest, to see that nothing follows but zeros: tarfile takes a cut or a broken header for the end.

        Raises:
            DamagedStreamError: something does, or the end mark is missing.
        """
        self._budget = self._max_bytes
        for data in iter(lambda: tar.read(READ_BYTES), b""):
            if data.strip(b"\0"):
                raise DamagedStreamError("damaged_unit", "tar: a header is broken")
        if self._tail.strip(b"\0") or not self._tail:
            raise DamagedStreamError("truncated_unit", "tar: it ends before its end mark")
