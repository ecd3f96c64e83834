"""What a commit says is mixed: made from a mixture's declaration and the committed records of its token caches, nothing else.

The caches are asked, not a mixture that was made of them some time ago: shards that were committed since are in the next commit.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import ROUND_HALF_EVEN, Decimal
from fractions import Fraction
from itertools import pairwise
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from marin_core.artifact import ArtifactId, ArtifactStep, Record, Store
from marin_core.artifact.canonical import digest
from marin_core.data.config import MixtureConfig
from marin_core.errors import ConfigError, DataError
from marin_core.mix.commit import Json

PART_FILE = "part.json"
WEIGHT_PLACES = 10
EPOCH_PLACES = 4
NAMED = 10
"""Shards that an error lists."""


class _Described(BaseModel):
    """Fields of `part.json` that are published; others may come and go."""

    model_config = ConfigDict(frozen=True, extra="ignore")


class PartTokenizer(_Described):
    digest: str
    probe_digest: str = ""
    vocab_size: int


class PartDescription(_Described):
    """What one part of a token cache says about itself."""

    digest: str
    tokenizer: PartTokenizer
    policy: dict[str, str]
    split: str
    tokens: int
    documents: int
    bytes: int
    licenses: tuple[str, ...]
    policies: tuple[str, ...]


@dataclass(frozen=True)
class Domain:
    """A token cache as it is committed now.

    Attributes:
        cache: its handle.
        records: of the parts that are committed, by partition key (`""` where it is no family).
        parts: what they say, by the same keys.
        missing: keys that are not committed.
    """

    cache: ArtifactStep
    records: Mapping[str, Record]
    parts: Mapping[str, PartDescription]
    missing: tuple[str, ...]

    @property
    def tokens(self) -> int:
        return sum(part.tokens for part in self.parts.values())

    def document(self) -> Json:
        """The domain in a commit. Both digests are over what the parts *are*, so that building one again alike changes nothing."""
        one = next(iter(self.parts.values()))
        return {
            "artifact": str(self.cache.id),
            "cache_digest": digest({key: part.digest for key, part in self.parts.items()}),
            "record_digest": digest({key: [each.fingerprint, each.content_digest] for key, each in self.records.items()}),
            "tokens": self.tokens,
            "documents": sum(part.documents for part in self.parts.values()),
            "bytes": sum(part.bytes for part in self.parts.values()),
            "shards": len(self.parts),
            "missing_shards": list(self.missing),
            "license": " AND ".join(sorted({license for part in self.parts.values() for license in part.licenses})),
            "policy": one.policies[0] if one.policies else "TRAINING_ALLOWED",
        }


def mix_content(
    store: Store, mixture: ArtifactStep, fingerprint: str, caches: Mapping[str, ArtifactStep], allow_missing: Mapping[str, Sequence[str]]
) -> Json:
    """The content of a commit as the store is now.

    Args:
        fingerprint: of the mixture.
        caches: the mixture's, by the names that its weights have.
        allow_missing: domain → partition keys that may be missing.

    Raises:
        ConfigError: naming domain or weight: a shard is not committed and not allowed to be missing, a cache may not be used for training,
            is a held-out split or has no token although it is weighed, or tokenizers differ.
        DataError: a committed cache can't be read.
    """
    config = _config_of(mixture)
    domains = {name: read_domain(store, name, caches[name], allow_missing.get(name, ())) for name in sorted(caches)}
    tokenizer = _one_tokenizer(domains)
    phases = _phases(config, domains)
    for name, domain in domains.items():
        if not domain.tokens and any(Fraction(phase["weights"][name]) for phase in phases):
            raise ConfigError(f"field 'weights.{name}': {domain.cache.id} has no token", advice="Set its weight to 0, or leave it out.")
    return {
        "mixture": {"name": mixture.name, "version": mixture.version, "fingerprint": fingerprint},
        "tokenizer": {"digest": tokenizer.digest, "vocab_size": tokenizer.vocab_size},
        "sequence_length": config.sequence_length,
        "block_sequences": config.block_sequences,
        "phases": phases,
        "domains": {name: domain.document() | _epochs(config, phases, name, domain.tokens) for name, domain in domains.items()},
    }


def weights_are_derived(mixture: ArtifactStep) -> bool:
    """Whether a mixture's weights follow from the tokens."""
    return _config_of(mixture).weights is None


def _config_of(mixture: ArtifactStep) -> MixtureConfig:
    config = getattr(mixture.symbolic_config, "mixture", None)
    if not isinstance(config, MixtureConfig):
        raise ConfigError(f"field 'mixture': {mixture.id} is no mixture", advice="Give the handle that mixture() returned.")
    return config


# Caches ----------------------------------------------------------------------------------------------------------------


def read_domain(store: Store, name: str, cache: ArtifactStep, allow_missing: Sequence[str]) -> Domain:
    """A token cache as the store has it, in two rounds of reads whatever its number of parts."""
    records = {artifact.partition or "": record for artifact, record in store.records(cache.ids()).items() if record is not None}
    missing = tuple(artifact.partition or "" for artifact in cache.ids() if (artifact.partition or "") not in records)
    forbidden = [key for key in missing if key not in allow_missing]
    if forbidden:
        named = ", ".join(str(ArtifactId(cache.name, cache.version, key or None)) for key in forbidden[:NAMED])
        more = f" and {len(forbidden) - NAMED} more" if len(forbidden) > NAMED else ""
        raise ConfigError(
            f"field 'weights.{name}': {named}{more} {'is' if len(forbidden) == 1 else 'are'} not committed",
            advice="Materialize what is missing, or list it in allow_missing_shards.",
        )
    if not records:
        raise ConfigError(f"field 'weights.{name}': nothing of {cache.id} is committed", advice="Materialize it first.")
    parts = _descriptions(store, records)
    for key, part in parts.items():
        _refuse_unusable(name, cache, key, part)
    return Domain(cache, records, parts, missing)


