"""Documents of a unit, one by one: each line becomes a document in normal form, or a rejection that says where and why."""

import json
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, NoReturn

from marin_core.artifact.canonical import canonical_json
from marin_core.artifact.record import file_sha256
from marin_core.data.config import Limits
from marin_core.data.normal_form import document_id, normal_form
from marin_core.data.streams import DamagedStreamError, Line, chunks, compression_of, lines
from marin_core.data.units import Unit
from marin_core.errors import DataError

KEPT_METADATA = ("url", "lang", "license", "origin_id", "title", "group")
"""What a record may say about itself; `unit` and `offset` are added here."""

SAMPLE_CHARACTERS = 200
SUFFIXES = {".gz": "gzip", ".gzip": "gzip", ".zst": "zstd", ".zstd": "zstd"}


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
        unit: path of the unit.
        offset: of the record in the decompressed unit, in bytes.
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


class RejectedError(Exception):
    """A record is unusable; carries the reason."""

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(reason)
        self.reason = reason
        self.detail = detail


@dataclass(frozen=True)
class UnitReader:
    """Reads units of one raw source.

    Attributes:
        raw: folder of the raw artifact.
        source: its name, first part of the `source` column.
        limits: sizes above which records are rejected.
        on_truncated: `fail`, or `reject` the tail of a cut unit.
        notes: counts what was repaired or odd (`repaired_…`, `extension_mismatch`, `empty_unit`).
    """

    raw: Path
    source: str
    limits: Limits
    on_truncated: str
    notes: Counter[str]

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

    def _read(self, path: Path, unit: Unit) -> Iterator[Document | Rejection]:
        with path.open("rb") as file:
            kind = compression_of(file.read(8))
        named = next((expected for suffix, expected in SUFFIXES.items() if path.name.endswith(suffix)), "plain")
        if kind != named:
            self.notes["extension_mismatch"] += 1
        empty = True
        try:
            for line in lines(chunks(path, self.limits), self.limits.record_bytes):
                empty = False
                yield self._record(line, unit)
        except DamagedStreamError as error:
            if self.on_truncated == "fail" and error.reason != "archive_bomb":
                raise DataError(
                    f"{error.reason} at byte {error.offset} of the decompressed stream: {error.detail}",
                    advice="Fetch the file again, or set on_truncated to 'reject' to keep its whole records.",
                ) from error
            empty = False
            yield Rejection(error.reason, error.detail, unit.path, error.offset, 0, "", "")
        if empty:
            self.notes["empty_unit"] += 1

    def _record(self, line: Line, unit: Unit) -> Document | Rejection:
        try:
            return self._document(line, unit)
        except RejectedError as rejected:
            data = line.data or b""
            digest = line.digest or sha256(data).hexdigest()[:16]
            return Rejection(
                rejected.reason, rejected.detail[:SAMPLE_CHARACTERS], unit.path, line.offset, line.length, digest, sample_of(data)
            )

    def _document(self, line: Line, unit: Unit) -> Document:
        if line.data is None:
            raise RejectedError("record_too_long", f"{line.length} bytes, at most {self.limits.record_bytes} are read")
        record = parse_record(line.data, line.offset)
        text, repairs = normal_form(record["text"])
        if not text:
            raise RejectedError("no_text", "empty in normal form")
        size = len(text) if text.isascii() else len(text.encode())
        if size > self.limits.text_bytes:
            raise RejectedError("text_too_long", f"{size} bytes, at most {self.limits.text_bytes} are kept")
        metadata = self._metadata(record, line, unit)
        self.notes.update(f"repaired_{repair}" for repair in repairs)
        added, created = record.get("added"), record.get("created")
        return Document(
            id=document_id(text),
            text=text,
            source=f"{self.source}/{unit.domain}",
            added=added if isinstance(added, str) else unit.acquired,
            created=created if isinstance(created, str) else None,
            metadata=metadata,
            bytes=size,
        )

    def _metadata(self, record: dict[str, Any], line: Line, unit: Unit) -> str:
        given = record.get("metadata")
        kept = {key: given[key] for key in KEPT_METADATA if given.get(key) is not None} if isinstance(given, dict) else {}
        identity = record.get("id")
        if isinstance(identity, str | int):
            kept.setdefault("origin_id", str(identity))
        try:
            encoded = canonical_json(kept | {"unit": unit.path, "offset": line.offset})
        except UnicodeEncodeError:
            raise RejectedError("bad_json", "lone surrogate in the metadata") from None
        if len(encoded) > self.limits.metadata_bytes:
            raise RejectedError("metadata_too_large", f"{len(encoded)} bytes, at most {self.limits.metadata_bytes} are kept")
        return encoded.decode()


def parse_record(data: bytes, offset: int = 0) -> dict[str, Any]:
    """Parse one line strictly: valid UTF-8, RFC 8259 JSON (no NaN), an object whose `text` is a string without lone surrogates.

    Raises:
        RejectedError: `invalid_utf8`, `bad_json`, `not_object`, `no_text` or `text_type`; details give byte offsets in the unit.
    """
    try:
        decoded = data.decode()
    except UnicodeDecodeError as error:
        raise RejectedError("invalid_utf8", f"byte 0x{data[error.start]:02x} at {offset + error.start}") from None
    try:
        record = _DECODER.decode(decoded)
    except json.JSONDecodeError as error:
        at = offset + len(decoded[: error.pos].encode())
        raise RejectedError("bad_json", f"{error.msg} at byte {at}") from None
    except (ValueError, RecursionError) as error:
        raise RejectedError("bad_json", f"{error} in the record at byte {offset}") from None
    if not isinstance(record, dict):
        raise RejectedError("not_object", f"a JSON {type(record).__name__}")
    text = record.get("text")
    if text is None:
        raise RejectedError("no_text", "'text' is missing or null")
    if not isinstance(text, str):
        raise RejectedError("text_type", f"'text' is a JSON {type(text).__name__}")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise RejectedError("bad_json", f"lone surrogate at character {error.start} of 'text'") from None
    return record


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


_DECODER = json.JSONDecoder(parse_constant=_refuse_constant)


_PERSONAL = re.compile(r"[\w.+-]{1,64}@[\w-]{1,64}\.[\w.-]{1,64}|\d[\d ./-]{5,}\d")


def sample_of(data: bytes | str) -> str:
    """The first 200 characters for people: controls escaped, e-mail addresses and long numbers masked."""
    text = data[: 4 * SAMPLE_CHARACTERS].decode(errors="backslashreplace") if isinstance(data, bytes) else data
    masked = _PERSONAL.sub("<masked>", text[:SAMPLE_CHARACTERS])
    return "".join(char if char.isprintable() else char.encode("unicode_escape", "backslashreplace").decode() for char in masked)
