"""The rules that decide whether a valid document is kept: datatrove's blocks, called document by document, and our own."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from marin_core.data.config import (
    CodeQuality,
    FilterRule,
    FineWebQuality,
    GopherQuality,
    GopherRepetition,
    MinCharacters,
)

Decision = Callable[[str], str | None]
"""Text in normal form → reason for dropping it, None to keep it."""


@dataclass(frozen=True)
class Rule:
    """A named decision."""

    name: str
    decide: Decision


def make_rules(configs: Sequence[FilterRule]) -> list[Rule]:
    """Build the rules. datatrove is imported only if one of its blocks is asked for; its executor and readers are never used."""
    rules = []
    splitter = None
    for config in configs:
        match config:
            case CodeQuality():
                rules.append(Rule(config.name, _code_quality(config)))
            case MinCharacters():
                rules.append(Rule(config.name, _min_characters(config)))
            case _:
                if splitter is None:
                    from marin_core.data.words import UnicodeWords

                    splitter = UnicodeWords()
                rules.append(Rule(config.name, _datatrove(config, splitter)))
    return rules


def _datatrove(config: GopherQuality | GopherRepetition | FineWebQuality, splitter: object) -> Decision:
    """One of datatrove's blocks, with our words, as a decision."""
    from datatrove.data import Document
    from datatrove.pipeline.filters import FineWebQualityFilter, GopherQualityFilter, GopherRepetitionFilter

    match config:
        case GopherQuality():
            block = GopherQualityFilter(
                min_doc_words=config.min_words,
                max_doc_words=config.max_words,
                min_avg_word_length=config.min_mean_word_length,
                max_avg_word_length=config.max_mean_word_length,
                max_symbol_word_ratio=config.max_symbol_word_ratio,
                max_bullet_lines_ratio=config.max_bullet_lines_ratio,
                max_ellipsis_lines_ratio=config.max_ellipsis_lines_ratio,
                max_non_alpha_words_ratio=config.min_alpha_words_ratio,
                min_stop_words=config.min_stop_words,
                stop_words=list(config.stop_words),
                language=splitter,
            )
        case GopherRepetition():
            block = GopherRepetitionFilter(
                dup_line_frac=config.max_duplicate_lines,
                dup_para_frac=config.max_duplicate_paragraphs,
                dup_line_char_frac=config.max_duplicate_line_characters,
                dup_para_char_frac=config.max_duplicate_paragraph_characters,
                top_n_grams=config.max_top_n_grams,
                dup_n_grams=config.max_duplicate_n_grams,
                language=splitter,
            )
        case FineWebQuality():
            block = FineWebQualityFilter(
                line_punct_thr=config.min_line_punctuation,
                short_line_thr=config.max_short_lines,
                short_line_length=config.short_line_characters,
                char_duplicates_ratio=config.max_duplicate_characters,
                new_line_ratio=config.max_new_lines_per_word,
                language=splitter,
            )

    def decide(text: str) -> str | None:
        document = Document(text=text, id="")
        result = block.filter(document)
        if document.text is not text:
            raise RuntimeError(f"block {config.name} rewrote the text")
        kept, reason = result if isinstance(result, tuple) else (result, None)
        return None if kept else str(reason or config.name)

    return decide


def _code_quality(config: CodeQuality) -> Decision:
    def decide(text: str) -> str | None:
        lines = text.split("\n")
        if max(map(len, lines)) > config.max_line_characters or len(text) / len(lines) > config.max_mean_line_characters:
            return "minified"
        head = "\n".join(lines[: config.head_lines]).lower()
        if any(marker in head for marker in config.generated_markers):
            return "generated"
        if len(text) > config.max_bytes or len(text.encode()) > config.max_bytes:
            return "data_file"
        if sum(map(str.isalnum, text)) / len(text) < config.min_alphanumeric_share:
            return "low_alphanumeric"
        return None

    return decide


def _min_characters(config: MinCharacters) -> Decision:
    return lambda text: "too_short" if len(text) < config.characters else None
