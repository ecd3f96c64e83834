"""Records of WARC and WET archives."""

import io
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

from fastwarc.stream_io import BrotliReader, ChunkedReader, GzipReader
from fastwarc.warc import ArchiveIterator, WarcRecord, WarcRecordType

from marin_core.data.formats.config import Warc, Wet
from marin_core.data.formats.items import Extract, Item, Piece, RejectedError
from marin_core.data.formats.pages import Pages
from marin_core.data.limits import Limits
from marin_core.data.streams import DamagedStreamError, peeked
from marin_core.errors import DataError

HTML_TYPES = {"text/html", "application/xhtml+xml"}
READ_BYTES = 1 << 20


@dataclass
class WarcReader:
    """See `Warc` and `Wet`."""

    config: Warc | Wet
    limits: Limits
    pages: Pages | None
    notes: Counter[str]

    def items(self, piece: Piece) -> Iterator[Item]:
        head, stream = peeked(piece.stream)
        if head and not head.startswith(b"WARC/"):
            raise DataError(f"no WARC archive: it begins with {head[:20]!r}", advice="Choose the format that the units have.")
        source = _Source(stream)
        for record in ArchiveIterator(source, parse_http=self.pages is not None, stream_detect=False):
            item = self._item(record, source)
            if item is not None:
                yield item
        source.raise_failure()

    def _item(self, record: WarcRecord, source: "_Source") -> Item | None:
        """One record, whole; None for records that are not about content.

        Raises:
            DamagedStreamError: the archive ends in it. fastwarc and warcio take what is there for a record, without any error.
        """
        kind, offset = record.record_type, record.stream_pos
        promised = record.content_length
        wanted = WarcRecordType.response if self.pages is not None else WarcRecordType.conversion
        data, length, digest = self._content(record)
        if length < promised or record.headers.get("WARC-Type") is None:
            source.raise_failure()
            damaged = DamagedStreamError("truncated_unit", f"the record at byte {offset} has {length} of {promised} bytes")
            damaged.offset = offset
            raise damaged
        if kind == WarcRecordType.revisit:
            return Item(data, offset, length, digest, reason="revisit", detail="the page itself is in another record")
        if kind != wanted:
            self.notes[f"skipped_{record.headers.get('WARC-Type')}"] += 1
            return None
        reason, detail = self._unusable(record)
        return Item(data, offset, length, digest, reason=reason, detail=detail, fields=_fields(record))

    def _content(self, record: WarcRecord) -> tuple[bytes | None, int, str]:
        """(bytes, length, digest if too long): the content as it was sent."""
        pieces: list[bytes] = []
        length = 0
        digest = sha256()
        for chunk in iter(lambda: record.reader.read(READ_BYTES), b""):
            length += len(chunk)
            digest.update(chunk)
            if length <= self.limits.record_bytes:
                pieces.append(chunk)
            else:
                pieces.clear()
        too_long = length > self.limits.record_bytes
        return None if too_long else b"".join(pieces), length, digest.hexdigest()[:16] if too_long else ""

    def _unusable(self, record: WarcRecord) -> tuple[str, str]:
        """(reason, detail) if a record's headers say that it has no page; ("", "") if they don't."""
        if truncated := record.headers.get("WARC-Truncated"):
            return "warc_truncated", truncated
        if self.pages is None:
            return "", ""
        if not record.is_http_parsed:
            return "not_http", "no HTTP headers"
        status = record.http_headers.status_code
        if status != 200:
            return "http_status", str(status)
        kind = (record.headers.get("WARC-Identified-Payload-Type") or record.http_content_type or "").split(";")[0].strip().lower()
        if kind not in HTML_TYPES and kind:
            return "not_html", kind
        return "", ""

    def extract(self, item: Item, piece: Piece) -> Extract:
        assert item.data is not None  # noqa: S101  # the reader has rejected it
        metadata: dict[str, Any] = {key: value for key in ("url", "origin_id") if (value := item.fields.get(key))}
        if self.pages is None:
            try:
                return Extract(item.data.decode(), metadata, created=item.fields["date"])
            except UnicodeDecodeError as error:
                raise RejectedError("invalid_utf8", f"byte 0x{item.data[error.start]:02x} at {error.start} of the content") from None
        page = self._decoded(item.data, item.fields["transfer"], item.fields["encoding"])
        text, title = self.pages.text(page, item.fields["charset"])
        if title:
            metadata["title"] = title
        return Extract(text, metadata, created=item.fields["date"])

    def _decoded(self, data: bytes, transfer: str, encoding: str) -> bytes:
        """Undo chunked transfer and compression, up to the length of a record.

        Raises:
            RejectedError: `content_encoding` if it can't be undone, `record_too_long` if it expands too far.
        """
        stages = [name for name in (transfer, encoding) if name not in ("", "identity")]
        for stage in stages:
            make: Any = {"chunked": ChunkedReader, "gzip": GzipReader, "x-gzip": GzipReader, "br": BrotliReader}.get(stage)
            if make is None and stage == "deflate":
                make = lambda inner: GzipReader(inner, zlib=True)  # noqa: E731
            if make is None:
                raise RejectedError("content_encoding", stage)
            try:
                data = make(io.BytesIO(data)).read(self.limits.record_bytes + 1)
            except (OSError, ValueError) as error:
                raise RejectedError("content_encoding", f"{stage}: {error}") from None
            if len(data) > self.limits.record_bytes:
                raise RejectedError("record_too_long", f"more than {self.limits.record_bytes} bytes after {stage}")
        return data

    def close(self) -> None:
        if self.pages is not None:
            self.pages.close()


def _fields(record: WarcRecord) -> dict[str, Any]:
    http = record.http_headers if record.is_http_parsed else None
    return {
        "url": record.headers.get("WARC-Target-URI"),
        "origin_id": (record.headers.get("WARC-Record-ID") or "").strip("<>"),
        "date": record.headers.get("WARC-Date"),
        "charset": record.http_charset if http is not None else None,
        "transfer": (http.get("Transfer-Encoding") or "").strip().lower() if http is not None else "",
        "encoding": (http.get("Content-Encoding") or "").strip().lower() if http is not None else "",
    }


class _Source:
    """A stream in the shape that fastwarc asks for. An exception in a callback would abort its native code, so failures wait here."""

    def __init__(self, stream: Iterator[bytes]) -> None:
        self._stream = stream
        self._held = b""
        self._position = 0
        self._failure: Exception | None = None

    def read(self, size: int = -1) -> bytes:
        """Up to `size` bytes; none once the stream has ended or failed."""
        try:
            while not self._held and (chunk := next(self._stream, None)) is not None:
                self._held = chunk
        except Exception as error:
            self._failure = error
        data, self._held = (self._held, b"") if size < 0 else (self._held[:size], self._held[size:])
        self._position += len(data)
        return data

    def tell(self) -> int:
        """Bytes read so far."""
        return self._position

    def seek(self, offset: int, whence: int = 0) -> int:
        """It can't."""
        raise OSError("a stream")

    def close(self) -> None:
        """Nothing is held open."""

    def raise_failure(self) -> None:
        """Raise what went wrong in the stream, if anything did."""
        if self._failure is not None:
            raise self._failure
