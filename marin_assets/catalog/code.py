"""Source code."""

from collections.abc import Sequence

from marin_assets.catalog.entry import CatalogSource
from marin_core.data.formats.config import ParquetRows
from marin_core.data.sources.config import HubFiles
from marin_core.experiment.documents import raw_source


def starcoderdata(version: str, *, revision: str, languages: Sequence[str] = ("*",)) -> CatalogSource:
    """StarCoderData (arXiv 2305.06161): 250 B tokens of permissively licensed code of The Stack, decontaminated, 86 languages.

    Gated: the Hub gives it to accounts that have agreed to the terms of The Stack, which ask to honour each file's own licence and to
    follow later removals.

    Args:
        languages: names of its folders, such as `python`.
    """
    patterns = tuple(f"{language}/train-*.parquet" for language in languages)
    source = HubFiles(repository="bigcode/starcoderdata", revision=revision, patterns=patterns)
    raw = raw_source("raw/starcoderdata", version, source, license="LicenseRef-TheStack-TermsOfUse", description="StarCoderData.")
    # Issues, commits and notebooks have other columns beside the text than the languages have.
    return CatalogSource(raw, ParquetRows(text_column="content"))
