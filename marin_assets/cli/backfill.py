"""`marin backfill`: bring many partitions to committed records through a running Dagster, which goes on when this command ends."""

import argparse
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.console import Console

from marin_assets.cli.main import Commands, Common
from marin_assets.cli.materialize import exit_code, outcome_document
from marin_assets.cli.output import console, plain, print_json, styled
from marin_assets.cli.targets import Declared, declared, open_store
from marin_core.artifact import ArtifactGraph, ArtifactId, ArtifactStep, Store
from marin_core.errors import ConfigError, ExitCode

if TYPE_CHECKING:
    from marin_assets.cli.backfills import Backfill, Backfills
    from marin_assets.cli.runs import Outcome

ERRORS_SHOWN = 20
LOOKING_SHARE = 20
"""Times as long as the last look at the records took, until the next: those of thousands of shards in a bucket take a while."""


def add_command(commands: Commands, common: Common) -> None:
    parser = commands.add_parser(
        "backfill",
        parents=[common.output],
        help="build partitions of a family through a running Dagster",
        description="Build partitions of a family as one Dagster asset backfill, which the daemon carries on whatever becomes of this "
        "command; the same command again follows it. What is committed is served and gets no run. "
        "Exit code 0 if all is there; else that of the gravest failure: 64 configuration, 65 data, 70 bug, 75 infrastructure.",
    )
    parser.add_argument("target", metavar="TARGET", help="a family or artifact (name, name@version, …/partition), or an experiment")
    chosen = parser.add_mutually_exclusive_group()
    chosen.add_argument("--from", dest="first", metavar="KEY", help="the first partition of a range")
    chosen.add_argument("--keys", metavar="KEY,KEY,…", help="these partitions")
    parser.add_argument("--to", dest="last", metavar="KEY", help="the last partition of a range")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--missing", action="store_true", help="of these, those that are not committed (as without it)")
    which.add_argument("--failed", action="store_true", help="of these, only those whose newest attempt failed")
    parser.add_argument("--upstream", action="store_true", help="build whatever they read and is not there, too")
    parser.add_argument("--wait", action=argparse.BooleanOptionalAction, default=True, help="follow it to its end (default)")
    parser.set_defaults(run=run)


@dataclass(frozen=True)
class Selection:
    """What is asked for.

    Attributes:
        artifacts: everything, in build order.
        served: those that are committed.
        lacking: those that can't be built, with an input that isn't there and won't be.
    """

    artifacts: tuple[ArtifactId, ...]
    served: frozenset[ArtifactId]
    lacking: Mapping[ArtifactId, ArtifactId]

    @property
    def to_build(self) -> list[ArtifactId]:
        return [each for each in self.artifacts if each not in self.served and each not in self.lacking]


def run(options: argparse.Namespace) -> int:
    known = declared()
    store = open_store()
    chosen = choose(known, options.target, first=options.first, last=options.last, keys=options.keys)
    selection = select(known.graph, store, chosen, failed=options.failed, upstream=options.upstream)
    out = console(stderr=options.json)
    to_build = selection.to_build
    out.print(
        f"store {store.prefix}: {len(selection.artifacts)} artifacts, {len(selection.served)} served, {len(to_build)} to build"
        + (f", {len(selection.lacking)} without their inputs" if selection.lacking else "")
    )
    followed: list[Backfill] = []
    outcomes: dict[ArtifactId, Outcome] = {}
    if to_build:
        store.ensure_writable()
        with _backfills(known) as backfills:
            followed = request(backfills, to_build, f"marin backfill {options.target}", out)
            if options.wait:
                with _interrupted(out):
                    backfills.wait(followed, _Watch(backfills, store, to_build, out))
                outcomes = backfills.outcomes(store, to_build, followed, selection.served)
    outcomes |= _without_backfill(selection, requested=not options.wait)
    return _report(known.graph, selection, outcomes, followed, out, as_json=options.json)


# What is asked for --------------------------------------------------------------------------------------------------------


def choose(known: Declared, target: str, *, first: str | None, last: str | None, keys: str | None) -> list[ArtifactId]:
    """The artifacts that the arguments name.

    Raises:
        ConfigError: nothing is called so, or the family has no such partition.
    """
    artifacts = known.artifacts([target])
    if first is None and last is None and keys is None:
        return artifacts
    families = sorted({artifact.family for artifact in artifacts})
    step = known.graph[families[0]]
    if len(families) > 1 or len(artifacts) < len(step.partitions) or not step.partitions:
        raise ConfigError(f"{target!r} is not one family", advice="Choose partitions of one family: name@version.")
    if keys is not None and last is not None:
        raise ConfigError("--keys and --to can't be given together", advice="Give --from and --to, or --keys.")
    wanted = _range(step, first, last) if keys is None else _listed(step, keys)
    return [artifact for artifact in artifacts if artifact.partition in wanted]


