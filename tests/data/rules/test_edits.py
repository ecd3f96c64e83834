import pytest
from hypothesis import given
from hypothesis import strategies as st

from marin_core.data.rules.edits import apply_edits
from marin_core.data.rules.interface import Edit

TEXT = "0123456789abcdef"
SPANS = st.tuples(st.integers(0, len(TEXT)), st.integers(0, len(TEXT))).map(sorted)
EDITS = st.lists(st.builds(lambda span, text: Edit(span[0], span[1], text), SPANS, st.sampled_from(["", "", "<x>", "<yy>"])), max_size=6)


@given(EDITS)
def test_every_covered_character_goes_and_every_other_stays(edits: list[Edit]) -> None:
    covered = {index for edit in edits for index in range(edit.start, edit.end)}
    kept = [character for index, character in enumerate(TEXT) if index not in covered]
    left = apply_edits(TEXT, edits).replace("<x>", "").replace("<yy>", "")
    assert list(left) == kept


@given(EDITS, st.randoms())
def test_the_order_of_edits_does_not_matter(edits: list[Edit], source: object) -> None:
    mixed = list(edits)
    source.shuffle(mixed)  # type: ignore[attr-defined]
    assert apply_edits(TEXT, mixed) == apply_edits(TEXT, edits)


@given(st.lists(st.integers(0, len(TEXT)), min_size=2, max_size=10, unique=True).map(sorted))
def test_edits_apart_from_each_other_are_all_made(borders: list[int]) -> None:
    edits = [Edit(start, end, "<x>") for start, end in zip(borders[::2], borders[1::2], strict=False)]
    expected = TEXT
    for edit in reversed(edits):
        expected = expected[: edit.start] + edit.text + expected[edit.end :]
    assert apply_edits(TEXT, edits) == expected


@pytest.mark.parametrize(
    ("edits", "expected"),
    [
        ([], TEXT),
        ([Edit(0, 16)], ""),
        ([Edit(2, 6, "<x>"), Edit(4, 8)], "0189abcdef"),
        ([Edit(2, 6, "<x>"), Edit(0, 10)], "abcdef"),
        ([Edit(2, 6, "<x>"), Edit(4, 8, "<yy>")], "01<x>89abcdef"),
        ([Edit(2, 4, "<x>"), Edit(4, 6)], "01<x>6789abcdef"),
        ([Edit(3, 3, "<x>")], "012<x>3456789abcdef"),
    ],
)
def test_where_edits_overlap_removal_wins(edits: list[Edit], expected: str) -> None:
    assert apply_edits(TEXT, edits) == expected


@pytest.mark.parametrize("edit", [Edit(-1, 2), Edit(5, 3), Edit(10, 17)])
def test_an_edit_outside_the_text_is_refused(edit: Edit) -> None:
    with pytest.raises(ValueError, match=r"an edit covers"):
        apply_edits(TEXT, [edit])
