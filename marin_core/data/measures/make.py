"""From configurations to measures. Each measure's module, and the libraries it needs, are imported only if it is asked for."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from marin_core.data.measures.config import (
    BadWordsMeasure,
    C4QualityMeasure,
    CodeQualityMeasure,
    FineWebQualityMeasure,
    GopherQualityMeasure,
    GopherRepetitionMeasure,
    LanguageMeasure,
    LengthMeasure,
    LicenseMeasure,
    MeasureConfig,
    PersonalDataMeasure,
    QualityMeasure,
    SecretsMeasure,
    TokenCountMeasure,
    UrlListsMeasure,
)
from marin_core.data.measures.interface import Measure
from marin_core.errors import ConfigError


def make_measures(configs: Sequence[MeasureConfig], resources: Mapping[str, Path]) -> list[Measure]:
    """Build measures.

    Args:
        resources: folders of artifacts, by the keys that configurations name.

    Raises:
        ConfigError: a measure names a resource that isn't there.
        DataError: a resource is damaged.
    """
    return [make_measure(config, resources) for config in configs]


def make_measure(config: MeasureConfig, resources: Mapping[str, Path]) -> Measure:
    """Build one measure; raises as `make_measures` does."""
    match config:
        case BadWordsMeasure() | LicenseMeasure() | PersonalDataMeasure() | SecretsMeasure() | UrlListsMeasure():
            return _measure_of_contents(config, resources)
        case QualityMeasure():
            from marin_core.data.classifier import load_classifier
            from marin_core.data.measures.quality import Quality

            return Quality(load_classifier(_resource(config.name, config.classifier, resources)))
        case TokenCountMeasure():
            from marin_core.data.measures.token_count import TokenCount
            from marin_core.data.tokenizer import load_tokenizer

            return TokenCount(load_tokenizer(_resource(config.name, config.tokenizer, resources)))
        case LanguageMeasure():
            from marin_core.data.measures.language import Language

            return Language()
        case _:
            return _measure_of_form(config)


Form = GopherQualityMeasure | GopherRepetitionMeasure | C4QualityMeasure | FineWebQualityMeasure | CodeQualityMeasure | LengthMeasure
Contents = BadWordsMeasure | LicenseMeasure | PersonalDataMeasure | SecretsMeasure | UrlListsMeasure


def _measure_of_form(config: Form) -> Measure:
    match config:
        case GopherQualityMeasure():
            from marin_core.data.measures.gopher_quality import GopherQuality

            return GopherQuality(config)
        case GopherRepetitionMeasure():
            from marin_core.data.measures.gopher_repetition import GopherRepetition

            return GopherRepetition(config)
        case C4QualityMeasure():
            from marin_core.data.measures.c4_quality import C4Quality

            return C4Quality(config)
        case FineWebQualityMeasure():
            from marin_core.data.measures.fineweb_quality import FineWebQuality

            return FineWebQuality(config)
        case CodeQualityMeasure():
            from marin_core.data.measures.code_quality import CodeQuality

            return CodeQuality(config)
        case LengthMeasure():
            from marin_core.data.measures.length import Length

            return Length()


def _measure_of_contents(config: Contents, resources: Mapping[str, Path]) -> Measure:
    match config:
        case BadWordsMeasure():
            from marin_core.data.measures.bad_words import BadWords
            from marin_core.data.measures.word_lists import DATATROVE_LISTS, datatrove_assets, read_words

            if config.words is None:
                assets = datatrove_assets()
                return BadWords(read_words([assets / name for name in DATATROVE_LISTS]))
            return BadWords(read_words(sorted(_resource(config.name, config.words, resources).rglob("*.txt"))))
        case LicenseMeasure():
            from marin_core.data.measures.license import License

            return License(config)
        case PersonalDataMeasure():
            from marin_core.data.measures.personal_data import PersonalData

            return PersonalData(config)
        case SecretsMeasure():
            from marin_core.data.measures.secrets import Secrets

            return Secrets(config)
        case UrlListsMeasure():
            from marin_core.data.measures.url_lists import UrlLists

            return UrlLists(config, None if config.lists is None else _resource(config.name, config.lists, resources))


def _resource(measure: str, key: str, resources: Mapping[str, Path]) -> Path:
    if key not in resources:
        raise ConfigError(
            f"measure {measure!r} reads {key!r}, but the resources are {sorted(resources)}",
            advice="Name the artifact among the resources of the step, or measure without it.",
        )
    return resources[key]
