"""The publisher's desk: what a declared mix would say now, whether that is news, and its publication. Needs no Dagster."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime

from marin_assets.automation.checkout import code_state, message_of_last_change
from marin_assets.automation.decisions import record_decisions
from marin_core.artifact import ArtifactGraph, Store
from marin_core.artifact.canonical import digest
from marin_core.errors import ConfigError
from marin_core.experiment.publishing import PublishedMix
from marin_core.mix.commit import Commit, Json
from marin_core.mix.content import mix_content, weights_are_derived
from marin_core.mix.page import page_seq
from marin_core.mix.place import HEAD_FILE, PAGE_FILE, open_place
from marin_core.mix.publish import Published, Publisher
from marin_core.mix.read import MixReader

type Clock = Callable[[], datetime]


def utc_now() -> datetime:
    """The real clock."""
    return datetime.now(UTC)


@dataclass(frozen=True)
class News:
    """What there would be to publish.

    Attributes:
        head: the newest commit; None before the first.
        content_digest: of what would be published now.
        page_is_old: the page doesn't show the newest commit, because its publisher died or couldn't write it.
    """

    head: Commit | None
    content_digest: str
    page_is_old: bool = False

    @property
    def is_due(self) -> bool:
        """Whether publishing would change anything."""
        return self.page_is_old or self.head is None or self.head.content_digest != self.content_digest


@dataclass(frozen=True)
class Desk:
    """One declared mix in one store.

    Attributes:
        fingerprint: of its mixture.
    """

    mix: PublishedMix
    store: Store
    fingerprint: str
    clock: Clock = utc_now

    @classmethod
    def of(cls, mix: PublishedMix, store: Store, clock: Clock = utc_now) -> "Desk":
        graph = ArtifactGraph([mix.mixture])
        return cls(mix, store, graph.fingerprint(graph[mix.mixture.id]), clock)

    @property
    def url(self) -> str:
        return self.mix.url(self.store.prefix)

    def content(self) -> Json:
        """What would be published now (see `mix_content`)."""
        return mix_content(self.store, self.mix.mixture, self.fingerprint, self.mix.caches, self.mix.allow_missing)

    def news(self) -> News:
        """Whether there is anything to publish: reads HEAD, its commit, the page, and the caches' records."""
        place = open_place(self.url)
        reader = MixReader(place)
        head = None if place.read(HEAD_FILE) is None else reader.newest()
        page_is_old = head is not None and page_seq(place.read(PAGE_FILE) or b"") < head.seq
        return News(head, digest(self.content()), page_is_old)

    def publish(self, hour: datetime, *, message: str | None = None, author: str | None = None) -> Published:
        """Publish for an hour (see `Publisher.publish`), and record in the lab's log which weights were changed by hand, and why.

        Args:
            message: instead of the declared one, or that of the last git commit.
        """
        why = message or self.mix.message or message_of_last_change(self.mix.declared_at)
        place, derived = open_place(self.url), weights_are_derived(self.mix.mixture)
        found = Publisher(place, clock=self.clock).publish(
            self.content,
            hour=hour,
            author=author or self.mix.author,
            message=why,
            code=code_state(),
            weights_are_derived=derived,
        )
        if found.commit is not None and not derived:
            record_decisions(self.store, self.mix.name, MixReader(place), found.commit)
        return found


def refuse_collisions(mixes: Iterable[PublishedMix], graph: ArtifactGraph) -> dict[str, PublishedMix]:
    """Mixes by name.

    Raises:
        ConfigError: two of them have one name or one place, or an artifact lies in one.
    """
    named: dict[str, PublishedMix] = {}
    for mix in mixes:
        for other in named.values():
            if other is not mix and (other.name == mix.name or other.url("") == mix.url("")):
                raise ConfigError(
                    f"{mix.name} ({mix.declared_at}) and {other.name} ({other.declared_at}) would be published to one place",
                    advice="Give each mix a name, and a `to`, of its own.",
                )
        for step in graph:
            if f"{step.id.path}/".startswith(f"{mix.name}/"):
                raise ConfigError(
                    f"{step.id} ({step.declared_at}) would lie inside the published mix {mix.name} ({mix.declared_at})",
                    advice="Rename one of them.",
                )
        named[mix.name] = mix
    return named
