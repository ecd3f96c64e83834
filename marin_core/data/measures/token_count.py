"""How many tokens a text has, for reports that weigh by them."""

from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from marin_core.data.measures.interface import Measured
from marin_core.data.tokenizer import Tokenizer


class TokenCount:
    """Tokens, BOS and EOS left out."""

    name = "token_count"
    columns: Mapping[str, pa.DataType] = {"tokens": pa.int64()}

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer

    def measure(self, document: Measured) -> Mapping[str, Any]:
        return {"tokens": len(self._tokenizer.encode(document.text))}
