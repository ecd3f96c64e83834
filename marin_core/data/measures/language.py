"""The natural language of a text: by its script where that decides, else by resiliparse's profiles of 101 languages."""

import re
from collections.abc import Mapping
from typing import Any

import pyarrow as pa
from resiliparse.parse.lang import detect_fast, supported_langs

from marin_core.data.measures.characters import count_letters, not_ascii
from marin_core.data.measures.interface import Measured

CUTOFF = 2_000
"""Largest distance of a text from a language's profile that is named; at the library's 1,200 much text of small languages is unknown."""
SCRIPT_SHARE = 0.3
"""Share of letters from which a script decides. Low, since a Latin word has many letters where a Chinese one has two."""
KANA_SHARE = 0.05
"""Of kana and Han together; Japanese prose has about half, Chinese none."""
UNKNOWN = "unknown"

_KANA = re.compile(r"[\u3041-\u30ff\u31f0-\u31ff\uff66-\uff9d]+")
_HAN = re.compile(r"[\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]+")
_HANGUL = re.compile(r"[\u1100-\u11ff\u3131-\u318e\uac00-\ud7a3]+")
_THAI = re.compile(r"[\u0e01-\u0e4e]+")
_SHORT_NAMES_OF_CODE = re.compile(r"ada|asm|awk|css|elm|hcl|ini|jsx|lua|nim|nix|php|sas|sql|tcl|tex|tsx|vim|vue|xml|zig")
"""Other names of three letters are languages of people (ISO 639-3)."""
_MARKUP = frozenset({"html", "latex", "markdown", "plain", "restructuredtext", "text"})
"""Written for programs to read, and yet prose."""


class Language:
    """`language` (ISO 639-1, or `unknown`; null for source code), how sure that is in [0, 1], and the number of letters.

    The score is the share of the letters in the deciding script, or 1 − distance / 2,000, where the library calls distances above 1,200
    (scores below 0.4) usually false. Source code, which its metadata's `lang` tells, has none: profiles take much of it for Korean.
    """

    name = "language"
    columns: Mapping[str, pa.DataType] = {"language": pa.string(), "score": pa.float64(), "letters": pa.int32()}

    def measure(self, document: Measured) -> Mapping[str, Any]:
        letters = count_letters(document.text)
        if is_code(document.metadata.get("lang")):
            return {"language": None, "score": None, "letters": letters}
        language, score = by_script(document.text, letters) or by_profile(document.text)
        return {"language": language, "score": score, "letters": letters}


def is_code(lang: object) -> bool:
    """Whether a `lang` of metadata (`python`, `C++`, `en`, `en-GB`, `deu_Latn`) names a language of programs rather than of people."""
    if not isinstance(lang, str) or not lang:
        return False
    base = re.split(r"[-_]", lang.lower())[0]
    if len(base) == 2:
        return base not in _NATURAL
    if len(base) == 3 and base.isalpha():
        return _SHORT_NAMES_OF_CODE.fullmatch(base) is not None
    return base not in _MARKUP


def by_script(text: str, letters: int) -> tuple[str, float] | None:
    """Chinese, Japanese, Korean and Thai by their scripts; None if none of these has enough of the letters."""
    others = not_ascii(text)
    if not letters or len(others) < SCRIPT_SHARE * letters:
        return None
    kana, han, hangul, thai = (sum(map(len, script.findall(others))) for script in (_KANA, _HAN, _HANGUL, _THAI))
    east_asian = "ja" if kana > KANA_SHARE * (kana + han) else "zh"
    count, language = max((kana + han, east_asian), (hangul, "ko"), (thai, "th"))
    share = min(1.0, count / letters)  # Thai vowel signs are marks, no letters
    return (language, round(share, 6)) if share >= SCRIPT_SHARE else None


def by_profile(text: str) -> tuple[str, float]:
    """The nearest profile; `unknown` with score 0 if all are too far."""
    language, distance = detect_fast(text, cutoff=CUTOFF)
    return (language, round(1 - distance / CUTOFF, 6)) if language != UNKNOWN else (UNKNOWN, 0.0)


_NATURAL = frozenset(supported_langs())
