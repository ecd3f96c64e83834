"""The normal form of text and the identity of a document. One step, always before the id."""

import re
from collections.abc import Callable

import xxhash

MAX_RUN = 128
"""Longest run of blanks or of line feeds that is kept; megabytes of spaces ran Marin out of memory (marin #4588)."""

_SUSPICIOUS = re.compile(r"[\r\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]+")
_SURROGATES = re.compile(r"[\ud800-\udfff]")
_LONG_RUN = re.compile(r"([ \t\xa0]{128})[ \t\xa0]+|(\n{128})\n+")

_REPAIRS: tuple[tuple[str, Callable[[str], str]], ...] = (
    ("line_ends", lambda text: text.replace("\r\n", "\n").replace("\r", "\n")),
    ("controls", lambda text: _CONTROLS.sub("", text)),
    ("surrogates", lambda text: _SURROGATES.sub("\ufffd", text)),
    ("long_runs", lambda text: _LONG_RUN.sub(lambda match: match[1] or match[2], text)),
)


def normal_form(text: str) -> tuple[str, tuple[str, ...]]:
    """Normal form of a text, and the names of the repairs that it took.

    CRLF and CR become LF; C0/C1 controls and DEL other than tab and LF are dropped; lone surrogates become U+FFFD; a run of more
    than 128 spaces, tabs and no-break spaces, or of line feeds, is cut to 128; trailing whitespace goes. No Unicode
    normalisation. Idempotent, linear in the length.
    """
    made = []
    if _SUSPICIOUS.search(text) or _has_long_run(text):
        for name, repair in _REPAIRS:
            repaired = repair(text)
            if repaired != text:
                made.append(name)
            text = repaired
    stripped = text.rstrip()
    if len(stripped) < len(text):
        made.append("trailing_whitespace")
    return stripped, tuple(made)


def _has_long_run(text: str) -> bool:
    """Whether a run is to be cut. A search for fixed text takes a fiftieth of the time of the pattern that does the cutting."""
    blanks = text
    for blank in "\t\xa0":
        if blank in blanks:
            blanks = blanks.replace(blank, " ")
    return " " * (MAX_RUN + 1) in blanks or "\n" * (MAX_RUN + 1) in text


def document_id(text: str) -> str:
    """xxh3-128 of the UTF-8 bytes: 32 lower-case hex digits, big-endian. Equal texts have equal ids and only they."""
    return xxhash.xxh3_128_hexdigest(text.encode())
