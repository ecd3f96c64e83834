"""Drift: what differs between an artifact as it was built and as it would be built today.

Drift is advisory: the committed artifact is served, and whoever looks is told what differs.
"""

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal, get_args

from pydantic import BaseModel

from marin_core.artifact.canonical import canonical_json
from marin_core.artifact.code import CodeTable, code_differences, code_table, fields_entry
from marin_core.artifact.graph import ArtifactGraph
from marin_core.artifact.identity import ArtifactId
from marin_core.artifact.record import Input, Record, config_differences
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
        self._former: dict[ArtifactId, Record | None] = {}
        self._own: dict[ArtifactId, tuple[Difference, ...]] = {}
        self._drifted_inputs: dict[ArtifactId, tuple[ArtifactId, ...]] = {}
        self._tables: dict[str, tuple[CodeTable, str]] = {}
        self._code_found: dict[tuple[str, str], tuple[tuple[str, str, str], ...]] = {}

    def record(self, artifact: ArtifactId) -> Record | None:
        return self.records([artifact])[artifact]

    def records(self, artifacts: Iterable[ArtifactId]) -> dict[ArtifactId, Record | None]:
        """Records of many artifacts; those not seen before are read together."""
        artifacts = list(artifacts)
        unseen = [artifact for artifact in artifacts if artifact not in self._records]
        if unseen:
            self._records.update(self._store.records(unseen))
        return {artifact: self._records[artifact] for artifact in artifacts}

    def of(self, artifact: ArtifactId) -> tuple[Difference, ...]:
        """Differences of a committed artifact, its own and then those it inherits, nearest first; empty if there are none or no record."""
        self.judge([artifact])
        found: dict[Difference, None] = {}  # members of a family differ alike
        seen = {artifact}
        waiting = deque(seen if self.record(artifact) else ())
        while waiting:
            member = waiting.popleft()
            found.update(dict.fromkeys(self._own[member]))
            for read in self._drifted_inputs[member]:
                if read not in seen:
                    seen.add(read)
                    waiting.append(read)
        return tuple(found)

    def own(self, artifact: ArtifactId) -> tuple[Difference, ...]:
        """Differences that lie in a committed artifact itself; all of a long chain's are found in linear time."""
        self.judge([artifact])
        return self._own[artifact] if self.record(artifact) else ()

    def drifted_inputs(self, artifact: ArtifactId) -> tuple[ArtifactId, ...]:
        """The inputs from which a committed artifact inherits drift."""
        self.judge([artifact])
        return self._drifted_inputs[artifact] if self.record(artifact) else ()

    def judge(self, artifacts: Iterable[ArtifactId]) -> None:
        """Judge many artifacts and everything upstream of them at once."""
        unjudged = [artifact for artifact in artifacts if artifact not in self._own]
        ancestry = self._unjudged_ancestry(unjudged) if unjudged else ()
        for member in sorted(ancestry, key=lambda member: self._position[member.family]):  # upstream first: no recursion
            self._judge(member)

    def _unjudged_ancestry(self, artifacts: Iterable[ArtifactId]) -> set[ArtifactId]:
        """The artifacts and every recorded ancestor that an experiment still declares, as far as they were not judged before."""
        known: set[ArtifactId] = set()
        level = set(artifacts)
        while level:
            known |= level
            self.records(level)
            built = [record for member in level if (record := self._built(member))]
            inputs = {read.id for record in built for read in record.inputs if read.id in self._graph}
            forgotten = {read for read, record in self.records(inputs).items() if record is None and read not in self._former}
            self._former.update((read, self._last_commit(read)) for read in forgotten)
            level = {read for read in inputs if read not in self._own and (read not in known or read in forgotten)}
        return known

    def _last_commit(self, artifact: ArtifactId) -> Record | None:
        """The record of an input that was deleted or withdrawn since, if its attempts are still known."""
        ends = [attempt.end for attempt in self._store.attempts(artifact)]
        return next((end.record for end in reversed(ends) if end is not None and end.record is not None), None)

    def _built(self, artifact: ArtifactId) -> Record | None:
        """The record by which an artifact is judged: of a deleted input the last one, since what was made from it is still there."""
        return self._records[artifact] or self._former.get(artifact)

    def _judge(self, artifact: ArtifactId) -> None:
        record = self._built(artifact)
        if record is None:
            return
        step = self._graph[artifact]
        found = self._own_config(record, step) + self._own_reads(record, step) + self._own_code(record, step)
        drifted = []
        for read in record.inputs:
            name = read.id
            if name not in self._graph:
                continue
            current = self._built(name)
            if current is None:
                found += self._unjudged_input(record, read)
                continue
            if current.content_digest != read.content_digest:
                found.append(Difference("data", str(artifact), str(name), read.content_digest, current.content_digest))
            if self._own.get(name) or self._drifted_inputs.get(name):
                drifted.append(name)
        self._own[artifact], self._drifted_inputs[artifact] = tuple(found), tuple(drifted)

    def _own_config(self, record: Record, step: ArtifactStep) -> list[Difference]:
        if record.fingerprint == self._graph.fingerprint(step):
            return []
        fields = {}
        if not _is_own_identity(record, step):  # else it is all inherited, as mostly, and there is no need to look at every field
            fields = config_differences(record.identity, self._graph.identity(step), step.field_notes)
        found = [Difference("config", str(step.id), name, old, new) for name, (old, new) in fields.items()]
        recorded, declared = set(record.identity.get("deps") or ()), {str(dep.id) for dep in step.deps}
        for name in sorted(recorded ^ declared):
            states = ("absent", "an input") if name in declared else ("an input", "absent")
            found.append(Difference("config", str(step.id), f"deps.{name}", *states))
        return found

    def _own_reads(self, record: Record, step: ArtifactStep) -> list[Difference]:
        """Members of a family that were read and wouldn't be today, or the other way round."""
        recorded = {read.id for read in record.inputs}
        declared = {member for dep in step.deps for member in step.reads(dep, record.partition)}
        declared -= {member for member in declared - recorded if step.is_optional(member)}  # it could only have spared work
        if recorded == declared:
            return []
        families = {member.family for member in recorded} & {member.family for member in declared}
        return [
            Difference(
                "config", str(step.id), f"deps.{member}", *(("absent", "an input") if member in declared else ("an input", "absent"))
            )
            for member in sorted(recorded ^ declared, key=str)
            if member.family in families
        ]

    def _unjudged_input(self, record: Record, read: Input) -> list[Difference]:
        """An input of which no record is left is judged by its fingerprint, which says that something differs but not what."""
        declared = self._graph.fingerprint(self._graph[read.id])
        if read.fingerprint == declared or not record.code.digest:  # older fingerprints always differ: they covered other fields
            return []
        return [Difference("config", str(read.id), "fingerprint", read.fingerprint, declared)]

    def _own_code(self, record: Record, step: ArtifactStep) -> list[Difference]:
        if not record.code.digest:
            return []
        today, digest = self._today(step.job)
        if record.code.digest == digest:
            return []
        key = (record.code.digest, digest)
        if key not in self._code_found:
            table = self._store.code_table(record)
            self._code_found[key] = (
                (("source", record.code.digest[:16], digest[:16]),)
                if table is None
                else tuple(
                    (f"{each.file}:{each.definition}", _text(each.recorded), _text(each.declared))
                    for each in code_differences(table, today)
                )
            )
        compared = _fields_compared(type(step.symbolic_config))
        return [Difference("code", str(step.id), *each) for each in self._code_found[key] if each[0] not in compared]

    def _today(self, job: str) -> tuple[CodeTable, str]:
        """Today's code of a job and its digest, which both cost as much as there is code."""
        if job not in self._tables:
            table = self._code(job)
            self._tables[job] = (table, table.digest)
        return self._tables[job]


