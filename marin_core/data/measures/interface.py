"""What a measure is: named columns of values that depend on one document and nothing else."""

import json
from collections.abc import Mapping
from functools import cached_property
from typing import Any, Protocol

import pyarrow as pa

from marin_core.data.words import UnicodeWords, WordFacts

SPANS = pa.list_(pa.struct([pa.field("start", pa.int32()), pa.field("end", pa.int32()), pa.field("kind", pa.string())]))
"""Places in a text, in characters, `[start, end)`, sorted and apart from each other; `kind` says what stands there."""


class Measured:
    """A document while it is measured: what several measures need is worked out once.

    Attributes:
        text: in normal form.
        words: of the text, split once a document; not to be changed.
    """

    def __init__(self, text: str, metadata: str, words: UnicodeWords) -> None:
        self.text = text
        self.splitter = words
        self._metadata = metadata

    @cached_property
    def words(self) -> list[str]:
        return self.splitter.word_tokenize(self.text)

    @cached_property
    def facts(self) -> WordFacts:
        """Hash, length and kind of each word, as arrays of shape [words]."""
        return self.splitter.facts(self.words)

    @cached_property
    def lines(self) -> list[str]:
        """The text split at line feeds."""
        return self.text.split("\n")

    @cached_property
    def metadata(self) -> Mapping[str, Any]:
        """What the document's source said about it: `url`, `lang`, `license`, `title`, `unit`, …"""
        metadata: dict[str, Any] = json.loads(self._metadata)
        return metadata


class Measure(Protocol):
    """Turns a document into values.

    Attributes:
        name: of the measure; the columns of its attribute file are called `<name>.<column>`.
        columns: name → Arrow type of each value.
    """

    name: str
    columns: Mapping[str, pa.DataType]

    def measure(self, document: Measured) -> Mapping[str, Any]:
        """A value for each column; None where the type can't say what it is. The same for the same text, whatever came before it."""
