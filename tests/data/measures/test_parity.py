"""Decisions are those of datatrove's own classes, given the same word splitter."""

from collections.abc import Callable, Iterable
from functools import cache
from typing import Any, cast

import pytest
from datatrove.data import Document
from datatrove.pipeline.filters import C4QualityFilter, FineWebQualityFilter, GopherQualityFilter, GopherRepetitionFilter
from hypothesis import given, settings
from hypothesis import strategies as st

from marin_core.data.measures.config import C4QualityMeasure, FineWebQualityMeasure, GopherQualityMeasure, GopherRepetitionMeasure
from marin_core.data.measures.interface import Measured
from marin_core.data.rules.config import C4Quality, FilterRule, FineWebQuality, GopherQuality, GopherRepetition, MeasuredRule
from marin_core.data.rules.decide import make_rules
from marin_core.data.rules.edits import apply_edits
from marin_core.data.words import UnicodeWords
from tests.data.measures.corpus import real_texts, spoilt_texts

Block = Any
MIN_EQUAL_SHARE = 0.999
"""The issue's promise; where hashes decide, equality can't be certain."""


def quality_block(rule: GopherQuality, words: UnicodeWords) -> Block:
    return GopherQualityFilter(
        min_doc_words=rule.min_words,
        max_doc_words=rule.max_words,
        min_avg_word_length=rule.min_mean_word_length,
        max_avg_word_length=rule.max_mean_word_length,
        max_symbol_word_ratio=rule.max_symbol_word_ratio,
        max_bullet_lines_ratio=rule.max_bullet_lines_ratio,
        max_ellipsis_lines_ratio=rule.max_ellipsis_lines_ratio,
        max_non_alpha_words_ratio=rule.min_alpha_words_ratio,
        min_stop_words=rule.min_stop_words,
        stop_words=list(rule.measure.stop_words),
        language=words,
    )


def repetition_block(rule: GopherRepetition, words: UnicodeWords) -> Block:
    return GopherRepetitionFilter(
        dup_line_frac=rule.max_duplicate_lines,
        dup_para_frac=rule.max_duplicate_paragraphs,
        dup_line_char_frac=rule.max_duplicate_line_characters,
        dup_para_char_frac=rule.max_duplicate_paragraph_characters,
        top_n_grams=rule.max_top_n_grams,
        dup_n_grams=rule.max_duplicate_n_grams,
        language=words,
    )


def c4_block(rule: C4Quality, words: UnicodeWords) -> Block:
    removed = rule.measure.remove_lines
    return C4QualityFilter(
        remove_citations=rule.measure.remove_citations,
        filter_no_terminal_punct="no_terminal_punctuation" in removed,
        min_num_sentences=rule.min_sentences,
        min_words_per_line=rule.measure.min_words_per_line if "few_words" in removed else -1,
        max_word_length=rule.measure.max_word_characters if "long_word" in removed else -1,
        filter_lorem_ipsum=rule.drop_lorem_ipsum,
        filter_javascript="javascript" in removed,
        filter_curly_bracket=rule.drop_curly_brackets,
        filter_policy="policy" in removed,
        language=words,
    )


def fineweb_block(rule: FineWebQuality, words: UnicodeWords) -> Block:
    return FineWebQualityFilter(
        line_punct_thr=rule.min_line_punctuation,
        short_line_thr=rule.max_short_lines,
        short_line_length=rule.measure.short_line_characters,
        char_duplicates_ratio=rule.max_duplicate_characters,
        new_line_ratio=rule.max_new_lines_per_word,
        language=words,
    )


BLOCKS: dict[type[MeasuredRule], Callable[[Any, UnicodeWords], Block]] = {
    GopherQuality: quality_block,
    GopherRepetition: repetition_block,
    C4Quality: c4_block,
    FineWebQuality: fineweb_block,
}


def block_decision(block: Block, text: str) -> tuple[str | None, str]:
    """Reason of datatrove's block, and the text as it left it."""
    document = Document(text=text, id="")
    result = block.filter(document)
    kept, reason = result if isinstance(result, tuple) else (result, None)
    return (None if kept else reason), document.text


def lines_of(text: str) -> list[str]:
    """Lines as the C4 block leaves them: without blanks around, and no empty ones."""
    return [line for line in map(str.strip, text.splitlines()) if line]


def differences(rule: MeasuredRule, texts: Iterable[str]) -> list[tuple[str, str | None, str | None]]:
    """Texts on which our decision, or what is left of the text, is another than the block's."""
    words = UnicodeWords()
    (made,) = make_rules([cast(FilterRule, rule)])
    block = BLOCKS[type(rule)](rule, words)
    found = []
    for text in texts:
        outcome = made.decide(Measured(text, "{}", words))
        expected, left = block_decision(block, text)
        assert outcome.reason is None or outcome.reason in rule.reasons
        if outcome.reason != expected:
            found.append((text, outcome.reason, expected))
        elif expected is None and lines_of(apply_edits(text, outcome.edits)) != lines_of(left):
            found.append((text, "cut otherwise", None))
    return found


@cache
def spoilt(count: int, seed: int) -> tuple[str, ...]:
    return tuple(spoilt_texts(count, seed))


def assert_equal(rule: MeasuredRule, count: int, seed: int) -> None:
    found = differences(rule, spoilt(count, seed))
    for text, ours, theirs in found:
        print(f"{rule.name}: {ours} here, {theirs} there: {text[:300]!r}")
    assert len(found) <= (1 - MIN_EQUAL_SHARE) * count


