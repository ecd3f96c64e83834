import pytest
from hypothesis import given
from hypothesis import strategies as st

from marin_core.data.normal_form import document_id, normal_form


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "99aa06d3014798d86001c324468d497f"),
        ("hello", "b5e9c1ad071b3e7fc779cfaa5e523818"),
        ("héllo\n", "8e7219aef8b01f9a54d0a4adeaadf7ce"),
    ],
)
def test_ids_are_those_of_the_specification(text: str, expected: str) -> None:
    assert document_id(text) == expected


@pytest.mark.parametrize(
    ("text", "expected", "repairs"),
    [
        ("a\r\nb\rc", "a\nb\nc", ("line_ends",)),
        ("a\x00b\x1b[0mc\x85\x7f", "ab[0mc", ("controls",)),
        ("a\tb\u202ec\ue000", "a\tb\u202ec\ue000", ()),
        ("a\ud800b", "a\ufffdb", ("surrogates",)),
        ("a" + " " * 5_000_000 + "b", "a" + " " * 128 + "b", ("long_runs",)),
        ("a" + "\n" * 1_000 + "b", "a" + "\n" * 128 + "b", ("long_runs",)),
        ("a" + " " * 128 + "b", "a" + " " * 128 + "b", ()),
        ("a \n\n", "a", ("trailing_whitespace",)),
        (" \x00\r\n", "", ("line_ends", "controls", "trailing_whitespace")),
        ("a\u2028b e\u0301", "a\u2028b e\u0301", ()),
    ],
)
def test_each_repair_is_made_and_named(text: str, expected: str, repairs: tuple[str, ...]) -> None:
    assert normal_form(text) == (expected, repairs)


@given(st.text(alphabet=st.characters(exclude_categories=())) | st.text(alphabet="a \t\n\r\x00\u00a0\ud800", max_size=600))
def test_normal_form_is_idempotent_and_valid_unicode(text: str) -> None:
    once, _ = normal_form(text)
    assert normal_form(once) == (once, ())
    once.encode()
