"""How often listed words stand in a text: whole words and phrases, whatever their case, found in one pass (Aho and Corasick 1975)."""

from collections.abc import Mapping, Sequence
from typing import Any

import ahocorasick
import pyarrow as pa

from marin_core.data.measures.interface import Measured


class BadWords:
    """Number of words, and of places where a listed word or phrase ends; longer and shorter ones that end together count once."""

    name = "bad_words"
    columns: Mapping[str, pa.DataType] = {"words": pa.int32(), "hits": pa.int32()}

    def __init__(self, listed: Sequence[str]) -> None:
        """Listed words are case-folded."""
        self._automaton = ahocorasick.Automaton(ahocorasick.STORE_INTS)
        for word in listed:
            self._automaton.add_word(word, len(word))
        self._automaton.make_automaton()

    def measure(self, document: Measured) -> Mapping[str, Any]:
        text = document.text.casefold()
        ends = {end for end, length in self._automaton.iter(text) if _is_whole(text, end + 1 - length, end + 1)}
        return {"words": len(document.words), "hits": len(ends)}


def _is_whole(text: str, start: int, end: int) -> bool:
    return not (text[start - 1 : start].isalnum() or text[end : end + 1].isalnum())
