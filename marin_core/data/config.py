"""What each step of the data path is asked to do. Values only: this module imports nothing heavy."""

import math
import re
from fractions import Fraction
from itertools import pairwise
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, field_validator, model_validator

from marin_core.config import OPERATIONAL, Config

KIB = 1024
MIB = 1024 * KIB
GIB = 1024 * MIB

Policy = Literal["TRAINING_ALLOWED", "EVAL_ONLY", "BLOCKED"]
StdlibDomain = Literal["code", "docstrings", "topics"]

COMPONENT_NAME = re.compile(r"[a-z0-9_.-]+")
"""Names of mixture components; they are hashed into the loader's keys, so they must be plain."""

DOMAIN_PATTERN = r"^[a-z0-9_]+$"


class PythonStdlib(Config):
    """The corpus that is always there: the running interpreter's standard library."""

    kind: Literal["python_stdlib"] = "python_stdlib"
    domains: tuple[StdlibDomain, ...] = Field(default=("code", "docstrings", "topics"), min_length=1)
    unit_bytes: int = Field(default=256 * KIB, ge=4 * KIB, le=GIB)
    """Uncompressed size at which a unit is closed; a larger document has a unit of its own."""


class LocalFiles(Config):
    """JSONL files (plain, gzip or zstd) below a folder; one document a line, Dolma's field names."""

    kind: Literal["local_files"] = "local_files"
    root: str = Field(min_length=1, json_schema_extra=OPERATIONAL)
    """A place, and no part of the identity: the files are, and a folder may move. Other files belong into a new version."""
    pattern: str = "**/*.jsonl*"
    domain: str = Field(default="documents", pattern=DOMAIN_PATTERN)
    acquired: str | None = None
    """RFC 3339 time at which the files were obtained; becomes `added` of every document."""
    allow_eval_split: bool = False
    """Accept, for training, files whose path says test, validation or eval."""

    @field_validator("pattern")
    @classmethod
    def _stays_below_root(cls, pattern: str) -> str:
        if not pattern or pattern.startswith("/") or ".." in pattern.split("/"):
            raise ValueError("must be a relative glob without '..'")
        return pattern


Source = Annotated[PythonStdlib | LocalFiles, Field(discriminator="kind")]


class IngestConfig(Config):
    """One raw source artifact: bytes as found, and under which terms they may be used."""

    source: Source
    license: str = Field(min_length=1)
    policy: Policy
    name: str | None = Field(default=None, pattern=r"^[a-z0-9_]+(/[a-z0-9_]+)*$")
    """First part of every document's `source` column; `raw/<kind>` when not given."""


class GopherQuality(Config):
    """Gopher's quality rules (arXiv 2112.11446, table A1), by datatrove's block."""

    name: Literal["gopher_quality"] = "gopher_quality"
    min_words: int = Field(default=50, ge=1)
    max_words: int = Field(default=100_000, ge=1)
    min_mean_word_length: float = Field(default=3.0, ge=0)
    max_mean_word_length: float = Field(default=10.0, ge=0)
    max_symbol_word_ratio: float = Field(default=0.1, ge=0)
    max_bullet_lines_ratio: float = Field(default=0.9, ge=0)
    max_ellipsis_lines_ratio: float = Field(default=0.3, ge=0)
    min_alpha_words_ratio: float = Field(default=0.8, ge=0)
    min_stop_words: int = Field(default=2, ge=0)
    stop_words: tuple[str, ...] = ("the", "be", "to", "of", "and", "that", "have", "with")


NGramLimits = tuple[tuple[int, float], ...]


class GopherRepetition(Config):
    """Gopher's repetition rules (arXiv 2112.11446, table A1), by datatrove's block; limits are shares of the text."""

    name: Literal["gopher_repetition"] = "gopher_repetition"
    max_duplicate_lines: float = Field(default=0.3, ge=0)
    max_duplicate_paragraphs: float = Field(default=0.3, ge=0)
    max_duplicate_line_characters: float = Field(default=0.2, ge=0)
    max_duplicate_paragraph_characters: float = Field(default=0.2, ge=0)
    max_top_n_grams: NGramLimits = ((2, 0.2), (3, 0.18), (4, 0.16))
    max_duplicate_n_grams: NGramLimits = ((5, 0.15), (6, 0.14), (7, 0.13), (8, 0.12), (9, 0.11), (10, 0.10))


class FineWebQuality(Config):
    """FineWeb's line rules (arXiv 2406.17557), by datatrove's block."""

    name: Literal["fineweb_quality"] = "fineweb_quality"
    min_line_punctuation: float = Field(default=0.12, ge=0)
    max_short_lines: float = Field(default=0.67, ge=0)
    short_line_characters: int = Field(default=30, ge=0)
    max_duplicate_characters: float = Field(default=0.01, ge=0)
    max_new_lines_per_word: float = Field(default=0.3, ge=0)


