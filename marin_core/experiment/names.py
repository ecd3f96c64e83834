"""Names that handles of several stages share."""

from marin_core.artifact.step import ArtifactStep

DATA_TEAM = "team:data"


def component_name(step: ArtifactStep) -> str:
    """What a family is called within something made of several: its path without the stage."""
    return "/".join(step.name.split("/")[1:]).replace("/", ".") or step.name
