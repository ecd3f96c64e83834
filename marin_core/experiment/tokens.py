"""Handles of tokens: filtered shards → tokenizer → token caches → mixture."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal, TypedDict, Unpack

from marin_core.artifact.step import ArtifactStep, CheckDeclaration, StepContext
from marin_core.data.config import (
    Engine,
    KmerConfig,
    MixtureConfig,
    Pack,
    PhaseConfig,
    Specials,
    Stop,
    TokenizeConfig,
    TokenizerConfig,
    TokenizerFile,
)
from marin_core.errors import ConfigError
from marin_core.experiment.jobs import KmerTokenizerJob, MixtureJob, TokenizeJob, TokenizerFileJob, TokenizerJob
from marin_core.experiment.names import DATA_TEAM, component_name

HELD_OUT_PER_10000 = 500
"""Share of document groups, chosen by content, that no model is trained on; one default for every function that splits."""

CACHE_CHECKS = (
    CheckDeclaration("reads_back", "The cache, read back from disk, has the ids that were written.", blocking=True),
    CheckDeclaration("bos_once_a_document", "BOS stands at the beginning of every document and nowhere else.", blocking=True),
    CheckDeclaration("eos_once_a_document", "EOS stands at the end of every document and nowhere else.", blocking=True),
    CheckDeclaration("engine_as_asked", "The engine that was asked for gives the tokenizer's ids, so nothing else had to be used."),
)
TOKENIZER_CHECKS = (
    CheckDeclaration("special_ids", "BOS, EOS and PAD have ids of their own, which no text gives.", blocking=True),
    CheckDeclaration("round_trip", "Decoding what was encoded gives the same text.", blocking=True),
)
TRAINED_CHECKS = (*TOKENIZER_CHECKS, CheckDeclaration("vocab_size_reached", "Training found enough merges to fill the vocabulary."))
MIXTURE_CHECKS = (
    CheckDeclaration("weights_sum_to_one", "Integer weights of each phase sum to exactly 2^40."),
    CheckDeclaration("enough_data", "Every component lasts for the budgets that are planned."),
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
        checks=TRAINED_CHECKS,
        description=description or f"Byte-level BPE with {vocab_size} entries.",
    )


def tokenizer_from(
    name: str,
    version: str,
    raw: ArtifactStep,
    *,
    file: str = "tokenizer.json",
    specials: Specials | None = None,
    digest: str | None = None,
    description: str = "",
) -> ArtifactStep:
    """A tokenizer that somebody else trained, from a raw source: a folder of files, or the Hub at a pinned revision.

    Args:
        file: path of its `tokenizer.json` in the source.
        specials: texts of the tokens that begin, end and pad documents.
        digest: of what the tokenizer must say, as its record shows it; None takes whatever the source holds.
    """
    config = TokenizerFile(file=file, specials=specials or Specials(), digest=digest)
    return ArtifactStep(
        name,
        version,
        job="tokenizer_file",
        build_config=lambda ctx: TokenizerFileJob(raw=ctx.address(raw), tokenizer=config),
        deps=(raw,),
        kinds=("tokenizers",),
        owner=DATA_TEAM,
        checks=TOKENIZER_CHECKS,
        description=description or f"The tokenizer {file} of {raw.name}.",
    )


def kmer_tokenizer(name: str, version: str, *, k: int, bases: str = "ACGT", description: str = "") -> ArtifactStep:
    """A tokenizer of DNA: words of k bases, and single characters for everything else; `k=1` is the character tokenizer."""
    config = KmerConfig(k=k, bases=bases)
    return ArtifactStep(
        name,
        version,
        job="tokenizer_kmer",
        build_config=lambda ctx: KmerTokenizerJob(tokenizer=config),
        kinds=("tokenizers",),
        owner=DATA_TEAM,
        checks=TOKENIZER_CHECKS,
        description=description or (f"Words of {k} bases of {bases}." if k > 1 else "Single characters."),
    )


def tokenized(
    name: str,
    version: str,
    documents: ArtifactStep,
    tokenizer: ArtifactStep,
    *,
    split: Literal["train", "held_out", "all"] = "train",
    held_out_per_10000: int = HELD_OUT_PER_10000,
    engine: Engine = "tokenizers",
    base: ArtifactStep | None = None,
    description: str = "",
) -> ArtifactStep:
    """A token cache. The training split has a part for each shard; the held-out split is one part with all its documents.

    Args:
        engine: `gigatoken` encodes many times as fast where it is installed and gives the same ids; else `tokenizers` does.
        base: the older version of the cache that this one continues; parts of equal documents are linked to its.
    """
    config = TokenizeConfig(split=split, held_out_per_10000=held_out_per_10000, engine=engine)
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
        deps=(documents, tokenizer, *([base] if base else [])),
        partitions=documents.partitions if family else (),
        base=base,
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


class MixtureOptions(TypedDict, total=False):
    """How sequences are cut and ordered, of any mixture; what is left out is as in `MixtureConfig`.

    Attributes:
        window_blocks: blocks of 256 sequences that are shuffled together.
        block_sequences: sequences over which proportions are exact; phases begin with such a block.
        stop: whether caches begin anew, or the data ends with the first or the last of them.
        max_epochs: a training that would read a cache more often is refused.
        target_tokens: of the full run that a training stands for: caches are cut so that their epochs are those of that run.
        mask_bos_target: leave the prediction of BOS out of the loss.
        pack: whether sequences are cut from the stream of all documents, or hold whole documents and padding.
    """

    seed: int
    window_blocks: int
    block_sequences: int
    stop: Stop
    max_epochs: float
    target_tokens: int | None
    mask_bos_target: bool
    pack: Pack


def mixture(
    name: str,
    version: str,
    weights: Mapping[ArtifactStep, float] | Sequence[ArtifactStep],
    *,
    sequence_length: int,
    temperature: float | None = None,
    planned_tokens: Sequence[int] = (),
    phases: Sequence[Phase] = (),
    description: str = "",
    **options: Unpack[MixtureOptions],
) -> ArtifactStep:
    """Token caches in proportion: `{cache: weight}`. The order of training is a pure function of this artifact, the run and the step.

    Args:
        weights: from the first step on; caches alone are weighed by their tokens, which needs a temperature.
        temperature: weights ∝ tokens^(1/temperature), known once the caches are: 1 is in proportion, more favours the small ones.
        planned_tokens: budgets for which the mixture says how often each cache would be read, and warns of those that run out.
        phases: later weights, in the order of their starts; then the weights of each phase, the first too, sum to 1.
        options: how sequences are cut and ordered.
    """
    caches = tuple(dict.fromkeys((*weights, *(cache for phase in phases for cache in phase.weights))))
    components = {component_name(cache): cache for cache in caches}
    if len(components) < len(caches):
        raise ConfigError(
            f"{name}@{version} mixes two versions of one cache: {', '.join(str(cache.id) for cache in caches)}",
            advice="Mix each cache once.",
        )
    config = MixtureConfig(
        weights={component_name(cache): weight for cache, weight in weights.items()} if isinstance(weights, Mapping) else None,
        temperature=temperature,
        planned_tokens=tuple(planned_tokens),
        phases=tuple(
            PhaseConfig(
                start=phase.start if isinstance(phase.start, int) else str(phase.start),
                weights={component_name(cache): weight for cache, weight in phase.weights.items()},
            )
            for phase in phases
        ),
        sequence_length=sequence_length,
        **options,
    )
    return ArtifactStep(
        name,
        version,
        job="mixture",
        build_config=lambda ctx: MixtureJob(components={name: ctx.members(cache) for name, cache in components.items()}, mixture=config),
        deps=caches,
        kinds=("numpy",),
        owner=DATA_TEAM,
        checks=MIXTURE_CHECKS,
        description=description or f"Mixture of {', '.join(components)}{f' in {len(phases) + 1} phases' if phases else ''}.",
    )


def mixture_components(mixture: ArtifactStep) -> dict[str, ArtifactStep]:
    """The caches of a mixture handle by component name."""
    return {component_name(cache): cache for cache in mixture.deps if cache.job == "tokenize"}
