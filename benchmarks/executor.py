"""What running artifacts costs besides their own work: graphs of thousands, and single steps through Dagster, beside Marin's runner.

    python -m benchmarks.executor --json executor.json

Marin's runner is a loop over status files; ours is Dagster, with its event log, checks, lineage and UI, and a body of our own. So a
step's time is shown in parts: Dagster's, from a control run of the same graph with empty bodies, and ours, which must stay below
20 ms. Rounds of ours and of the peer alternate, and medians count.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from rich.console import Console

from benchmarks import executor_peer
from benchmarks.executor_graphs import DefinitionsFigures, GraphFigures, measure_definitions, measure_graph
from benchmarks.executor_steps import Run, StepFigures, measure_processes, measure_steps
from benchmarks.peers import PeerError, peer_environment, run_peer
from benchmarks.report import Machine, Row, installed_versions, parser, publish
from benchmarks.timing import Timing, median

SHAPES = {"chain": "chained", "fan": "independent"}
APIS = ("ArtifactStep", "StepSpec")
"""Marin's two ways to say a graph."""

PEER_TIMEOUT_SECONDS = 900
OURS_ALONE = "a part of ours, which Marin's runner doesn't have"

Api = Mapping[str, Any]
Unit = Literal["ms", "s"]


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print the table, and write the rows."""
    options = _options(arguments)
    machine, progress = Machine.now(), Console(stderr=True)
    peer = Peer(None if options.peer else "not asked for (--no-peer)")
    steps = {shape: StepFigures() for shape in SHAPES}
    for number in range(options.rounds):
        progress.print(f"round {number + 1} of {options.rounds}: steps through Dagster")
        for shape in SHAPES:
            steps[shape] += measure_steps(shape, min(options.steps, getattr(options, shape)))
        progress.print(f"round {number + 1} of {options.rounds}: {'steps of Marin' if peer.reason is None else f'no peer: {peer.reason}'}")
        peer.measure(["--depths"] if number else [])  # how deep a chain may be is no matter of time: once is enough
    progress.print("steps as processes")
    processes = measure_processes(options.process_steps)
    graphs, definitions = {}, {}
    for shape in SHAPES:
        artifacts = getattr(options, shape)
        progress.print(f"a graph: {shape} of {artifacts:,}")
        graphs[shape] = measure_graph(shape, artifacts)
    for shape, artifacts in (("chain", min(options.chain, options.definitions_chain)), ("fan", options.fan)):
        progress.print(f"definitions: {shape} of {artifacts:,}")
        definitions[shape] = measure_definitions(shape, artifacts)
    rows = [
        *step_rows(steps, processes, peer),
        *graph_rows(graphs, peer),
        *definitions_rows(definitions),
        *import_rows(peer),
    ]
    versions = installed_versions("marin-assets", "dagster", "sqlalchemy", "pydantic") | peer.versions
    publish("Executor overhead", rows, machine=machine, versions=versions, json_file=options.json)


class Peer:
    """Marin's figures, of each round, or the reason why there are none."""

    def __init__(self, reason: str | None) -> None:
        self.reason = reason
        self.rounds: list[Mapping[str, Any]] = []

    def measure(self, arguments: Sequence[str]) -> None:
        """One more round, in a fresh folder."""
        if self.reason is not None:
            return
        try:
            python = peer_environment("marin-core", executor_peer.REQUIREMENTS)
            with tempfile.TemporaryDirectory(prefix="benchmark-peer-") as folder:
                script = Path(executor_peer.__file__)
                given = ["--folder", str(Path(folder) / "store"), *arguments]
                self.rounds.append(run_peer(python, script, given, timeout_seconds=PEER_TIMEOUT_SECONDS))
        except PeerError as error:
            self.reason = error.message

    @property
    def versions(self) -> dict[str, str]:
        """Of the peer's environment."""
        found = self.rounds[0]["versions"] if self.rounds else {}
        return {f"peer's {name}": version for name, version in found.items()}

    def row(
        self,
        measure: str,
        ours: float,
        unit: str,
        find: Callable[[Mapping[str, Any]], float],
        name: str = "Marin",
        better: Literal["lower", "higher"] = "lower",
    ) -> Row:
        """Ours beside what `find` finds in a round: the median of a cost, the best of an ability."""
        found = [find(each) for each in self.rounds]
        theirs = (statistics.median(found) if better == "lower" else max(found)) if found else None
        reason = None if theirs is not None else self.reason or "it was not measured"
        return Row(measure, ours, theirs, name, unit, better, reason)

    def rows(self, measure: str, ours: Timing, unit: Unit, find: Callable[[Api], Mapping[str, float]]) -> list[Row]:
        """Wall-clock and CPU time, beside each of the two APIs."""
        return [
            self.row(f"{measure}{name}", _in(unit, getattr(ours, key)), unit, _of(api, find, key, unit), f"Marin {api}")
            for key, name in (("seconds", ""), ("cpu_seconds", ", CPU"))
            for api in APIS
        ]


