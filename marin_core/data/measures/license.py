"""Under which licence a file of source code stands: its SPDX tag, else what its source said, else the text of a known licence in it."""

import re
from collections.abc import Mapping
from functools import cache
from typing import Any

import pyarrow as pa

from marin_core.data.measures.config import LicenseMeasure
from marin_core.data.measures.interface import Measured
from marin_core.data.measures.license_texts import LICENSE_TEXTS

NGRAM_WORDS = 5
HEAD_CHARACTERS = 65_536
"""Characters in which the text of a licence is looked for; notices stand at the beginning, and the longest full text is shorter."""

_TAG = re.compile(r"SPDX-License-Identifier:[ \t]*([A-Za-z0-9(][A-Za-z0-9.+() \t-]*)")
_CLAUSE_NUMBER = re.compile(r"^[^\w\n]*(?:\d{1,2}|[a-c])[.)] ", re.MULTILINE)
_WORD = re.compile(r"[a-z0-9]+")
_UNSAID = frozenset({"", "noassertion", "none", "unknown", "other"})
_SIGNS = ("licen", "permission is", "permission to use", "redistribution and use", "public domain", "is provided 'as-is'")

Grams = frozenset[tuple[str, ...]]


class License:
    """`license` is an SPDX expression, or what the source called it; null if nothing says. `evidence`: `tag`, `metadata` or `text`.

    `containment` is the share of the licence's 5-grams of words that stand in the text, where the text was the evidence.
    """

    name = "license"
    columns: Mapping[str, pa.DataType] = {"license": pa.string(), "evidence": pa.string(), "containment": pa.float64()}

    def __init__(self, config: LicenseMeasure) -> None:
        self._config = config

    def measure(self, document: Measured) -> Mapping[str, Any]:
        tag = _TAG.search("\n".join(document.lines[: self._config.head_lines]))
        if tag:
            return {"license": tag[1].strip(" \t-"), "evidence": "tag", "containment": None}
        said = _said(document.metadata.get("license"))
        if said is not None:
            return {"license": said, "evidence": "metadata", "containment": None}
        found = find_text(document.text, self._config.min_containment)
        if found is not None:
            return {"license": found[0], "evidence": "text", "containment": round(found[1], 6)}
        return dict.fromkeys(self.columns)


def _said(license: object) -> str | None:
    """What metadata says: one licence, or a list of those that were found, all of which then hold."""
    names = license if isinstance(license, list) else [license]
    known = [name.strip() for name in names if isinstance(name, str) and name.strip().lower() not in _UNSAID]
    return " AND ".join(known) if known else None


def find_text(text: str, min_containment: float) -> tuple[str, float] | None:
    """The licence most of which stands in a text, and how much of it; of equal ones that with more words, as BSD-3 holds BSD-2."""
    head = text[:HEAD_CHARACTERS].lower()
    if not any(sign in head for sign in _SIGNS):
        return None
    grams = grams_of(head)
    found = [(len(known & grams) / len(known), len(known), name) for name, known in _known()]
    containment, _, name = max(found)
    return (name, containment) if containment >= min_containment else None


def grams_of(text: str) -> Grams:
    """Distinct 5-grams of the words of a lower-case text; punctuation, layout and numbers of clauses don't matter."""
    words = _WORD.findall(_CLAUSE_NUMBER.sub("", text))
    return frozenset(zip(*(words[start:] for start in range(NGRAM_WORDS)), strict=False))


@cache
def _known() -> tuple[tuple[str, Grams], ...]:
    return tuple((name, grams_of(text.lower())) for name, texts in LICENSE_TEXTS.items() for text in texts)
