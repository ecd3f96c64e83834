"""What a rule is: a pure decision about a document, made from what was measured of it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Edit:
    """Characters `[start, end)` of a text become `text`."""

    start: int
    end: int
    text: str = ""


@dataclass(frozen=True)
class Outcome:
    """What a rule says about a document.

    Attributes:
        reason: why it is dropped, one of the rule's closed set of reasons; None = it stays.
        score: the value that decided.
        edits: what changes in its text if it stays.
    """

    reason: str | None = None
    score: float | None = None
    edits: tuple[Edit, ...] = ()


KEEP = Outcome()

Decide = Callable[[Mapping[str, Any]], Outcome]
"""Values of the rule's measure, by column → what happens to the document."""