# Rows ---------------------------------------------------------------------------------------------------------------


def step_rows(steps: Mapping[str, StepFigures], processes: Run, peer: Peer) -> list[Row]:
    """A step as a whole beside the peer's, and then in parts."""
    chained, independent = steps["chain"], steps["fan"]
    rows = [
        *peer.rows("chained step, cold", median(chained.cold.whole), "ms", lambda api: api["chained_step_cold"]),
        *peer.rows("independent step, cold", median(independent.cold.whole), "ms", lambda api: api["independent_step_cold"]),
        *peer.rows("step that exists, asked for", median(independent.asked.whole), "ms", lambda api: api["step_served"]),
        *peer.rows("end of a chain that exists, asked for", median(chained.end_asked.whole), "ms", lambda api: api["whole_chain_served"]),
        *_alone_twice("step that exists, run again by itself", median(chained.end_served.whole)),
        *_alone_twice("step that exists, run again with others", median(independent.served.whole)),
    ]
    for shape, name in SHAPES.items():
        figures = steps[shape]
        for state, run in (("cold", figures.cold), ("served", figures.served)):
            rows += [
                *_alone_twice(f"{name} step, {state}: ours", median(run.ours)),
                *_alone_twice(f"{name} step, {state}: our log line to Dagster", median(run.calls)),
            ]
        control, stock = median(figures.control.whole), median(figures.control_stock.whole)
        measure, peer_name = f"{name} step: Dagster's own (control run)", "Dagster's SQLite storage"
        rows += [
            Row(measure, control.seconds * 1e3, stock.seconds * 1e3, peer_name, "ms"),
            Row(f"{measure}, CPU", control.cpu_seconds * 1e3, stock.cpu_seconds * 1e3, peer_name, "ms"),
        ]
    return rows + _alone_twice("independent step, cold, as a process", median(processes.whole))


def graph_rows(graphs: Mapping[str, GraphFigures], peer: Peer) -> list[Row]:
    """Graphs as a whole, a plan's share of one artifact beside the peer's look at one, and how deep a chain may be."""
    rows = []
    for shape, figures in graphs.items():
        name, present = f"{shape} of {figures.artifacts:,}", figures.planned_present
        rows += [
            _alone(f"{name}: handles", figures.handles.seconds, "s"),
            _alone(f"{name}: graph and fingerprints", figures.graph.seconds, "s"),
            _alone(f"{name}: plan, nothing there", figures.planned_absent.seconds, "s"),
            _alone(f"{name}: plan, everything there", present.seconds, "s"),
            _alone(f"{name}: plan, everything there, CPU", present.cpu_seconds, "s"),
            _alone(f"{name}: memory of graph, records and plan", figures.memory_bytes / 2**20, "MiB"),
            _alone(f"{name}: memory, an artifact", figures.memory_bytes / figures.artifacts / 2**10, "KiB"),
            # Marin has no plan: its served run is what tells that there is nothing to do.
            *peer.rows(f"{name}: plan, an artifact there", present.per(figures.artifacts), "ms", lambda api: api["step_served"]),
        ]
    for measure, key in (("deepest chain planned, nothing there", "chain_planned"), ("deepest chain planned, all there", "chain_served")):
        deepest = float(graphs["chain"].artifacts)
        rows += [peer.row(measure, deepest, "artifacts", _depth(api, key), f"Marin {api}", better="higher") for api in APIS]
    return rows


