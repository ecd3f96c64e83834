"""How long a text is."""

from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from marin_core.data.measures.interface import Measured


class Length:
    """Characters, words of the configured splitter, and bytes of UTF-8."""

    name = "length"
    columns: Mapping[str, pa.DataType] = {"characters": pa.int64(), "words": pa.int64(), "bytes": pa.int64()}

    def measure(self, document: Measured) -> Mapping[str, Any]:
        return {"characters": len(document.text), "words": len(document.words), "bytes": len(document.text.encode())}
