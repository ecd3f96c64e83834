"""Handles of published mixes: a mixture that the world can follow, hour by hour, and one that takes its weights from a commit."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Unpack

from marin_core.artifact.identity import ArtifactId
from marin_core.artifact.step import ArtifactStep, CheckDeclaration, caller_outside_library
from marin_core.data.config import MixtureConfig, PublishedMixtureConfig
from marin_core.data.sources.urls import refuse_credentials
from marin_core.errors import ConfigError
from marin_core.experiment.jobs import PublishedMixtureJob
from marin_core.experiment.names import DATA_TEAM, component_name
from marin_core.experiment.tokens import MIXTURE_CHECKS, MixtureOptions, mixture_components
from marin_core.mix.commit import LONGEST_AUTHOR, LONGEST_MESSAGE, floor_hour, is_id, published_text

FIRST_HOUR = datetime(2026, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, eq=False)
class PublishedMix:
    """A mixture whose history is published. It isn't an artifact: it has no version, and grows by a commit whenever something changed.

    Attributes:
        name: path like `published/web`, the asset's key and the folder below the store's prefix.
        mixture: what is published: its weights, and its caches as they are committed at each hour.
        to: folder or bucket; None = below the store's prefix.
        author: whoever the commits name.
        message: why the weights are what they are; None = that of the last git commit that changed the file of this declaration.
        start: the first hour that can be published.
        allow_missing: component → partition keys of its cache that need not be committed.
        declared_at: `file:line` of the experiment that made the handle.
    """

    name: str
    mixture: ArtifactStep
    to: str | None = None
    author: str = "curator"
    message: str | None = None
    start: datetime = FIRST_HOUR
    allow_missing: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    owner: str = DATA_TEAM
    description: str = ""
    declared_at: str = field(default_factory=lambda: caller_outside_library())

    def url(self, prefix: str) -> str:
        """Where it lies, given the store's prefix."""
        return (self.to or f"{prefix.rstrip('/')}/{self.name}").rstrip("/")

    @property
    def caches(self) -> dict[str, ArtifactStep]:
        """The mixture's token caches by component."""
        weighed = getattr(self.mixture.symbolic_config, "components", {})
        return {name: cache for name, cache in mixture_components(self.mixture).items() if name in weighed}

    def __repr__(self) -> str:
        return f"<{self.name}>"


def published_mix(
    name: str,
    mixture: ArtifactStep,
    *,
    to: str | None = None,
    author: str = "curator",
    message: str | None = None,
    start: datetime = FIRST_HOUR,
    allow_missing_shards: Mapping[ArtifactStep, Sequence[str]] | None = None,
    description: str = "",
) -> PublishedMix:
    """Publish a mixture hour by hour: a commit log of weights, tokens and caches, with a page, that anybody may read.

    The mixture itself need not be materialized; its token caches must. Editing its weights publishes the change at the next hour.

    Args:
        to: a folder or bucket of its own, such as `gs://open-mix/web`; without credentials. None: under the store's prefix.
        author: at most 100 characters.
        message: at most 4,000 characters, for changes of weights; where only tokens moved, one is composed.
        start: the first hour of the asset's partitions, in UTC.
        allow_missing_shards: token cache → partition keys that may be missing, which the page shows.

    Raises:
        ConfigError: naming the field.
    """
    ArtifactId(name, "v1")  # the same rules for names
    declared = getattr(mixture.symbolic_config, "mixture", None)
    if isinstance(declared, PublishedMixtureConfig):
        raise ConfigError(f"field 'mixture': {mixture.id} has its weights from a published mix", advice="Read that one: it is published.")
    if not isinstance(declared, MixtureConfig):
        raise ConfigError(f"field 'mixture': {mixture.id} is no mixture", advice="Give the handle that mixture() returned.")
    if to is not None:
        refuse_credentials(to, "to")
        if "://" in to and not to.startswith(("file://", "gs://", "gcs://")):
            raise ConfigError(f"field 'to': a mix can't be published to {to!r}", advice="Give a folder or a bucket: gs://bucket/mix.")
    published_text(author, "author", LONGEST_AUTHOR)
    if message is not None:
        published_text(message, "message", LONGEST_MESSAGE)
    if start.tzinfo is None or start != floor_hour(start):
        raise ConfigError(f"field 'start': {start.isoformat()} is no whole hour with a time zone", advice="Give datetime(…, tzinfo=UTC).")
    found = PublishedMix(name, mixture, to, author, message, start, description=description or f"The mix {mixture.name}, hour by hour.")
    return _with_missing(found, allow_missing_shards or {})