def definitions_rows(definitions: Mapping[str, DefinitionsFigures]) -> list[Row]:
    """What Dagster takes to load a graph, by whose work it is."""
    rows = []
    for shape, figures in definitions.items():
        name, whole = f"Dagster loads a {shape} of {figures.artifacts:,}", figures.whole
        rows += [
            _alone(name, whole.seconds, "s"),
            _alone(f"{name}, CPU", whole.cpu_seconds, "s"),
            _alone(f"{name}: an artifact, CPU", whole.per(figures.artifacts).cpu_seconds * 1e3, "ms"),
            _alone(f"{name}: our definitions", figures.definitions.seconds, "s"),
            _alone(f"{name}: its repository", figures.repository.seconds, "s"),
            _alone(f"{name}: its job of all assets", figures.job.seconds, "s"),
        ]
    return rows


def import_rows(peer: Peer) -> list[Row]:
    """What is loaded before the first line of an experiment, and before Dagster knows it."""
    ours = _import("marin_core.experiment")
    return [
        peer.row("import of an experiment's library", ours.seconds, "s", lambda found: found["import"]["seconds"]),
        peer.row("import of an experiment's library, CPU", ours.cpu_seconds, "s", lambda found: found["import"]["cpu_seconds"]),
        _alone("import of what makes definitions, Dagster included", _import("marin_assets.factory").seconds, "s"),
    ]


def _alone(measure: str, ours: float, unit: str) -> Row:
    return Row(measure, ours, None, "Marin", unit, reason=OURS_ALONE)


def _alone_twice(measure: str, ours: Timing) -> list[Row]:
    return [_alone(measure, ours.seconds * 1e3, "ms"), _alone(f"{measure}, CPU", ours.cpu_seconds * 1e3, "ms")]


def _in(unit: Unit, seconds: float) -> float:
    return seconds * 1e3 if unit == "ms" else seconds


def _of(api: str, find: Callable[[Api], Mapping[str, float]], key: str, unit: Unit) -> Callable[[Mapping[str, Any]], float]:
    return lambda found: _in(unit, find(_api(found, api))[key])


def _depth(api: str, key: str) -> Callable[[Mapping[str, Any]], float]:
    """Of a round that tried any depth; the others say 0."""
    return lambda found: float(_api(found, api)[key]["deepest_working"])


def _api(found: Mapping[str, Any], name: str) -> Api:
    return next(each for each in found["apis"] if each["api"] == name)


def _import(module: str) -> Timing:
    """Import a module in a fresh process."""
    script = (
        "import time; a, b = time.perf_counter(), time.process_time(); "
        f"import {module}; print([time.perf_counter() - a, time.process_time() - b])"
    )
    done = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True)
    return Timing(*json.loads(done.stdout))


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    made = parser(__doc__ or "")
    made.add_argument("--no-peer", dest="peer", action="store_false", help="leave Marin out, whose installation takes minutes")
    made.add_argument("--chain", type=int, default=5000, metavar="N", help="artifacts of the chain that is planned (default 5000)")
    made.add_argument(
        "--fan", type=int, default=10_000, metavar="N", help="artifacts of the fan that is planned and loaded (default 10000)"
    )
    made.add_argument(
        "--definitions-chain",
        type=int,
        default=1000,
        metavar="N",
        help="artifacts of the chain that Dagster loads (default 1000; 5000 take 100 CPU-seconds, mostly of its own sorting)",
    )
    made.add_argument("--steps", type=int, default=50, metavar="N", help="steps of each graph that is executed (default 50)")
    made.add_argument("--rounds", type=int, default=3, metavar="N", help="how often ours and the peer's steps are executed (default 3)")
    made.add_argument("--process-steps", type=int, default=3, metavar="N", help="steps that are executed as processes (default 3)")
    return made.parse_args(arguments)


if __name__ == "__main__":
    main()
