import re
import sysconfig
import unicodedata
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from marin_core.data.dedup import word_hashes
from marin_core.data.dedup.word_hashes import distinct_ngrams, document_ngrams, hash_words, ngrams

TEXT = st.text(st.sampled_from("aAbBéÉßſςσΣ\u0301\u0345İi09_-'’.,\n\t \u00a0你好ひカ한글हिन्दी\u0661😀\U00020000"), max_size=40)


def words_of(text: str) -> list[tuple[int, int, str]]:
    """Words one by one, as the definition says: places, and the folded form."""
    found: list[tuple[int, int, str]] = []
    inside = False
    for place, character in enumerate(text):
        alone = bool(re.match("[\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]", character))
        wordy = character.isalnum() or unicodedata.category(character)[0] == "M"
        if wordy:
            folded = next((form for form in (character.casefold(), character.lower()) if len(form) == 1), character)
            if inside and not alone:
                first, _, before = found[-1]
                found[-1] = (first, place + 1, before + folded)
            else:
                found.append((place, place + 1, folded))
        inside = wordy and not alone
    return found


@given(st.lists(TEXT, max_size=5))
def test_words_are_what_the_definition_says_in_any_script(texts: list[str]) -> None:
    words = hash_words(texts)
    forms: dict[int, str] = {}
    for text, first, last in zip(texts, words.bounds, words.bounds[1:], strict=False):
        expected = words_of(text)
        assert list(zip(words.starts[first:last], words.ends[first:last], strict=True)) == [(start, end) for start, end, _ in expected]
        for value, (_, _, form) in zip(words.hashes[first:last].tolist(), expected, strict=True):
            assert forms.setdefault(value, form) == form
    assert len(forms) == len({form for text in texts for _, _, form in words_of(text)})


@pytest.mark.parametrize("block", [1, 50, 1 << 20])
def test_hashes_dont_depend_on_what_is_hashed_together(block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = [f"word{index} and another WORD{index}, 你{index}" * (index % 7) for index in range(40)]
    alone = [hash_words([text]) for text in texts]
    monkeypatch.setattr(word_hashes, "_BLOCK", block)
    together = hash_words(texts)
    assert np.array_equal(together.hashes, np.concatenate([words.hashes for words in alone]))
    assert np.array_equal(together.starts, np.concatenate([words.starts for words in alone]))
    assert np.array_equal(np.diff(together.bounds), [len(words.hashes) for words in alone])


def test_hashes_are_fixed_for_good() -> None:
    # Signatures of different years are compared, so these values must never change.
    hashes = [f"{value:016x}" for value in hash_words(["Hello, hello — wörld 你"]).hashes.tolist()]
    assert hashes == ["a2e7f5aec350adf0", "a2e7f5aec350adf0", "e249551b6436215e", "41de9b9760c1b0d0"]


def test_ngrams_are_those_of_each_text_alone() -> None:
    texts = ["a b c d e f", "a b", "", "c d e f g", "x"]
    grams, places = document_ngrams(hash_words(texts), 3)
    expected = [ngrams(hash_words([text]).hashes, 3) for text in texts]
    assert np.array_equal(grams, np.concatenate(expected))
    assert places.tolist() == [0, 1, 2, 3, 8, 9, 10]
    distinct, bounds = distinct_ngrams(["a b c a b c a b", "z", "b c a"], 3)
    assert bounds.tolist() == [0, 3, 3, 4]
    assert distinct[3] in distinct[:3]
    assert np.array_equal(distinct[:3], np.unique(distinct[:3]))


def test_a_megabyte_of_different_words_has_no_collision() -> None:
    folder = Path(sysconfig.get_path("stdlib"))
    text = "\n".join(path.read_text(encoding="utf-8") for path in sorted(folder.glob("*.py"))[:8])
    expected = {form for _, _, form in words_of(text)}
    assert len(np.unique(hash_words([text, text.upper()]).hashes)) >= len(expected)
    assert len(np.unique(hash_words([text]).hashes)) == len(expected)
