"""Handles of comparisons: documents with each other (duplicates), and documents with evaluations (contamination)."""

from collections.abc import Mapping, Sequence
from typing import Literal

from marin_core.artifact.step import ArtifactStep, CheckDeclaration, StepContext
from marin_core.data.decontaminate.config import ContaminationIndexConfig, ExampleFields, clean_check
from marin_core.data.dedup.config import DuplicatesConfig, NearDuplicates, Signatures
from marin_core.errors import ConfigError
from marin_core.experiment.jobs import ContaminationIndexJob, ContaminationJob, DuplicatesFamily, DuplicatesJob, SignaturesJob
from marin_core.experiment.names import DATA_TEAM, component_name

Search = Literal["exact_duplicates", "near_duplicates", "repeated_paragraphs"]

KINDS_OF_SIGNATURES = {"near_duplicates": "near_duplicates", "repeated_paragraphs": "paragraphs"}
GLOBAL = ("global", "parquet")
"""Technology labels of an artifact that needs every shard of its inputs: it has no partitions, and one new shard makes it anew."""


def signatures(
    name: str,
    version: str,
    documents: ArtifactStep,
    find: Signatures | None = None,
    *,
    base: ArtifactStep | None = None,
    description: str = "",
) -> ArtifactStep:
    """What a search for duplicates needs to know of each document: a family with the keys of `documents`.

    Args:
        find: `NearDuplicates` (the default) or `ParagraphHashes`.
        base: the older version that this one continues; signatures of equal documents are linked to its.
    """
    config = find or NearDuplicates()
    return ArtifactStep(
        name,
        version,
        job="signatures",
        build_config=lambda ctx: SignaturesJob(documents=ctx.members(documents)[0], find=config),
        deps=(documents, *([base] if base else [])),
        partitions=documents.partitions,
        base=base,
        kinds=("numpy",),
        owner=DATA_TEAM,
        description=description or f"Signatures of {documents.name} to find {config.kind.replace('_', ' ')}.",
    )


def exact_duplicates(
    name: str, version: str, documents: Sequence[ArtifactStep], *, context: Sequence[ArtifactStep] = (), description: str = ""
) -> ArtifactStep:
    """Documents whose very text stands elsewhere, over all shards of several families. Global: one artifact for all of them.

    Args:
        documents: by priority: of equal texts that of the first family stays.
        context: families whose documents stay in any case, such as what an earlier corpus holds.
    """
    unsigned: dict[ArtifactStep, ArtifactStep | None] = dict.fromkeys(documents)
    return _duplicates(name, version, DuplicatesConfig(find="exact_duplicates"), unsigned, dict.fromkeys(context), description)


def near_duplicates(
    name: str,
    version: str,
    documents: Mapping[ArtifactStep, ArtifactStep],
    *,
    context: Mapping[ArtifactStep, ArtifactStep] | None = None,
    verify: bool = True,
    description: str = "",
) -> ArtifactStep:
    """Clusters of documents that are nearly the same, each with a keeper. Global: one artifact for all shards of several families.

    The keeper is of the first family, then the longest, then the one with the smallest id. A copy of a text counts as near it.

    Args:
        documents: `{documents: their signatures}` by priority.
        context: the same of families whose documents stay in any case.
        verify: measure how much of each document its keeper has, which reads the texts of both.
    """
    config = DuplicatesConfig(find="near_duplicates", verify=verify)
    return _duplicates(name, version, config, dict(documents), dict(context or {}), description)


def repeated_paragraphs(
    name: str,
    version: str,
    documents: Mapping[ArtifactStep, ArtifactStep],
    *,
    context: Mapping[ArtifactStep, ArtifactStep] | None = None,
    description: str = "",
) -> ArtifactStep:
    """Paragraphs that another document keeps. Global: one artifact for all shards of several families.

    Best looked for in documents that are no duplicates any more: a paragraph whose only keeper is dropped later is lost.

    Args:
        documents: `{documents: their signatures}` by priority, signatures made with `ParagraphHashes`.
        context: the same of families that keep their paragraphs in any case.
    """
    config = DuplicatesConfig(find="repeated_paragraphs")
    return _duplicates(name, version, config, dict(documents), dict(context or {}), description)


