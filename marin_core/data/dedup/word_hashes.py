"""Words of many texts at once, as 64-bit hashes: no string is made for a word, so splitting and hashing cost about 0.01 CPU-s/MB."""

import unicodedata
from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

UInt64 = npt.NDArray[np.uint64]
Int64 = npt.NDArray[np.int64]

NAME = "folded_words_1"
"""Name and version of the splitter. What is called a duplicate depends on it, so it enters the fingerprint through the configs.

What is a letter is said by the Unicode tables of the running Python; between two versions they differ in newly assigned characters alone.
"""

_ONE_EACH = ((0x3040, 0x30FF), (0x3400, 0x4DBF), (0x4E00, 0x9FFF), (0xF900, 0xFAFF), (0x20000, 0x3FFFF))
"""Kana and Han ideographs: written without blanks, so each is a word (as in `marin_core.data.words`)."""
_LETTERS = ((0x3400, 0x4DBF), (0x4E00, 0x9FFF), (0xAC00, 0xD7A3), (0x20000, 0x323AF))
"""Ideographs and Hangul syllables: letters without case, 100,000 of them."""
_MIXED = ((0, 0x33FF), (0x4DC0, 0x4DFF), (0xA000, 0xABFF), (0xD7B0, 0xD7FF), (0xF900, 0x1FFFF), (0xE0100, 0xE01EF))
"""Code points among which other letters, digits and marks are looked for, one by one; elsewhere is nothing or private use."""

_BASE = 0x9E3779B97F4A7C15
"""Odd, so that its powers have inverses modulo 2^64."""
_INVERSE = pow(_BASE, -1, 1 << 64)
_BLOCK = 1 << 18
"""Characters that are hashed together: intermediate arrays of 2 MiB stay in a core's cache."""


class Words(NamedTuple):
    """Words of several texts, one after the other.

    Attributes:
        hashes: uint64 [W]; equal words have equal hashes, different ones differ but for 1 pair in 2^64.
        starts, ends: int64 [W], characters of the word within its own text.
        bounds: int64 [D + 1]; text d has the words [bounds[d], bounds[d + 1]).
    """

    hashes: UInt64
    starts: Int64
    ends: Int64
    bounds: Int64


def mix64(values: UInt64) -> UInt64:
    """A bijection of 64 bits after which every bit depends on all of them (finalizer of MurmurHash3, public domain)."""
    mixed = values ^ (values >> np.uint64(33))
    mixed *= np.uint64(0xFF51AFD7ED558CCD)
    mixed ^= mixed >> np.uint64(33)
    mixed *= np.uint64(0xC4CEB9FE1A85EC53)
    mixed ^= mixed >> np.uint64(33)
    return mixed


def hash_words(texts: Sequence[str]) -> Words:
    """Split texts into words, compared without regard to case.

    A word is a run of letters, digits and combining marks, or one kana or ideograph; everything else only separates, so neither
    punctuation nor layout matters. Case is folded character by character.

    The hash of a word c₀c₁… is mix(Σ h(cᵢ)·Bⁱ) modulo 2^64, with random 64-bit h(c): a difference of prefix sums over the whole
    block, divided by the power of B at which the word begins.
    """
    blocks = [_hash_block(texts[first:last]) for first, last in _blocks(texts)]
    if not blocks:
        empty = np.empty(0, np.int64)
        return Words(empty.astype(np.uint64), empty, empty, np.zeros(1, np.int64))
    offsets = np.cumsum([0, *(len(block.hashes) for block in blocks)])
    bounds = [block.bounds[1:] + offset for block, offset in zip(blocks, offsets[:-1], strict=True)]
    return Words(
        np.concatenate([block.hashes for block in blocks]),
        np.concatenate([block.starts for block in blocks]),
        np.concatenate([block.ends for block in blocks]),
        np.concatenate([np.zeros(1, np.int64), *bounds]),
    )


def ngrams(words: UInt64, n: int) -> UInt64:
    """Hashes of all runs of n words, in order: uint64 [max(0, W - n + 1)]."""
    count = len(words) - n + 1
    if count < 1:
        return np.empty(0, np.uint64)
    total = np.zeros(count, np.uint64)
    for index in range(n):
        total *= np.uint64(_BASE)
        total += words[index : index + count]
    return mix64(total)


