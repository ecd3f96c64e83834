"""What C4's rules do to a text, as datatrove 0.10.1's `C4QualityFilter` has them: lines that go are marked, the text stays as it is."""

import re
from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from marin_core.data.measures.config import C4LineRule, C4QualityMeasure
from marin_core.data.measures.interface import SPANS, Measured

CITATION = "citation"
_CITATION = re.compile(r"\[\d*]|\[edit]|\[citation needed]")
_TERMINAL = (".", "?", "!", '"', "'")
_POLICY = ("terms of use", "privacy policy", "cookie policy", "uses cookies", "use of cookies", "use cookies")


class C4Quality:
    """Spans of lines and citations to cut, sentences of what is left, and the first lines that speak against the whole page.

    `lorem_ipsum` and `curly_bracket` are numbers of lines, from 0; null if there is none. As in the block, lines that go for an earlier
    reason can't speak against the page.
    """

    name = "c4_quality"
    columns: Mapping[str, pa.DataType] = {
        "lines": pa.int32(),
        "removed_lines": pa.int32(),
        "sentences": pa.int32(),
        "lorem_ipsum": pa.int32(),
        "curly_bracket": pa.int32(),
        "spans": SPANS,
    }

    def __init__(self, config: C4QualityMeasure) -> None:
        self._config = config
        self._rules = frozenset(config.remove_lines)

    def measure(self, document: Measured) -> Mapping[str, Any]:
        """The spans' kinds are the first reason of each line, or `citation`."""
        page = _Page(self._config, self._rules, document)
        lines = document.text.splitlines(keepends=True)
        start = 0
        for number, line in enumerate(lines):
            page.take(number, line, start)
            start += len(line)
        return {
            "lines": len(lines),
            "removed_lines": page.removed,
            "sentences": page.sentences,
            "lorem_ipsum": page.lorem_ipsum,
            "curly_bracket": page.curly_bracket,
            "spans": page.spans,
        }


class _Page:
    """One text while its lines are looked at."""

    def __init__(self, config: C4QualityMeasure, rules: frozenset[C4LineRule], document: Measured) -> None:
        self._config = config
        self._rules = rules
        self._splitter = document.splitter
        lowered = document.text.lower()
        # What the page has nowhere is looked for in no line.
        self._lorem = "lorem ipsum" in lowered
        self._javascript = "javascript" in rules and "javascript" in lowered
        self._policy = "policy" in rules and any(phrase in lowered for phrase in _POLICY)
        self._citations = config.remove_citations and _CITATION.search(lowered) is not None
        self.removed = 0
        self.sentences = 0
        self.lorem_ipsum: int | None = None
        self.curly_bracket: int | None = None
        self.spans: list[dict[str, Any]] = []

    def take(self, number: int, line: str, start: int) -> None:
        """Look at one line, its line break included; `start` is its place in the text."""
        stripped = line.strip()
        cited = self._citations and "[" in stripped
        text = _CITATION.sub("", stripped) if cited else stripped
        reason = self._reason(number, stripped, text)
        if reason is not None:
            self.removed += 1
            self.spans.append({"start": start, "end": start + len(line), "kind": reason})
            return
        if cited:
            self.spans += [
                {"start": start + match.start(), "end": start + match.end(), "kind": CITATION} for match in _CITATION.finditer(line)
            ]
        self.sentences += max(1, self._splitter.count_sentences(text))

    def _reason(self, number: int, line: str, text: str) -> C4LineRule | None:
        """Why a line goes: `line` with its citations, `text` without. In the block's order."""
        config, rules = self._config, self._rules
        if "long_word" in rules and len(line) > config.max_word_characters and max(map(len, line.split())) > config.max_word_characters:
            return "long_word"
        if "no_terminal_punctuation" in rules and (not text.endswith(_TERMINAL) or text.endswith("...")):
            return "no_terminal_punctuation"
        if "few_words" in rules and len(line.split(maxsplit=config.min_words_per_line)) < config.min_words_per_line:
            return "few_words"
        lowered = text.lower() if self._lorem or self._javascript or self._policy else ""
        if self._lorem and self.lorem_ipsum is None and "lorem ipsum" in lowered:
            self.lorem_ipsum = number
        if self._javascript and "javascript" in lowered:
            return "javascript"
        if self.curly_bracket is None and "{" in text:
            self.curly_bracket = number
        if self._policy and any(phrase in lowered for phrase in _POLICY):
            return "policy"
        return None