@cache
def _fields_compared(config: type[BaseModel]) -> frozenset[str]:
    """Entries of code tables with the fields of all classes that a configuration can hold: their values are compared, which says more.

    So a new field that stands at its default is no drift, and neither is another default of an operational one.
    """
    entries: set[str] = set()
    seen: dict[int, Any] = {}  # by id, as not everything in an annotation has a hash
    waiting: list[Any] = [config]
    while waiting:
        found = waiting.pop()
        if id(found) in seen:
            continue
        seen[id(found)] = found
        if not (isinstance(found, type) and issubclass(found, BaseModel)):
            waiting += get_args(getattr(found, "__value__", found))  # unions, tuples, mappings and their aliases
        else:
            folder = found.__module__.replace(".", "/")
            entries |= {f"{file}:{fields_entry(found.__name__)}" for file in (f"{folder}.py", f"{folder}/__init__.py")}
            waiting += [*found.__mro__[1:], *(field.annotation for field in found.model_fields.values())]
    return frozenset(entries)


def _is_own_identity(record: Record, step: ArtifactStep) -> bool:
    """Whether job and configuration are the recorded ones, byte for byte."""
    recorded, declared = record.identity, step.own_identity
    return canonical_json([recorded.get("job"), recorded.get("config")]) == canonical_json([declared["job"], declared["config"]])


def _text(value: Any) -> str:
    return "absent" if value is None else str(value)
