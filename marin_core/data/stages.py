"""The stages between a raw source and filtered shards, and what each is asked to do. Values only: this module imports nothing heavy."""

from typing import Annotated, Literal, Self

from pydantic import Field, field_validator, model_validator

from marin_core.config import Config
from marin_core.data.formats.config import Format, Jsonl
from marin_core.data.limits import GIB, Limits
from marin_core.data.measures.config import MeasureConfig
from marin_core.data.rules.config import FilterRule
from marin_core.data.sources.config import DOMAIN_PATTERN


class OlderCut(Config):
    """How an older version of a family was cut, which a newer one continues."""

    domains: tuple[Annotated[str, Field(pattern=DOMAIN_PATTERN)], ...] = ()
    shards: int = Field(ge=1, le=5_000)


class FilterConfig(Config):
    """One filtered family: which domains of a raw source, which rules in which order, cut into how many shards."""

    domains: tuple[Annotated[str, Field(pattern=DOMAIN_PATTERN)], ...] = ()
    """Domains of the raw source; empty = all of them."""
    format: Format = Jsonl()
    """What the units hold."""
    filters: tuple[FilterRule, ...] = ()
    shards: int = Field(ge=1, le=5_000)
    older: tuple[OlderCut, ...] = ()
    """The versions that this one continues, oldest first: their units stay in their shards (marin_core.data.assignment)."""
    on_truncated: Literal["fail", "reject"] = "fail"
    """A unit that is cut or damaged fails the shard, or its whole records are kept and the tail is rejected."""
    limits: Limits = Limits()
    words: Literal["unicode_words_1"] = "unicode_words_1"
    """Splitter that the rules count words with; it decides differently from others, so it belongs to the identity."""

    @field_validator("filters")
    @classmethod
    def _named_once(cls, filters: tuple[FilterRule, ...]) -> tuple[FilterRule, ...]:
        names = [rule.name for rule in filters]
        if len(set(names)) < len(names):
            raise ValueError(f"each rule may stand once, got {names}")
        return filters

    @model_validator(mode="after")
    def _grows(self) -> Self:
        counts = [*(cut.shards for cut in self.older), self.shards]
        if counts != sorted(counts):
            raise ValueError(f"a family that continues another has at least as many shards, got {counts}, oldest first")
        return self


class AttributesConfig(Config):
    """What is measured of each document of a family."""

    measures: tuple[MeasureConfig, ...] = Field(min_length=1)
    max_error_share: float = Field(default=0.01, ge=0, le=1)
    """Share of documents on which measures may raise before the shard fails."""

    @field_validator("measures")
    @classmethod
    def _measured_once(cls, measures: tuple[MeasureConfig, ...]) -> tuple[MeasureConfig, ...]:
        names = [measure.name for measure in measures]
        if len(set(names)) < len(names):
            raise ValueError(f"each measure may stand once, got {names}")
        return measures


class ConsolidateConfig(Config):
    """What happens to documents because of what is known about them: the rules, in the order in which they are asked."""

    rules: tuple[FilterRule, ...] = Field(min_length=1)
    shard_bytes: int = Field(default=GIB, ge=1)
    """Text that one shard may hold (bytes)."""

    @field_validator("rules")
    @classmethod
    def _asked_once(cls, rules: tuple[FilterRule, ...]) -> tuple[FilterRule, ...]:
        names = [rule.name for rule in rules]
        if len(set(names)) < len(names):
            raise ValueError(f"each rule may be asked once, got {names}")
        return rules
