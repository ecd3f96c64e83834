"""What an artifact is: its identity, its fingerprint, its record, and the store that holds it."""

from marin_core.artifact.graph import ArtifactGraph
from marin_core.artifact.identity import ArtifactId
from marin_core.artifact.record import Attempt, Claim, End, Input, Record
from marin_core.artifact.step import ArtifactStep, CheckDeclaration, Resources, StepContext
from marin_core.artifact.store import Store

__all__ = [
    "ArtifactGraph",
    "ArtifactId",
    "ArtifactStep",
    "Attempt",
    "CheckDeclaration",
    "Claim",
    "End",
    "Input",
    "Record",
    "Resources",
    "StepContext",
    "Store",
]