def _duplicates(
    name: str,
    version: str,
    config: DuplicatesConfig,
    documents: Mapping[ArtifactStep, ArtifactStep | None],
    context: Mapping[ArtifactStep, ArtifactStep | None],
    description: str,
) -> ArtifactStep:
    artifact = f"{name}@{version}"
    families = {**context, **documents}
    names = [component_name(family) for family in families]
    if len(set(names)) < len(context) + len(documents):
        raise ConfigError(f"{artifact} is given one family twice: {', '.join(names)}", advice="Give each family once, in one version.")
    if not documents:
        raise ConfigError(f"{artifact} compares no documents", advice="Give at least one family.")
    for family, signed in families.items():
        _refuse_mismatch(artifact, config.find, family, signed)

    def build_config(ctx: StepContext) -> DuplicatesJob:
        return DuplicatesJob(
            families=tuple(
                DuplicatesFamily(
                    component=component_name(family),
                    documents=ctx.members(family),
                    signatures=ctx.members(signed) if signed else (),
                    context=family in context,
                )
                for family, signed in families.items()
            ),
            duplicates=config,
        )

    return ArtifactStep(
        name,
        version,
        job="duplicates",
        build_config=build_config,
        deps=(*families, *(signed for signed in families.values() if signed)),
        kinds=GLOBAL,
        owner=DATA_TEAM,
        description=description or f"{config.find.replace('_', ' ').capitalize()} of {', '.join(names)}, over all shards.",
    )


def _refuse_mismatch(artifact: str, find: Search, family: ArtifactStep, signed: ArtifactStep | None) -> None:
    """Signatures of other documents or of another kind fail where the experiment makes the handle."""
    if not family.partitions:
        raise ConfigError(f"{artifact}: {family.id} is no family of shards", advice="Give documents, or what was consolidated.")
    if signed is None:
        return
    made = signed.symbolic_config
    if not isinstance(made, SignaturesJob) or family not in signed.deps:
        raise ConfigError(
            f"{artifact}: {signed.id} are no signatures of {family.id}", advice=f"Make them with signatures(…, {family.name})."
        )
    if made.find.kind != KINDS_OF_SIGNATURES[find]:
        raise ConfigError(
            f"{artifact}: {find} can't be found from {signed.id}, which are signatures of kind {made.find.kind!r}",
            advice=f"Make signatures of kind {KINDS_OF_SIGNATURES[find]!r}.",
        )


def contamination_index(
    name: str,
    version: str,
    evals: Mapping[str, ArtifactStep],
    *,
    fields: Mapping[str, ExampleFields] | None = None,
    config: ContaminationIndexConfig | None = None,
    description: str = "",
) -> ArtifactStep:
    """The n-grams of evaluations, `{name: raw source or eval_tasks artifact}`, to be looked for in documents.

    Args:
        fields: of evaluations whose records don't say `question`, `choices` and `answer`.
    """
    made = (config or ContaminationIndexConfig()).changed(fields=dict(fields or {}))
    sources = dict(evals)
    unknown = sorted(set(made.fields) - set(sources))
    if unknown or not sources:
        raise ConfigError(
            f"{name}@{version} names fields of {unknown[0]!r}" if unknown else f"{name}@{version} has no evaluation",
            advice="Give each evaluation under the name that its fields have.",
        )
    return ArtifactStep(
        name,
        version,
        job="contamination_index",
        build_config=lambda ctx: ContaminationIndexJob(evals={key: ctx.address(step) for key, step in sources.items()}, index=made),
        deps=tuple(dict.fromkeys(sources.values())),
        kinds=("numpy",),
        owner=DATA_TEAM,
        description=description or f"{made.ngram_words}-grams of {', '.join(sources)}.",
    )


def contamination(
    name: str,
    version: str,
    documents: ArtifactStep,
    index: ArtifactStep,
    *,
    blocking: Sequence[str] = (),
    base: ArtifactStep | None = None,
    description: str = "",
) -> ArtifactStep:
    """Which examples of evaluations each document holds: a family with the keys of `documents`, and a check for each evaluation.

    Args:
        index: of `contamination_index`; one that was made from other texts than the evaluations have now is refused.
        blocking: evaluations whose text may not occur at all: what is downstream is not built if it does.
        base: the older version that this one continues; shards of equal documents are linked to its.
    """
    made = index.symbolic_config
    if not isinstance(made, ContaminationIndexJob):
        raise ConfigError(f"{name}@{version}: {index.id} is no contamination index", advice="Make one with contamination_index.")
    by_address = {f"artifact:{dep.id}": dep for dep in index.deps}
    sources = {key: by_address[address] for key, address in made.evals.items()}
    unknown = sorted(set(blocking) - set(sources))
    if unknown:
        raise ConfigError(f"{name}@{version}: {index.id} has no evaluation {unknown[0]!r}", advice=f"It has {', '.join(sources)}.")
    return ArtifactStep(
        name,
        version,
        job="contamination",
        build_config=lambda ctx: ContaminationJob(
            documents=ctx.members(documents)[0],
            index=ctx.address(index),
            evals={key: ctx.address(step) for key, step in sources.items()},
        ),
        deps=tuple(dict.fromkeys((documents, index, *sources.values(), *([base] if base else [])))),
        partitions=documents.partitions,
        base=base,
        kinds=("parquet",),
        owner=DATA_TEAM,
        checks=tuple(
            CheckDeclaration(clean_check(key), f"No document holds half of an example of {key}.", blocking=key in blocking)
            for key in sources
        ),
        description=description or f"Examples of {', '.join(sources)} in {documents.name}.",
    )
