"""Graphs of thousands of artifacts: from handles to a plan, and to Dagster's definitions. Part of `benchmarks.executor`."""

import gc
import os
import tempfile
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from unittest.mock import patch

import dagster as dg

from benchmarks.timing import Timing, median, timed
from marin_assets.factory import build_definitions
from marin_assets.lab import PREFIX_VARIABLE
from marin_core.artifact import ArtifactGraph, ArtifactStep, Record, Store
from marin_core.artifact.canonical import canonical_json, digest
from marin_core.artifact.drift import DriftFinder, job_code
from marin_core.artifact.plan import Plan, plan
from marin_core.artifact.record import Code, Environment, File, Usage, manifest_digest
from marin_core.artifact.store import META, attempt_folder
from marin_core.experiment import experiment
from marin_core.experiment.existing import summary

REPEATS = 3
"""Of what takes seconds; the median counts."""


@dataclass(frozen=True)
class GraphFigures:
    """What a graph costs before anything is built.

    Attributes:
        handles: making them, as an experiment's file does when it is imported.
        planned_absent: the plan while nothing is there.
        planned_present: the plan when everything is there, and is compared with its declaration.
        memory_bytes: what handles, graph, records and plan hold together.
    """

    artifacts: int
    handles: Timing
    graph: Timing
    planned_absent: Timing
    planned_present: Timing
    memory_bytes: int


@dataclass(frozen=True)
class DefinitionsFigures:
    """What Dagster takes to know a graph.

    Attributes:
        definitions: our assets.
        repository: Dagster's own digest of them, with the graph of all assets.
        job: the implicit job of all assets, in which they are ordered.
    """

    artifacts: int
    definitions: Timing
    repository: Timing
    job: Timing

    @property
    def whole(self) -> Timing:
        """All three."""
        parts = (self.definitions, self.repository, self.job)
        return Timing(sum(each.seconds for each in parts), sum(each.cpu_seconds for each in parts))


def chain(length: int) -> list[ArtifactStep]:
    """The end of so many trivial artifacts, each of which reads the one before."""
    step = summary("chain/a0", "v1", of=[])
    for number in range(1, length):
        step = summary(f"chain/a{number}", "v1", of=[step])
    return [step]


def fan(width: int) -> list[ArtifactStep]:
    """So many trivial artifacts that read nothing."""
    return [summary(f"fan/a{number}", "v1", of=[]) for number in range(width)]


def targets(shape: str, artifacts: int) -> list[ArtifactStep]:
    """What an experiment with a `chain` or a `fan` asks for."""
    return chain(artifacts) if shape == "chain" else fan(artifacts)


def measure_graph(shape: str, artifacts: int) -> GraphFigures:
    """Plan a graph in an empty store and in one that has everything."""
    wanted, handles = repeated(partial(targets, shape, artifacts))
    graph, of_graph = repeated(partial(ArtifactGraph, wanted))
    with tempfile.TemporaryDirectory(prefix="benchmark-") as folder:
        store = Store(folder)
        planned, absent = repeated(partial(planned_all, graph, wanted, store))
        expect({each.action for each in planned.artifacts} == {"build"}, "an empty store has everything to build")
        fabricate(graph, store)
        planned, present = repeated(partial(planned_all, graph, wanted, store))
        expect(planned.is_done and len(list(planned.artifacts)) == artifacts, "a full store has nothing to build")
        del planned, graph, wanted
        held = held_memory(shape, artifacts, store)
    return GraphFigures(artifacts, handles, of_graph, absent, present, held)


def repeated[T](work: Callable[[], T]) -> tuple[T, Timing]:
    """Do the work a few times; its last result, and the median of what it took."""
    taken = []
    gc.collect()
    for _ in range(REPEATS):
        result, each = timed(work)
        taken.append(each)
    return result, median(taken)


def planned_all(graph: ArtifactGraph, wanted: Sequence[ArtifactStep], store: Store) -> Plan:
    """The plan as `marin plan` makes it, with today's code and a fresh look at every record."""
    return plan(graph, [step.id for step in wanted], store, DriftFinder(graph, store))


def held_memory(shape: str, artifacts: int, store: Store) -> int:
    """Bytes that a graph and its plan hold, counted by the allocator; apart from the timing, since counting is slow."""
    gc.collect()
    tracemalloc.start()
    try:
        wanted = targets(shape, artifacts)
        graph = ArtifactGraph(wanted)
        planned = planned_all(graph, wanted, store)
        gc.collect()
        held, _ = tracemalloc.get_traced_memory()
        expect(planned.is_done, "a full store has nothing to build")
        return held
    finally:
        tracemalloc.stop()


def fabricate(graph: ArtifactGraph, store: Store) -> None:
    """Write the record of every artifact as if it had been built as declared today, unsynced: nothing else is read by a plan."""
    code = {job: job_code(job).digest for job in {step.job for step in graph}}
    built: dict[str, Record] = {}
    with patch("os.fsync"):
        for step in graph:
            files = (File(path="summary.json", size=3, sha256=digest(str(step.id))),)
            now = datetime.now(UTC).isoformat()
            record = Record(
                name=step.name,
                version=step.version,
                fingerprint=graph.fingerprint(step),
                identity=graph.identity(step),
                inputs=tuple(built[dep.name].as_input() for dep in step.deps),
                payload=attempt_folder(1),
                files=files,
                manifest_digest=manifest_digest(files),
                content_digest=manifest_digest(files),
                attempt=1,
                code=Code(digest=code[step.job]),
                environment=Environment(python="3", platform="fabricated", cpus=1),
                started_at=now,
                ended_at=now,
                usage=Usage(wall_seconds=1, cpu_seconds=1, peak_memory_bytes=1),
            )
            built[step.name] = record
            store.objects.create(f"{step.id.path}/{META}/record.json", canonical_json(record.model_dump(mode="json")))


def measure_definitions(shape: str, artifacts: int) -> DefinitionsFigures:
    """Load a graph into Dagster as a code server does, up to the job of all assets that a run worker makes."""
    gc.collect()
    with tempfile.TemporaryDirectory(prefix="benchmark-") as folder:
        definitions, ours = timed(lambda: definitions_of(targets(shape, artifacts), Path(folder)))
    repository, of_repository = timed(definitions.get_repository_def)
    job, of_job = timed(repository.get_implicit_global_asset_job_def)
    expect(len(list(job.nodes)) == artifacts, "every artifact is an asset")
    return DefinitionsFigures(artifacts, ours, of_repository, of_job)


def definitions_of(wanted: Sequence[ArtifactStep], store: Path) -> dg.Definitions:
    """The definitions of a lab with one experiment, whose artifacts lie in a folder."""
    with store_at(store):
        return build_definitions([experiment("benchmark", *wanted, question="What does it cost?", hypothesis="Little.")])


@contextmanager
def store_at(folder: Path) -> Iterator[None]:
    """The lab's store is a folder."""
    with patch.dict(os.environ, {PREFIX_VARIABLE: f"file://{folder}"}):
        yield


def expect(holds: bool, what: str) -> None:
    """A benchmark of something that did not happen is worth nothing."""
    if not holds:
        raise AssertionError(what)
