"""From the configuration of a rule to its decision; with its measure before it, a document can be decided on at once."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from marin_core.data.decontaminate.config import DropContaminated
from marin_core.data.decontaminate.rules import decide_contamination
from marin_core.data.dedup.config import DropExactDuplicates, DropNearDuplicates, RemoveRepeatedParagraphs
from marin_core.data.dedup.rules import decide_exact_duplicates, decide_near_duplicates, decide_repeated_paragraphs
from marin_core.data.rules.config import (
    AllowLicenses,
    BadWords,
    BlockUrls,
    C4Quality,
    CodeQuality,
    DropSecrets,
    FilterRule,
    FineWebQuality,
    GopherQuality,
    GopherRepetition,
    KeepLanguages,
    MaskPersonalData,
    MeasuredRule,
    MinCharacters,
    MinQuality,
)
from marin_core.data.rules.contents import (
    decide_bad_words,
    decide_languages,
    decide_license,
    decide_personal_data,
    decide_quality,
    decide_secrets,
    decide_urls,
)
from marin_core.data.rules.interface import Decide, Outcome
from marin_core.data.rules.quality import (
    decide_c4_quality,
    decide_code_quality,
    decide_fineweb_quality,
    decide_gopher_quality,
    decide_gopher_repetition,
    decide_min_characters,
)
from marin_core.errors import ConfigError

if TYPE_CHECKING:
    from marin_core.data.measures.interface import Measure, Measured


def make_decision(config: FilterRule) -> Decide:
    """The decision of a rule: pure, from the values of its attribute by column."""
    match config:
        case GopherQuality():
            return decide_gopher_quality(config)
        case GopherRepetition():
            return decide_gopher_repetition(config)
        case C4Quality():
            return decide_c4_quality(config)
        case FineWebQuality():
            return decide_fineweb_quality(config)
        case CodeQuality():
            return decide_code_quality(config)
        case MinCharacters():
            return decide_min_characters(config)
        case KeepLanguages():
            return decide_languages(config)
        case MaskPersonalData():
            return decide_personal_data(config)
        case DropSecrets():
            return decide_secrets(config)
        case BadWords():
            return decide_bad_words(config)
        case AllowLicenses():
            return decide_license(config)
        case BlockUrls():
            return decide_urls(config)
        case MinQuality():
            return decide_quality(config)
        case DropExactDuplicates():
            return decide_exact_duplicates(config)
        case DropNearDuplicates():
            return decide_near_duplicates(config)
        case RemoveRepeatedParagraphs():
            return decide_repeated_paragraphs(config)
        case DropContaminated():
            return decide_contamination(config)


@dataclass(frozen=True)
class Rule:
    """A named rule that measures what it needs and decides, for work in one pass.

    Attributes:
        decide: what happens to a document; one that an earlier rule drops is never measured for this one.
    """

    name: str
    decide: Callable[["Measured"], Outcome]


def _measured(measure: "Measure", decide: Decide) -> Callable[["Measured"], Outcome]:
    def decide_text(document: "Measured") -> Outcome:
        return decide(measure.measure(document))

    return decide_text


NO_RESOURCES: Mapping[str, Path] = {}


def make_rules(configs: Sequence[FilterRule], resources: Mapping[str, Path] = NO_RESOURCES) -> list[Rule]:
    """Rules for one pass over documents, in the order given.

    Args:
        resources: folders of artifacts that the rules' measures name.

    Raises:
        ConfigError: a rule can't decide from the document alone, or its measure names a resource that isn't there.
    """
    from marin_core.data.measures.make import make_measure

    rules = []
    for config in configs:
        if not isinstance(config, MeasuredRule):
            raise ConfigError(
                f"rule {config.name!r} needs the attribute {config.attribute!r}, which is no property of one document",
                advice="Give the rule to the consolidation, with the artifact that holds the attribute.",
            )
        rules.append(Rule(config.name, _measured(make_measure(config.measure, resources), make_decision(config))))
    return rules
