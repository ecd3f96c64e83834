"""Steps executed through Dagster, in process as a run worker does, on the embedded default's storage. Part of `benchmarks.executor`.

A step's time is Dagster's and ours. Ours is taken inside the body of the asset, less the calls that it makes to Dagster; Dagster's is
what a control run takes, whose bodies do nothing but yield the very results that the real ones did.
"""

import logging
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import dagster as dg
from rich.console import Console

from benchmarks.executor_graphs import definitions_of, expect, store_at, targets
from benchmarks.timing import Timing, timed
from marin_assets import factory
from marin_assets.build import build_asset
from marin_assets.cli.runs import Outcome, materialize
from marin_assets.keys import asset_key
from marin_core.artifact import ArtifactGraph, ArtifactId, ArtifactStep
from marin_core.artifact.step import Resources

HOME = "dagster"
"""Folder of the instance."""

INSTANCE = """
telemetry: {{enabled: false}}
storage: {{custom: {{module: marin_assets.sqlite, class: {storage}, config: {{base_dir: {folder}/storage}}}}}}
"""


@dataclass
class Run:
    """One run of all steps, or several put together.

    Attributes:
        whole: of each run, divided by its steps.
        ours: of each step, what our code took, calls to Dagster excluded.
        calls: of each step, what the calls to Dagster took that our code made: its log lines.
    """

    whole: list[Timing] = field(default_factory=list)
    ours: list[Timing] = field(default_factory=list)
    calls: list[Timing] = field(default_factory=list)

    def __add__(self, other: "Run") -> "Run":
        return Run(self.whole + other.whole, self.ours + other.ours, self.calls + other.calls)


@dataclass
class StepFigures:
    """Runs of one shape of graph.

    Attributes:
        cold: nothing is there.
        served: everything is there, and every step is executed again.
        end_served: everything is there, and the last artifact alone is executed again.
        asked: everything is there and `marin materialize` is asked for it, which finds that no run is needed.
        end_asked: the same for the last artifact alone.
        control: what Dagster takes for a run by itself.
        control_stock: the same on Dagster's own SQLite storage, which closes its connection after every event.
    """

    cold: Run = field(default_factory=Run)
    served: Run = field(default_factory=Run)
    end_served: Run = field(default_factory=Run)
    asked: Run = field(default_factory=Run)
    end_asked: Run = field(default_factory=Run)
    control: Run = field(default_factory=Run)
    control_stock: Run = field(default_factory=Run)

    def __add__(self, other: "StepFigures") -> "StepFigures":
        return StepFigures(**{each.name: getattr(self, each.name) + getattr(other, each.name) for each in fields(self)})


def measure_steps(shape: str, steps: int) -> StepFigures:
    """Build a graph, serve it, and let Dagster do its share alone."""
    real = Body(build_asset)
    with laboratory(targets(shape, steps)) as lab:
        cold = lab.run(real, steps)
        expect(len(real.results) == steps, "every step yields one result")
        with laboratory(lab.wanted, storage="DagsterSqliteStorage") as stock:
            control_stock = stock.run(Body(replay(dict(real.results))), steps)
        return StepFigures(
            cold=cold,
            control_stock=control_stock,
            control=lab.run(Body(replay(dict(real.results))), steps),
            served=lab.run(real, steps),
            end_served=lab.run(real, 1, only=lab.wanted[-1]),
            asked=lab.ask(lambda: targets(shape, steps), steps),
            end_asked=lab.ask(lambda: targets(shape, steps), 1),
        )


def measure_processes(steps: int) -> Run:
    """The same trivial steps, each as a job in a process of its own."""
    wanted = targets("fan", steps)
    with laboratory([replace(step, resources=Resources()) for step in wanted]) as lab:
        return lab.run(Body(build_asset), steps)