def document_ngrams(words: Words, n: int) -> tuple[UInt64, Int64]:
    """Hashes of the runs of n words that lie within one text, and the place of each run's first word: uint64 [G], int64 [G]."""
    grams = ngrams(words.hashes, n)
    owner = np.repeat(np.arange(len(words.bounds) - 1), np.diff(words.bounds))
    places = np.flatnonzero(owner[: len(grams)] == owner[n - 1 :])
    return grams[places], places


def distinct_ngrams(texts: Sequence[str], n: int) -> tuple[UInt64, Int64]:
    """The distinct runs of n words of each text, ascending, one text after the other: uint64 [G]; and where they begin: int64 [D + 1]."""
    words = hash_words(texts)
    grams, places = document_ngrams(words, n)
    owner = np.searchsorted(words.bounds, places, side="right") - 1
    order = np.lexsort((grams, owner))
    grams, owner = grams[order], owner[order]
    new = np.ones(len(grams), bool)
    new[1:] = (grams[1:] != grams[:-1]) | (owner[1:] != owner[:-1])
    return grams[new], np.searchsorted(owner[new], np.arange(len(texts) + 1))


def _blocks(texts: Sequence[str]) -> list[tuple[int, int]]:
    """Runs of texts with about as many characters as one block has."""
    runs = []
    first = size = 0
    for index, text in enumerate(texts):
        if index > first and size + len(text) > _BLOCK:
            runs.append((first, index))
            first, size = index, 0
        size += len(text) + 1
    if first < len(texts):
        runs.append((first, len(texts)))
    return runs


def _hash_block(texts: Sequence[str]) -> Words:
    characters = np.frombuffer("\n".join([*texts, ""]).encode("utf-32-le", "surrogatepass"), np.uint32)
    hashes, kinds = _tables()
    kind = kinds[characters]
    inside = kind != 0
    before = np.empty_like(inside)
    before[0] = False
    before[1:] = inside[:-1]
    begins = inside & ~before
    single = kind == 2
    if single.any():  # an ideograph ends the word before it and begins one, and so does what follows it
        begins |= single
        begins[1:] |= single[:-1] & inside[1:]
    starts = np.flatnonzero(begins)
    stops = begins | ~inside
    stops[0] = False
    stops[1:] &= before[1:]
    ends = np.flatnonzero(stops)  # a text ends in a line feed, so every word ends before the block does
    powers, inverses = _powers(len(characters))
    sums = np.empty(len(characters) + 1, np.uint64)
    sums[0] = 0
    np.cumsum(hashes[characters] * powers[: len(characters)], out=sums[1:])
    words = mix64((sums[ends] - sums[starts]) * inverses[starts])
    firsts = np.cumsum([0, *(len(text) + 1 for text in texts)])
    bounds = np.searchsorted(starts, firsts)
    shift = np.repeat(firsts[:-1], np.diff(bounds))
    return Words(words, starts - shift, ends - shift, bounds)


@cache
def _tables() -> tuple[UInt64, npt.NDArray[np.uint8]]:
    """For each code point: hash of its folded form (0 where it separates), and 0 = separates, 1 = letter or mark, 2 = a word alone."""
    kinds = np.zeros(0x110000, np.uint8)
    folded = np.arange(0x110000, dtype=np.uint64)
    for first, last in _LETTERS:
        kinds[first : last + 1] = 1
    for code in (code for first, last in _MIXED for code in range(first, last + 1)):
        character = chr(code)
        if character.isalnum() or unicodedata.category(character)[0] == "M":
            kinds[code] = 1
            folded[code] = ord(_folded(character))
    for first, last in _ONE_EACH:
        kinds[first : last + 1] *= 2
    hashes = mix64((folded + np.uint64(1)) * np.uint64(_BASE))
    hashes[kinds == 0] = 0
    return hashes, kinds


def _folded(character: str) -> str:
    """Folded case where that is one character: ς, σ and Σ are one, ß stays."""
    return next((form for form in (character.casefold(), character.lower()) if len(form) == 1), character)


_grown: tuple[UInt64, UInt64] = (np.empty(0, np.uint64), np.empty(0, np.uint64))


def _powers(length: int) -> tuple[UInt64, UInt64]:
    """At least `length` powers of the base and of its inverse."""
    global _grown
    if len(_grown[0]) < length:
        size = max(2 * _BLOCK, 1 << (length - 1).bit_length())
        _grown = (_power_table(_BASE, size), _power_table(_INVERSE, size))
    return _grown


def _power_table(base: int, size: int) -> UInt64:
    factors = np.full(size, base, np.uint64)
    factors[0] = 1
    powers: UInt64 = np.cumprod(factors, dtype=np.uint64)
    return powers
