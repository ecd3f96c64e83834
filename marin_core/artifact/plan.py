"""`plan`: what materializing some artifacts would do, and about what it would cost. Reads records, writes nothing."""

import gc
import statistics
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from typing import Literal

from marin_core.artifact.drift import Difference, DriftFinder
from marin_core.artifact.graph import ArtifactGraph
from marin_core.artifact.identity import ArtifactId
from marin_core.artifact.record import Attempt, Record
from marin_core.artifact.step import ArtifactStep, OnDrift
from marin_core.artifact.store import Store
from marin_core.errors import ConfigError

SAMPLES = 32
"""Records behind one estimate; a median is no better with more of them, and each is a read."""

Action = Literal["serve", "build", "rebuild", "attach", "publish", "refuse", "blocked"]
"""What materializing does with one artifact.

* `serve`: it is committed.
* `build`: it is not.
* `rebuild`: it has drifted, and its policy is to be built anew.
* `attach`: an attempt is open, which is waited for if it lives and given up if it doesn't.
* `publish`: an attempt has succeeded whose builder died before it could publish the record.
* `refuse`: it is corrupt, or it has drifted and its policy is to fail.
* `blocked`: something that it reads is refused.
"""


ON_DRIFT: dict[OnDrift, Action] = {"serve": "serve", "fail": "refuse", "rebuild": "rebuild"}


@dataclass(frozen=True)
class Cost:
    """What a build takes, or took."""

    wall_seconds: float
    cpu_seconds: float
    size_bytes: float


@dataclass(frozen=True)
class Estimate:
    """Expected cost of building one artifact: the median of earlier builds.

    Attributes:
        source: `siblings` (members of the same family), `versions` (the same name at other versions) or `job` (other artifacts
            of the same job).
        samples: how many builds it is the median of.
    """

    cost: Cost
    source: Literal["siblings", "versions", "job"]
    samples: int


@dataclass(frozen=True)
class PlannedArtifact:
    """One artifact as it is and what would become of it.

    Attributes:
        record: its record, if it is committed.
        drift: differences that lie in the artifact itself.
        drifted_inputs: the inputs from which it inherits drift; their own rows say which.
        damage: what is wrong with its files, if that was asked.
        attempt: the newest attempt, if it is not committed.
    """

    artifact: ArtifactId
    action: Action
    record: Record | None = None
    drift: tuple[Difference, ...] = ()
    drifted_inputs: tuple[ArtifactId, ...] = ()
    damage: tuple[str, ...] = ()
    attempt: Attempt | None = None

    @property
    def has_drift(self) -> bool:
        return bool(self.drift or self.drifted_inputs)

    @property
    def costs(self) -> bool:
        """Whether it would be built by the one who materializes."""
        return self.action in ("build", "rebuild")


@dataclass(frozen=True)
class PlannedStep:
    """A step's artifacts, in partition order: one, or the members of a family that the targets need.

    Attributes:
        estimate: for each of those that would be built.
    """

    step: ArtifactStep
    artifacts: tuple[PlannedArtifact, ...]
    estimate: Estimate | None = None

    @property
    def to_build(self) -> int:
        return sum(each.costs for each in self.artifacts)

    @property
    def drift(self) -> tuple[Difference, ...]:
        """Differences of all members, each once."""
        return tuple(dict.fromkeys(difference for each in self.artifacts for difference in each.drift))

    @property
    def drifted_inputs(self) -> tuple[ArtifactId, ...]:
        """Artifacts and families from which members inherit drift."""
        return tuple(dict.fromkeys(read.family for each in self.artifacts for read in each.drifted_inputs))


