"""What lies at a store: every committed record, and a survey of who holds how many bytes and what refers to what."""

from marin_core.artifact.inventory.holdings import Folder, Holding, Shadow, Survey
from marin_core.artifact.inventory.records import committed
from marin_core.artifact.inventory.survey import REPRODUCTIONS, survey, survey_shadow

__all__ = ["REPRODUCTIONS", "Folder", "Holding", "Shadow", "Survey", "committed", "survey", "survey_shadow"]
