"""From what somebody types to artifacts: those that experiments declare, and those that the store holds."""

import difflib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from marin_assets.place import default_prefix
from marin_core.artifact import ArtifactGraph, ArtifactId, ArtifactStep, Record, Store
from marin_core.artifact.drift import Difference, DriftFinder
from marin_core.artifact.store import META
from marin_core.errors import ConfigError
from marin_core.experiment import Experiment

NAMES_SHOWN = 20


def open_store() -> Store:
    """The lab's store."""
    return Store(default_prefix())


# What experiments declare ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Declared:
    """Everything that the lab's experiments declare."""

    experiments: dict[str, Experiment]
    graph: ArtifactGraph

    def artifacts(self, targets: Iterable[str]) -> list[ArtifactId]:
        """The artifacts that the targets name, each once, without what is upstream of them.

        Raises:
            ConfigError: a target is no experiment and nothing that an experiment declares.
        """
        return list(dict.fromkeys(artifact for target in targets for artifact in self._named(target)))

    def _named(self, target: str) -> Sequence[ArtifactId]:
        if target in self.experiments:
            return [artifact for step in self.experiments[target].targets for artifact in step.ids()]
        if "@" in target:
            return self._identified(ArtifactId.parse(target))
        named: list[ArtifactStep] = [step for step in self.graph if step.name == target]
        if not named:
            experiments = f"Experiments: {_some(target, self.experiments)}."
            raise ConfigError(f"nothing is called {target!r}", advice=f"{experiments} Artifacts: {_some(target, map(str, self._ids()))}.")
        return [artifact for step in named for artifact in step.ids()]

    def _identified(self, artifact: ArtifactId) -> Sequence[ArtifactId]:
        if artifact not in self.graph:
            known = _some(artifact, map(str, self._ids()))
            raise ConfigError(f"no experiment declares {artifact.family}", advice=f"Declared are: {known}.")
        step = self.graph[artifact]
        if artifact.partition is None:
            return step.ids()
        if artifact.partition not in step.partitions:
            has = (
                f"It has: {_some(artifact.partition, step.partitions)}." if step.partitions else "It is no family: leave the partition out."
            )
            raise ConfigError(f"{step.id} has no partition {artifact.partition!r}", advice=has)
        return [artifact]

    def _ids(self) -> list[ArtifactId]:
        return [step.id for step in self.graph]


def declared() -> Declared:
    """Load the lab's experiments.

    Raises:
        ConfigError: they contradict each other, or can't be found.
    """
    from marin_assets.experiments import load_experiments

    experiments = {experiment.name: experiment for experiment in load_experiments()}
    return Declared(experiments, ArtifactGraph(target for experiment in experiments.values() for target in experiment.targets))


def _some(wanted: object, known: Iterable[str]) -> str:
    """All that is known if it is little, else what comes closest to what was wanted."""
    names = sorted(known)
    if len(names) <= NAMES_SHOWN:
        return ", ".join(names) or "none"
    shown = difflib.get_close_matches(str(wanted), names, n=NAMES_SHOWN) or names[:NAMES_SHOWN]
    return f"{', '.join(shown)} and {len(names) - len(shown)} more"


# What the store holds --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Found:
    """Something in the store: an artifact, or a family with its members."""

    artifact: ArtifactId
    members: tuple[ArtifactId, ...] = ()

    @property
    def artifacts(self) -> tuple[ArtifactId, ...]:
        return self.members or (self.artifact,)


def find(store: Store, text: str) -> Found:
    """What `name`, `name@version` or `name@version/partition` is in the store, whether or not an experiment declares it.

    Raises:
        ConfigError: nothing of that name was ever built, or a bare name has several versions.
    """
    if "@" in text:
        artifact = ArtifactId.parse(text)
        found = look_up(store, artifact)
        if found is None:
            others = versions(store, artifact.name)
            where = f"It holds these versions: {_some(artifact.version, others)}." if others else "Correct the name, or MARIN_PREFIX."
            raise ConfigError(f"{artifact} was never built in {store.prefix}", advice=where)
        return found
    present = versions(store, text)
    if not present:
        raise ConfigError(f"nothing called {text!r} was ever built in {store.prefix}", advice="Correct the name, or MARIN_PREFIX.")
    if len(present) > 1:
        raise ConfigError(
            f"{text} has {len(present)} versions", advice=f"Choose one: {_some(text, (f'{text}@{each}' for each in present))}."
        )
    found = look_up(store, ArtifactId(text, present[0]))
    assert found is not None, "versions() has just seen it"  # noqa: S101
    return found


def look_up(store: Store, artifact: ArtifactId) -> Found | None:
    """An artifact that was built or attempted, or the family of such members; None if there is neither."""
    children = store.objects.names(artifact.path)
    if META in children:
        return Found(artifact) if _is_its_own(artifact, store.record(artifact)) else None
    if artifact.partition is not None:
        return None
    members = [member for child in children if (member := _parsed(artifact.name, artifact.version, child)) is not None]
    records = store.records(members)
    built = tuple(
        member
        for member in members
        if records[member] is not None or META in store.objects.names(member.path)
        if _is_its_own(member, records[member])
    )
    return Found(artifact, built) if built else None


def _is_its_own(artifact: ArtifactId, record: Record | None) -> bool:
    """Whether an address was read as what it is: that of `a/b@v1` could be `a@b/v1`."""
    return record is None or record.id == artifact


def versions(store: Store, name: str) -> list[str]:
    """Versions of a name that the store holds, in the order of their names."""
    return [
        child
        for child in store.objects.names(name)
        if (artifact := _parsed(name, child)) is not None and look_up(store, artifact) is not None
    ]


def _parsed(name: str, version: str, partition: str | None = None) -> ArtifactId | None:
    try:
        return ArtifactId(name, version, partition)
    except ConfigError:
        return None


class Today:
    """What today's experiments say about what is committed; that they can't be loaded must not hide what was built.

    Attributes:
        problem: why nothing is known, if so.
    """

    def __init__(self, store: Store) -> None:
        self.problem: ConfigError | None = None
        try:
            self._graph = declared().graph
        except ConfigError as error:
            self.problem = error
            self._graph = ArtifactGraph([])
        self._finder = DriftFinder(self._graph, store)

    def declares(self, artifact: ArtifactId) -> bool:
        """Whether an experiment still declares it."""
        if artifact not in self._graph:
            return False
        step = self._graph[artifact]
        return artifact.partition in step.partitions if step.partitions else artifact.partition is None

    def differences(self, artifact: ArtifactId) -> tuple[Difference, ...] | None:
        """All drift of a committed artifact; None if it is declared no more."""
        return self._finder.of(artifact) if self.declares(artifact) else None

    def drift(self, artifact: ArtifactId) -> Literal["own", "inherited", "none"] | None:
        """Whether a committed artifact has drifted; None if it is declared no more."""
        if not self.declares(artifact):
            return None
        return "own" if self._finder.own(artifact) else "inherited" if self._finder.drifted_inputs(artifact) else "none"
