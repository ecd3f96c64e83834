"""Documents of a unit, one by one: each record becomes a document in normal form, or a rejection that says where and why."""

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from urllib.parse import unquote

from marin_core.artifact.canonical import canonical_json
from marin_core.artifact.record import file_sha256
from marin_core.data.formats.archives import Opener
from marin_core.data.formats.config import Archived, Format, Jsonl, TextFormat
from marin_core.data.formats.items import Extract, Item, Piece, RejectedError
from marin_core.data.formats.make import OpenReader, make_reader
from marin_core.data.limits import Limits
from marin_core.data.normal_form import document_id, normal_form
from marin_core.data.streams import DamagedStreamError, chunks, compression_of
from marin_core.data.transforms.unicode import prepare
from marin_core.data.units import Unit
from marin_core.errors import ConfigError, DataError

SAMPLE_CHARACTERS = 200
SUFFIXES = {
    ".gz": "gzip",
    ".gzip": "gzip",
    ".tgz": "gzip",
    ".zst": "zstd",
    ".zstd": "zstd",
    ".bz2": "bzip2",
    ".tbz2": "bzip2",
    ".xz": "xz",
    ".txz": "xz",
}


@dataclass(frozen=True)
class Document:
    """One document in normal form; the columns of a shard (spec: data §1.1).

    Attributes:
        id: xxh3-128 of `text`, 32 lower-case hex digits.
        text: not empty, in normal form.
        source: `artifact/domain`.
        added: RFC 3339 time at which the raw unit was acquired; None for generated sources.
        created: when the document was written, as precisely as known.
        metadata: one canonical JSON object.
        bytes: UTF-8 length of the text.
    """

    id: str
    text: str
    source: str
    added: str | None
    created: str | None
    metadata: str
    bytes: int


@dataclass(frozen=True)
class Rejection:
    """A record that can't be a document.

    Attributes:
        reason: one of the closed set of reasons.
        detail: what the parser said, or a size.
        unit: path of the unit; behind it `!/` and the name of the member, if it is an archive.
        offset: of the record in the decompressed unit or member of an archive: bytes, or rows of a table.
        length: of the record in bytes.
        sha256_16: first 16 hex digits of the sha256 of its raw bytes.
        sample: first 200 characters, controls escaped, personal data masked.
    """

    reason: str
    detail: str
    unit: str
    offset: int
    length: int
    sha256_16: str
    sample: str


