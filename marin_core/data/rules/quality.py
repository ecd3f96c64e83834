"""Decisions about the quality of prose and code, in datatrove 0.10.1's order and with its reasons. Light: nothing is measured here."""

from collections.abc import Mapping
from typing import Any

from marin_core.data.rules.config import C4Quality, CodeQuality, FineWebQuality, GopherQuality, GopherRepetition, MinCharacters
from marin_core.data.rules.interface import KEEP, Decide, Edit, Outcome


def decide_gopher_quality(config: GopherQuality) -> Decide:
    """A limit of 0 is none, as in the block."""

    def decide(values: Mapping[str, Any]) -> Outcome:
        words = values["words"] - values["symbol_words"]
        if words < config.min_words:
            return Outcome("gopher_short_doc", words)
        if words > config.max_words:
            return Outcome("gopher_long_doc", words)
        length = values["mean_word_length"]
        if config.min_mean_word_length and length < config.min_mean_word_length:
            return Outcome("gopher_below_avg_threshold", length)
        if config.max_mean_word_length and length > config.max_mean_word_length:
            return Outcome("gopher_above_avg_threshold", length)
        for column, limit, reason in (
            ("hashes_per_word", config.max_symbol_word_ratio, "gopher_too_many_hashes"),
            ("ellipses_per_word", config.max_symbol_word_ratio, "gopher_too_many_ellipsis"),
            ("bullet_lines", config.max_bullet_lines_ratio, "gopher_too_many_bullets"),
            ("ellipsis_lines", config.max_ellipsis_lines_ratio, "gopher_too_many_end_ellipsis"),
        ):
            if limit and values[column] > limit:
                return Outcome(reason, values[column])
        if config.min_alpha_words_ratio and values["alpha_words"] < config.min_alpha_words_ratio:
            return Outcome("gopher_below_alpha_threshold", values["alpha_words"])
        if values["stop_words"] < config.min_stop_words:
            return Outcome("gopher_enough_stop_words", values["stop_words"])
        return KEEP

    return decide


def decide_gopher_repetition(config: GopherRepetition) -> Decide:
    """A limit of 0 for lines and paragraphs is none, as in the block; for n-grams it is one."""
    limits = [
        (column, limit, reason)
        for column, limit, reason in (
            ("duplicate_paragraphs", config.max_duplicate_paragraphs, "dup_para_frac"),
            ("duplicate_paragraph_characters", config.max_duplicate_paragraph_characters, "dup_para_char_frac"),
            ("duplicate_lines", config.max_duplicate_lines, "dup_line_frac"),
            ("duplicate_line_characters", config.max_duplicate_line_characters, "dup_line_char_frac"),
        )
        if limit
    ]
    limits += [(f"top_{size}_gram", limit, f"top_{size}_gram") for size, limit in config.max_top_n_grams]
    limits += [(f"duplicated_{size}_n_grams", limit, f"duplicated_{size}_n_grams") for size, limit in config.max_duplicate_n_grams]

    def decide(values: Mapping[str, Any]) -> Outcome:
        if not values["characters"]:
            return Outcome("empty", 0)
        for column, limit, reason in limits:
            if values[column] > limit:
                return Outcome(reason, values[column])
        return KEEP

    return decide


def decide_c4_quality(config: C4Quality) -> Decide:
    """The first line that speaks against the page decides; then the sentences that are left; then lines are cut out."""

    def decide(values: Mapping[str, Any]) -> Outcome:
        against = []
        if config.drop_lorem_ipsum and values["lorem_ipsum"] is not None:
            against.append((values["lorem_ipsum"], 0, "lorem_ipsum"))
        if config.drop_curly_brackets and values["curly_bracket"] is not None:
            against.append((values["curly_bracket"], 1, "curly_bracket"))
        if against:
            line, _, reason = min(against)
            return Outcome(reason, line)
        if values["sentences"] < config.min_sentences:
            return Outcome("too_few_sentences", values["sentences"])
        edits = tuple(Edit(span["start"], span["end"]) for span in values["spans"]) if config.cut else ()
        return Outcome(score=values["sentences"], edits=edits)

    return decide


def decide_fineweb_quality(config: FineWebQuality) -> Decide:
    """Limits of 0 are limits here, as in the block."""

    def decide(values: Mapping[str, Any]) -> Outcome:
        if not values["lines"]:
            return Outcome("empty", 0)
        if values["line_punctuation"] < config.min_line_punctuation:
            return Outcome("line_punct_ratio", values["line_punctuation"])
        for column, limit, reason in (
            ("short_lines", config.max_short_lines, "short_line_ratio"),
            ("duplicate_characters", config.max_duplicate_characters, "char_dup_ratio"),
            ("new_lines_per_word", config.max_new_lines_per_word, "list_ratio"),
        ):
            if values[column] > limit:
                return Outcome(reason, values[column])
        return KEEP

    return decide


def decide_code_quality(config: CodeQuality) -> Decide:
    """Binary, minified, generated, data and symbols, in this order."""

    def decide(values: Mapping[str, Any]) -> Outcome:
        longest, mean = values["max_line_characters"], values["mean_line_characters"]
        if values["binary"]:
            return Outcome("binary")
        if longest > config.max_line_characters:
            return Outcome("minified", longest)
        if mean > config.max_mean_line_characters:
            return Outcome("minified", mean)
        if values["generated"]:
            return Outcome("generated")
        if values["bytes"] > config.max_bytes:
            return Outcome("data_file", values["bytes"])
        if values["alphanumeric_share"] < config.min_alphanumeric_share:
            return Outcome("low_alphanumeric", values["alphanumeric_share"])
        return KEEP

    return decide


def decide_min_characters(config: MinCharacters) -> Decide:
    def decide(values: Mapping[str, Any]) -> Outcome:
        return Outcome("too_short", values["characters"]) if values["characters"] < config.characters else KEEP

    return decide
