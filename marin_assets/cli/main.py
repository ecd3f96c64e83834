"""`marin`: its commands, its errors and its exit codes."""

import argparse
import gc
import importlib
import os
import sys
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from marin_assets.cli.output import print_error
from marin_core.errors import ConfigError, ExitCode, MarinError

COMMANDS = (
    "materialize",
    "backfill",
    "plan",
    "show",
    "diff",
    "lineage",
    "verify",
    "reproduce",
    "preview",
    "export",
    "resolve",
    "gc",
    "model",
    "cutover",
    "mix",
    "queue",
    "dev",
)
"""Modules of this folder, one a command, in the order in which the help lists them. Each has

* `add_command(commands, common)`, which adds its parser, with the shared arguments that it wants as parents, and sets the default `run`;
* `run(options) -> int`, which does the work and returns the exit code; what is slow to import is imported there.
"""

type Commands = argparse._SubParsersAction[argparse.ArgumentParser]

COLLECTION_THRESHOLD = 100_000
"""Records and graphs of ten thousand artifacts live until a command ends; to look for garbage among them all the time costs a quarter."""

INTERRUPTED = 130
BROKEN_PIPE = 141
"""What shells say of a command that was ended because nobody reads its output."""


def positive(text: str) -> int:
    """An argument that must be a number from 1."""
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no positive number")
    return int(text)


@dataclass(frozen=True)
class Common:
    """Parent parsers that commands share.

    Attributes:
        targets: one or more experiments or artifacts, as `options.targets`.
        artifact: one artifact of the store, whether or not it is declared, as `options.artifact`.
        output: `--json`, as `options.json`.
    """

    targets: argparse.ArgumentParser
    artifact: argparse.ArgumentParser
    output: argparse.ArgumentParser


class _Parser(argparse.ArgumentParser):
    """Reports wrong usage like every other error."""

    def error(self, message: str) -> NoReturn:
        raise ConfigError(message, advice=f"{self.format_usage().strip()}; `{self.prog} --help` says more.")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit code."""
    gc.set_threshold(COLLECTION_THRESHOLD)
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    sys.path.insert(0, str(Path.cwd()))  # as Dagster's commands do, so that MARIN_EXPERIMENTS may name a package here
    as_json = "--json" in arguments
    try:
        options = parser().parse_args(arguments)
        code: int = options.run(options)
        sys.stdout.flush()
    except MarinError as error:
        print_error(error, as_json=as_json)
        return int(error.exit_code)
    except KeyboardInterrupt:
        print("marin: interrupted", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:  # `marin show … | head`: nobody reads on, and the interpreter's last flush must not complain
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BROKEN_PIPE
    except Exception as error:
        if not as_json:
            traceback.print_exc()
        print_error(MarinError(f"{type(error).__name__}: {error}", advice="Report this defect of marin."), as_json=as_json)
        return ExitCode.BUG
    return int(code)


def parser() -> argparse.ArgumentParser:
    """The parser of all commands."""
    found = _Parser(prog="marin", description="The lab's own commands; Dagster's work beside them.")
    commands = found.add_subparsers(required=True, metavar="COMMAND", dest="command")
    common = Common(targets=_targets(), artifact=_artifact(), output=_output())
    for name in COMMANDS:
        importlib.import_module(f"marin_assets.cli.{name}").add_command(commands, common)
    return found


def _targets() -> argparse.ArgumentParser:
    targets = argparse.ArgumentParser(add_help=False)
    targets.add_argument(
        "targets", nargs="+", metavar="TARGET", help="an experiment, or an artifact: name, name@version or name@version/partition"
    )
    return targets


def _artifact() -> argparse.ArgumentParser:
    artifact = argparse.ArgumentParser(add_help=False)
    artifact.add_argument("artifact", metavar="ARTIFACT", help="anything in the store: name (of one version), name@version, …/partition")
    return artifact


def _output() -> argparse.ArgumentParser:
    output = argparse.ArgumentParser(add_help=False)
    output.add_argument("--json", action="store_true", help="write one JSON document instead of tables (docs/reference/cli.md)")
    return output
