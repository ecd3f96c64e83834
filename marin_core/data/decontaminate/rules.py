"""What is done with documents that hold text of an evaluation, from the matches that were found. Light: nothing is read here."""

from collections.abc import Mapping
from typing import Any

from marin_core.data.decontaminate.config import DropContaminated
from marin_core.data.rules.interface import KEEP, Decide, Outcome


def decide_contamination(config: DropContaminated) -> Decide:
    """Drop a document if it has enough of one example; the score is the largest overlap with an example that counts."""

    def decide(values: Mapping[str, Any]) -> Outcome:
        overlaps = [match["overlap"] for match in values["matches"] if not config.evals or match["eval"] in config.evals]
        if not overlaps:
            return KEEP
        score = max(overlaps)
        drop = score >= config.min_overlap and config.action == "drop"
        return Outcome(reason="contaminated" if drop else None, score=score)

    return decide