class CodeQuality(Config):
    """Rules for source code: minified and generated files, binaries and data tables are dropped."""

    name: Literal["code_quality"] = "code_quality"
    max_mean_line_characters: float = Field(default=100.0, gt=0)
    max_line_characters: int = Field(default=1_000, ge=1)
    min_alphanumeric_share: float = Field(default=0.25, ge=0, le=1)
    max_bytes: int = Field(default=MIB, ge=1)
    generated_markers: tuple[str, ...] = (
        "do not edit",
        "do not modify",
        "automatically generated",
        "auto-generated",
        "autogenerated",
        "@generated",
    )
    """Lower-case marks of generated files, looked for in the first `head_lines` lines."""
    head_lines: int = Field(default=10, ge=1)


class MinCharacters(Config):
    """Drops documents that are too short to learn from."""

    name: Literal["min_characters"] = "min_characters"
    characters: int = Field(default=200, ge=1)


FilterRule = Annotated[GopherQuality | GopherRepetition | FineWebQuality | CodeQuality | MinCharacters, Field(discriminator="name")]


class Limits(Config):
    """Sizes above which input is set aside or refused (bytes)."""

    record_bytes: int = Field(default=64 * MIB, ge=KIB)
    text_bytes: int = Field(default=16 * MIB, ge=1)
    metadata_bytes: int = Field(default=64 * KIB, ge=2)
    shard_bytes: int = Field(default=GIB, ge=KIB)
    bomb_ratio: int = Field(default=200, ge=1)
    """Largest allowed ratio of expanded to compressed size once `bomb_floor_bytes` are out."""
    bomb_floor_bytes: int = Field(default=64 * MIB, ge=KIB)


class FilterConfig(Config):
    """One filtered family: which domains of a raw source, which rules in which order, cut into how many shards."""

    domains: tuple[Annotated[str, Field(pattern=DOMAIN_PATTERN)], ...] = ()
    """Domains of the raw source; empty = all of them."""
    filters: tuple[FilterRule, ...] = ()
    shards: int = Field(ge=1, le=5_000)
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


class Specials(Config):
    """Texts of the special tokens; their ids are 0, 1 and 2."""

    bos: str = Field(default="<|bos|>", min_length=1)
    eos: str = Field(default="<|eos|>", min_length=1)
    pad: str = Field(default="<|pad|>", min_length=1)

    @model_validator(mode="after")
    def _differ(self) -> "Specials":
        if len({self.bos, self.eos, self.pad}) < 3:
            raise ValueError("bos, eos and pad must differ")
        return self


class TokenizerConfig(Config):
    """A byte-level BPE tokenizer to train. 256 byte symbols and the specials need 259 entries."""

    vocab_size: int = Field(ge=259, le=2**20)
    specials: Specials = Specials()
    min_frequency: int = Field(default=2, ge=1)


class TokenizeConfig(Config):
    """How documents become a token cache."""

    split: Literal["train", "held_out", "all"] = "all"
    held_out_per_10000: int = Field(default=0, ge=0, le=10_000)
    """Documents with xxh3_64(id) mod 10,000 below this are held out: chosen by content, never by position."""
    bos: Literal["prepend", "none"] = "prepend"
    eos: Literal["append", "none"] = "append"
    long_document_characters: int = Field(default=262_144, ge=10_000)
    """Longer documents are encoded in pieces where that provably gives the same ids."""
    batch_bytes: int = Field(default=4 * MIB, ge=KIB, json_schema_extra=OPERATIONAL)

    @model_validator(mode="after")
    def _split_has_documents(self) -> "TokenizeConfig":
        if self.split == "held_out" and self.held_out_per_10000 == 0:
            raise ValueError("held_out_per_10000 is 0, so split 'held_out' would be empty; set it above 0")
        return self


PLAIN_FRACTION = re.compile(r"[0-9]{1,30}(\.[0-9]{1,30}|/0*[1-9][0-9]{0,29})?")


def phase_start(value: Any) -> str | int:
    """One way to write where a phase begins: a step, or a share of the run as the shortest decimal (`0.8`) or else a fraction (`2/3`).

    Raises:
        ValueError: a float, which is no exact share, or anything outside [0, 1).
    """
    if isinstance(value, bool) or not isinstance(value, int | str | Fraction):
        raise ValueError(
            f"{value!r} is neither a step nor an exact share of the run; write a number of steps, or text such as '0.8' or '2/3'"
        )
    if isinstance(value, int) and value:
        if value < 0:
            raise ValueError(f"{value} is no step")
        return value
    text = str(value)
    if not PLAIN_FRACTION.fullmatch(text):
        raise ValueError(f"{text!r} is no share of a run; write it as '0.8' or '2/3'")
    share = Fraction(text)
    if share >= 1:
        raise ValueError(f"{text!r} is behind the run; a share lies from 0 up to, but not at, 1")
    return _shortest(share)


