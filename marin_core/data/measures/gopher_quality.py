"""The figures of Gopher's quality rules, as datatrove 0.10.1's `GopherQualityFilter` works them out."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from marin_core.data.measures.config import GopherQualityMeasure
from marin_core.data.measures.interface import Measured


class GopherQuality:
    """Numbers of words and lines of each kind.

    A word is a symbol if every character of it is punctuation. Bullets are lines that begin with `•` or `-`.
    """

    name = "gopher_quality"
    columns: Mapping[str, pa.DataType] = {
        "words": pa.int32(),
        "symbol_words": pa.int32(),
        "mean_word_length": pa.float64(),
        "hashes_per_word": pa.float64(),
        "ellipses_per_word": pa.float64(),
        "bullet_lines": pa.float64(),
        "ellipsis_lines": pa.float64(),
        "alpha_words": pa.float64(),
        "stop_words": pa.int32(),
    }

    def __init__(self, config: GopherQualityMeasure) -> None:
        self._stop_words = set(config.stop_words)

    def measure(self, document: Measured) -> Mapping[str, Any]:
        """Lengths are of words that aren't symbols; `bullet_lines`, `ellipsis_lines` and `alpha_words` are shares."""
        text, facts = document.text, document.facts
        words = len(document.words)
        symbols = int(np.count_nonzero(facts.punctuation))
        lines = text.splitlines()
        plain = words - symbols
        characters = int(facts.characters[~facts.punctuation].sum())
        return {
            "words": words,
            "symbol_words": symbols,
            "mean_word_length": characters / plain if plain else 0.0,
            "hashes_per_word": text.count("#") / max(1, words),
            "ellipses_per_word": (text.count("...") + text.count("…")) / max(1, words),
            "bullet_lines": sum(line.lstrip().startswith(("•", "-")) for line in lines) / max(1, len(lines)),
            "ellipsis_lines": sum(line.rstrip().endswith(("...", "…")) for line in lines) / max(1, len(lines)),
            "alpha_words": int(np.count_nonzero(facts.alphabetic)) / max(1, words),
            "stop_words": len(self._stop_words.intersection(document.words)),
        }
