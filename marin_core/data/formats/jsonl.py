"""JSON lines with a text, or a page, in each."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

from marin_core.data.formats.config import METADATA_KEYS, Jsonl
from marin_core.data.formats.items import Extract, Item, Piece, RejectedError
from marin_core.data.formats.pages import Pages
from marin_core.data.limits import Limits
from marin_core.data.streams import container_of, lines, peeked
from marin_core.errors import DataError


@dataclass
class JsonlReader:
    """See `Jsonl`."""

    config: Jsonl
    limits: Limits
    pages: Pages

    def items(self, piece: Piece) -> Iterator[Item]:
        head, stream = peeked(piece.stream)
        if kind := container_of(head):
            raise DataError(f"it is {kind} data", advice="Choose the format that says so, or store documents as JSONL.")
        for line in lines(stream, self.limits.record_bytes):
            yield Item(line.data, line.offset, line.length, line.digest)

    def extract(self, item: Item, piece: Piece) -> Extract:
        assert item.data is not None  # noqa: S101  # the reader has rejected it
        name = self.config.html_field or self.config.text_field
        record = parse_record(item.data, item.offset, name)
        given = record.get("metadata")
        metadata = {key: given[key] for key in METADATA_KEYS if given.get(key) is not None} if isinstance(given, dict) else {}
        identity = record.get("id")
        if isinstance(identity, str | int):
            metadata.setdefault("origin_id", str(identity))
        picked = {"created": record.get("created"), "added": record.get("added")}
        for key, field in self.config.fields.items():
            if record.get(field) is not None:
                (picked if key in picked else metadata)[key] = record[field]
        text = record[name]
        if self.config.html_field:
            text, title = self.pages.text(text.encode(), "utf-8")
            if title:
                metadata.setdefault("title", title)
        return Extract(text, metadata, created=_text_or_none(picked["created"]), added=_text_or_none(picked["added"]))

    def close(self) -> None:
        self.pages.close()


def _text_or_none(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def parse_record(data: bytes, offset: int = 0, text_field: str = "text") -> Mapping[str, Any]:
    """Parse one line strictly: valid UTF-8, RFC 8259 JSON (no NaN), an object whose text is a string without lone surrogates.

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
    text = record.get(text_field)
    if text is None:
        raise RejectedError("no_text", f"{text_field!r} is missing or null")
    if not isinstance(text, str):
        raise RejectedError("text_type", f"{text_field!r} is a JSON {type(text).__name__}")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise RejectedError("bad_json", f"lone surrogate at character {error.start} of {text_field!r}") from None
    return record


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


_DECODER = json.JSONDecoder(parse_constant=_refuse_constant)
