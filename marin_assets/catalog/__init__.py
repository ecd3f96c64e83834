"""Well-known sources of training text as declarations: files, licence, use policy, and the format that reads them.

Each function takes the version of the artifact and what pins the source: the commit of a repository (`marin resolve` prints it) or the
checksum of an index. They are arguments because both are facts to be looked up, and never guessed here. Licences are what the publisher
says of the collection; where that is unclear the docstring says so, and whoever trains on it has to read the terms.
"""

from marin_assets.catalog.code import starcoderdata
from marin_assets.catalog.dolma import dolma
from marin_assets.catalog.encyclopedia import wikipedia, wikipedia_dump
from marin_assets.catalog.entry import CatalogSource
from marin_assets.catalog.recipes import DCLM_MIX, NEMOTRON_MIX, dclm_mix, nemotron_mix
from marin_assets.catalog.science import pes2o, proof_pile_2
from marin_assets.catalog.stories import tiny_stories
from marin_assets.catalog.web import NEMOTRON_CC_SUBSETS, dclm_baseline, fineweb, fineweb_edu, nemotron_cc

__all__ = [
    "DCLM_MIX",
    "NEMOTRON_CC_SUBSETS",
    "NEMOTRON_MIX",
    "CatalogSource",
    "dclm_baseline",
    "dclm_mix",
    "dolma",
    "fineweb",
    "fineweb_edu",
    "nemotron_cc",
    "nemotron_mix",
    "pes2o",
    "proof_pile_2",
    "starcoderdata",
    "tiny_stories",
    "wikipedia",
    "wikipedia_dump",
]
