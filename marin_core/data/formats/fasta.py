"""FASTA: sequences of DNA, RNA or proteins under header lines, cut into windows that become documents."""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from marin_core.data.formats.config import Fasta
from marin_core.data.formats.items import Extract, Item, Piece, RejectedError
from marin_core.data.limits import Limits
from marin_core.errors import DataError

HEADER_BYTES = 64 * 1024
"""Longest header line that is kept; the rest of it is cut off."""
_NO_RESIDUE = re.compile(rb"[^A-Za-z*.-]")
_LINES = re.compile(rb"[^\n]*\n|[^\n]+")
_BLANKS = bytes.maketrans(b"", b""), b" \t\r\v\f"


@dataclass(frozen=True)
class _Span:
    """Part of a line, without its line feed.

    Attributes:
        offset: of its first byte in the piece.
        begins: whether the line begins with it.
    """

    data: bytes
    offset: int
    begins: bool


@dataclass
class FastaReader:
    """See `Fasta`. Memory is that of one window, also where a chromosome is one line."""

    config: Fasta
    limits: Limits

    def items(self, piece: Piece) -> Iterator[Item]:
        """Windows of all sequences, in order; `offset` is the byte of the first residue.

        Raises:
            DataError: if residues stand before the first header.
        """
        header, window = b"", _Window("", self.config.window)
        in_header = started = False
        for span in _spans(piece.stream):
            if span.begins:
                in_header = span.data.startswith(b">")
                if in_header:
                    if started:
                        yield from window.rest()
                    started, header = True, b""
            if in_header:
                header = (header + span.data)[:HEADER_BYTES]
                window = _Window(header[1:].decode("ascii", "backslashreplace").strip(), self.config.window)
                continue
            residues = span.data.translate(*_BLANKS)
            if residues and not started:
                raise DataError(f"no FASTA: it begins with {span.data[:20]!r}", advice="Choose the format that the units have.")
            yield from window.add(residues, span.offset)
        if started:
            yield from window.rest()

    def extract(self, item: Item, piece: Piece) -> Extract:
        """The residues of a window.

        Raises:
            RejectedError: `bad_sequence` if there is anything but letters, `*`, `-` and `.`.
        """
        data = item.data or b""
        if wrong := _NO_RESIDUE.search(data):
            raise RejectedError("bad_sequence", f"byte 0x{wrong[0][0]:02x} at residue {item.fields['first'] + wrong.start()}")
        text = data.decode("ascii")
        name, _, described = str(item.fields["header"]).partition(" ")
        first, last = item.fields["first"], item.fields["first"] + len(text) - 1
        metadata = {"origin_id": f"{name}:{first}-{last}"} | ({"title": described.strip()} if described.strip() else {})
        return Extract(text.upper() if self.config.uppercase else text, metadata)

    def close(self) -> None: ...


class _Window:
    """Collects the residues of one sequence and gives them away in windows."""

    def __init__(self, header: str, size: int) -> None:
        self._header = header
        self._size = size
        self._held = bytearray()
        self._offset = 0
        self._first = 1

    def add(self, residues: bytes, offset: int) -> Iterator[Item]:
        """Take residues that begin at a byte of the piece; gives the windows that they fill."""
        taken = 0
        while taken < len(residues):
            if not self._held:
                self._offset = offset + taken
            room = self._size - len(self._held)
            self._held += residues[taken : taken + room]
            taken += room
            if len(self._held) == self._size:
                yield self._item()

    def rest(self) -> Iterator[Item]:
        """The last window, if it isn't empty; a sequence without residues is one rejected record."""
        if self._held or self._first == 1:
            yield self._item()

    def _item(self) -> Item:
        fields = {"header": self._header, "first": self._first}
        data, self._held = bytes(self._held), bytearray()
        self._first += len(data)
        reason, detail = ("", "") if data else ("no_text", f"no residue below {self._header[:100]!r}")
        return Item(data, self._offset, len(data), reason=reason, detail=detail, fields=fields)


def _spans(stream: Iterator[bytes]) -> Iterator[_Span]:
    """Lines as they come; one that lies over several chunks comes in as many spans."""
    offset, begins = 0, True
    for chunk in stream:
        for line in _LINES.findall(chunk):
            ends = line.endswith(b"\n")
            yield _Span(line[: len(line) - ends], offset, begins)
            offset += len(line)
            begins = ends