RULES = (GopherQuality(), GopherRepetition(), C4Quality(), FineWebQuality())


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_two_thousand_documents_meet_the_fate_that_datatrove_gives_them(rule: MeasuredRule) -> None:
    assert_equal(rule, 2_000, 1)


@pytest.mark.slow
@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_ten_thousand_documents_meet_the_fate_that_datatrove_gives_them(rule: MeasuredRule) -> None:
    assert_equal(rule, 10_000, 2)


SHARES = st.floats(0, 0.5)
SOME_RULES = st.one_of(
    st.builds(
        GopherQuality,
        min_words=st.integers(1, 200),
        max_words=st.integers(1, 2_000),
        min_mean_word_length=st.floats(0, 6),
        max_mean_word_length=st.floats(0, 10),
        max_symbol_word_ratio=st.floats(0, 0.2),
        max_bullet_lines_ratio=st.floats(0, 1),
        max_ellipsis_lines_ratio=st.floats(0, 1),
        min_alpha_words_ratio=st.floats(0, 1),
        min_stop_words=st.integers(0, 8),
        measure=st.builds(GopherQualityMeasure, stop_words=st.just(("the", "of", "self", "a", "in"))),
    ),
    st.builds(
        GopherRepetition,
        max_duplicate_lines=SHARES,
        max_duplicate_paragraphs=SHARES,
        max_duplicate_line_characters=SHARES,
        max_duplicate_paragraph_characters=SHARES,
        max_top_n_grams=st.lists(st.tuples(st.integers(1, 6), SHARES), max_size=3).map(tuple),
        max_duplicate_n_grams=st.lists(st.tuples(st.integers(1, 12), SHARES), max_size=4).map(tuple),
        measure=st.just(GopherRepetitionMeasure(top_n_grams=tuple(range(1, 7)), duplicate_n_grams=tuple(range(1, 13)))),
    ),
    st.builds(
        C4Quality,
        min_sentences=st.integers(0, 12),
        drop_lorem_ipsum=st.booleans(),
        drop_curly_brackets=st.booleans(),
        measure=st.builds(
            C4QualityMeasure,
            remove_lines=st.sets(
                st.sampled_from(["long_word", "no_terminal_punctuation", "few_words", "javascript", "policy"]), max_size=5
            ).map(lambda chosen: tuple(sorted(chosen))),
            remove_citations=st.booleans(),
            min_words_per_line=st.integers(1, 6),
            max_word_characters=st.sampled_from([10, 40, 1_000]),
        ),
    ),
    st.builds(
        FineWebQuality,
        min_line_punctuation=SHARES,
        max_short_lines=st.floats(0, 1),
        max_duplicate_characters=st.floats(0, 0.1),
        max_new_lines_per_word=SHARES,
        measure=st.builds(FineWebQualityMeasure, short_line_characters=st.integers(0, 80)),
    ),
)


@settings(max_examples=50)
@given(SOME_RULES, st.integers(0, 10_000))
def test_any_thresholds_decide_as_datatrove_does(rule: MeasuredRule, seed: int) -> None:
    assert differences(rule, spoilt_texts(6, seed)) == []


PIECES = st.one_of(
    st.sampled_from(["the cat", "of", " ", "\n", "\n\n", ".", "...", "…", "{", "[1]", "[edit]", "- ", "•", "#", "? ", "\t", '"', "'s"]),
    st.sampled_from(["lorem ipsum", "JavaScript", "use cookies", "你好。", "\u2028", "1 ", "11", "aa", "a", "_", "１", "x" * 1_001]),
)


@settings(max_examples=100)
@given(SOME_RULES, st.lists(PIECES, min_size=1, max_size=60).map("".join))
def test_any_text_is_decided_on_as_by_datatrove(rule: MeasuredRule, text: str) -> None:
    if text.strip():
        assert differences(rule, [text]) == []


def test_the_corpus_reaches_every_reason_of_the_default_rules() -> None:
    """A comparison on texts that all pass would prove nothing."""
    words = UnicodeWords()
    texts = spoilt(2_000, 1)
    assert len(real_texts()) > 500
    reached = {rule.name: {rule.decide(Measured(text, "{}", words)).reason for text in texts} for rule in make_rules(RULES)}
    unreached = {rule.name: set(rule.reasons) - reached[rule.name] for rule in RULES}
    assert unreached == {
        "gopher_quality": {"gopher_long_doc"},
        "gopher_repetition": {"empty"},
        "c4_quality": set(),
        "fineweb_quality": {"empty"},
    }


def test_words_that_run_together_differently_are_one_n_gram_as_in_the_block() -> None:
    """The block joins the words of repeated n-grams without spaces: `1 11` is `11 1` to it."""
    text = "1 11 2 33 4 " * 3 + "11 1 2 33 4 " * 3
    limits = tuple((size, 0.0) for size in (2, 3, 5))
    rule = GopherRepetition(
        max_top_n_grams=(),
        max_duplicate_n_grams=limits,
        measure=GopherRepetitionMeasure(duplicate_n_grams=(2, 3, 5)),
    )
    assert differences(rule, [text]) == []


def test_a_random_source_gives_the_same_corpus_again() -> None:
    assert list(spoilt_texts(20, 3)) == list(spoilt_texts(20, 3))
