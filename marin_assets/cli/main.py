"""Arguments and exit codes of `marin`."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from marin_core.artifact import ArtifactGraph, ArtifactId, ArtifactStep
from marin_core.artifact.identity import DEV
from marin_core.errors import ConfigError, ExitCode, MarinError
from marin_core.experiment import Experiment


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit code."""
    sys.path.insert(0, str(Path.cwd()))  # as Dagster's commands do, so that MARIN_EXPERIMENTS may name a package here
    options = _parser().parse_args(arguments)
    try:
        code: int = options.run(options)
    except MarinError as error:
        print(f"marin: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("marin: interrupted", file=sys.stderr)
        return 130
    return code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="marin", description="The lab's own commands; Dagster's work beside them.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    targets = argparse.ArgumentParser(add_help=False)
    targets.add_argument(
        "targets",
        nargs="+",
        metavar="TARGET",
        help="an experiment, or an artifact: name, name@version or name@version/partition",
    )
    materialize = commands.add_parser(
        "materialize",
        parents=[targets],
        help="build artifacts and everything upstream of them, through Dagster",
        description="Build artifacts and everything upstream of them. Each build is a Dagster run on the instance that the UI shows.",
    )
    materialize.add_argument("--workers", type=_positive, default=2, help="Dagster run workers side by side (default 2)")
    materialize.add_argument("--rebuild", action="store_true", help="build the named targets anew; only for the version 'dev'")
    materialize.set_defaults(run=_materialize)
    status = commands.add_parser("status", parents=[targets], help="show what is built, served, missing or drifted")
    status.set_defaults(run=_status)
    dev = commands.add_parser("dev", help="open the Dagster UI on this project")
    dev.add_argument("--port", type=_positive, default=3000)
    dev.set_defaults(run=_dev)
    return parser


def _positive(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no positive number")
    return int(text)


def _materialize(options: argparse.Namespace) -> int:
    from marin_assets.cli.materialize import materialize
    from marin_assets.cli.tables import print_artifacts, print_findings

    graph, wanted, chosen = _graph(options.targets)
    rebuild = wanted if options.rebuild else []
    fixed = sorted({str(artifact.family) for artifact in rebuild if artifact.version != DEV})
    if fixed:
        raise ConfigError(f"{', '.join(fixed)}: a fixed version is never rebuilt", advice="Give it a new version.")
    console = _console()
    outcomes = materialize(graph, chosen, rebuild=rebuild, workers=options.workers, console=console)
    print_artifacts(console, graph, chosen, outcomes)
    print_findings(console, graph, chosen)
    failed = [outcome for outcome in outcomes.values() if outcome.error]
    for outcome in failed:
        console.print(f"[red]{outcome.artifact}[/red]: ", end="")
        console.print(outcome.error, markup=False, highlight=False)
    return ExitCode.BUG if failed else ExitCode.DONE


def _dev(options: argparse.Namespace) -> int:
    from marin_assets.cli.dev import dev

    dev(options.port)
    return ExitCode.DONE


def _status(options: argparse.Namespace) -> int:
    from marin_assets.cli.tables import print_artifacts, print_findings

    graph, _, chosen = _graph(options.targets)
    console = _console()
    print_artifacts(console, graph, chosen, {})
    print_findings(console, graph, chosen)
    return ExitCode.DONE


def _console() -> Console:
    """Wide where nobody watches (a log, a pipe), so that no address is cut."""
    console = Console()
    return console if console.is_terminal else Console(width=200)


def _graph(targets: Sequence[str]) -> tuple[ArtifactGraph, list[ArtifactId], list[ArtifactId]]:
    """The graph of all experiments, the artifacts that the targets name, and the same with everything upstream in build order."""
    from marin_assets.experiments import load_experiments

    experiments = {experiment.name: experiment for experiment in load_experiments()}
    graph = ArtifactGraph(target for experiment in experiments.values() for target in experiment.targets)
    wanted: list[ArtifactId] = []
    for target in targets:
        wanted.extend(_members(target, graph, experiments))
    upstream = graph.upstream([graph[artifact] for artifact in wanted])
    families = {artifact.family for artifact in wanted}
    chosen = [artifact for step in upstream for artifact in step.ids() if step.id not in families or artifact in wanted]
    return graph, wanted, chosen


def _members(target: str, graph: ArtifactGraph, experiments: dict[str, Experiment]) -> list[ArtifactId]:
    if target in experiments:
        return [artifact for step in experiments[target].targets for artifact in step.ids()]
    if "@" in target:
        artifact = ArtifactId.parse(target)
        step = graph[artifact]
        if artifact.partition is not None and artifact not in step.ids():
            raise ConfigError(f"{step.id} has no partition {artifact.partition!r}", advice=f"It has: {', '.join(step.partitions)}.")
        return [artifact] if artifact.partition is not None else list(step.ids())
    named: list[ArtifactStep] = [step for step in graph if step.name == target]
    if not named:
        raise ConfigError(
            f"nothing is called {target!r}",
            advice=f"Experiments: {', '.join(experiments)}. Artifacts: {', '.join(str(step.id) for step in graph)}.",
        )
    return [artifact for step in named for artifact in step.ids()]