def _shortest(share: Fraction) -> str:
    """A share in [0, 1) as a decimal where one is exact."""
    odd, places = share.denominator, 0
    for prime in (2, 5):
        count = 0
        while odd % prime == 0:
            odd, count = odd // prime, count + 1
        places = max(places, count)
    if odd > 1:
        return str(share)
    return f"0.{int(share * 10**places):0{places}d}" if places else "0"


def _usable_weights(weights: dict[str, float]) -> dict[str, float]:
    for name, weight in weights.items():
        if not COMPONENT_NAME.fullmatch(name):
            raise ValueError(f"component name {name!r} must match {COMPONENT_NAME.pattern}")
        if math.isnan(weight) or math.isinf(weight) or weight < 0:
            raise ValueError(f"weight of {name!r} is {weight!r}; it must be finite and not negative")
    if sum(weights.values()) == 0:
        raise ValueError(f"all weights are zero ({', '.join(sorted(weights))}); at least one must be positive")
    return weights


PhaseStart = Annotated[str | int, BeforeValidator(phase_start)]
Weights = Annotated[dict[str, float], Field(min_length=1), AfterValidator(_usable_weights)]
Stop = Literal["restart", "first_exhausted", "all_exhausted"]
Pack = Literal["stream", "documents"]

SIMPLEX_TOLERANCE = 1e-9
"""By how much the weights of a phase may miss a sum of 1 (`spec/training.md` §5.2)."""


class PhaseConfig(Config):
    """Weights that hold from one step of a run on; a component without one has weight 0."""

    start: PhaseStart
    """A step (an integer), or an exact share of the run (`0.8`), which is rounded down to a step that begins a mixture block. It applies
    once so many updates are complete."""
    weights: Weights


class MixtureConfig(Config):
    """Which components a model sees, in which proportions and in which order."""

    weights: Weights
    """From the first step on. Without later phases any scale will do."""
    phases: tuple[PhaseConfig, ...] = ()
    """Later phases, in the order of their starts; with them all weights, the first ones too, sum to 1 in each phase."""
    sequence_length: int = Field(ge=2, le=2**24)
    seed: int = Field(default=0, ge=0, lt=2**63)
    window_blocks: int = Field(default=8, ge=1, le=4_096)
    """io-blocks of 256 sequences that are shuffled together."""
    block_sequences: int = Field(default=2_048, ge=1, le=2**20)
    """Sequences of one mixture block; proportions are exact over blocks (Delphi's large runs use 49,152). Phases begin with a block."""
    stop: Stop = "restart"
    """What happens when a component has been read: it begins anew in another order, or the data ends before any component repeats, or
    once each was read whole."""
    max_epochs: float = Field(default=8.0, gt=0)
    """A run that would read a component more often is refused when it is planned."""
    target_tokens: int | None = Field(default=None, ge=1)
    """Tokens of the full run that this one stands for: each component is cut to the share of itself that this run is of that one, so that
    its epochs are those of the full run. None = components are whole."""
    mask_bos_target: bool = False
    """Leave the prediction of BOS out of the loss."""
    pack: Pack = "stream"
    """Sequences are cut from the stream of all documents, or whole documents are laid together into each and the rest is padding."""

    @property
    def all_phases(self) -> tuple[PhaseConfig, ...]:
        """All phases, the first of which begins at 0."""
        return (PhaseConfig(start="0", weights=self.weights), *self.phases)

    @property
    def names(self) -> tuple[str, ...]:
        """Components of all phases, in name order."""
        return tuple(sorted({name for phase in self.all_phases for name in phase.weights}))

    @model_validator(mode="after")
    def _phases_follow_each_other(self) -> "MixtureConfig":
        for phase in self.all_phases if self.phases else ():
            total = math.fsum(phase.weights.values())
            if abs(total - 1) > SIMPLEX_TOLERANCE:
                raise ValueError(
                    f"weights of the phase from {phase.start} on sum to {total!r}; in a mixture of several phases they sum to 1"
                )
        shares = [Fraction(phase.start) for phase in self.phases if isinstance(phase.start, str)]
        steps = [Fraction(phase.start) for phase in self.phases if isinstance(phase.start, int)]
        if 0 in shares or any(a >= b for starts in (shares, steps) for a, b in pairwise(starts)):
            starts = ", ".join(str(phase.start) for phase in self.phases)
            raise ValueError(f"phases begin at {starts}; each must begin after the one before it, and the first of them after 0")
        return self
