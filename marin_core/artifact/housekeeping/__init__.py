"""Deleting what nobody needs: a plan that anyone can read first, and its execution, which believes nothing that the plan believed.

What a committed record refers to stays, at any time and wherever this is interrupted. An artifact is taken back first
(`Store.forget`): from then on no build that reads it can commit. Then the store is surveyed once more, and artifacts that a build
was about to refer to are restored. Only then are payloads deleted. Whatever an interrupted run had taken back is debris to the next.

The history of attempts stays: it is what keeps builders of deleted artifacts from committing.
"""

from marin_core.artifact.housekeeping.execution import Outcome, Skipped, execute
from marin_core.artifact.housekeeping.plan import CleanupPlan, Item, Kind, Rules, Spared, plan_cleanup

__all__ = ["CleanupPlan", "Item", "Kind", "Outcome", "Rules", "Skipped", "Spared", "execute", "plan_cleanup"]
