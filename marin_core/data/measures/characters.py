"""Counting kinds of characters, at C speed where a text is ASCII."""

import re
import string

_NOT_ASCII = re.compile(r"[^\x00-\x7f]+")
_LETTERS = string.ascii_letters.encode()
_ALPHANUMERIC = _LETTERS + string.digits.encode()


def not_ascii(text: str) -> str:
    """The characters of a text outside ASCII, in order."""
    return "" if text.isascii() else "".join(_NOT_ASCII.findall(text))


def count_letters(text: str) -> int:
    """Characters for which `str.isalpha` holds."""
    return _count_ascii(text, _LETTERS) + sum(map(str.isalpha, not_ascii(text)))


def count_alphanumeric(text: str) -> int:
    """Characters for which `str.isalnum` holds."""
    return _count_ascii(text, _ALPHANUMERIC) + sum(map(str.isalnum, not_ascii(text)))


def _count_ascii(text: str, kind: bytes) -> int:
    # Bytes of UTF-8 below 128 are ASCII characters, and no others have such bytes.
    data = text.encode()
    return len(data) - len(data.translate(None, kind))
