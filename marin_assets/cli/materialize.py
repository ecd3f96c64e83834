"""`marin materialize`: build artifacts and everything upstream of them, through Dagster."""

import argparse
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from marin_assets.cli.main import Commands, Common, positive
from marin_assets.cli.output import console, plain, print_json, styled
from marin_assets.cli.targets import declared
from marin_core.artifact import ArtifactId
from marin_core.artifact.identity import DEV
from marin_core.artifact.plan import needed
from marin_core.errors import ConfigError, ExitCode

if TYPE_CHECKING:
    from marin_assets.cli.runs import Outcome


def add_command(commands: Commands, common: Common) -> None:
    parser = commands.add_parser(
        "materialize",
        parents=[common.targets, common.output],
        help="build artifacts and everything upstream of them, through Dagster",
        description="Build artifacts and everything upstream of them. Each build is a Dagster run on the instance that the UI shows. "
        "Exit code 0 if all is there; else that of the gravest failure: 64 configuration, 65 data, 70 bug, 75 infrastructure.",
    )
    parser.add_argument("--workers", type=positive, default=2, help="Dagster run workers side by side (default 2)")
    parser.add_argument("--rebuild", action="store_true", help="build the named targets anew; only for the version 'dev'")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    known = declared()
    wanted = known.artifacts(options.targets)
    rebuild = frozenset(wanted if options.rebuild else ())
    fixed = sorted({str(artifact.family) for artifact in rebuild if artifact.version != DEV})
    if fixed:
        raise ConfigError(f"{', '.join(fixed)}: a fixed version is never rebuilt", advice="Give it a new version.")
    from marin_assets.cli.runs import materialize
    from marin_assets.cli.tables import print_artifacts, print_findings

    chosen = needed(known.graph, wanted)
    progress = console(stderr=options.json)
    outcomes = materialize(known.graph, chosen, rebuild=rebuild, workers=options.workers, console=progress)
    code = exit_code(outcomes)
    if options.json:
        print_json({"artifacts": [outcome_document(outcomes[artifact]) for artifact in chosen], "exit_code": code})
        return code
    print_artifacts(progress, known.graph, chosen, outcomes)
    print_findings(progress, known.graph, chosen)
    for outcome in outcomes.values():
        if outcome.error:
            progress.print(styled(outcome.artifact, "red"), end=": ")
            progress.print(plain(outcome.error), soft_wrap=True)
    return code


def exit_code(outcomes: "Mapping[ArtifactId, Outcome]") -> int:
    """That of the gravest failure: what people must repair comes before what a second try may cure."""
    return min((outcome.exit_code for outcome in outcomes.values() if outcome.exit_code), default=int(ExitCode.DONE))


def outcome_document(outcome: "Outcome") -> dict[str, Any]:
    """An outcome as `--json` has it."""
    return {
        "artifact": str(outcome.artifact),
        "state": outcome.state,
        "seconds": round(outcome.seconds, 3),
        "error": outcome.error or None,
        "exit_code": outcome.exit_code,
    }