class Laboratory:
    """Definitions of some artifacts, and a store and a Dagster instance in one folder."""

    def __init__(self, wanted: Sequence[ArtifactStep], folder: Path, instance: dg.DagsterInstance) -> None:
        self.wanted = wanted
        self._folder = folder
        self._instance = instance
        self._job = definitions_of(wanted, folder / "store").get_repository_def().get_implicit_global_asset_job_def()

    def run(self, body: "Body", steps: int, only: ArtifactStep | None = None) -> Run:
        """Execute all assets in one run, or one of them."""
        selection = [asset_key(only.id)] if only is not None else None
        with silence(), body.watching():
            done, taken = timed(lambda: self._job.execute_in_process(instance=self._instance, asset_selection=selection))
        expect(done.success and len(done.get_asset_materialization_events()) == steps, "every step is materialized")
        return Run([taken.per(steps)], body.ours, body.calls)

    def ask(self, declared: Callable[[], Sequence[ArtifactStep]], last: int) -> Run:
        """Ask for the last so many artifacts as `marin materialize` does in a new process: from the handles on."""

        def ask() -> dict[ArtifactId, Outcome]:
            graph = ArtifactGraph(declared())
            chosen = [step.id for step in graph][-last:]
            return materialize(graph, chosen, rebuild=(), workers=1, console=Console(quiet=True))

        with store_at(self._folder / "store"), patch.dict(os.environ, {"DAGSTER_HOME": str(self._folder / HOME)}):
            outcomes, taken = timed(ask)
        expect([each.state for each in outcomes.values()] == ["served"] * last, "what is there needs no run")
        return Run([taken.per(last)])


@contextmanager
def laboratory(wanted: Sequence[ArtifactStep], storage: str = "LabStorage") -> Iterator[Laboratory]:
    """A lab where nothing was ever built."""
    with tempfile.TemporaryDirectory(prefix="benchmark-") as folder:
        home = Path(folder) / HOME
        home.mkdir()
        (home / "dagster.yaml").write_text(INSTANCE.format(storage=storage, folder=home))
        with dg.DagsterInstance.from_config(str(home)) as instance:
            yield Laboratory(wanted, Path(folder), instance)


@contextmanager
def silence() -> Iterator[None]:
    """A run worker writes its log lines somewhere, but not over the benchmark's table.

    The descriptors are redirected, not `sys.stderr`: Dagster closes all log handlers when it sets up its own, and absl's would close a
    `sys.stderr` that it no longer recognises.
    """
    kept, nowhere = {number: os.dup(number) for number in (1, 2)}, os.open(os.devnull, os.O_WRONLY)
    try:
        for number in kept:
            os.dup2(nowhere, number)
        yield
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        for number, was in kept.items():
            os.dup2(was, number)
            os.close(was)
        os.close(nowhere)


# Taking a step apart ------------------------------------------------------------------------------------------------


class Meter:
    """Adds up the time inside its `with` blocks."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.cpu_seconds = 0.0
        self.is_running = False

    def __enter__(self) -> None:
        self.is_running = True
        self.seconds -= time.perf_counter()
        self.cpu_seconds -= time.process_time()

    def __exit__(self, *failure: object) -> None:
        self.seconds += time.perf_counter()
        self.cpu_seconds += time.process_time()
        self.is_running = False


class Body:
    """Stands in for the body of every asset while it is `watching`, and takes its time.

    Attributes:
        results: what the body yielded, by artifact.
        ours: of each step since watching began, what the body took without its calls to Dagster.
        calls: of each step since then, what those took.
    """

    def __init__(self, body: Callable[..., Iterator[Any]]) -> None:
        self.results: dict[ArtifactId, Any] = {}
        self.ours: list[Timing] = []
        self.calls: list[Timing] = []
        self._body = body
        self._inside = Meter()
        self._calls = Meter()

    @contextmanager
    def watching(self) -> Iterator[None]:
        self.ours, self.calls = [], []
        handle = dg.DagsterLogManager.handle

        def handle_in_time(manager: dg.DagsterLogManager, record: logging.LogRecord) -> None:
            with self._calls if self._inside.is_running else nullcontext():  # Dagster's own lines come between two results
                handle(manager, record)

        with patch.object(factory, "build_asset", self._in_time), patch.object(dg.DagsterLogManager, "handle", handle_in_time):
            yield

    def _in_time(self, context: Any, options: Any, lab: Any, graph: Any, step: ArtifactStep, code_version: str) -> Iterator[Any]:
        self._inside, self._calls = Meter(), Meter()
        results = self._body(context, options, lab, graph, step, code_version)
        while True:
            with self._inside:
                result = next(results, None)
            if result is None:
                break
            self.results[step.id] = result
            yield result
        inside, calls = self._inside, self._calls
        self.ours.append(Timing(inside.seconds - calls.seconds, inside.cpu_seconds - calls.cpu_seconds))
        self.calls.append(Timing(calls.seconds, calls.cpu_seconds))


def replay(results: dict[ArtifactId, Any]) -> Callable[..., Iterator[Any]]:
    """A body without any work: it yields what the real one did."""

    def body(context: Any, options: Any, lab: Any, graph: Any, step: ArtifactStep, code_version: str) -> Iterator[Any]:
        yield results[step.id]

    return body
