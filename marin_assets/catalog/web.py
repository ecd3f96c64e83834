"""Pages of the web, filtered by others."""

from collections.abc import Sequence

from marin_assets.catalog.entry import CatalogSource
from marin_core.data.formats.config import Jsonl, ParquetRows
from marin_core.data.sources.config import HttpFile, HttpFiles, HubFiles
from marin_core.errors import ConfigError
from marin_core.experiment.documents import raw_source

NEMOTRON_CC_SUBSETS = {
    "hq_actual": "quality=high/kind=actual/**",
    "hq_synth": "quality=high/kind=synthetic/**",
    "medium_high": "quality=medium-high/**",
    "medium": "quality=medium/**",
    "medium_low": "quality=medium-low/**",
    "low_actual": "quality=low/kind=actual/**",
    "low_synth": "quality=low/kind=synthetic/**",
}
"""Subset → its files below `data-jsonl/`; the division that Marin's mixtures weigh."""

_NEMOTRON_CC = "contrib/Nemotron/Nemotron-CC/data-jsonl"


def nemotron_cc(subset: str, version: str, *, index_sha256: str) -> CatalogSource:
    """One subset of Nemotron-CC (arXiv 2412.02595): Common Crawl by quality, with rephrased and synthetic documents.

    Its publisher points to the terms of use of Common Crawl, which grant no licence to what the pages say: read them before training.

    Args:
        subset: a key of `NEMOTRON_CC_SUBSETS`.
        index_sha256: of `data-jsonl.paths.gz`, the list of all files; print it with `curl URL | sha256sum`.
    """
    if subset not in NEMOTRON_CC_SUBSETS:
        raise ConfigError(f"Nemotron-CC has no subset {subset!r}", advice=f"Choose among {', '.join(NEMOTRON_CC_SUBSETS)}.")
    source = HttpFiles(
        index=HttpFile(url=f"https://data.commoncrawl.org/{_NEMOTRON_CC}.paths.gz", sha256=index_sha256),
        base="https://data.commoncrawl.org/",
        pattern=f"{_NEMOTRON_CC}/{NEMOTRON_CC_SUBSETS[subset]}",
    )
    raw = raw_source(
        f"raw/nemotron_cc/{subset}",
        version,
        source,
        license="LicenseRef-CommonCrawl-TermsOfUse",
        description=f"Nemotron-CC, subset {subset}, from Common Crawl's server.",
    )
    return CatalogSource(raw, Jsonl(fields={"origin_id": "warc_record_id", "url": "url"}))


def dclm_baseline(version: str, *, revision: str, patterns: Sequence[str] = ("global-shard_*/**",)) -> CatalogSource:
    """DCLM-baseline 1.0 (arXiv 2406.11794): 4 T tokens of Common Crawl, chosen by a fastText classifier; CC-BY-4.0 as published.

    Args:
        patterns: some of the ten global shards, each with ten local ones: `global-shard_01_of_10/local-shard_0_of_10/*`.
    """
    source = HubFiles(repository="mlfoundations/dclm-baseline-1.0", revision=revision, patterns=tuple(patterns))
    raw = raw_source("raw/dclm_baseline", version, source, license="CC-BY-4.0", description="DCLM-baseline 1.0.")
    return CatalogSource(raw, Jsonl(fields={"url": "url"}))


def fineweb(version: str, *, revision: str, patterns: Sequence[str] = ("data/**",)) -> CatalogSource:
    """FineWeb (arXiv 2406.17557): 15 T tokens of English from Common Crawl; ODC-By 1.0 as published.

    Args:
        patterns: some crawls (`data/CC-MAIN-2024-10/*`) or a sample (`sample/10BT/*`) instead of everything.
    """
    return _fineweb("fineweb", "FineWeb", version, revision, patterns)


def fineweb_edu(version: str, *, revision: str, patterns: Sequence[str] = ("data/**",)) -> CatalogSource:
    """FineWeb-Edu (arXiv 2406.17557): what a classifier of educational value chose of FineWeb; ODC-By 1.0 as published."""
    return _fineweb("fineweb-edu", "FineWeb-Edu", version, revision, patterns)


def _fineweb(repository: str, title: str, version: str, revision: str, patterns: Sequence[str]) -> CatalogSource:
    source = HubFiles(repository=f"HuggingFaceFW/{repository}", revision=revision, patterns=tuple(patterns))
    raw = raw_source(f"raw/{repository.replace('-', '_')}", version, source, license="ODC-By-1.0", description=f"{title}.")
    return CatalogSource(raw, ParquetRows(columns={"origin_id": "id", "url": "url", "lang": "language"}))
