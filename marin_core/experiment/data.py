"""Handles of the data path: raw source → filtered shards → tokenizer → token caches → mixture."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

from marin_core.artifact.identity import ArtifactId
from marin_core.artifact.step import ArtifactStep, CheckDeclaration, StepContext
from marin_core.data.config import (
    FilterConfig,
    FilterRule,
    IngestConfig,
    MixtureConfig,
    Pack,
    PhaseConfig,
    Policy,
    Source,
    Stop,
    TokenizeConfig,
    TokenizerConfig,
)
from marin_core.errors import ConfigError
from marin_core.experiment.jobs import FilterJob, IngestJob, MixtureJob, TokenizeJob, TokenizerJob

HELD_OUT_PER_10000 = 500
"""Share of document groups, chosen by content, that no model is trained on; one default for every function that splits."""

FAMILY_CHECK = CheckDeclaration("counts_add_up", "Documents in = kept + dropped + rejected.", blocking=True)
CACHE_CHECKS = (
    CheckDeclaration("reads_back", "The cache, read back from disk, has the ids that were written.", blocking=True),
    CheckDeclaration("bos_once_a_document", "BOS stands at the beginning of every document and nowhere else.", blocking=True),
    CheckDeclaration("eos_once_a_document", "EOS stands at the end of every document and nowhere else.", blocking=True),
)
TOKENIZER_CHECKS = (
    CheckDeclaration("special_ids", "BOS, EOS and PAD have the ids that caches rely on.", blocking=True),
    CheckDeclaration("round_trip", "Decoding what was encoded gives the same text.", blocking=True),
    CheckDeclaration("vocab_size_reached", "Training found enough merges to fill the vocabulary."),
)

DATA_TEAM = "team:data"


def raw_source(
    name: str, version: str, source: Source, *, license: str, policy: Policy = "TRAINING_ALLOWED", description: str = ""
) -> ArtifactStep:
    """Bytes as found at a source, with checksums, licence (SPDX) and use policy."""
    config = IngestConfig(source=source, license=license, policy=policy, name=ArtifactId(name, version).name)
    return ArtifactStep(
        name,
        version,
        job="ingest",
        build_config=lambda ctx: IngestJob(ingest=config),
        kinds=("gzip",),
        owner=DATA_TEAM,
        checks=(CheckDeclaration("units_complete", "Every unit is there with its checksum."),),
        description=description or f"Raw documents from {source.kind}, licence {license}.",
    )


def filtered(
    name: str,
    version: str,
    raw: ArtifactStep,
    *,
    shards: int,
    domains: Sequence[str] = (),
    filters: Sequence[FilterRule] = (),
    description: str = "",
) -> ArtifactStep:
    """A family of shards with the documents that pass every rule; what was dropped is kept beside them with the reason."""
    config = FilterConfig(domains=tuple(domains), filters=tuple(filters), shards=shards)
    return ArtifactStep(
        name,
        version,
        job="filter",
        build_config=lambda ctx: FilterJob(raw=ctx.address(raw), shard=ctx.partition, filter=config),
        deps=(raw,),
        partitions=tuple(f"{shard:05d}" for shard in range(shards)),
        kinds=("datatrove", "parquet"),
        owner=DATA_TEAM,
        checks=(FAMILY_CHECK,),
        description=description or f"Documents of {raw.name} ({', '.join(domains) or 'all domains'}) that pass {len(filters)} rules.",
    )


def tokenizer(name: str, version: str, documents: Sequence[ArtifactStep], *, vocab_size: int, description: str = "") -> ArtifactStep:
    """A byte-level BPE tokenizer trained on filtered documents."""
    config = TokenizerConfig(vocab_size=vocab_size)
    deps = tuple(documents)
    return ArtifactStep(
        name,
        version,
        job="tokenizer",
        build_config=lambda ctx: TokenizerJob(shards=tuple(url for dep in deps for url in ctx.members(dep)), tokenizer=config),
        deps=deps,
        kinds=("tokenizers",),
        owner=DATA_TEAM,
        checks=TOKENIZER_CHECKS,
        description=description or f"Byte-level BPE with {vocab_size} entries.",
    )


def tokenized(
    name: str,
    version: str,
    documents: ArtifactStep,
    tokenizer: ArtifactStep,
    *,
    split: Literal["train", "held_out", "all"] = "train",
    held_out_per_10000: int = HELD_OUT_PER_10000,
    description: str = "",
) -> ArtifactStep:
    """A token cache. The training split has a part for each shard; the held-out split is one part with all its documents."""
    config = TokenizeConfig(split=split, held_out_per_10000=held_out_per_10000)
    family = split != "held_out"

    def build_config(ctx: StepContext) -> TokenizeJob:
        return TokenizeJob(
            shards=ctx.members(documents),
            tokenizer=ctx.address(tokenizer),
            part=ctx.partition if family else "00000",
            tokenize=config,
        )

    return ArtifactStep(
        name,
        version,
        job="tokenize",
        build_config=build_config,
        deps=(documents, tokenizer),
        partitions=documents.partitions if family else (),
        kinds=("tokenizers", "zarr"),
        owner=DATA_TEAM,
        checks=CACHE_CHECKS,
        description=description or f"Token ids of {documents.name}, {split.replace('_', '-')} documents.",
    )


@dataclass(frozen=True)
class Phase:
    """Weights of a mixture from one step of a run on; a cache without one has weight 0.

    Attributes:
        start: an exact share of the run (`"0.8"`), rounded down to a step that begins a mixture block, or such a step (an integer).
        weights: `{cache: weight}`, which sum to 1.
    """

    start: str | int | Fraction
    weights: Mapping[ArtifactStep, float]


def mixture(
    name: str,
    version: str,
    weights: Mapping[ArtifactStep, float],
    *,
    sequence_length: int,
    phases: Sequence[Phase] = (),
    seed: int = 0,
    window_blocks: int = 8,
    block_sequences: int = 2_048,
    stop: Stop = "restart",
    max_epochs: float = 8.0,
    target_tokens: int | None = None,
    mask_bos_target: bool = False,
    pack: Pack = "stream",
    description: str = "",
) -> ArtifactStep:
    """Token caches in proportion: `{cache: weight}`. The order of training is a pure function of this artifact, the run and the step.

    Args:
        weights: from the first step on.
        phases: later weights, in the order of their starts; then the weights of each phase, the first too, sum to 1.
        window_blocks: blocks of 256 sequences that are shuffled together.
        block_sequences: sequences over which proportions are exact; phases begin with such a block.
        stop: whether caches begin anew, or the data ends with the first or the last of them.
        max_epochs: a training that would read a cache more often is refused.
        target_tokens: of the full run that a training stands for: caches are cut so that their epochs are those of that run.
        mask_bos_target: leave the prediction of BOS out of the loss.
        pack: whether sequences are cut from the stream of all documents, or hold whole documents and padding.
    """
    caches = tuple(dict.fromkeys((*weights, *(cache for phase in phases for cache in phase.weights))))
    components = {component_name(cache): cache for cache in caches}
    if len(components) < len(caches):
        raise ConfigError(
            f"{name}@{version} mixes two versions of one cache: {', '.join(str(cache.id) for cache in caches)}",
            advice="Mix each cache once.",
        )
    config = MixtureConfig(
        weights={component_name(cache): weight for cache, weight in weights.items()},
        phases=tuple(
            PhaseConfig(
                start=phase.start if isinstance(phase.start, int) else str(phase.start),
                weights={component_name(cache): weight for cache, weight in phase.weights.items()},
            )
            for phase in phases
        ),
        sequence_length=sequence_length,
        seed=seed,
        window_blocks=window_blocks,
        block_sequences=block_sequences,
        stop=stop,
        max_epochs=max_epochs,
        target_tokens=target_tokens,
        mask_bos_target=mask_bos_target,
        pack=pack,
    )
    return ArtifactStep(
        name,
        version,
        job="mixture",
        build_config=lambda ctx: MixtureJob(components={name: ctx.members(cache) for name, cache in components.items()}, mixture=config),
        deps=caches,
        kinds=("numpy",),
        owner=DATA_TEAM,
        checks=(CheckDeclaration("weights_sum_to_one", "Integer weights of each phase sum to exactly 2^40."),),
        description=description or f"Mixture of {', '.join(components)}{f' in {len(phases) + 1} phases' if phases else ''}.",
    )


def component_name(cache: ArtifactStep) -> str:
    """Name of a cache within a mixture: its path without the stage."""
    return "/".join(cache.name.split("/")[1:]).replace("/", ".") or cache.name


def mixture_components(mixture: ArtifactStep) -> dict[str, ArtifactStep]:
    """The caches of a mixture handle by component name."""
    return {component_name(cache): cache for cache in mixture.deps}
