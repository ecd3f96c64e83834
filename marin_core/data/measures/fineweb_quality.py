"""The figures of FineWeb's line rules, as datatrove 0.10.1's `FineWebQualityFilter` works them out."""

from collections.abc import Mapping
from typing import Any

import pyarrow as pa
from datatrove.utils.text import TERMINAL_PUNCTUATION

from marin_core.data.measures.config import FineWebQualityMeasure
from marin_core.data.measures.interface import Measured


class FineWebQuality:
    """Shares of lines that end with terminal punctuation or are short, of characters in lines that stood before, and of line feeds."""

    name = "fineweb_quality"
    columns: Mapping[str, pa.DataType] = {
        "lines": pa.int32(),
        "line_punctuation": pa.float64(),
        "short_lines": pa.float64(),
        "duplicate_characters": pa.float64(),
        "new_lines_per_word": pa.float64(),
    }

    def __init__(self, config: FineWebQualityMeasure) -> None:
        self._short = config.short_line_characters

    def measure(self, document: Measured) -> Mapping[str, Any]:
        """`lines` are those that aren't blank; the shares of lines are of those."""
        lines = [line for line in document.lines if line and not line.isspace()]
        count = max(1, len(lines))
        unique = set(lines)
        repeated = 0 if len(unique) == len(lines) else sum(map(len, lines)) - sum(map(len, unique))
        line_feeds = len(document.lines) - 1
        return {
            "lines": len(lines),
            "line_punctuation": sum(line[-1] in TERMINAL_PUNCTUATION for line in lines) / count,
            "short_lines": sum(len(line) <= self._short for line in lines) / count,
            "duplicate_characters": repeated / max(1, len(document.text) - line_feeds),
            "new_lines_per_word": line_feeds / max(1, len(document.words)),
        }
