"""Drift: what differs between an artifact as it was built and as it would be built today.

Drift is advisory: the committed artifact is served, and whoever looks is told what differs.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Literal

from marin_core.artifact.code import CodeTable, code_differences, code_table
from marin_core.artifact.graph import ArtifactGraph
from marin_core.artifact.identity import ArtifactId
from marin_core.artifact.record import Record, config_differences
from marin_core.artifact.step import ArtifactStep
from marin_core.artifact.store import Store


@dataclass(frozen=True)
class Difference:
    """One thing that differs.

    Attributes:
        kind: `config` (a field of the configuration), `code` (a definition that the job reaches) or `data` (the content of an input).
        artifact: where the difference lies; an artifact upstream if the drift is inherited.
        field: dotted field of the configuration, `file:definition`, or the input's identity.
        recorded: value when it was built; of code and data, a digest.
        declared: value today.
    """

    kind: Literal["config", "code", "data"]
    artifact: str
    field: str
    recorded: str
    declared: str


def job_code(job: str) -> CodeTable:
    """The code that a job of this project runs today."""
    return code_table(f"marin_jobs.{job}")


class DriftFinder:
    """Compares records with declarations; reads each record once and judges each artifact once, so make a new one for a new look.

    Args:
        code: today's code of a job, by the job's name.
    """

    def __init__(self, graph: ArtifactGraph, store: Store, code: Callable[[str], CodeTable] = job_code) -> None:
        self._graph = graph
        self._store = store
        self._code = code
        self._position = {step.id: position for position, step in enumerate(graph)}
        self._records: dict[ArtifactId, Record | None] = {}
        self._found: dict[ArtifactId, tuple[Difference, ...]] = {}
        self._code_found: dict[tuple[str, str], tuple[tuple[str, str, str], ...]] = {}

    def record(self, artifact: ArtifactId) -> Record | None:
        return self.records([artifact])[artifact]

    def records(self, artifacts: Iterable[ArtifactId]) -> dict[ArtifactId, Record | None]:
        """Records of many artifacts; those not seen before are read together."""
        artifacts = list(artifacts)
        self._records.update(self._store.records(artifact for artifact in artifacts if artifact not in self._records))
        return {artifact: self._records[artifact] for artifact in artifacts}

    def of(self, artifact: ArtifactId) -> tuple[Difference, ...]:
        """Differences of a committed artifact, its own and those it inherits; empty if there are none or no record."""
        ancestry = self._unjudged_ancestry(artifact)
        for member in sorted(ancestry, key=lambda member: self._position[member.family]):  # upstream first: no recursion
            self._found[member] = self._differences(member)
        return self._found[artifact]

    def _unjudged_ancestry(self, artifact: ArtifactId) -> set[ArtifactId]:
        """The artifact and every recorded ancestor that an experiment still declares, as far as they were not judged before."""
        known: set[ArtifactId] = set()
        level = {artifact}
        while level := {member for member in level if member not in self._found and member not in known}:
            known |= level
            records = self.records(level).values()
            level = {read.id for record in records if record for read in record.inputs if read.id in self._graph}
        return known

    def _differences(self, artifact: ArtifactId) -> tuple[Difference, ...]:
        record = self.record(artifact)
        if record is None:
            return ()
        step = self._graph[artifact]
        found = self._own_config(record, step) + self._own_code(record, step)
        for read in record.inputs:
            current = self.record(read.id) if read.id in self._graph else None
            if current is None:
                continue
            if current.content_digest != read.content_digest:
                found.append(Difference("data", str(artifact), str(read.id), read.content_digest, current.content_digest))
            found.extend(self._found.get(read.id, ()))
        return tuple(dict.fromkeys(found))

    def _own_config(self, record: Record, step: ArtifactStep) -> list[Difference]:
        if record.fingerprint == self._graph.fingerprint(step):
            return []
        fields = config_differences(record.identity, self._graph.identity(step))
        found = [Difference("config", str(step.id), name, _text(old), _text(new)) for name, (old, new) in fields.items()]
        recorded, declared = set(record.identity.get("deps") or ()), {str(dep.id) for dep in step.deps}
        for name in sorted(recorded ^ declared):
            states = ("absent", "an input") if name in declared else ("an input", "absent")
            found.append(Difference("config", str(step.id), f"deps.{name}", *states))
        return found

    def _own_code(self, record: Record, step: ArtifactStep) -> list[Difference]:
        today = self._code(step.job)
        if not record.code.digest or record.code.digest == today.digest:
            return []
        key = (record.code.digest, today.digest)
        if key not in self._code_found:
            table = self._store.code_table(record)
            self._code_found[key] = (
                (("source", record.code.digest[:16], today.digest[:16]),)
                if table is None
                else tuple(
                    (f"{each.file}:{each.definition}", _text(each.recorded), _text(each.declared))
                    for each in code_differences(table, today)
                )
            )
        return [Difference("code", str(step.id), *each) for each in self._code_found[key]]


def _text(value: Any) -> str:
    return "absent" if value is None else str(value)
