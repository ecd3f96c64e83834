"""Handles of documents: raw source → documents → what is known about them → filtered shards."""

from collections.abc import Mapping, Sequence

from marin_core.artifact.identity import ArtifactId
from marin_core.artifact.step import ArtifactStep, CheckDeclaration, StepContext
from marin_core.data.formats.config import Format, Jsonl
from marin_core.data.measures.config import ClassifierConfig, MeasureConfig, resource_keys
from marin_core.data.rules.config import FilterRule
from marin_core.data.sources.config import IngestConfig, Policy, Source, Terms
from marin_core.data.stages import AttributesConfig, ConsolidateConfig, FilterConfig
from marin_core.errors import ConfigError
from marin_core.experiment.families import Continued, continued
from marin_core.experiment.jobs import (
    AttributeInput,
    AttributesJob,
    ClassifierJob,
    ConsolidateJob,
    ContaminationJob,
    DuplicatesJob,
    FilterJob,
    IngestJob,
)
from marin_core.experiment.names import DATA_TEAM, component_name

FAMILY_CHECK = CheckDeclaration("counts_add_up", "Documents in = kept + dropped + rejected.", blocking=True)


SOURCE_KINDS = {"python_stdlib": "python", "local_files": "file", "http_files": "http", "hub_files": "huggingface", "bucket_files": "gcs"}
"""What the UI shows a raw source as."""


def raw_source(
    name: str,
    version: str,
    source: Source,
    *,
    license: str,
    policy: Policy = "TRAINING_ALLOWED",
    terms: Sequence[Terms] = (),
    description: str = "",
) -> ArtifactStep:
    """Bytes as found at a source, with checksums, licence (SPDX) and use policy; `terms` are exceptions for some of its files."""
    config = IngestConfig(source=source, license=license, policy=policy, name=ArtifactId(name, version).name, terms=tuple(terms))
    return ArtifactStep(
        name,
        version,
        job="ingest",
        build_config=lambda ctx: IngestJob(ingest=config),
        kinds=(SOURCE_KINDS[source.kind],),
        owner=DATA_TEAM,
        checks=(CheckDeclaration("units_complete", "Every unit is there with its checksum."),),
        description=description or f"Raw documents from {source.kind}, licence {license}.",
    )


def documents(
    name: str,
    version: str,
    raw: ArtifactStep,
    *,
    shards: int,
    domains: Sequence[str] = (),
    format: Format | None = None,
    base: ArtifactStep | None = None,
    description: str = "",
) -> ArtifactStep:
    """A family of shards with every document of a raw source: text in normal form, equal texts of one shard once.

    What can't be a document is set aside with its reason. Attributes are measured of these, and `consolidated` decides from them.

    Args:
        shards: of the family, those of the base included.
        base: the older version that this one continues: its units stay in their shards, new ones fill the new shards, and a shard whose
            units are the same is linked instead of made.
    """
    older = continued(base)
    config = FilterConfig(domains=tuple(domains), format=format or Jsonl(), shards=shards, older=older.cuts)
    described = f"Documents of {raw.name} ({', '.join(domains) or 'all domains'})."
    return _family(name, version, raw, config, older, description or described)


def filtered(
    name: str,
    version: str,
    raw: ArtifactStep,
    *,
    shards: int,
    domains: Sequence[str] = (),
    format: Format | None = None,
    filters: Sequence[FilterRule] = (),
    base: ArtifactStep | None = None,
    description: str = "",
) -> ArtifactStep:
    """A family of shards with the documents that pass every rule; what was dropped is kept beside them with the reason.

    One pass, for a corpus that is cheap to make anew: a changed threshold reads the raw source again. `documents`, `attributes` and
    `consolidated` are the same in three, where only the last depends on thresholds.

    Args:
        base: the older version that this one continues (see `documents`).
    """
    older = continued(base)
    config = FilterConfig(domains=tuple(domains), format=format or Jsonl(), filters=tuple(filters), shards=shards, older=older.cuts)
    described = f"Documents of {raw.name} ({', '.join(domains) or 'all domains'}) that pass {len(filters)} rules."
    return _family(name, version, raw, config, older, description or described)


def _family(name: str, version: str, raw: ArtifactStep, config: FilterConfig, older: Continued, description: str) -> ArtifactStep:
    return ArtifactStep(
        name,
        version,
        job="filter",
        build_config=lambda ctx: FilterJob(
            raw=ctx.address(raw), older=tuple(ctx.address(source) for source in older.sources), shard=ctx.partition, filter=config
        ),
        deps=tuple(dict.fromkeys((raw, *older.deps))),
        partitions=tuple(f"{shard:05d}" for shard in range(config.shards)),
        base=older.base,
        kinds=("datatrove", "parquet"),
        owner=DATA_TEAM,
        checks=(FAMILY_CHECK,),
        description=description,
    )


def attributes(
    name: str,
    version: str,
    documents: ArtifactStep,
    measures: Sequence[MeasureConfig],
    *,
    resources: Mapping[str, ArtifactStep] | None = None,
    base: ArtifactStep | None = None,
    description: str = "",
) -> ArtifactStep:
    """What is measured of each document, beside its shard: a family with the keys of `documents`. Thresholds don't enter here.

    Args:
        resources: artifacts that measures name: classifiers, word lists, tokenizers.
        base: the older version that this one continues; shards of equal documents are linked to its.
    """
    config = AttributesConfig(measures=tuple(measures))
    named = dict(resources or {})
    wanted = {key for measure in config.measures for key in resource_keys(measure)}
    if wanted != named.keys():
        raise ConfigError(
            f"{name}@{version}: its measures read {', '.join(sorted(wanted)) or 'no resources'}, given are {', '.join(named) or 'none'}",
            advice="Give each resource under the key that its measure names.",
        )
    return ArtifactStep(
        name,
        version,
        job="attributes",
        build_config=lambda ctx: AttributesJob(
            documents=ctx.members(documents)[0],
            resources={key: ctx.address(artifact) for key, artifact in named.items()},
            attributes=config,
        ),
        deps=(documents, *named.values(), *([base] if base else [])),
        partitions=documents.partitions,
        base=base,
        kinds=("parquet",),
        owner=DATA_TEAM,
        checks=(CheckDeclaration("one_row_a_document", "Every document has its row, in the order of the documents."),),
        description=description or f"{', '.join(measure.name for measure in config.measures)} of {documents.name}.",
    )


