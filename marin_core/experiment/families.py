"""Families of shards: how a newer version continues an older one, and the manifest that stands between a family and its consumers."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from marin_core.artifact.identity import ArtifactId
from marin_core.artifact.step import ArtifactStep, CheckDeclaration, caller_outside_library
from marin_core.data.stages import FilterConfig, OlderCut
from marin_core.errors import ConfigError
from marin_core.experiment.jobs import FilterJob, ManifestJob

MANIFEST_CHECKS = (
    CheckDeclaration("all_shards", "Every shard of the family is there."),
    CheckDeclaration("counts_add_up", "Over all shards, documents in = kept + dropped + rejected.", blocking=True),
)
COUNTED_JOBS = ("filter", "consolidate")
"""Jobs whose shards account for every document; a manifest of another family lists its shards alone."""


@dataclass(frozen=True)
class Continued:
    """What a family that is cut from a raw source takes over from the version that it continues.

    Attributes:
        base: that version.
        sources: raw sources of the older versions, oldest first.
        cuts: how they were cut.
        deps: what the family reads besides its own source: those sources, and the base.
    """

    base: ArtifactStep | None = None
    sources: tuple[ArtifactStep, ...] = ()
    cuts: tuple[OlderCut, ...] = ()
    deps: tuple[ArtifactStep, ...] = ()


def continued(base: ArtifactStep | None) -> Continued:
    """What the next version of a family takes over from a base.

    Raises:
        ConfigError: the base isn't cut from a raw source.
    """
    if base is None:
        return Continued()
    config = base.symbolic_config
    if not isinstance(config, FilterJob):
        raise ConfigError(
            f"{base.id} is made by the job {base.job!r}, not cut from a raw source", advice="Give a family of shards as base."
        )
    by_address: Mapping[str, ArtifactStep] = {f"artifact:{dep.id}": dep for dep in base.deps}
    sources = tuple(by_address[address] for address in (*config.older, config.raw))
    cuts = (*config.filter.older, OlderCut(domains=config.filter.domains, shards=config.filter.shards))
    return Continued(base, sources, cuts, tuple(dict.fromkeys((*sources, base))))


def manifest(
    name: str, version: str, family: ArtifactStep, *, allow_missing_shards: Sequence[str] = (), description: str = ""
) -> ArtifactStep:
    """What a family of shards holds: each shard with its content, and the accounts of all of them together.

    It stands between a family and what reads all of it: Dagster compares no versions over 100 partitions and more, so a consumer that
    has the manifest among its deps becomes unsynced when a shard changes, and one bad shard has one place where it is let pass.

    Args:
        family: shards of documents, filtered shards or token caches.
        allow_missing_shards: keys of shards that may be missing. They are left out, also should they come later, so that what the manifest
            lists is fixed by its identity; without them a shard that is missing fails the manifest.

    Raises:
        ConfigError: `family` is no family, or has no such shard.
    """
    unknown = sorted(set(allow_missing_shards) - set(family.partitions))
    if not family.partitions or unknown:
        what = f"has no shard {unknown[0]!r}, which 'allow_missing_shards' names" if family.partitions else "is no family of shards"
        raise ConfigError(f"{family.id} {what}", advice="List partition keys of a family, such as '00003'.")
    allowed = tuple(sorted(set(allow_missing_shards)))
    counted = family.job in COUNTED_JOBS
    config, sources = _cut(family)
    return ArtifactStep(
        name,
        version,
        job="manifest",
        build_config=lambda ctx: ManifestJob(
            family=ctx.address(family),
            shards=tuple(key for key in family.partitions if key not in allowed),
            allow_missing_shards=allowed,
            counted=counted,
            cut=config,
            sources=tuple(ctx.address(source) for source in sources),
        ),
        deps=tuple(dict.fromkeys((family, *sources))),
        leaves_out=tuple(ArtifactId(family.name, family.version, key) for key in allowed),
        kinds=("json",),
        owner=family.owner,
        checks=MANIFEST_CHECKS if counted else MANIFEST_CHECKS[:1],
        description=description or f"The {len(family.partitions)} shards of {family.name} and their accounts.",
    )


def listed(consumer: ArtifactStep, manifest: ArtifactStep) -> ArtifactStep:
    """The same artifact, made of the shards that a manifest lists: those that it allows to be missing are left out.

    The manifest becomes one more input, so that Dagster sees any change of the family, however many shards it has.

    Raises:
        ConfigError: the artifact doesn't read the manifest's family, or reads it shard by shard.
    """
    family = manifest.deps[0]
    if manifest.job != "manifest" or family not in consumer.deps or family.partitions == consumer.partitions:
        raise ConfigError(
            f"{consumer.id} doesn't read all shards of {family.id}, which {manifest.id} lists",
            advice="Give what reads the whole family, and the manifest of that family.",
        )
    return replace(
        consumer,
        deps=(*consumer.deps, manifest),
        leaves_out=(*consumer.leaves_out, *manifest.leaves_out),
        declared_at=caller_outside_library(),
    )


def _cut(family: ArtifactStep) -> tuple[FilterConfig | None, tuple[ArtifactStep, ...]]:
    """How a family was cut from which raw sources; followed through families that are made from another one shard by shard."""
    step = family
    while not isinstance(step.symbolic_config, FilterJob):
        alike = [dep for dep in step.deps if dep.partitions == step.partitions and dep is not step.base]
        if not alike:
            return None, ()
        step = alike[0]
    known = continued(step)
    return step.symbolic_config.filter, known.sources
