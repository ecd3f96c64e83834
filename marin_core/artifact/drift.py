"""Drift: what differs between an artifact as it was built and as the experiment declares it today.

Drift is advisory: the committed artifact is served, and whoever looks is told what differs.
"""

from dataclasses import dataclass
from typing import Any, Literal

from marin_core.artifact.graph import ArtifactGraph
from marin_core.artifact.identity import ArtifactId
from marin_core.artifact.record import Record, config_differences
from marin_core.artifact.step import ArtifactStep
from marin_core.artifact.store import Store


@dataclass(frozen=True)
class Difference:
    """One thing that differs.

    Attributes:
        kind: `config` (a field of the configuration) or `data` (the content of an input).
        artifact: where the difference lies; an artifact upstream if the drift is inherited.
        field: dotted field of the configuration, or the input's identity.
        recorded: value when it was built.
        declared: value today.
    """

    kind: Literal["config", "data"]
    artifact: str
    field: str
    recorded: str
    declared: str


class DriftFinder:
    """Compares records with declarations; reads each record of the store at most once."""

    def __init__(self, graph: ArtifactGraph, store: Store) -> None:
        self._graph = graph
        self._store = store
        self._records: dict[ArtifactId, Record | None] = {}
        self._found: dict[ArtifactId, tuple[Difference, ...]] = {}

    def record(self, artifact: ArtifactId) -> Record | None:
        if artifact not in self._records:
            self._records[artifact] = self._store.record(artifact)
        return self._records[artifact]

    def of(self, artifact: ArtifactId) -> tuple[Difference, ...]:
        """Differences of a committed artifact, its own and those it inherits; empty if there are none or no record."""
        order = {step.id: position for position, step in enumerate(self._graph)}
        for member in sorted(self._ancestry(artifact), key=lambda member: order[member.family]):  # upstream first: no recursion
            if member not in self._found:
                self._found[member] = self._differences(self._graph[member], member)
        return self._found[artifact]

    def _ancestry(self, artifact: ArtifactId) -> set[ArtifactId]:
        """The artifact and every recorded ancestor that an experiment still declares."""
        known = {artifact}
        waiting = [artifact]
        while waiting:
            record = self.record(waiting.pop())
            for read in record.inputs if record else ():
                if read.id in self._graph and read.id not in known:
                    known.add(read.id)
                    waiting.append(read.id)
        return known

    def _differences(self, step: ArtifactStep, artifact: ArtifactId) -> tuple[Difference, ...]:
        record = self.record(artifact)
        if record is None or (record.fingerprint == self._graph.fingerprint(step) and not self._inputs_changed(record)):
            return ()
        fields = config_differences(record.identity, self._graph.identity(step))
        found = [Difference("config", str(artifact.family), name, _text(old), _text(new)) for name, (old, new) in fields.items()]
        for read in record.inputs:
            current = self.record(read.id) if read.id in self._graph else None
            if current is None:
                continue
            if current.content_digest != read.content_digest:
                found.append(Difference("data", str(artifact), str(read.id), read.content_digest, current.content_digest))
            found.extend(self._found.get(read.id, ()))
        return tuple(dict.fromkeys(found))

    def _inputs_changed(self, record: Record) -> bool:
        for read in record.inputs:
            current = self.record(read.id) if read.id in self._graph else None
            if current is not None and (current.content_digest != read.content_digest or self._found.get(read.id)):
                return True
        return False


def _text(value: Any) -> str:
    return "absent" if value is None else str(value)