@dataclass(frozen=True)
class Plan:
    """Everything that the targets need, in build order."""

    steps: tuple[PlannedStep, ...]

    @property
    def artifacts(self) -> Iterable[PlannedArtifact]:
        return (each for step in self.steps for each in step.artifacts)

    def counts(self) -> dict[Action, int]:
        """How many artifacts each action concerns."""
        return dict(Counter(each.action for each in self.artifacts))

    @property
    def is_done(self) -> bool:
        """Whether everything is built as it would be built today."""
        return all(each.action == "serve" and not each.has_drift for each in self.artifacts)

    def cost(self) -> Cost:
        """Sum over everything that would be built and has an estimate."""
        parts = [(step.to_build, step.estimate.cost) for step in self.steps if step.estimate is not None]
        return Cost(
            wall_seconds=sum(count * cost.wall_seconds for count, cost in parts),
            cpu_seconds=sum(count * cost.cpu_seconds for count, cost in parts),
            size_bytes=sum(count * cost.size_bytes for count, cost in parts),
        )

    @property
    def without_estimate(self) -> int:
        """Artifacts to be built of which nothing is known."""
        return sum(step.to_build for step in self.steps if step.estimate is None)


@contextmanager
def _no_collection() -> Iterator[None]:
    """While objects are made that all stay: looking for garbage among ten thousand records takes a third of planning them."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


@_no_collection()
def plan(graph: ArtifactGraph, targets: Iterable[ArtifactId], store: Store, finder: DriftFinder, *, check_files: bool = False) -> Plan:
    """Plan the targets and everything upstream of them.

    Args:
        targets: artifacts, or families meaning all their members.
        check_files: look at every file of what is committed, without reading it.
    """
    wanted = needed(graph, targets)
    records = finder.records(wanted)
    finder.judge(artifact for artifact, record in records.items() if record is not None)
    attempted = store.attempted(artifact for artifact, record in records.items() if record is None)
    estimates = _Estimates(graph, store, finder)
    steps: list[PlannedStep] = []
    stopped: dict[ArtifactId, set[ArtifactId]] = {}
    for step, members in by_step(graph, wanted):
        blocked = _Blocked(step, stopped)
        planned = tuple(
            _committed(step, record, store, finder, blocked, check_files=check_files)
            if (record := records[each]) is not None
            else _uncommitted(each, store, blocked, attempted=each in attempted)
            for each in members
        )
        found = {each.artifact for each in planned if each.action in ("refuse", "blocked")}
        if found:
            stopped[step.id] = found
        needs_estimate = step.pin is None and any(each.costs for each in planned)
        steps.append(PlannedStep(step, planned, estimates.of(step) if needs_estimate else None))
    return Plan(tuple(steps))


def needed(graph: ArtifactGraph, targets: Iterable[ArtifactId]) -> list[ArtifactId]:
    """The targets and every artifact that building them reads, member by member, in build order.

    Raises:
        ConfigError: a target is not declared.
    """
    wanted: dict[ArtifactId, dict[str | None, None]] = {}
    for target in targets:
        _want(wanted, graph[target], [target.partition] if target.partition else _keys(graph[target]))
    for step in reversed(list(graph)):
        keys = wanted.get(step.id)
        if keys is None:
            continue
        for dep in step.deps:
            if dep is step.base:  # it is read where it is there, and not built for that
                continue
            alike = bool(dep.partitions) and dep.partitions == step.partitions
            left_out = step.left_out(dep)
            _want(wanted, dep, keys if alike else [key for key in _keys(dep) if key not in left_out])
    return [
        ArtifactId(step.name, step.version, key) if key else step.id
        for step in graph
        if (keys := wanted.get(step.id)) is not None
        for key in _keys(step)
        if key in keys
    ]


def by_step(graph: ArtifactGraph, artifacts: Iterable[ArtifactId]) -> list[tuple[ArtifactStep, list[ArtifactId]]]:
    """Artifacts grouped by the step that declares them, in order of first appearance."""
    members: dict[ArtifactId, list[ArtifactId]] = {}
    for artifact in artifacts:
        members.setdefault(artifact.family, []).append(artifact)
    return [(graph[family], artifacts) for family, artifacts in members.items()]


def _keys(step: ArtifactStep) -> Sequence[str | None]:
    return step.partitions or (None,)


def _want(wanted: dict[ArtifactId, dict[str | None, None]], step: ArtifactStep, keys: Iterable[str | None]) -> None:
    chosen = wanted.setdefault(step.id, {})
    if len(chosen) < len(_keys(step)):
        chosen.update(dict.fromkeys(keys))


class _Blocked:
    """Whether something that an artifact of a step reads can't be had; asked once for a whole family."""

    def __init__(self, step: ArtifactStep, stopped: dict[ArtifactId, set[ArtifactId]]) -> None:
        deps = [dep for dep in step.deps if dep.id in stopped and dep is not step.base]
        alike = [dep for dep in deps if dep.partitions and dep.partitions == step.partitions]
        self._whole = len(alike) < len(deps)
        self._keys = {each.partition for dep in alike for each in stopped[dep.id]}

    def __call__(self, artifact: ArtifactId) -> bool:
        return self._whole or artifact.partition in self._keys