@dataclass(frozen=True)
class UnitReader:
    """Reads units of one raw source. A context manager: some formats hold a child process.

    Attributes:
        raw: folder of the raw artifact.
        source: its name, first part of the `source` column.
        limits: sizes above which records are rejected.
        on_truncated: `fail`, or `reject` the tail of a cut unit.
        notes: counts what was repaired, skipped or odd (`repaired_…`, `skipped_…`, `extension_mismatch`, `empty_unit`).
        format: what the units hold.
    """

    raw: Path
    source: str
    limits: Limits
    on_truncated: str
    notes: Counter[str]
    format: Format = field(default_factory=Jsonl)

    def read(self, unit: Unit) -> Iterator[Document | Rejection]:
        """Documents and rejections of a unit, in its order.

        Raises:
            DataError: naming the unit, if it is missing, not what `units.json` promises, of another encoding or kind, or cut short.
        """
        path = self.raw / unit.path
        try:
            if file_sha256(path) != unit.sha256:
                raise DataError("checksum: its bytes differ from units.json", advice="Rebuild the raw source artifact.")
            yield from self._read(path, unit)
        except OSError as error:
            raise DataError(f"unit {unit.path!r} can't be read ({error})", advice="Rebuild the raw source artifact.") from error
        except DataError as error:
            raise DataError(f"unit {unit.path!r}: {error.message}", advice=error.advice) from error

    def __enter__(self) -> "UnitReader":
        return self

    def __exit__(self, *_: object) -> None:
        self._reader.close()

    @cached_property
    def _reader(self) -> OpenReader:
        return make_reader(self.format, self.limits, self.notes)

    def _read(self, path: Path, unit: Unit) -> Iterator[Document | Rejection]:
        with path.open("rb") as file:
            kind = compression_of(file.read(8))
        named = next((expected for suffix, expected in SUFFIXES.items() if path.name.endswith(suffix)), "plain")
        if kind != named:
            self.notes["extension_mismatch"] += 1
        empty = True
        name = unquote(unit.origin, errors="surrogateescape") if unit.origin else Path(unit.path).name
        piece = Piece(unit.path, name, path, chunks(path, self.limits))
        try:
            for member in self._pieces(piece, unit):
                for record in self._records(member, unit):
                    empty = False
                    yield record
        except DamagedStreamError as error:
            empty = False
            yield self._damaged(error, unit.path)
        if empty:
            self.notes["empty_unit"] += 1

    def _pieces(self, piece: Piece, unit: Unit) -> Iterator[Piece]:
        if isinstance(self.format, Archived):
            return Opener(self.format, self.limits, self.notes).pieces(piece, unit.size)
        return iter([piece])

    def _records(self, piece: Piece, unit: Unit) -> Iterator[Document | Rejection]:
        """Documents and rejections of a file; what is wrong with one member of an archive is no harm to the next ones."""
        try:
            for item in self._reader.items(piece):
                yield self._record(item, piece, unit)
        except DamagedStreamError as error:
            if not error.member:
                raise
            yield self._damaged(error, piece.unit)

    def _damaged(self, error: DamagedStreamError, unit: str) -> Rejection:
        """The row for the part of a unit that can't be read.

        Raises:
            DataError: if that is to fail. A bomb never does: its unit is what is wrong, not the copy of it.
        """
        if self.on_truncated == "fail" and error.reason != "archive_bomb":
            raise DataError(
                f"{error.reason} at byte {error.offset} of the decompressed stream: {error.detail}",
                advice="Fetch the file again, or set on_truncated to 'reject' to keep its whole records.",
            ) from error
        return Rejection(error.reason, error.detail[:SAMPLE_CHARACTERS], unit, error.offset, 0, "", "")

    def _record(self, item: Item, piece: Piece, unit: Unit) -> Document | Rejection:
        try:
            if item.data is None:
                raise RejectedError("record_too_long", f"{item.length} bytes, at most {self.limits.record_bytes} are read")
            if item.reason:
                raise RejectedError(item.reason, item.detail)
            return self._document(self._reader.extract(item, piece), item, piece, unit)
        except RejectedError as rejected:
            data = item.data or b""
            digest = item.digest or sha256(data).hexdigest()[:16]
            detail = rejected.detail[:SAMPLE_CHARACTERS]
            return Rejection(rejected.reason, detail, piece.unit, item.offset, item.length, digest, sample_of(data))

    def _document(self, extract: Extract, item: Item, piece: Piece, unit: Unit) -> Document:
        text, prepared = prepare(extract.text, self.format) if isinstance(self.format, TextFormat) else (extract.text, [])
        text, repairs = normal_form(text)
        if not text:
            raise RejectedError("no_text", "empty in normal form")
        size = len(text) if text.isascii() else len(text.encode())
        if size > self.limits.text_bytes:
            raise RejectedError("text_too_long", f"{size} bytes, at most {self.limits.text_bytes} are kept")
        metadata = self._metadata(extract, item, piece)
        self.notes.update(f"repaired_{repair}" for repair in (*prepared, *repairs))
        return Document(
            id=document_id(text),
            text=text,
            source=f"{self.source}/{unit.domain}",
            added=extract.added or unit.acquired,
            created=extract.created,
            metadata=metadata,
            bytes=size,
        )

    def _metadata(self, extract: Extract, item: Item, piece: Piece) -> str:
        try:
            encoded = canonical_json(extract.metadata | {"unit": piece.unit, "offset": item.offset})
        except (UnicodeEncodeError, ConfigError):
            raise RejectedError("bad_json", "lone surrogate in the metadata") from None
        if len(encoded) > self.limits.metadata_bytes:
            raise RejectedError("metadata_too_large", f"{len(encoded)} bytes, at most {self.limits.metadata_bytes} are kept")
        return encoded.decode()


_PERSONAL = re.compile(r"[\w.+-]{1,64}@[\w-]{1,64}\.[\w.-]{1,64}|\d[\d ./-]{5,}\d")


def sample_of(data: bytes | str) -> str:
    """The first 200 characters for people: controls escaped, e-mail addresses and long numbers masked."""
    text = data[: 4 * SAMPLE_CHARACTERS].decode(errors="backslashreplace") if isinstance(data, bytes) else data
    masked = _PERSONAL.sub("<masked>", text[:SAMPLE_CHARACTERS])
    return "".join(char if char.isprintable() else char.encode("unicode_escape", "backslashreplace").decode() for char in masked)