def _with_missing(mix: PublishedMix, allowed: Mapping[ArtifactStep, Sequence[str]]) -> PublishedMix:
    names = {cache: name for name, cache in mix.caches.items()}
    for cache, keys in allowed.items():
        unknown = sorted(set(keys) - set(cache.partitions))
        if cache not in names or unknown:
            what = f"{cache.id} has no partition {unknown[0]!r}" if cache in names else f"{cache.id} is no cache of {mix.mixture.id}"
            raise ConfigError(f"field 'allow_missing_shards': {what}", advice="Name caches of the mixture and their partitions.")
    missing = {names[cache]: tuple(sorted(keys)) for cache, keys in allowed.items()}
    return PublishedMix(**{**vars(mix), "allow_missing": missing})


def mixture_at(
    name: str,
    version: str,
    caches: Sequence[ArtifactStep],
    *,
    mix: str,
    at: str | datetime,
    sequence_length: int,
    planned_tokens: Sequence[int] = (),
    description: str = "",
    **options: Unpack[MixtureOptions],
) -> ArtifactStep:
    """Token caches in the proportions of a commit of a published mix, with its phases; everything else as in `mixture`.

    The commit's id is part of the artifact's identity, where the mix lies is not. With an id nothing is read before the mixture is made.

    Args:
        caches: one for each domain of the mix, by its name; that they are the very ones that were published is checked, and only told.
        mix: folder, bucket or http(s) address of the mix, without credentials.
        at: id of the commit; or a time with its zone, for the commit that was valid then: the mix is asked whenever the handle is made,
            so that the experiment can't be loaded while it doesn't answer. `marin mix at TIME` prints the id to write instead.
        options: how sequences are cut and ordered.

    Raises:
        ConfigError: naming the field; or nothing was published by that time.
        InfrastructureError: the mix doesn't answer, where a time is given.
    """
    refuse_credentials(mix, "mix")
    components = {component_name(cache): cache for cache in caches}
    if len(components) < len(caches) or not components:
        named = ", ".join(str(cache.id) for cache in caches) or "none"
        raise ConfigError(f"field 'caches': {name}@{version} mixes {named}", advice="Give one cache for each domain of the mix.")
    config = PublishedMixtureConfig(
        mix=mix.rstrip("/"),
        commit=_commit_id(mix, at),
        planned_tokens=tuple(planned_tokens),
        sequence_length=sequence_length,
        **options,
    )
    return ArtifactStep(
        name,
        version,
        job="mixture_at",
        build_config=lambda ctx: PublishedMixtureJob(
            components={name: ctx.members(cache) for name, cache in components.items()}, mixture=config
        ),
        deps=tuple(components.values()),
        kinds=("numpy",),
        owner=DATA_TEAM,
        checks=(*MIXTURE_CHECKS, CheckDeclaration("as_published", "The caches have the tokens that the commit describes.")),
        description=description or f"Mixture of {', '.join(components)} as published in commit {config.commit[:12]}.",
    )


def _commit_id(mix: str, at: str | datetime) -> str:
    if isinstance(at, str):
        if not is_id(at):
            raise ConfigError(f"field 'at': {at[:80]!r} is no commit id", advice="Give all its 64 lower-case hex digits, or a datetime.")
        return at
    from marin_core.mix.read import read_mix

    return read_mix(mix, at).id