def _descriptions(store: Store, records: Mapping[str, Record]) -> dict[str, PartDescription]:
    below = f"{store.prefix}/"
    urls = {key: f"{store.payload_url(record)}/{PART_FILE}" for key, record in records.items()}
    inside = {key: url.removeprefix(below) for key, url in urls.items() if url.startswith(below)}  # adopted parts lie elsewhere
    found = store.objects.read_many(list(inside.values()))
    descriptions = {}
    for key, record in records.items():
        data = found.get(inside[key]) if key in inside else store.read_payload(record, PART_FILE)
        if data is None:
            raise DataError(f"{record.id} is committed and has no {PART_FILE}", advice="Check the store's disk, and build it anew.")
        try:
            descriptions[key] = PartDescription.model_validate_json(data)
        except ValidationError as error:
            raise DataError(f"{PART_FILE} of {record.id} can't be read: {str(error)[:300]}", advice="Is it a token cache?") from error
    return descriptions


def _refuse_unusable(name: str, cache: ArtifactStep, key: str, part: PartDescription) -> None:
    where = f"field 'weights.{name}': {ArtifactId(cache.name, cache.version, key or None)}"
    forbidden = sorted(set(part.policies) - {"TRAINING_ALLOWED"})
    if forbidden:
        raise ConfigError(f"{where} has policy {forbidden[0]}", advice="Only TRAINING_ALLOWED sources may be mixed.")
    if part.split not in ("train", "all"):
        raise ConfigError(f"{where} is the split {part.split!r}", advice="Mix parts of split 'train' or 'all'; keep this for evaluation.")


def _one_tokenizer(domains: Mapping[str, Domain]) -> PartTokenizer:
    """The tokenizer of all parts, which have one policy about BOS and EOS too."""
    known: dict[str, tuple[str, PartDescription]] = {}
    for name, domain in domains.items():
        for part in domain.parts.values():
            first_name, first = known.setdefault("first", (name, part))
            for field, ours, theirs in (
                ("tokenizer digest", first.tokenizer.digest, part.tokenizer.digest),
                ("tokenizer probe digest", first.tokenizer.probe_digest, part.tokenizer.probe_digest),
                ("policy", first.policy, part.policy),
            ):
                if ours != theirs:
                    raise ConfigError(
                        f"field 'weights.{name}': {field} is {theirs!r}, and {ours!r} in {first_name!r}",
                        advice="Tokenize all of them with one tokenizer and one BOS/EOS policy.",
                    )
    return known["first"][1].tokenizer


# Weights ---------------------------------------------------------------------------------------------------------------


def _phases(config: MixtureConfig, domains: Mapping[str, Domain]) -> list[Json]:
    """Every phase with a weight for every domain."""
    if config.weights is None:
        exponent = 1 / float(config.temperature or 1)
        weights = {name: float(domain.tokens) ** exponent for name, domain in domains.items()}
        return [{"start": "0", "weights": decimal_weights(weights)}]
    unweighed = sorted(set(config.names) ^ domains.keys())
    if unweighed:
        raise ConfigError(f"field 'weights.{unweighed[0]}': weights and caches have other names", advice="Weigh each cache of the mixture.")
    return [
        {"start": phase.start, "weights": decimal_weights({name: phase.weights.get(name, 0.0) for name in domains})}
        for phase in config.all_phases
    ]


def decimal_weights(weights: Mapping[str, float]) -> dict[str, str]:
    """Weights as decimals of at most 10 places that sum to exactly 1: the largest remainders are rounded up, names decide between equals.

    Raises:
        ConfigError: they sum to nothing.
    """
    exact = {name: Fraction(weight) for name, weight in sorted(weights.items())}
    total = sum(exact.values())
    if total <= 0 or min(exact.values()) < 0:
        raise ConfigError(
            f"field 'weights': they sum to {float(total)!r}", advice="Give weights of which none is negative and one positive."
        )
    scale = 10**WEIGHT_PLACES
    shares = {name: weight * scale / total for name, weight in exact.items()}
    units = {name: int(share) for name, share in shares.items()}
    by_remainder = sorted(shares, key=lambda name: (units[name] - shares[name], name))
    for name in by_remainder[: scale - sum(units.values())]:
        units[name] += 1
    return {name: _decimal_text(Decimal(count).scaleb(-WEIGHT_PLACES)) for name, count in units.items()}


def _epochs(config: MixtureConfig, phases: Sequence[Mapping[str, Any]], name: str, tokens: int) -> dict[str, str]:
    """How often the largest planned budget reads a domain; nothing where no budget is planned or the domain is empty."""
    if not config.planned_tokens or not tokens:
        return {}
    starts = [Fraction(phase["start"]) for phase in phases] + [Fraction(1)]
    share = sum(
        ((end - start) * Fraction(phase["weights"][name]) for phase, (start, end) in zip(phases, pairwise(starts), strict=True)),
        Fraction(0),
    )
    epochs = max(config.planned_tokens) * share / tokens
    exact = Decimal(epochs.numerator) / Decimal(epochs.denominator)
    return {"epochs_at_planned": _decimal_text(exact.quantize(Decimal(1).scaleb(-EPOCH_PLACES), ROUND_HALF_EVEN))}


def _decimal_text(value: Decimal) -> str:
    """Shortest plain form: `0.0525`, `1`, `0`."""
    text = f"{value:f}"
    return (text.rstrip("0").rstrip(".") if "." in text else text) or "0"
