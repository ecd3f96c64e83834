"""`marin reproduce`: build artifacts again beside the committed ones, and show whether they are the same."""

import argparse
from collections.abc import Sequence

from marin_assets.cli.main import Commands, Common
from marin_assets.cli.output import add_row, console, duration, new_table, plain, print_json
from marin_assets.cli.targets import declared
from marin_assets.place import default_launcher, default_prefix
from marin_core.artifact.identity import ArtifactId
from marin_core.artifact.reproduction import Reproduction
from marin_core.errors import ExitCode, MarinError


def add_command(commands: Commands, common: Common) -> None:
    parser = commands.add_parser(
        "reproduce",
        parents=[common.targets, common.output],
        help="build artifacts again at a shadow address and compare",
        description="Build committed artifacts again from their recorded inputs with today's code, and compare every file; of trainings "
        "also all checkpoints' arrays and the loss curve. Upstream artifacts are not rebuilt. Exit code 65 if anything differs.",
    )
    parser.add_argument("--at", metavar="PREFIX", help="build the shadows below another folder or URL, and leave them there")
    parser.add_argument("--keep", action="store_true", help="leave the shadows in the store for inspection")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    from marin_assets.lab import Lab
    from marin_assets.reproduce import reproduce

    known = declared()
    lab = Lab(prefix=default_prefix(), launcher=default_launcher())
    progress = console(stderr=True)
    results: list[Reproduction] = []
    failures: list[tuple[ArtifactId, MarinError]] = []
    targets = known.artifacts(options.targets)
    for number, artifact in enumerate(targets):
        progress.print(f"[{number + 1}/{len(targets)}] rebuilding {artifact}")
        try:
            result = reproduce(lab, known.graph, artifact, prefix=options.at, keep_shadow=options.keep)
        except MarinError as error:
            failures.append((artifact, error))
            progress.print(f"  failed: {plain(error)}")
            continue
        results.append(result)
        progress.print(f"  {plain(result.summary)}, in {duration(result.wall_seconds)}")
    if options.json:
        print_json(
            {
                "reproductions": [result.model_dump(mode="json") for result in results],
                "failures": [
                    {"artifact": str(artifact), "message": error.message, "advice": error.advice, "exit_code": int(error.exit_code)}
                    for artifact, error in failures
                ],
            }
        )
    else:
        _print_table(results, failures)
    return _exit_code(results, failures)


def _print_table(results: Sequence[Reproduction], failures: Sequence[tuple[ArtifactId, MarinError]]) -> None:
    table = new_table("reproductions", "artifact", "verdict", "files equal", "loss curve", "content", "changed since")
    for result in results:
        curve = "-" if result.curve_rows is None else f"{result.curve_rows} rows equal"
        if result.first_different_row is not None:
            curve = f"differs from row {result.first_different_row}"
        add_row(
            table,
            ArtifactId(result.name, result.version, result.partition),
            result.verdict if result.passed else "DIFFERENT",
            f"{result.files - len(result.differing_files)}/{result.files}",
            curve,
            result.reproduced_digest[:16],
            ", ".join([*result.code_changes, *result.environment_changes]) or "-",
        )
    for artifact, error in failures:
        add_row(table, artifact, "failed", "-", "-", "-", error.message)
    console().print(table)


def _exit_code(results: Sequence[Reproduction], failures: Sequence[tuple[ArtifactId, MarinError]]) -> int:
    if any(not result.passed for result in results):
        return ExitCode.BAD_DATA
    return min((int(error.exit_code) for _, error in failures), default=ExitCode.DONE)
