"""Repairs of wrong decodings, and what must never be taken for one."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from marin_core.data.formats.config import PlainText
from marin_core.data.transforms.unicode import prepare

REPAIR = PlainText(repair_mojibake=True)


@pytest.mark.parametrize("text", ["schön für alle", "naïve café", "“quoted” – dashes…", "Приве́т мир", "€ 5 statt £ 4"])
@pytest.mark.parametrize("wrong", ["cp1252", "latin-1"])
def test_text_decoded_wrongly_is_repaired(text: str, wrong: str) -> None:
    broken = text.encode().decode(wrong, errors="ignore")
    if broken.encode(wrong) != text.encode():
        pytest.skip("not all of its bytes exist there")
    repaired, made = prepare(broken, REPAIR)
    assert (repaired, made) == (text, ["mojibake"])


@pytest.mark.parametrize(
    "text",
    [
        "schön für alle",
        "São Paulo, Âme, ÃO",
        "مرحبا بالعالم",
        "你好，世界",
        "e\u0301 combining",
        "x² ﬁne Ⅳ ｆｕｌｌ",
        "&lt;b&gt; &amp; “curly” ‘quotes’",
        "a\r\nb\x1b[1m",
        "plain ASCII Ã".replace("Ã", "A"),
    ],
)
def test_right_text_stays_as_it_is(text: str) -> None:
    assert prepare(text, REPAIR) == (text, [])


def test_nothing_is_done_unasked() -> None:
    broken = "schÃ¶n e\u0301"
    assert prepare(broken, PlainText()) == (broken, [])


def test_normal_forms_are_an_option() -> None:
    assert prepare("e\u0301 x²", PlainText(unicode="nfc")) == ("é x²", ["nfc"])
    assert prepare("e\u0301 x²", PlainText(unicode="nfkc")) == ("é x2", ["nfkc"])
    assert prepare("é", PlainText(unicode="nfc")) == ("é", [])


@given(st.text(alphabet=st.characters(max_codepoint=0x7F)))
def test_ascii_is_never_touched(text: str) -> None:
    assert prepare(text, REPAIR) == (text, [])
