"""Papers and mathematics."""

from collections.abc import Sequence

from marin_assets.catalog.entry import CatalogSource
from marin_core.data.formats.config import Jsonl
from marin_core.data.sources.config import HubFiles, Terms
from marin_core.errors import ConfigError
from marin_core.experiment.documents import raw_source

PROOF_PILE_2_LICENSES = {
    "algebraic-stack": "LicenseRef-TheStack-TermsOfUse",
    "arxiv": "LicenseRef-arXiv-of-each-article",
    "open-web-math": "ODC-By-1.0",
}
"""Subset → licence: code of The Stack, articles of which each has its own, and the collection OpenWebMath."""


def proof_pile_2(version: str, *, revision: str, subsets: Sequence[str] = tuple(PROOF_PILE_2_LICENSES)) -> CatalogSource:
    """Proof-Pile-2 (arXiv 2310.10631): 55 B tokens of mathematics, the training split.

    Its publisher states no licence for the whole; each unit carries that of its part. What single articles of arXiv allow isn't known.
    """
    if unknown := sorted(set(subsets) - set(PROOF_PILE_2_LICENSES)):
        raise ConfigError(f"Proof-Pile-2 has no subset {unknown[0]!r}", advice=f"Choose among {', '.join(PROOF_PILE_2_LICENSES)}.")
    patterns = tuple(f"{subset}/train/*.jsonl.zst" for subset in subsets)
    terms = [Terms(pattern=f"{each}/**", license=PROOF_PILE_2_LICENSES[each], policy="TRAINING_ALLOWED") for each in sorted(subsets)]
    source = HubFiles(repository="EleutherAI/proof-pile-2", revision=revision, patterns=patterns)
    raw = raw_source("raw/proof_pile_2", version, source, license="LicenseRef-unstated", terms=terms, description="Proof-Pile-2.")
    return CatalogSource(raw, Jsonl())


def pes2o(version: str, *, revision: str) -> CatalogSource:
    """peS2o v2: 39 M open-access papers and abstracts, 42 B tokens, the training split; ODC-By 1.0 as published."""
    source = HubFiles(repository="allenai/peS2o", revision=revision, patterns=("data/v2/train-*.json.gz",))
    raw = raw_source("raw/pes2o", version, source, license="ODC-By-1.0", description="peS2o v2.")
    return CatalogSource(raw, Jsonl())