def _range(step: ArtifactStep, first: str | None, last: str | None) -> Collection[str]:
    """Keys between two, both included, in the family's own order."""
    start = 0 if first is None else _position(step, first)
    stop = len(step.partitions) - 1 if last is None else _position(step, last)
    if stop < start:
        raise ConfigError(f"the range from {first!r} to {last!r} is empty", advice=f"{last!r} comes before {first!r} in {step.id}.")
    return frozenset(step.partitions[start : stop + 1])


def _listed(step: ArtifactStep, keys: str) -> Collection[str]:
    listed = [key.strip() for key in keys.split(",") if key.strip()]
    if not listed:
        raise ConfigError("--keys names no partition", advice="Separate keys by commas: --keys 00000,00003")
    return frozenset(step.partitions[_position(step, key)] for key in listed)


def _position(step: ArtifactStep, key: str) -> int:
    try:
        return step.partitions.index(key)
    except ValueError:
        raise ConfigError(f"{step.id} has no partition {key!r}", advice=f"It has {step.partitions[0]} to {step.partitions[-1]}.") from None


def select(graph: ArtifactGraph, store: Store, chosen: Sequence[ArtifactId], *, failed: bool, upstream: bool) -> Selection:
    """What building the chosen artifacts takes, decided by the records alone.

    Args:
        failed: leave out what is committed, was never tried, or is being built.
        upstream: build what they read, too.
    """
    if failed:
        uncommitted = [artifact for artifact, record in store.records(chosen).items() if record is None]
        attempted = store.attempted(uncommitted)
        chosen = [artifact for artifact in uncommitted if artifact in attempted and _has_failed(store, artifact)]
    records = store.records(chosen)
    served = frozenset(artifact for artifact, record in records.items() if record is not None)
    to_build = [artifact for artifact in chosen if artifact not in served]
    if upstream:
        to_build = _with_upstream(graph, store, to_build)
    artifacts = (*to_build, *(artifact for artifact in chosen if artifact in served))
    return Selection(artifacts, served, _lacking(graph, store, to_build))


def _with_upstream(graph: ArtifactGraph, store: Store, artifacts: Sequence[ArtifactId]) -> list[ArtifactId]:
    """The artifacts and everything that they can't be built without and isn't committed, in build order."""
    wanted = set(artifacts)
    level: Collection[ArtifactId] = wanted
    while level:
        reads = {read for artifact in level for read in _reads(graph, artifact)} - wanted
        level = [read for read, record in store.records(reads).items() if record is None]
        wanted.update(level)
    position = {step.id: index for index, step in enumerate(graph)}
    return sorted(wanted, key=lambda artifact: (position[artifact.family], artifact.partition or ""))


def _reads(graph: ArtifactGraph, artifact: ArtifactId) -> list[ArtifactId]:
    """What an artifact can't be built without."""
    step = graph[artifact]
    return [read for dep in step.deps for read in step.reads(dep, artifact.partition) if not step.is_optional(read)]


def _has_failed(store: Store, artifact: ArtifactId) -> bool:
    newest = store.attempts(artifact)[-1]
    return newest.end is not None and newest.end.state != "succeeded"


def _lacking(graph: ArtifactGraph, store: Store, to_build: Sequence[ArtifactId]) -> dict[ArtifactId, ArtifactId]:
    """Artifacts with an input that is neither committed nor going to be, and those that read such artifacts."""
    reads = {artifact: _reads(graph, artifact) for artifact in to_build}
    elsewhere = {read for inputs in reads.values() for read in inputs} - reads.keys()
    absent = {read for read, record in store.records(elsewhere).items() if record is None}
    lacking: dict[ArtifactId, ArtifactId] = {}
    for artifact in to_build:  # in build order
        missing = [read for read in reads[artifact] if read in absent or read in lacking]
        if missing:
            lacking[artifact] = missing[0]
    return lacking


# What is done about it ----------------------------------------------------------------------------------------------------


