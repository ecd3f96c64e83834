"""What is done about repeated text, from what was found. Light: nothing is read here."""

from collections.abc import Mapping
from typing import Any

from marin_core.data.dedup.config import DropExactDuplicates, DropNearDuplicates, RemoveRepeatedParagraphs
from marin_core.data.rules.interface import KEEP, Decide, Edit, Outcome


def decide_exact_duplicates(config: DropExactDuplicates) -> Decide:
    """Drop what another place has word for word."""
    return lambda values: KEEP if values["dup_of"] is None else Outcome(reason="dup_of")


def decide_near_duplicates(config: DropNearDuplicates) -> Decide:
    """Drop what its cluster's keeper has nearly all of; where that was not measured, every one but the keeper."""

    def decide(values: Mapping[str, Any]) -> Outcome:
        containment = values["containment"]
        if values["loser"] and (containment is None or containment >= config.min_containment):
            return Outcome(reason="near_dup", score=containment)
        return KEEP if containment is None else Outcome(score=containment)

    return decide


def decide_repeated_paragraphs(config: RemoveRepeatedParagraphs) -> Decide:
    """Cut out repeated paragraphs, or drop the document where fewer than so many words would be left of it."""

    def decide(values: Mapping[str, Any]) -> Outcome:
        spans = values["spans"]
        if not spans:
            return KEEP
        left = values["words_left"]
        if left < config.min_words_left:
            return Outcome(reason="paragraph_dup", score=float(left))
        return Outcome(score=float(left), edits=tuple(Edit(span["start"], span["end"]) for span in spans))

    return decide