def _uncommitted(artifact: ArtifactId, store: Store, blocked: _Blocked, *, attempted: bool) -> PlannedArtifact:
    newest = store.attempts(artifact)[-1] if attempted else None
    action: Action = "blocked" if blocked(artifact) else "build"
    if newest is not None and newest.end is None:
        action = "attach"
    elif newest is not None and newest.end and newest.end.record and not store.is_withdrawn(artifact, newest.number):
        action = "publish"
    return PlannedArtifact(artifact, action, attempt=newest)


def _committed(
    step: ArtifactStep, record: Record, store: Store, finder: DriftFinder, blocked: _Blocked, *, check_files: bool
) -> PlannedArtifact:
    drift, inherited = finder.own(record.id), finder.drifted_inputs(record.id)
    damage = tuple(store.damage(record)) if check_files else ()
    action: Action = ON_DRIFT[step.on_drift] if drift or inherited else "serve"
    if action == "serve" and damage:
        action = "refuse"
    elif action != "refuse" and (drift or inherited) and blocked(record.id):
        action = "blocked"
    return PlannedArtifact(record.id, action, record, drift, inherited, damage)


class _Estimates:
    """Medians of what comparable artifacts took: siblings first, then other versions, then other artifacts of the same job."""

    def __init__(self, graph: ArtifactGraph, store: Store, finder: DriftFinder) -> None:
        self._store = store
        self._finder = finder
        self._by_job: dict[str, list[ArtifactStep]] = {}
        for step in graph:
            self._by_job.setdefault(step.job, []).append(step)
        self._of_job: dict[str, list[Record]] = {}
        self._children: dict[str, frozenset[str]] = {}

    def of(self, step: ArtifactStep) -> Estimate | None:
        if step.partitions and (siblings := self._committed(step.ids())):
            return _median(siblings, "siblings")
        if versions := self._committed(self._other_versions(step)):
            return _median(versions, "versions")
        if step.job not in self._of_job:
            same_job = (artifact for other in reversed(self._by_job[step.job]) for artifact in islice(other.ids(), SAMPLES))
            self._of_job[step.job] = self._committed(same_job)
        return _median(self._of_job[step.job], "job") if self._of_job[step.job] else None

    def _other_versions(self, step: ArtifactStep) -> Iterable[ArtifactId]:
        folder, _, name = step.name.rpartition("/")
        if folder not in self._children:  # a listing for each folder of names, and not for each of thousands of names
            self._children[folder] = frozenset(self._store.objects.names(folder))
        versions = self._store.objects.names(step.name) if name in self._children[folder] else []
        for version in reversed(versions):
            if version != step.version:
                try:
                    yield from (ArtifactId(step.name, version, key) for key in islice(_keys(step), SAMPLES))
                except ConfigError:  # some other folder
                    continue

    def _committed(self, artifacts: Iterable[ArtifactId]) -> list[Record]:
        """Records of the first of these that are committed, read in batches; those that the finder knows already cost nothing."""
        found: list[Record] = []
        artifacts = iter(artifacts)
        while len(found) < SAMPLES and (batch := list(islice(artifacts, SAMPLES))):
            found.extend(each for each in self._finder.records(batch).values() if each is not None)
        return found[:SAMPLES]


def _median(records: Sequence[Record], source: Literal["siblings", "versions", "job"]) -> Estimate:
    cost = Cost(
        wall_seconds=statistics.median(record.usage.wall_seconds for record in records),
        cpu_seconds=statistics.median(record.usage.cpu_seconds for record in records),
        size_bytes=statistics.median(record.size for record in records),
    )
    return Estimate(cost, source, len(records))