@contextmanager
def _backfills(known: Declared) -> "Iterator[Backfills]":
    from marin_assets.cli.backfills import Backfills
    from marin_assets.factory import build_definitions
    from marin_assets.instance import open_instance

    assets = build_definitions(list(known.experiments.values())).get_repository_def().asset_graph
    with open_instance() as instance:
        yield Backfills(instance, known.graph, assets)


def request(backfills: "Backfills", to_build: Sequence[ArtifactId], title: str, out: Console) -> "list[Backfill]":
    """The backfills that will build the artifacts: those that are under way anyhow, and a new one for the rest."""
    rest = dict.fromkeys(to_build)
    followed = []
    for backfill in backfills.under_way():
        covered = [artifact for artifact in rest if artifact in backfill.artifacts]
        if covered:
            followed.append(backfill)
            rest = {artifact: None for artifact in rest if artifact not in backfill.artifacts}
            out.print(f"backfill {backfill.id} is under way and has {len(covered)} of them")
    if rest:
        backfill = backfills.launch(rest, title)
        followed.append(backfill)
        out.print(f"backfill {backfill.id}: {len(rest)} runs requested")
    if not backfills.daemon_lives():
        out.print("no Dagster daemon has given a sign of life for two minutes: it waits until one is started (`make dev`)")
    return followed


class _Watch:
    """Says while a backfill runs how far it is, and whether anyone still carries it on."""

    def __init__(self, backfills: "Backfills", store: Store, to_build: Sequence[ArtifactId], out: Console) -> None:
        self._backfills = backfills
        self._store = store
        self._left = list(to_build)
        self._total = len(to_build)
        self._out = out
        self._lives = backfills.daemon_lives()
        self._next_look = 0.0

    def __call__(self) -> None:
        began = time.monotonic()
        if began >= self._next_look:
            self._count()
            self._next_look = time.monotonic() + LOOKING_SHARE * (time.monotonic() - began)
        lives = self._backfills.daemon_lives()
        if lives != self._lives:
            self._lives = lives
            self._out.print("  the Dagster daemon is back" if lives else "  the Dagster daemon is gone; waiting for another")

    def _count(self) -> None:
        records = self._store.records(self._left)
        left = [artifact for artifact in self._left if records[artifact] is None]
        if len(left) < len(self._left):
            self._left = left
            self._out.print(f"  {self._total - len(left)}/{self._total} committed")


@contextmanager
def _interrupted(out: Console) -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt:
        out.print("the backfill goes on; the same command follows it again, and the UI can cancel it")
        raise


# What became of it --------------------------------------------------------------------------------------------------------


def _without_backfill(selection: Selection, *, requested: bool) -> "dict[ArtifactId, Outcome]":
    """Outcomes of what no backfill was needed for, could be asked for, or was waited for."""
    from marin_assets.cli.runs import Outcome

    outcomes = {artifact: Outcome(artifact, "served") for artifact in selection.served}
    for artifact, read in selection.lacking.items():
        error = f"it reads {read}, which is not built; build it first, or give --upstream"
        outcomes[artifact] = Outcome(artifact, "not started", error=error, exit_code=int(ExitCode.BAD_CONFIG))
    if requested:
        outcomes |= {artifact: Outcome(artifact, "requested") for artifact in selection.to_build}
    return outcomes


def _report(
    graph: ArtifactGraph,
    selection: Selection,
    outcomes: "Mapping[ArtifactId, Outcome]",
    followed: "Sequence[Backfill]",
    out: Console,
    *,
    as_json: bool,
) -> int:
    """Print the summary; the exit code."""
    code = exit_code(outcomes)
    if code == ExitCode.DONE and any(outcome.state == "not started" for outcome in outcomes.values()):
        code = int(ExitCode.TRY_AGAIN)  # it was canceled, or Dagster could not carry it on
    if as_json:
        documents = [outcome_document(outcomes[artifact]) for artifact in selection.artifacts]
        print_json({"backfills": [each.id for each in followed], "artifacts": documents, "exit_code": code})
        return code
    from marin_assets.cli.tables import print_artifacts

    if selection.artifacts:
        print_artifacts(out, graph, selection.artifacts, outcomes)
    errors = [outcome for outcome in outcomes.values() if outcome.error]
    for outcome in errors[:ERRORS_SHOWN]:
        out.print(styled(outcome.artifact, "red"), end=": ")
        out.print(plain(outcome.error), soft_wrap=True)
    if len(errors) > ERRORS_SHOWN:
        out.print(f"and {len(errors) - ERRORS_SHOWN} more, which --json lists")
    return code
