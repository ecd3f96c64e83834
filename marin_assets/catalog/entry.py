"""What the catalogue has of a source."""

from dataclasses import dataclass

from marin_core.artifact.step import ArtifactStep
from marin_core.data.formats.config import Format


@dataclass(frozen=True)
class CatalogSource:
    """A well-known source: where its files are, under which terms, and how documents are made of them.

    Attributes:
        raw: handle of the raw source.
        format: what its files hold; for `documents` and `filtered`.
    """

    raw: ArtifactStep
    format: Format
