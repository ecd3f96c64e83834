"""Paragraphs of a text as hashes, with the places where they stand."""

import re
from collections.abc import Iterator
from typing import NamedTuple

import xxhash

_BLANK_LINES = re.compile(r"\n[^\S\n]*\n\s*")


class Paragraph(NamedTuple):
    """A paragraph that is long enough to count.

    Attributes:
        start, end: characters; the blank lines after it belong to it, so that cutting it out leaves no gap.
        high, low: halves of the xxh3-128 of its text, with each run of white space as one blank.
    """

    start: int
    end: int
    high: int
    low: int


def paragraphs(text: str, min_characters: int) -> Iterator[Paragraph]:
    """Paragraphs of a text, in order: what stands between blank lines, at least `min_characters` long once white space is folded."""
    start = 0
    for end, after in [*((gap.start(), gap.end()) for gap in _BLANK_LINES.finditer(text)), (len(text), len(text))]:
        if end - start >= min_characters:
            folded = " ".join(text[start:end].split())
            if len(folded) >= min_characters:
                digest = xxhash.xxh3_128_intdigest(folded.encode())
                yield Paragraph(start, after, digest >> 64, digest & 0xFFFFFFFFFFFFFFFF)
        start = after
