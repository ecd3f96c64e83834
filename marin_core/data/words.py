"""Words and sentences by regular expressions, in the shape that datatrove's blocks ask for, and what measures need to know of each word."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from datatrove.utils.text import PUNCTUATION_SET
from datatrove.utils.word_tokenizers import WordTokenizer

NAME = "unicode_words_1"
"""Name and version; decisions depend on the splitter, so it enters the fingerprint through `FilterConfig.words`."""

_ONE_EACH = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
"""Kana and Han ideographs: written without blanks, so each is a word."""
_WORD = re.compile(rf"[^\W{_ONE_EACH}]+(?:['’][^\W{_ONE_EACH}]+)*|[{_ONE_EACH}]|[^\w\s]+")
_END = r"[.!?…]++(?=\s|$)|[。！？]++|\n{2,}+|$"
# The same as `\S.*?(?:END)`, in linear time: that takes quadratic time for a long run of dots that ends no sentence.
_SENTENCE = re.compile(rf"\S[^.!?…。！？\n]*+(?:(?!{_END})(?:[.!?…]++|\n)[^.!?…。！？\n]*+)*+(?:{_END})")

HASH_BASE = 0x9E3779B97F4A7C15
"""Odd, so every power of it is odd: nothing of a hash is shifted out however long the text."""
TABLE_WORDS = 1 << 17
"""Distinct words that are remembered; the table is emptied when it has more (spec: data §9, "a bounded table")."""
TABLE_CHARACTERS = 1 << 22
"""The same for their characters: a word may be as long as a document."""
_PIECE = 1 << 15
_MASK = 2**64 - 1
_LOOP_BYTES = 64


@dataclass(frozen=True)
class WordFacts:
    """What is known of each word of a text, in order.

    Attributes:
        hashes: uint64 [words]; of the word's UTF-8 bytes b₀…bₖ₋₁ as Σ (bᵢ + 1) · HASH_BASE^(k−1−i) mod 2^64.
        powers: uint64 [words]; HASH_BASE^k, so that hash(a + b) = hash(a) · power(b) + hash(b).
        characters: int64 [words].
        punctuation: bool [words]; every character stands in datatrove's `PUNCTUATION_SET`.
        alphabetic: bool [words]; some character is a letter.
    """

    hashes: npt.NDArray[np.uint64]
    powers: npt.NDArray[np.uint64]
    characters: npt.NDArray[np.int64]
    punctuation: npt.NDArray[np.bool_]
    alphabetic: npt.NDArray[np.bool_]


class WordTable(dict[str, int]):
    """Word → row in a table of its facts; each distinct word is looked at once. What it holds never changes what it answers."""

    def __init__(self) -> None:
        super().__init__()
        self._characters = 0
        self._new: list[tuple[int, int, int, bool, bool]] = []
        self._facts = _empty_facts(1 << 10)

    def __missing__(self, word: str) -> int:
        self._new.append((*word_hash(word), len(word), PUNCTUATION_SET.issuperset(word), any(map(str.isalpha, word))))
        row = self[word] = len(self)
        self._characters += len(word)
        return row

    def facts(self, words: Sequence[str]) -> WordFacts:
        """Facts of the words of a text. They are looked up in pieces, so that no text grows the table without end."""
        pieces = [self._piece(words[start : start + _PIECE]) for start in range(0, max(1, len(words)), _PIECE)]
        return pieces[0] if len(pieces) == 1 else _joined(pieces)

    def _piece(self, words: Sequence[str]) -> WordFacts:
        if len(self) > TABLE_WORDS or self._characters > TABLE_CHARACTERS:
            self.clear()
            self._characters = 0
        rows = np.fromiter(map(self.__getitem__, words), np.int64, len(words))
        if self._new:
            self._write_new()
        known = self._facts
        return WordFacts(*(getattr(known, name)[rows] for name in _COLUMNS))

    def _write_new(self) -> None:
        end = len(self)
        if end > len(self._facts.hashes):
            self._facts = _joined([self._facts, _empty_facts(end)])
        for name, values in zip(_COLUMNS, zip(*self._new, strict=True), strict=True):
            column = getattr(self._facts, name)
            column[end - len(values) : end] = np.array(values, column.dtype)
        self._new.clear()


_COLUMNS = ("hashes", "powers", "characters", "punctuation", "alphabetic")


def _empty_facts(rows: int) -> WordFacts:
    return WordFacts(
        np.zeros(rows, np.uint64), np.zeros(rows, np.uint64), np.zeros(rows, np.int64), np.zeros(rows, np.bool_), np.zeros(rows, np.bool_)
    )


def _joined(pieces: Sequence[WordFacts]) -> WordFacts:
    return WordFacts(*(np.concatenate([getattr(piece, name) for piece in pieces]) for name in _COLUMNS))


def word_hash(word: str) -> tuple[int, int]:
    """Hash of a word and HASH_BASE to the power of its length, as in `WordFacts`."""
    data = word.encode()
    digest, power = 0, 1
    if len(data) <= _LOOP_BYTES:
        for byte in data:
            digest = (digest * HASH_BASE + byte + 1) & _MASK
        return digest, pow(HASH_BASE, len(data), 2**64)
    for start in range(0, len(data), _PIECE):
        codes = np.frombuffer(data, np.uint8, min(_PIECE, len(data) - start), start).astype(np.uint64) + np.uint64(1)
        powers = np.cumprod(np.full(len(codes), HASH_BASE, np.uint64))
        following = int((codes * np.append(powers[-2::-1], np.uint64(1))).sum())
        digest = (digest * int(powers[-1]) + following) & _MASK
        power = power * int(powers[-1]) & _MASK
    return digest, power


class UnicodeWords(WordTokenizer):  # type: ignore[misc]
    """A run of letters and digits is a word, with inner apostrophes; a run of other visible characters is one too.

    datatrove's English words come from spaCy, at 3.4 CPU-s/MB against 0.05; its blocks take these as `language=`. The words of the last
    text are kept, so a document that passes several blocks is split once.
    """

    def __init__(self) -> None:
        super().__init__(None)
        self._text = ""
        self._words: list[str] = []
        self._table = WordTable()

    def word_tokenize(self, text: str) -> list[str]:
        """Words of a text, in order; the list is shared, so callers must not change it."""
        if text is not self._text:
            self._words = _WORD.findall(text)
            self._text = text
        return self._words

    def facts(self, words: Sequence[str]) -> WordFacts:
        """What is known of each word."""
        return self._table.facts(words)

    def sent_tokenize(self, text: str) -> list[str]:
        """Sentences of a text, without surrounding blanks."""
        return [text[start:end] for start, end in self.span_tokenize(text)]

    def span_tokenize(self, text: str) -> list[tuple[int, int]]:
        """[start, end) of each sentence, without surrounding blanks."""
        return [(match.start(), match.start() + len(match[0].rstrip())) for match in _SENTENCE.finditer(text)]

    def count_sentences(self, text: str) -> int:
        """How many sentences `span_tokenize` finds."""
        return len(_SENTENCE.findall(text))
