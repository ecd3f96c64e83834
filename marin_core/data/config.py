"""How documents become tokens, and tokens a mixture. Values only: this module imports nothing heavy."""

import math
import re
from collections.abc import Mapping, Sequence
from fractions import Fraction
from itertools import pairwise
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from marin_core.config import OPERATIONAL, Config
from marin_core.data.limits import KIB, MIB

COMPONENT_NAME = re.compile(r"[a-z0-9_.-]+")
"""Names of mixture components; they are hashed into the loader's keys, so they must be plain."""


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


class TokenizerFile(Config):
    """A tokenizer that somebody else trained: a `tokenizer.json` among the units of a raw source, used as it is."""

    file: str = Field(default="tokenizer.json", min_length=1)
    """The file's path in the source."""
    specials: Specials = Specials()
    digest: str | None = Field(default=None, pattern=r"^[0-9a-f]{64}$")
    """Digest of what the tokenizer says (`tokenizer_digest`); another one is refused. None takes whatever the source holds."""


class KmerConfig(Config):
    """Words of k bases; what isn't a run of k of them is taken character by character, so that any text survives.

    `k=1` is the character tokenizer.
    """

    k: int = Field(ge=1, le=10)
    bases: str = Field(default="ACGT", pattern=r"^[A-Z]{2,26}$")
    """Letters that words are made of: those of DNA, `ACGU` for RNA. There are bases^k words, at most 2^20."""
    specials: Specials = Specials()

    @model_validator(mode="after")
    def _words_are_distinct_and_few(self) -> "KmerConfig":
        if len(set(self.bases)) < len(self.bases):
            raise ValueError(f"bases are {self.bases!r}; each may stand once")
        if len(self.bases) ** self.k > 2**20:
            raise ValueError(f"k = {self.k} of {len(self.bases)} bases makes {len(self.bases) ** self.k} words; at most 2^20 are allowed")
        return self


Engine = Literal["tokenizers", "gigatoken"]


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
    engine: Engine = Field(default="tokenizers", json_schema_extra=OPERATIONAL)
    """What encodes. `gigatoken` (extra `fast`) only where its ids are proven equal for the very tokenizer; else the job falls back to
    `tokenizers`, and says so. The ids are the same, so it is no part of the identity."""

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

    weights: Weights | None = None
    """From the first step on. Without later phases any scale will do. None: by the tokens that there are, see `temperature`."""
    temperature: float | None = Field(default=None, ge=1)
    """Weights ∝ tokens^(1/temperature), when the mixture is made (arXiv 1907.05019): 1 is in proportion to the tokens, and the larger it
    is, the more the small components are read. Either this or `weights` is given."""
    planned_tokens: tuple[Annotated[int, Field(ge=1)], ...] = Field(default=(), json_schema_extra=OPERATIONAL)
    """Budgets for which the mixture reports how often each component would be read, and which would run out. They only inform."""
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
        """All phases, the first of which begins at 0; none while the weights wait for the tokens to be counted."""
        return (PhaseConfig(start="0", weights=self.weights), *self.phases) if self.weights else ()

    @property
    def names(self) -> tuple[str, ...]:
        """Components of all phases, in name order; empty while the weights wait for the tokens to be counted."""
        return tuple(sorted({name for phase in self.all_phases for name in phase.weights}))

    @model_validator(mode="after")
    def _weighed_in_one_way(self) -> "MixtureConfig":
        if (self.weights is None) == (self.temperature is None):
            raise ValueError(f"weights are {self.weights!r} and temperature is {self.temperature!r}; give one of both")
        if self.temperature is not None and self.phases:
            raise ValueError("temperature weighs the whole run; phases need weights")
        steps = [phase.start for phase in self.phases if isinstance(phase.start, int)]
        if self.planned_tokens and steps:
            raise ValueError(f"planned_tokens can't be laid over a phase from step {steps[0]} on; begin phases at a share of the run")
        return self

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


class PublishedMixtureConfig(MixtureConfig):
    """A mixture whose weights and phases are those of a commit of a published mix, which is read when the mixture is made."""

    mix: str = Field(min_length=1, json_schema_extra=OPERATIONAL)
    """Folder, bucket or http(s) address of the mix. The commit is proven by its id, wherever it comes from."""
    commit: str = Field(pattern=r"^[0-9a-f]{64}$")
    """Id of the commit."""

    @model_validator(mode="after")
    def _weighed_in_one_way(self) -> "PublishedMixtureConfig":
        if self.weights is not None or self.temperature is not None or self.phases:
            raise ValueError("weights, temperature and phases are the commit's; give none of them")
        return self

    def weighed(self, phases: Sequence[tuple[str | int, Mapping[str, float]]]) -> MixtureConfig:
        """The same with the weights of all phases, in the order of their starts, the first of them from the beginning."""
        fields = {name: getattr(self, name) for name in MixtureConfig.model_fields}
        (_, first), *later = phases
        fields["weights"] = dict(first)
        fields["phases"] = tuple(PhaseConfig(start=start, weights=dict(weights)) for start, weights in later)
        return MixtureConfig(**fields)
