"""Stories for small models."""

from typing import Literal

from marin_assets.catalog.entry import CatalogSource
from marin_core.data.formats.config import ParquetRows
from marin_core.data.sources.config import HubFiles
from marin_core.experiment.documents import raw_source


def tiny_stories(version: str, *, revision: str, split: Literal["train", "validation"] = "train") -> CatalogSource:
    """TinyStories (arXiv 2305.07759): 2 M short stories in the words of a small child, written by a model; CDLA-Sharing-1.0 as published.

    Args:
        split: `validation` may be used for evaluation only.
    """
    source = HubFiles(repository="roneneldan/TinyStories", revision=revision, patterns=(f"data/{split}-*.parquet",))
    raw = raw_source(
        "raw/tiny_stories" if split == "train" else "raw/tiny_stories_validation",
        version,
        source,
        license="CDLA-Sharing-1.0",
        policy="TRAINING_ALLOWED" if split == "train" else "EVAL_ONLY",
        description=f"TinyStories, split {split}.",
    )
    return CatalogSource(raw, ParquetRows())
