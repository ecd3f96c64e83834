"""How much of a text repeats: the figures of Gopher's repetition rules, as datatrove 0.10.1's `GopherRepetitionFilter` works them out.

N-grams are compared by 64-bit hashes, made for all positions at once; the block builds a string for each and takes five times as long.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from marin_core.data.measures.config import GopherRepetitionMeasure
from marin_core.data.measures.interface import Measured

Hashes = npt.NDArray[np.uint64]

_PARAGRAPH_BREAK = re.compile(r"\n{2,}")
_SEQUENCE_BASE = np.uint64(0xD6E8FEB86659FD93)
"""Odd; combines hashes of words into the hash of their sequence."""
_ZERO = np.zeros(1, np.int64)
_PIECE = 1 << 16
"""Places that are looked at as Python's numbers at a time, which take five times the memory."""


class GopherRepetition:
    """Shares of lines and paragraphs that stood before, and shares of the text's characters in them and in repeated n-grams."""

    name = "gopher_repetition"

    def __init__(self, config: GopherRepetitionMeasure) -> None:
        self._top = sorted(set(config.top_n_grams))
        self._duplicate = sorted(set(config.duplicate_n_grams))
        names = ["duplicate_paragraphs", "duplicate_paragraph_characters", "duplicate_lines", "duplicate_line_characters"]
        names += [f"top_{size}_gram" for size in self._top] + [f"duplicated_{size}_n_grams" for size in self._duplicate]
        self.columns: Mapping[str, pa.DataType] = {"characters": pa.int32()} | {name: pa.float64() for name in names}

    def measure(self, document: Measured) -> Mapping[str, Any]:
        """All shares, so that any limits can be set later."""
        text = document.text
        size = max(1, len(text))
        paragraphs = _paragraphs(text)
        lines = _lines(document)
        again, characters = _repeated(paragraphs)
        values: dict[str, Any] = {
            "characters": len(text),
            "duplicate_paragraphs": again / len(paragraphs),
            "duplicate_paragraph_characters": characters / size,
        }
        again, characters = _repeated(lines)
        values |= {"duplicate_lines": again / len(lines), "duplicate_line_characters": characters / size}
        facts = document.facts
        ends = np.concatenate((_ZERO, facts.characters.cumsum()))
        same_base = np.full(len(facts.hashes), _SEQUENCE_BASE)
        for n, grams in _n_grams(facts.hashes, same_base, self._top):
            values[f"top_{n}_gram"] = _top_characters(grams, ends, n) / size
        for n, grams in _n_grams(facts.hashes, facts.powers, self._duplicate):
            values[f"duplicated_{n}_n_grams"] = _duplicate_characters(grams, ends, n) / size
        return values


def _n_grams(words: Hashes, bases: Hashes, sizes: Sequence[int]) -> Iterator[tuple[int, Hashes]]:
    """Hashes of all n-grams of each size, uint64 [words − n + 1]: those of n − 1 words times the next word's base, plus that word."""
    grams = words
    for n in range(1, max(sizes, default=0) + 1):
        if n > 1:
            grams = grams[:-1] * bases[n - 1 :] + words[n - 1 :]
        if n in sizes:
            yield n, grams


def _paragraphs(text: str) -> list[str]:
    """A text split at runs of two or more line feeds; by the faster way where no run is longer."""
    text = text.strip()
    return _PARAGRAPH_BREAK.split(text) if "\n\n\n" in text else text.split("\n\n")


def _lines(document: Measured) -> list[str]:
    """A text split at runs of line feeds: what stands before a first run, or behind a last one, is an empty line."""
    text, lines = document.text, document.lines
    return [*([""] if lines[0] == "" else []), *filter(None, lines), *([""] if text.endswith("\n") else [])]


def _repeated(parts: Sequence[str]) -> tuple[int, int]:
    """How many parts stood before, and their characters."""
    unique = set(parts)
    if len(unique) == len(parts):
        return 0, 0
    return len(parts) - len(unique), sum(map(len, parts)) - sum(map(len, unique))


def _top_characters(grams: Hashes, ends: npt.NDArray[np.int64], n: int) -> int:
    """Characters of the most frequent n-gram with single spaces, times its count; of equally frequent ones the first counts.

    Args:
        grams: uint64 [words − n + 1].
        ends: int64 [words + 1]; characters before each word.
    """
    if not len(grams):
        return 0
    ordered = _sorted(grams)
    ends_of_runs = (ordered[1:] != ordered[:-1]).nonzero()[0] + 1
    starts = np.concatenate((_ZERO, ends_of_runs))
    counts = np.concatenate((ends_of_runs, [len(ordered)])) - starts
    count = int(counts.max())
    first = 0 if count == 1 else int(_is_one_of(grams, ordered[starts[counts == count]]).argmax())
    return count * int(ends[first + n] - ends[first] + n - 1)


def _duplicate_characters(grams: Hashes, ends: npt.NDArray[np.int64], n: int) -> int:
    """Characters in n-grams that stood before, read from the left: after one that did, reading goes on behind it.

    Args:
        grams: uint64 [words − n + 1], of n words written without spaces.
        ends: int64 [words + 1]; characters before each word.
    """
    if len(grams) < 2:
        return 0
    ordered = _sorted(grams)
    several = ordered[1:][ordered[1:] == ordered[:-1]]
    if not len(several):
        return 0
    # Only positions whose n-gram occurs more than once can matter; in prose they are few.
    places = _is_one_of(grams, several).nonzero()[0]
    seen: set[int] = set()
    characters, behind = 0, 0
    for start in range(0, len(places), _PIECE):
        piece = places[start : start + _PIECE]
        for place, gram, length in zip(piece.tolist(), grams[piece].tolist(), (ends[piece + n] - ends[piece]).tolist(), strict=True):
            if place < behind:
                continue
            if gram in seen:
                characters += length
                behind = place + n
            else:
                seen.add(gram)
    return characters


def _sorted(values: Hashes) -> Hashes:
    ordered = values.copy()
    ordered.sort()
    return ordered


def _is_one_of(values: Hashes, ordered: Hashes) -> npt.NDArray[np.bool_]:
    """Which values stand among others, which are sorted and at least one."""
    places = ordered.searchsorted(values)
    places[places == len(ordered)] = 0
    found: npt.NDArray[np.bool_] = ordered[places] == values
    return found
