"""Bytes of a page as text: byte order mark → what the server said → what the page says → detection."""

import codecs
from collections.abc import Iterator

from resiliparse.parse.encoding import detect_encoding, map_encoding_to_html5

BOMS = {codecs.BOM_UTF8: "utf-8", codecs.BOM_UTF16_LE: "utf-16-le", codecs.BOM_UTF16_BE: "utf-16-be"}
MAX_UNDECODABLE = 0.001
"""Largest share of characters that may be U+FFFD in a page that no charset fits."""


class UndecodableError(Exception):
    """No charset fits."""


def decode(data: bytes, declared: str | None = None) -> tuple[str, int]:
    """Text of a page, and how many of its characters had to be replaced.

    The first charset in which all bytes are valid is taken: pages that lie about theirs are common.

    Args:
        declared: charset in the HTTP header.

    Raises:
        UndecodableError: more than 0.1 % of the characters are invalid in the best charset.
    """
    tried = list(dict.fromkeys(_candidates(data, declared)))
    for charset in tried:
        try:
            return data.decode(charset).removeprefix("\ufeff"), 0
        except (UnicodeDecodeError, LookupError):
            continue
    text = data.decode(tried[0] if tried else "utf-8", "replace").removeprefix("\ufeff")
    replaced = text.count("\ufffd")
    if replaced > MAX_UNDECODABLE * len(text):
        raise UndecodableError(f"{replaced} of {len(text)} characters are invalid in {', '.join(tried) or 'utf-8'}")
    return text, replaced


def _candidates(data: bytes, declared: str | None) -> Iterator[str]:
    for bom, charset in BOMS.items():
        if data.startswith(bom):
            yield charset
    if declared and (known := map_encoding_to_html5(declared, fallback_utf8=False)):
        yield known
    for from_meta in (True, False):
        if found := detect_encoding(data, from_html_meta=from_meta):
            yield found