def quality_classifier(
    name: str,
    version: str,
    labels: Mapping[str, ArtifactStep],
    *,
    positive: str,
    config: ClassifierConfig | None = None,
    description: str = "",
) -> ArtifactStep:
    """A classifier of documents, fitted to labelled families: `{label: documents}`. `QualityMeasure` scores with it.

    Args:
        positive: label whose probability is the score.
    """
    families = dict(labels)
    if positive not in families or len(families) < 2:
        raise ConfigError(
            f"{name}@{version}: field 'positive' is {positive!r}, the labels are {', '.join(families) or 'none'}",
            advice="Give two labels or more, one of them the positive one.",
        )
    made = (config or ClassifierConfig(positive=positive)).changed(positive=positive)
    return ArtifactStep(
        name,
        version,
        job="classifier",
        build_config=lambda ctx: ClassifierJob(labels={key: ctx.members(family) for key, family in families.items()}, classifier=made),
        deps=tuple(dict.fromkeys(families.values())),
        kinds=("scikitlearn",),
        owner=DATA_TEAM,
        checks=(CheckDeclaration("tells_labels_apart", "Held-out documents of the labels get different scores."),),
        description=description or f"Tells {positive} from {', '.join(key for key in families if key != positive)}.",
    )


def consolidated(
    name: str,
    version: str,
    documents: ArtifactStep,
    *,
    attributes: Sequence[ArtifactStep],
    rules: Sequence[FilterRule],
    base: ArtifactStep | None = None,
    description: str = "",
) -> ArtifactStep:
    """The documents that pass every rule, decided from what was measured: a changed threshold builds this family anew and nothing else.

    Args:
        attributes: families with the keys of `documents`, or global artifacts that hold a part for each of its shards (duplicates).
        rules: in the order in which they are asked.
        base: the older version that this one continues; shards of equal documents and attributes are linked to its.

    Raises:
        ConfigError: a rule decides from something that none of the attributes has, or has been measured in another way.
    """
    config = ConsolidateConfig(rules=tuple(rules))
    known = tuple(attributes)
    _refuse_unmeasured(f"{name}@{version}", config, known)

    def build_config(ctx: StepContext) -> ConsolidateJob:
        return ConsolidateJob(
            documents=ctx.members(documents)[0],
            attributes=tuple(
                AttributeInput(address=ctx.members(each)[0])
                if each.partitions
                else AttributeInput(address=ctx.address(each), below=f"{component_name(documents)}/{ctx.partition}")
                for each in known
            ),
            consolidate=config,
        )

    for each in known:
        if each.partitions and each.partitions != documents.partitions:
            raise ConfigError(
                f"{each.id} has {len(each.partitions)} partitions, {documents.id} has {len(documents.partitions)}",
                advice="Give attributes of these documents.",
            )
    return ArtifactStep(
        name,
        version,
        job="consolidate",
        build_config=build_config,
        deps=(documents, *known, *([base] if base else [])),
        partitions=documents.partitions,
        base=base,
        kinds=("parquet",),
        owner=DATA_TEAM,
        checks=(FAMILY_CHECK,),
        description=description or f"Documents of {documents.name} that pass {', '.join(rule.name for rule in config.rules)}.",
    )


def _refuse_unmeasured(consumer: str, config: ConsolidateConfig, attributes: Sequence[ArtifactStep]) -> None:
    """A rule without its attribute fails where the experiment makes the handle, not in the first shard's job."""
    measured: dict[str, MeasureConfig | None] = {}
    for step in attributes:
        for name, measure in measures_of(step).items():
            if name in measured:
                raise ConfigError(f"{consumer}: {name!r} was measured twice", advice="Give each attribute once.")
            measured[name] = measure
    for rule in config.rules:
        if rule.attribute not in measured:
            raise ConfigError(
                f"{consumer}: rule {rule.name!r} decides from {rule.attribute!r}, which was not measured",
                advice=f"Give an artifact with it; these have {', '.join(sorted(measured)) or 'nothing'}.",
            )
        found, wanted = measured[rule.attribute], getattr(rule, "measure", None)
        if found is not None and found != wanted:
            raise ConfigError(
                f"{consumer}: rule {rule.name!r} is about {wanted!r}, but measured was {found!r}",
                advice="Give the rule the measure that the attributes were made with.",
            )


def measures_of(step: ArtifactStep) -> dict[str, MeasureConfig | None]:
    """Attributes that an artifact holds, by name, with the measure that they come from; None for those that compare documents.

    Raises:
        ConfigError: it holds no attributes.
    """
    match step.symbolic_config:
        case AttributesJob(attributes=config):
            return {measure.name: measure for measure in config.measures}
        case DuplicatesJob(duplicates=found):
            return {found.find: None}
        case ContaminationJob():
            return {"contamination": None}
    raise ConfigError(
        f"{step.id}, made by the job {step.job!r}, holds no attributes", advice="Give attributes, duplicates or contamination."
    )
