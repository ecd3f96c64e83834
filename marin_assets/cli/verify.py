"""`marin verify`: read every byte of what is committed, and hold it against the records."""

import argparse
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

from marin_assets.cli.main import Commands, Common
from marin_assets.cli.output import console, plain, print_json, size, styled
from marin_assets.cli.targets import Declared, declared, find, open_store
from marin_core.artifact import ArtifactId, Record, Store
from marin_core.artifact.plan import needed
from marin_core.artifact.record import File
from marin_core.artifact.verify import Damage, verify
from marin_core.errors import ConfigError, DataError, ExitCode, InfrastructureError

MISSING = 1
READERS = min(8, 2 * (os.cpu_count() or 1))
"""Files read at once: on a local disk as many as there are processors to sum them, on a remote store a few more."""


@dataclass(frozen=True)
class Finding:
    """What verification found about one artifact.

    Attributes:
        problem: why nothing could be read, for a record that is damaged or a store that doesn't answer.
    """

    artifact: str
    state: Literal["intact", "corrupt", "missing", "unreadable"]
    files: int = 0
    size_bytes: int = 0
    damage: tuple[Damage, ...] = ()
    problem: str | None = None


def add_command(commands: Commands, common: Common) -> None:
    parser = commands.add_parser(
        "verify",
        parents=[common.output],
        help="read every byte of what is committed again and report damage",
        description="Read every file of committed artifacts again and hold it against the manifest, and the code table against the record. "
        "An experiment means everything that it needs; an artifact means itself, and need not be declared any more. "
        "Exit code 65 if anything is corrupt, 75 if something could not be read, 1 if something is not committed, else 0.",
    )
    parser.add_argument("targets", nargs="*", metavar="TARGET", help="an experiment, or anything in the store: name, name@version, …")
    parser.add_argument("--all", action="store_true", help="verify everything that the store holds")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    if bool(options.targets) == options.all:
        raise ConfigError("marin verify needs either targets or --all", advice="Name experiments or artifacts, or give --all alone.")
    store = open_store()
    found: list[Finding] = []
    artifacts = list(dict.fromkeys(_artifacts(store, options.targets)))
    records = partial(_all, store) if options.all else partial(_named, store, artifacts)
    out = console(stderr=options.json)
    total = sum(record.size for record in records([])) if out.is_terminal else 0  # for the bar; records are never held all at once
    with ThreadPoolExecutor(READERS) as executor, _progress(out, total) as advance:
        for record in records(found):
            found.append(_verified(store, record, executor, advance))
    code = exit_code(found)
    if options.json:
        print_json(document(found, code))
    else:
        print_findings(out, found)
    return code


def exit_code(found: Iterable[Finding]) -> int:
    """The gravest of what was found."""
    states = {each.state for each in found}
    codes = {"corrupt": int(ExitCode.BAD_DATA), "unreadable": int(ExitCode.TRY_AGAIN), "missing": MISSING}
    return next((code for state, code in codes.items() if state in states), int(ExitCode.DONE))


# What is verified ------------------------------------------------------------------------------------------------------


def _artifacts(store: Store, targets: Sequence[str]) -> Iterator[ArtifactId]:
    """What experiments declare comes first, since it can be missing; else what the store holds."""
    known: Declared | ConfigError
    try:
        known = declared()
    except ConfigError as error:
        known = error
    for target in targets:
        try:
            yield from _declared(known, target)
        except ConfigError as undeclared:
            try:
                yield from find(store, target).artifacts
            except ConfigError:
                raise undeclared from None


def _declared(known: Declared | ConfigError, target: str) -> Sequence[ArtifactId]:
    if isinstance(known, ConfigError):
        raise known
    return needed(known.graph, known.artifacts([target])) if target in known.experiments else known.artifacts([target])


def _named(store: Store, artifacts: Sequence[ArtifactId], found: list[Finding]) -> Iterator[Record]:
    """Records one after another; what is missing or damaged among them is reported."""
    for artifact in artifacts:
        try:
            record = store.record(artifact)
        except DataError as error:
            found.append(Finding(str(artifact), "corrupt", problem=error.message))
            continue
        if record is None:
            found.append(Finding(str(artifact), "missing"))
        else:
            yield record


def _all(store: Store, found: list[Finding]) -> Iterator[Record]:
    from marin_core.artifact.inventory import committed

    yield from committed(store, lambda error: found.append(Finding("(unknown)", "corrupt", problem=error.message)))


def _verified(store: Store, record: Record, executor: ThreadPoolExecutor, advance: Callable[[File], None]) -> Finding:
    try:
        damage = verify(store, record, executor, advance)
    except InfrastructureError as error:
        return Finding(str(record.id), "unreadable", len(record.files), record.size, problem=error.message)
    return Finding(str(record.id), "corrupt" if damage else "intact", len(record.files), record.size, damage)


# For people ------------------------------------------------------------------------------------------------------------


@contextmanager
def _progress(out: Console, total: int) -> Iterator[Callable[[File], None]]:
    """A bar over all bytes, on a terminal only; advanced by each file that was read."""
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=out, transient=True, disable=not out.is_terminal) as progress:
        task = progress.add_task("verifying", total=total)
        yield lambda file: progress.advance(task, file.size)


def print_findings(out: Console, found: Sequence[Finding]) -> None:
    """Everything that is wrong, a line each, and the sum."""
    for each in found:
        if each.state == "intact":
            continue
        out.print(styled(each.state, "yellow" if each.state == "missing" else "red"), end=" ")
        out.print(plain(f"{each.artifact}" + (f": {each.problem}" if each.problem else "")), soft_wrap=True)
        for damage in each.damage:
            out.print(plain(f"  {damage.path} {damage.problem}"), soft_wrap=True)
    states = [each.state for each in found]
    counts = ", ".join(f"{states.count(state)} {state}" for state in ("intact", "corrupt", "unreadable", "missing") if state in states)
    read = size(sum(each.size_bytes for each in found if each.state in ("intact", "corrupt")))
    out.print(f"{len(found)} artifacts: {counts or 'nothing to verify'}; read {read}")


# For programs ----------------------------------------------------------------------------------------------------------


def document(found: Sequence[Finding], code: int) -> dict[str, Any]:
    """The findings as JSON (docs/reference/cli.md)."""
    return {
        "artifacts": [
            {
                "artifact": each.artifact,
                "state": each.state,
                "files": each.files,
                "size_bytes": each.size_bytes,
                "damage": [{"path": damage.path, "problem": damage.problem} for damage in each.damage],
                "problem": each.problem,
            }
            for each in found
        ],
        "exit_code": code,
    }
