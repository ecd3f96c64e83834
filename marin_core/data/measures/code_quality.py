"""The shape of a file of source code: lines, letters and digits, marks of generated files, binary content."""

from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from marin_core.data.measures.characters import count_alphanumeric
from marin_core.data.measures.config import CodeQualityMeasure
from marin_core.data.measures.interface import Measured

BINARY_HEAD_CHARACTERS = 8 << 10
"""Git takes a file for binary if its first 8,000 bytes hold a NUL."""


class CodeQuality:
    """Longest and mean line, share of letters and digits, size, and whether its head says that it was generated."""

    name = "code_quality"
    columns: Mapping[str, pa.DataType] = {
        "bytes": pa.int64(),
        "max_line_characters": pa.int32(),
        "mean_line_characters": pa.float64(),
        "alphanumeric_share": pa.float64(),
        "generated": pa.bool_(),
        "binary": pa.bool_(),
    }

    def __init__(self, config: CodeQualityMeasure) -> None:
        self._config = config

    def measure(self, document: Measured) -> Mapping[str, Any]:
        """The mean counts line feeds as characters of their lines."""
        text, lines = document.text, document.lines
        head = "\n".join(lines[: self._config.head_lines]).lower()
        return {
            "bytes": len(text.encode()),
            "max_line_characters": max(map(len, lines)),
            "mean_line_characters": len(text) / len(lines),
            "alphanumeric_share": count_alphanumeric(text) / max(1, len(text)),
            "generated": any(marker in head for marker in self._config.generated_markers),
            "binary": "\0" in text[:BINARY_HEAD_CHARACTERS],
        }
