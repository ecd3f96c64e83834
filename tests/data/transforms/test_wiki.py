"""Wiki markup as running text, by the parser and by the simple patterns that stand in for it."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marin_core.data.transforms.wiki import parsed_text, stripped_text

ARTICLE = """{{Infobox person|name={{nowrap|Ada}}|born=1815}}
'''Ada Lovelace''' was a [[mathematics|mathematician]]<ref>{{cite book|title=Ada}}</ref> and [[writer]].<ref name="a" />

== Life ==
She wrote on the [[Analytical Engine]]. [[File:Ada.jpg|thumb|A portrait with [[link]]]]
{| class="wikitable"
|-
| a cell || another
|}
* born in [http://example.org London]
* &ndash; died ''young''
[[Category:Mathematicians]]
<!-- a comment -->"""


@pytest.mark.parametrize("text_of", [parsed_text, stripped_text])
def test_running_text_stays_and_markup_goes(text_of: object) -> None:
    text = text_of(ARTICLE)  # type: ignore[operator]
    assert "Ada Lovelace was a mathematician and writer." in text
    assert "She wrote on the Analytical Engine." in text
    assert "Life" in text.splitlines()
    assert "London" in text
    for gone in ("Infobox", "cite", "a cell", "Category", "comment", "{{", "[[", "''", "thumb", "<ref", "=="):
        assert gone not in text, gone


def test_entities_are_characters() -> None:
    assert "– died young" in parsed_text(ARTICLE)


@pytest.mark.parametrize(
    ("markup", "text"),
    [
        ("a {{x|b", "a x|b"),
        ("a }} b", "a  b"),
        ("{{a|{{b}}}} c", "c"),
        ("[[a|b", "[[a|b"),
        ("<ref>never closed", "<ref>never closed".removeprefix("<ref>")),
        ("x<ref>y</ref>z", "xz"),
        ("== A ==\n=== B ===\na = b", "A\nB\na = b"),
        ("'''''both'''''", "both"),
        ("مرحبا '''بالعالم''' 你好", "مرحبا بالعالم 你好"),
    ],
)
def test_patterns_on_broken_markup(markup: str, text: str) -> None:
    assert stripped_text(markup).strip() == text.strip()


PIECES = st.sampled_from(
    ["{{", "}}", "[[", "]]", "{|", "|}", "<ref>", "</ref>", "<ref/>", "<!--", "-->", "'''", "==", "\n", "|", "[http://a b]", "word ", "é"]
)


@settings(max_examples=80, deadline=None)
@given(st.lists(PIECES, max_size=60).map("".join))
def test_patterns_never_fail_and_add_nothing(markup: str) -> None:
    text = stripped_text(markup)
    assert len(text) <= len(markup)
    assert "{{" not in text


@pytest.mark.parametrize("piece", ["{{", "}}", "[[", "<ref>", "=", "[http://x ", "{{a|b}}", "<ref>a</ref>", "'", "[[File:", "<!--", "{|"])
def test_patterns_are_linear(piece: str) -> None:
    """As long as the longest article; a square of it would take hours, and the suite's time limit ends that."""
    stripped_text(piece * 100_000)
