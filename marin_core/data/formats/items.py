"""What a format takes from a unit: items, each of which becomes one document or one rejection."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol


class RejectedError(Exception):
    """A record is unusable; carries the reason."""

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(reason)
        self.reason = reason
        self.detail = detail


@dataclass(frozen=True)
class Piece:
    """A file of a raw source: a unit, or a member of an archive in it.

    Attributes:
        unit: what documents say in `metadata.unit`: the unit's path, behind it `!/` and the member's name.
        name: what its source called it, a relative path.
        path: the unit itself, for formats that need to seek; None for a member.
        stream: its bytes, decompressed; to be read once.
    """

    unit: str
    name: str
    path: Path | None
    stream: Iterator[bytes]


@dataclass(frozen=True)
class Item:
    """One record before it is read.

    Attributes:
        data: its bytes; None if they were too long to be held.
        offset: byte, or number of the record, in the piece.
        length: in bytes.
        digest: first 16 hex digits of the sha256 of a record that was too long, else "".
        reason: set if its container already shows that it can't be a document.
        detail: more about the reason.
        fields: what its container says of it.
    """

    data: bytes | None
    offset: int
    length: int
    digest: str = ""
    reason: str = ""
    detail: str = ""
    fields: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Extract:
    """The text of an item and what is known of it.

    Attributes:
        text: not yet in normal form.
        metadata: some of `formats.config.METADATA_KEYS`.
        created: when it was written; None if unknown.
        added: when it was acquired, where the record knows better than its unit.
    """

    text: str
    metadata: dict[str, Any] = field(default_factory=dict)
    created: str | None = None
    added: str | None = None


class FormatReader(Protocol):
    """Reads pieces of one format."""

    def items(self, piece: Piece) -> Iterator[Item]:
        """Records of a piece, in its order.

        Raises:
            DamagedStreamError: where the piece can't be read further.
            DataError: if the piece is of another format or encoding.
        """

    def extract(self, item: Item, piece: Piece) -> Extract:
        """Text of an item.

        Raises:
            RejectedError: if it has none; says why.
        """
