import re

import numpy as np
import pytest
from datatrove.utils.text import PUNCTUATION_SET
from hypothesis import given
from hypothesis import strategies as st

from marin_core.data import words as words_module
from marin_core.data.words import HASH_BASE, UnicodeWords, WordTable, word_hash

OLD_SENTENCE = re.compile(r"\S.*?(?:[.!?…]+(?=\s|$)|[。！？]+|\n{2,}|$)", re.DOTALL)
"""What a sentence is, said plainly; the module's pattern is the same, faster."""
SENTENCE_PIECES = st.sampled_from([".", "!", "…", "。", "！", "a", "b", " ", "\t", "\n", "\n\n", "\u2028"])


def plain_hash(word: str) -> tuple[int, int]:
    digest = 0
    for byte in word.encode():
        digest = (digest * HASH_BASE + byte + 1) % 2**64
    return digest, pow(HASH_BASE, len(word.encode()), 2**64)


@given(st.lists(SENTENCE_PIECES, max_size=30).map("".join))
def test_sentences_are_those_of_the_plain_pattern(text: str) -> None:
    expected = [(match.start(), match.start() + len(match[0].rstrip())) for match in OLD_SENTENCE.finditer(text)]
    words = UnicodeWords()
    assert words.span_tokenize(text) == expected
    assert words.count_sentences(text) == len(expected)


@given(st.text(min_size=1, max_size=100), st.text(min_size=1, max_size=100))
def test_the_hash_of_two_words_run_together_follows_from_theirs(left: str, right: str) -> None:
    (first, _), (second, power) = word_hash(left), word_hash(right)
    assert word_hash(left + right)[0] == (first * power + second) % 2**64
    assert word_hash(left) == plain_hash(left)


def test_long_words_are_hashed_in_pieces_to_the_same() -> None:
    for length in (64, 65, 1 << 15, (1 << 15) + 1, 100_001):
        word = "é" * (length // 2) + "x" * (length % 2)
        assert word_hash(word) == plain_hash(word)


@given(st.lists(st.text(min_size=1, max_size=8), max_size=40))
def test_facts_say_of_each_word_what_plain_code_says(words: list[str]) -> None:
    facts = WordTable().facts(words)
    assert facts.hashes.tolist() == [plain_hash(word)[0] for word in words]
    assert facts.powers.tolist() == [plain_hash(word)[1] for word in words]
    assert facts.characters.tolist() == [len(word) for word in words]
    assert facts.punctuation.tolist() == [all(character in PUNCTUATION_SET for character in word) for word in words]
    assert facts.alphabetic.tolist() == [any(character.isalpha() for character in word) for word in words]


def test_long_words_and_words_that_fail_do_not_stay_in_the_table() -> None:
    table = WordTable()
    for index in range(50):
        assert table.facts([f"{index}" * 200_000]).characters[0] in (200_000, 400_000)
    assert sum(map(len, table)) < 5_000_000
    with pytest.raises(UnicodeEncodeError):
        table.facts(["fine", "\ud800", "never"])
    facts = table.facts(["other", "fine", "a"])
    assert facts.characters.tolist() == [5, 4, 1]
    assert facts.hashes.tolist() == [plain_hash(word)[0] for word in ("other", "fine", "a")]


def test_a_full_table_is_emptied_and_answers_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(words_module, "TABLE_WORDS", 100)
    monkeypatch.setattr(words_module, "_PIECE", 64)
    table = WordTable()
    words = [f"word{index % 500}" for index in range(3_000)]
    for _ in range(2):
        facts = table.facts(words)
        assert len(table) <= 164
        assert np.array_equal(facts.hashes, WordTable().facts(words).hashes)
        assert facts.characters.tolist() == [len(word) for word in words]
