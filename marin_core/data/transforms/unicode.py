"""Repairs of wrongly decoded text, and normalisation. Never for code."""

import re
import unicodedata
from typing import Literal

from marin_core.data.formats.config import TextFormat

_MARKS = re.compile(
    "[ÃÂâÐÑ][\u0080-\u00bf\u0152\u0153\u0160\u0161\u0178\u017d\u017e\u0192\u02c6\u02dc\u2013-\u203a\u20ac\u2122]|ï»¿|\ufffd[\u0080-\u00bf]"
)
"""Beginnings of two- and three-byte UTF-8 that was read as Latin-1 or Windows-1252."""


def prepare(text: str, config: TextFormat) -> tuple[str, list[str]]:
    """Apply what a format asks for; returns the text and the names of what changed it."""
    made = []
    if config.repair_mojibake and not text.isascii() and _MARKS.search(text):
        repaired = repair_mojibake(text)
        if repaired != text:
            made.append("mojibake")
            text = repaired
    if config.unicode != "as_is":
        form: Literal["NFC", "NFKC"] = "NFC" if config.unicode == "nfc" else "NFKC"
        if not unicodedata.is_normalized(form, text):
            made.append(config.unicode)
            text = unicodedata.normalize(form, text)
    return text, made


def repair_mojibake(text: str) -> str:
    """ftfy's repair of encodings alone: entities, quotes, widths and line ends stay as they are."""
    import ftfy

    config = ftfy.TextFixerConfig(
        unescape_html=False,
        remove_terminal_escapes=False,
        fix_latin_ligatures=False,
        fix_character_width=False,
        uncurl_quotes=False,
        fix_line_breaks=False,
        fix_surrogates=False,
        remove_control_chars=False,
        normalization=None,
        explain=False,
    )
    return ftfy.fix_text(text, config)
