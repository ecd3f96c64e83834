"""Known mixtures of known sources: component → source, and component → weight."""

from collections.abc import Mapping
from types import MappingProxyType

from marin_assets.catalog.code import starcoderdata
from marin_assets.catalog.entry import CatalogSource
from marin_assets.catalog.science import proof_pile_2
from marin_assets.catalog.web import NEMOTRON_CC_SUBSETS, dclm_baseline, nemotron_cc

NEMOTRON_MIX: Mapping[str, float] = MappingProxyType(
    {
        "nemotron_cc/hq_actual": 0.91351,
        "nemotron_cc/hq_synth": 2.72,
        "nemotron_cc/medium_high": 0.82471,
        "nemotron_cc/medium": 3.38,
        "nemotron_cc/medium_low": 1.54,
        "nemotron_cc/low_actual": 0.70123,
        "nemotron_cc/low_synth": 0.62771,
        "starcoderdata": 0.25,
        "proof_pile_2": 0.055,
    }
)
"""Marin's mix of Nemotron-CC, StarCoderData and Proof-Pile-2 (its `experiments/pretraining_datasets/nemotron.py`): the subsets of
Nemotron-CC by their size in TiB, code and mathematics by their tokens in trillions. Only the proportions matter."""

DCLM_MIX: Mapping[str, float] = MappingProxyType({"dclm_baseline": 3.8, "starcoderdata": 0.25, "proof_pile_2": 0.055})
"""DCLM-baseline, StarCoderData and Proof-Pile-2 by their tokens in trillions (arXiv 2406.11794, page 11, as Marin has it in
`experiments/pretraining_datasets/dclm.py`)."""


def nemotron_mix(version: str, *, index_sha256: str, starcoderdata_revision: str, proof_pile_2_revision: str) -> dict[str, CatalogSource]:
    """The sources of `NEMOTRON_MIX`, by component."""
    return {
        **{f"nemotron_cc/{subset}": nemotron_cc(subset, version, index_sha256=index_sha256) for subset in NEMOTRON_CC_SUBSETS},
        "starcoderdata": starcoderdata(version, revision=starcoderdata_revision),
        "proof_pile_2": proof_pile_2(version, revision=proof_pile_2_revision),
    }


def dclm_mix(version: str, *, dclm_revision: str, starcoderdata_revision: str, proof_pile_2_revision: str) -> dict[str, CatalogSource]:
    """The sources of `DCLM_MIX`, by component."""
    return {
        "dclm_baseline": dclm_baseline(version, revision=dclm_revision),
        "starcoderdata": starcoderdata(version, revision=starcoderdata_revision),
        "proof_pile_2": proof_pile_2(version, revision=proof_pile_2_revision),
    }
