"""Pages as text and as Markdown."""

import sys
import sysconfig
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marin_core.data.transforms.charset import UndecodableError, decode
from marin_core.data.transforms.html import page_text

GOLDEN = Path(__file__).parent / "golden"
PAGES = sorted(GOLDEN.glob("*.html"))


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.stem)
def test_markdown_is_that_of_the_golden_file(page: Path) -> None:
    """After a wanted change: `python -m tests.data.transforms.test_html` writes the golden files anew; read the difference."""
    assert markdown_of(page) == page.with_suffix(".md").read_text()


def markdown_of(page: Path) -> str:
    text, title = page_text(page.read_text(), to="markdown", links="links" in page.stem)
    return f"title: {title}\n\n{text}\n"


def test_there_are_golden_files() -> None:
    assert len(PAGES) >= 5


@pytest.mark.parametrize(
    ("html", "text"),
    [
        ("<p>a&nbsp;b</p>", "a b"),
        ("<p>x<sup>2</sup> &lt;b&gt; &amp;amp;</p>", "x2 <b> &amp;"),
        ("<body><script>no</script><style>no</style><noscript>no</noscript><iframe>no</iframe>yes", "yes"),
        ("<script>var a = '<script>';</script>yes<script>no", "yes"),
        ("<div hidden>no<div>no</div></div><p style='display: none'>no</p>yes", "yes"),
        ("<p>one<p>two", "one\n\ntwo"),
        ("<b></b>text<i> </i>", "text"),
        ("<pre>  a\n\n\tb  \n</pre>", "```\n  a\n\n\tb\n```"),
        ("<pre>```\ncode\n```</pre>", "````\n```\ncode\n```\n````"),
        ("<ul><li>a<ol><li>b</ol><li>c</ul>", "- a\n  1. b\n- c"),
        ("<table><tr><td>layout only</table>", "layout only"),
        ("<table><tr><th>a<th>b<tr><td>1</table>", "| a | b |\n| --- | --- |\n| 1 |  |"),
        ("<p>&lt;|eos|&gt; <!-- no --> \u202eabc\u202c", "<|eos|> \u202eabc\u202c"),
        ("", ""),
    ],
)
def test_elements_become_markdown(html: str, text: str) -> None:
    assert page_text(html, to="markdown")[0] == text


SCRIPTS = {
    "arabic": "مرحبا بالعالم، هذا نص عربي.",
    "hebrew": "שָׁלוֹם עוֹלָם",
    "chinese": "你好，世界。這是一段文字。",
    "japanese": "こんにちは、世界。カタカナと漢字。",
    "thai": "สวัสดีชาวโลก ภาษาไทยไม่มีช่องว่าง",
    "devanagari": "नमस्ते दुनिया, यह हिन्दी है।",
    "combining": "e\u0301 a\u0308 o\u0323\u0302",
    "emoji": "👩\u200d👩\u200d👧 🏳️\u200d🌈 \U0001f1e9\U0001f1ea",
}


@pytest.mark.parametrize("to", ["text", "markdown"])
@pytest.mark.parametrize("script", sorted(SCRIPTS))
def test_every_script_passes_unharmed(script: str, to: str) -> None:
    text = SCRIPTS[script]
    page = f"<html dir=rtl><title>{text}</title><p>{text}</p><ul><li>{text}</li></ul></html>"
    got, title = page_text(page, to=to)
    assert got.count(text) == 2
    assert title == text


@pytest.mark.parametrize("element", ["div", "ul><li", "blockquote", "table><tr><td", "b", "pre", "span", "ol><li"])
def test_deep_nesting_loses_nothing_and_stays_linear(element: str) -> None:
    text, _ = page_text(f"<{element}>" * 20_000 + "deep" + "<p>deeper", to="markdown")
    assert "deep" in text
    assert "deeper" in text
    assert len(text) < 2_000_000


@settings(max_examples=60, deadline=None)
@given(st.text(alphabet=st.sampled_from(list("<>/=\"'&;!- \nabpdivtrulo#`*|")), max_size=300))
def test_no_page_breaks_the_walk(page: str) -> None:
    text, _ = page_text(page, to="markdown")
    assert "\u00a0" not in text


@given(st.lists(st.text(alphabet="abc xyz", min_size=1).filter(str.strip), min_size=1, max_size=8))
def test_words_arrive_in_their_order(paragraphs: list[str]) -> None:
    page = "".join(f"<p>{text}</p>" for text in paragraphs)
    for to in ("text", "markdown"):
        assert page_text(page, to=to)[0].split() == " ".join(paragraphs).split()


def test_main_content_leaves_navigation_out() -> None:
    page = "<body><nav><a href=/>Home</a></nav><main><h1>News</h1><p>The story itself, at some length.</p></main></body>"
    assert "Home" in page_text(page)[0]
    text = page_text(page, main_content=True)[0]
    assert "story itself" in text
    assert "Home" not in text


@pytest.mark.parametrize(
    ("data", "declared", "text"),
    [
        ("Größe".encode(), None, "Größe"),
        ("Größe".encode("utf-16"), None, "Größe"),
        (b"\xef\xbb\xbf" + "Größe".encode(), "latin-1", "Größe"),
        ("Größe und Maße für das Äußere".encode("latin-1"), "utf-8", "Größe und Maße für das Äußere"),
        ("<meta charset=shift_jis>日本語".encode("shift_jis"), None, "<meta charset=shift_jis>日本語"),
        ("日本語のテキストです".encode("euc-jp"), "euc-jp", "日本語のテキストです"),
        ("Привет, мир, как дела".encode("cp1251"), "nonsense", "Привет, мир, как дела"),
    ],
)
def test_the_charset_is_found(data: bytes, declared: str | None, text: str) -> None:
    assert decode(data, declared) == (text, 0)


def test_a_few_bad_bytes_are_replaced_and_many_are_refused() -> None:
    text, replaced = decode("für ".encode() * 2_000 + b"\x81\xff", "utf-8")
    assert (replaced, text[:4]) == (2, "für ")
    with pytest.raises(UndecodableError, match="characters are invalid"):
        decode(bytes(range(128, 256)) * 10, "utf-8")


def test_documentation_of_this_python_keeps_its_words() -> None:
    """Real pages, as pydoc makes them: every word of the text stands in the Markdown too."""
    import pydoc

    for name in ("textwrap", "string", "heapq"):
        __import__(name)
        page = pydoc.HTMLDoc().page(name, pydoc.HTMLDoc().document(sys.modules[name], name))
        plain, _ = page_text(page)
        marked, _ = page_text(page, to="markdown")
        words = [word.strip("`*|") for word in marked.split()]
        missing = {word for word in plain.split() if word.isalnum()} - {part for word in words for part in (word, *word.split("`"))}
        assert len(plain) > 2_000
        assert len(missing) < 0.02 * len(plain.split())
    assert sysconfig.get_path("stdlib")


if __name__ == "__main__":
    for each in PAGES:
        each.with_suffix(".md").write_text(markdown_of(each))
