"""Words and sentences by regular expressions, in the shape that datatrove's blocks ask for."""

import re

from datatrove.utils.word_tokenizers import WordTokenizer

NAME = "unicode_words_1"
"""Name and version; decisions depend on the splitter, so it enters the fingerprint through `FilterConfig.words`."""

_ONE_EACH = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
"""Kana and Han ideographs: written without blanks, so each is a word."""
_WORD = re.compile(rf"[^\W{_ONE_EACH}]+(?:['’][^\W{_ONE_EACH}]+)*|[{_ONE_EACH}]|[^\w\s]+")
_SENTENCE = re.compile(r"\S.*?(?:[.!?…]+(?=\s|$)|[。！？]+|\n{2,}|$)", re.DOTALL)


class UnicodeWords(WordTokenizer):  # type: ignore[misc]
    """A run of letters and digits is a word, with inner apostrophes; a run of other visible characters is one too.

    Passed as `language=` to every block: datatrove's English words come from spaCy, at 3.4 CPU-s/MB against 0.05. The words of the
    last text are kept, so a document that passes several blocks is split once.
    """

    def __init__(self) -> None:
        super().__init__(None)
        self._text = ""
        self._words: list[str] = []

    def word_tokenize(self, text: str) -> list[str]:
        """Words of a text, in order; the list is shared, so callers must not change it."""
        if text is not self._text:
            self._words = _WORD.findall(text)
            self._text = text
        return self._words

    def sent_tokenize(self, text: str) -> list[str]:
        """Sentences of a text, without surrounding blanks."""
        return [text[start:end] for start, end in self.span_tokenize(text)]

    def span_tokenize(self, text: str) -> list[tuple[int, int]]:
        """[start, end) of each sentence, without surrounding blanks."""
        return [(match.start(), match.start() + len(match[0].rstrip())) for match in _SENTENCE.finditer(text)]
