"""Formats with one document a file: pages, PDF, plain text and source code."""

import re
import tokenize
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from io import BytesIO
from pathlib import PurePosixPath
from typing import Any

from marin_core.data.formats.config import CodeTree, HtmlFiles, PdfFiles, PlainText
from marin_core.data.formats.items import Extract, Item, Piece, RejectedError
from marin_core.data.formats.languages import language_of
from marin_core.data.formats.pages import Pages, extract_reason
from marin_core.data.limits import Limits
from marin_core.data.streams import UTF16_STARTS, whole
from marin_core.data.transforms.child import Child, ChildError

BINARY_HEAD_BYTES = 8_192


def _file(piece: Piece, limits: Limits) -> Iterator[Item]:
    """The whole piece as one item; none if it is empty."""
    record = whole(piece.stream, limits.record_bytes)
    if record.length:
        yield Item(record.data, record.offset, record.length, record.digest)


@dataclass
class HtmlReader:
    """See `HtmlFiles`."""

    config: HtmlFiles
    limits: Limits
    pages: Pages

    def items(self, piece: Piece) -> Iterator[Item]:
        yield from _file(piece, self.limits)

    def extract(self, item: Item, piece: Piece) -> Extract:
        assert item.data is not None  # noqa: S101  # the reader has rejected it
        text, title = self.pages.text(item.data)
        return Extract(text, {"origin_id": piece.name} | ({"title": title} if title else {}))

    def close(self) -> None:
        self.pages.close()


@dataclass
class PdfReader:
    """See `PdfFiles`."""

    config: PdfFiles
    limits: Limits
    _child: Child | None = None

    def items(self, piece: Piece) -> Iterator[Item]:
        yield from _file(piece, self.limits)

    def extract(self, item: Item, piece: Piece) -> Extract:
        assert item.data is not None  # noqa: S101  # the reader has rejected it
        if b"%PDF-" not in item.data[:1_024]:
            raise RejectedError("pdf_damaged", "no PDF header in the first 1,024 bytes")
        if self._child is None:
            self._child = Child("pdf", self.config.cpu_seconds)
        request = {"max_pages": self.config.max_pages, "min_characters_per_page": self.config.min_characters_per_page}
        try:
            answer, text = self._child.call(request, item.data)
        except ChildError as error:
            reason = extract_reason(error)
            raise RejectedError(reason.replace("extract_", "pdf_"), error.detail) from None
        metadata: dict[str, Any] = {"origin_id": piece.name}
        if answer["title"]:
            metadata["title"] = answer["title"]
        return Extract(text.decode(), metadata, created=answer["created"])

    def close(self) -> None:
        if self._child is not None:
            self._child.close()


@dataclass
class PlainTextReader:
    """See `PlainText`."""

    config: PlainText
    limits: Limits

    def items(self, piece: Piece) -> Iterator[Item]:
        yield from _file(piece, self.limits)

    def extract(self, item: Item, piece: Piece) -> Extract:
        assert item.data is not None  # noqa: S101  # the reader has rejected it
        return Extract(_utf8(item.data), {"origin_id": piece.name})

    def close(self) -> None: ...


@dataclass
class CodeReader:
    """See `CodeTree`."""

    config: CodeTree
    limits: Limits
    notes: Counter[str]

    def items(self, piece: Piece) -> Iterator[Item]:
        """The file, unless it stands in a folder to be skipped or is of no known language: that is counted."""
        folders = PurePosixPath(piece.name).parts[:-1]
        if not set(self.config.skipped_folders).isdisjoint(folders):
            self.notes["skipped_folder"] += 1
            return
        for item in _file(piece, self.limits):
            language = language_of(piece.name, item.data or b"")
            if language is None:
                self.notes["skipped_no_language"] += 1
            else:
                yield Item(item.data, item.offset, item.length, item.digest, fields={"lang": language})

    def extract(self, item: Item, piece: Piece) -> Extract:
        assert item.data is not None  # noqa: S101  # the reader has rejected it
        if b"\0" in item.data[:BINARY_HEAD_BYTES]:
            raise RejectedError("binary", "NUL in the first 8 KiB")
        text = _python(item.data) if item.fields["lang"] == "python" else _utf8(item.data)
        origin = f"{self.config.repository}@{self.config.commit}:{piece.name}" if self.config.repository else piece.name
        return Extract(text, {"origin_id": origin, "lang": item.fields["lang"]})

    def close(self) -> None: ...


def _utf8(data: bytes) -> str:
    """Text of a file in UTF-8; a byte order mark is no part of it.

    Raises:
        RejectedError: `encoding` if it is UTF-16, else `invalid_utf8` with the place.
    """
    for start, name in UTF16_STARTS.items():
        if data.startswith(start):
            raise RejectedError("encoding", f"it looks like {name}, not UTF-8")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise RejectedError("invalid_utf8", f"byte 0x{data[error.start]:02x} at {error.start}") from None


_COOKIE = re.compile(rb"^[ \t\f]*#.*?coding[:=][ \t]*[-\w.]+")


def _python(data: bytes) -> str:
    """Python source by its coding cookie (PEP 263), which is UTF-8 for nearly all."""
    if not any(_COOKIE.match(line) for line in data[:1_000].split(b"\n")[:2]):
        return _utf8(data)
    try:
        encoding, _ = tokenize.detect_encoding(BytesIO(data).readline)
        return data.decode(encoding)
    except (SyntaxError, UnicodeDecodeError, LookupError) as error:
        raise RejectedError("encoding", str(error)) from None
