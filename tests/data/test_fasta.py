"""FASTA: windows of sequences, however lines and chunks are cut."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from marin_core.data.formats.config import Fasta
from marin_core.data.formats.items import Item, Piece, RejectedError
from marin_core.data.formats.make import make_reader
from marin_core.data.limits import Limits
from marin_core.errors import ConfigError, DataError


def piece(data: bytes, size: int = 1 << 20) -> Piece:
    chunks: Iterator[bytes] = (data[start : start + size] for start in range(0, len(data), size))
    return Piece("units/dna/x.fa", "x.fa", Path("x.fa"), chunks)


def windows(data: bytes, window: int = 16, size: int = 1 << 20, *, uppercase: bool = False) -> list[tuple[str, str]]:
    """(origin, residues) of every window."""
    reader = make_reader(Fasta(window=window, uppercase=uppercase), Limits(), Counter())
    given_piece = piece(data, size)
    found = []
    for item in reader.items(given_piece):
        extract = reader.extract(item, given_piece)
        found.append((extract.metadata["origin_id"], extract.text))
    reader.close()
    return found


def items(data: bytes, window: int = 16, size: int = 1 << 20) -> list[Item]:
    return list(make_reader(Fasta(window=window), Limits(), Counter()).items(piece(data, size)))


TWO = b">chr1 first one\nACGTACGTAC\nGTACGTACGTNN\n\n>chr2\r\nacgt\r\nAC GT\r\n"


def test_a_sequence_is_cut_into_windows_that_say_where_they_stand() -> None:
    assert windows(TWO) == [("chr1:1-16", "ACGTACGTACGTACGT"), ("chr1:17-22", "ACGTNN"), ("chr2:1-8", "acgtACGT")]
    assert [text for _, text in windows(TWO, uppercase=True)][-1] == "ACGTACGT"
    reader = make_reader(Fasta(window=16), Limits(), Counter())
    first = next(iter(reader.items(piece(TWO))))
    assert reader.extract(first, piece(TWO)).metadata == {"origin_id": "chr1:1-16", "title": "first one"}


def test_offsets_are_of_the_first_residue() -> None:
    for item in items(TWO):
        assert item.data is not None
        assert TWO[item.offset : item.offset + 4] == item.data[:4]


@given(
    st.lists(
        st.tuples(st.text("chrX0123", min_size=1, max_size=8), st.text("ACGTNacgt", min_size=1, max_size=200)), min_size=1, max_size=5
    ),
    st.integers(1, 90),
    st.integers(1, 40),
    st.integers(16, 64),
)
def test_lines_and_chunks_change_nothing(records: list[tuple[str, str]], line: int, chunk: int, window: int) -> None:
    data = "".join(
        f">{name} d\n" + "".join(residues[start : start + line] + "\n" for start in range(0, len(residues), line))
        for name, residues in records
    ).encode()
    found = windows(data, window, chunk)
    assert found == windows(data, window)
    expected = [
        (f"{name}:{start + 1}-{min(start + window, len(residues))}", residues[start : start + window])
        for name, residues in records
        for start in range(0, len(residues), window)
    ]
    assert found == expected


def test_what_is_no_sequence_is_rejected_and_what_is_no_fasta_fails() -> None:
    (empty, full) = items(b">nothing here\n>something\nACGT\n")
    assert (empty.reason, empty.detail) == ("no_text", "no residue below 'nothing here'")
    assert (full.reason, full.data) == ("", b"ACGT")
    reader = make_reader(Fasta(window=16), Limits(), Counter())
    wrong = items(b">x\nACGTACGTACGTACGTAC<T\n")
    assert reader.extract(wrong[0], piece(b"")).text == "ACGTACGTACGTACGT"
    with pytest.raises(RejectedError) as caught:
        reader.extract(wrong[1], piece(b""))
    assert (caught.value.reason, caught.value.detail) == ("bad_sequence", "byte 0x3c at residue 19")
    with pytest.raises(DataError, match="no FASTA"):
        items(b"\nACGT\n>x\nACGT\n")
    assert items(b"") == []
    with pytest.raises(ConfigError, match="window"):
        Fasta(window=1)


def test_a_chromosome_in_one_line_and_an_endless_header_need_little_memory() -> None:
    def stream() -> Iterator[bytes]:
        yield b">chr1 "
        yield from (b"long header " * 1_000 for _ in range(100))
        yield b"\n"
        yield from (b"ACGT" * 16_384 for _ in range(200))

    reader = make_reader(Fasta(window=65_536), Limits(), Counter())
    count = 0
    for item in reader.items(Piece("u", "u", None, stream())):
        assert len(item.fields["header"]) <= 65_536
        assert item.length == 65_536
        count += 1
    assert count == 200
