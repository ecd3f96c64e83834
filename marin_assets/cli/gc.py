"""`marin gc`: who holds how much of the store, what of it nobody needs, and its deletion."""

import argparse
import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from marin_assets.cli import gc_mixes
from marin_assets.cli.gc_mixes import MixLeftovers
from marin_assets.cli.main import Commands, Common
from marin_assets.cli.output import add_row, console, new_table, print_json, size, styled
from marin_assets.cli.targets import Declared, declared, open_store
from marin_assets.place import jobs_folder
from marin_core.artifact import ArtifactId, Store
from marin_core.artifact.housekeeping import CleanupPlan, Item, Outcome, Rules, execute, plan_cleanup
from marin_core.artifact.inventory import Survey
from marin_core.errors import ConfigError, ExitCode

UNDECLARED = "(undeclared)"


def add_command(commands: Commands, common: Common) -> None:
    parser = commands.add_parser(
        "gc",
        parents=[common.output],
        help="show who holds how much of the store, and delete what nobody needs",
        description="Show who holds how much of the store and what of it could be deleted: what closed attempts left behind, temporary "
        "artifacts past their days (keep_days), folders of finished jobs, old reproductions, and commits of declared mixes that were never "
        "published. What a committed record refers to, and what a build under way reads, is never deleted. Without --delete nothing is.",
    )
    parser.add_argument(
        "--unreferenced", action="store_true", help="also committed artifacts that no experiment declares and no record refers to"
    )
    parser.add_argument(
        "--older-than",
        type=_days,
        metavar="DAYS",
        help="unreferenced artifacts and what unsuccessful attempts left, only if they are older (default: any age, but what the next "
        f"attempt may go on from for {Rules.resume_days:g} days)",
    )
    parser.add_argument(
        "--jobs-days",
        type=_days,
        default=int(Rules.jobs_days),
        metavar="DAYS",
        help=f"keep folders of finished jobs for so long (default %(default)s); those of failed ones {Rules.failed_jobs_days:g} days",
    )
    parser.add_argument("--delete", action="store_true", help="delete what the plan lists, after a question")
    parser.add_argument("--yes", action="store_true", help="don't ask")
    parser.set_defaults(run=run)


def _days(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is no number of days")
    return int(text)


def run(options: argparse.Namespace) -> int:
    _require_consent(options)
    store = open_store()
    rules = Rules(unreferenced=options.unreferenced, older_than_days=options.older_than, jobs_days=options.jobs_days)
    with console(stderr=True).status("looking at everything in the store"):
        known = declared()
        plan = _plan(store, known, rules)
        mixes = gc_mixes.find(known, store, plan.made_at)
    if not options.json:
        _print_survey(console(), store, plan.survey)
        _print_plan(console(), plan)
        gc_mixes.print_found(console(), mixes)
    outcome = None
    if options.delete and (plan.items or plan.returning or any(mix.leftovers for mix in mixes)):
        if not options.yes and not _agreed(plan, mixes):
            console().print("nothing was deleted")
            return ExitCode.DONE
        outcome, mixes = _delete(plan, store), gc_mixes.delete(mixes)
        if not options.json:
            _print_outcome(console(), outcome)
            gc_mixes.print_deleted(console(), mixes)
    if options.json:
        print_json(_document(store, plan, outcome) | {"mixes": [mix.document() for mix in mixes]})
    return ExitCode.DONE


def _require_consent(options: argparse.Namespace) -> None:
    if options.delete and not options.yes and (options.json or not sys.stdin.isatty()):
        raise ConfigError(
            "nobody can be asked whether to delete" + (" with --json" if options.json else ": standard input is no terminal"),
            advice="Run it without --delete first, read the plan, and add --yes.",
        )


def _plan(store: Store, known: Declared, rules: Rules) -> CleanupPlan:
    experiments: dict[ArtifactId, list[str]] = defaultdict(list)
    for name, experiment in known.experiments.items():
        for step in known.graph.upstream(experiment.targets):
            experiments[step.id].append(name)
    return plan_cleanup(store, known.graph, rules, now=datetime.now(UTC), experiments=experiments, jobs=jobs_folder(store.prefix))


def _agreed(plan: CleanupPlan, mixes: Sequence[MixLeftovers]) -> bool:
    commits = sum(len(mix.leftovers) for mix in mixes)
    also = f" and {commits} commits with {size(sum(mix.bytes for mix in mixes))}" if commits else ""
    console(stderr=True).print(f"Delete {len(plan.items)} folders with {size(plan.bytes)}{also}? [y/N] ", end="")
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def _delete(plan: CleanupPlan, store: Store) -> Outcome:
    out = console(stderr=True)
    columns = (TextColumn("deleting"), BarColumn(), MofNCompleteColumn(), TextColumn("folders"))
    with Progress(*columns, console=out, transient=True, disable=not out.is_terminal) as bar:
        task = bar.add_task("", total=len(plan.items))
        return execute(plan, store, progress=lambda done, total: bar.update(task, completed=done))


# Tables ---------------------------------------------------------------------------------------------------------------


@dataclass
class _Share:
    """What the artifacts of one owner and stage take, in bytes.

    Attributes:
        unreferenced: the part of `committed` that no record refers to and no open attempt reads.
    """

    owner: str
    stage: str
    artifacts: int = 0
    committed: int = 0
    unreferenced: int = 0
    building: int = 0
    debris: int = 0
    bookkeeping: int = 0

    @property
    def total(self) -> int:
        return self.committed + self.building + self.debris + self.bookkeeping

    def cells(self) -> list[object]:
        parts = (self.committed, self.unreferenced, self.building, self.debris, self.bookkeeping)
        return [self.owner, self.stage, self.artifacts, *(size(part) if part else "-" for part in parts)]


def _shares(survey: Survey) -> list[_Share]:
    """By owner, the largest part first; what nobody declares last."""
    shares: dict[tuple[str, str], _Share] = {}
    for holding in survey.holdings.values():
        owner, stage = holding.owner or UNDECLARED, holding.artifact.name.split("/")[0]
        share = shares.setdefault((owner, stage), _Share(owner, stage))
        share.artifacts += holding.state == "committed"
        share.committed += holding.payload_bytes
        share.unreferenced += 0 if holding.referrers or holding.readers else holding.payload_bytes
        share.building += holding.bytes_of("building")
        share.debris += holding.debris_bytes + holding.bytes_of("unknown")
        share.bookkeeping += holding.bookkeeping_bytes
    return sorted(shares.values(), key=lambda share: (share.owner == UNDECLARED, share.owner, -share.total, share.stage))


def _total(shares: Iterable[_Share]) -> _Share:
    total = _Share("total", "")
    for share in shares:
        for name in ("artifacts", "committed", "unreferenced", "building", "debris", "bookkeeping"):
            setattr(total, name, getattr(total, name) + getattr(share, name))
    return total


def _print_survey(out: Console, store: Store, survey: Survey) -> None:
    shares = _shares(survey)
    table = new_table(
        f"{store.prefix} holds", "owner", "stage", "artifacts", "committed", "nobody refers to", "being built", "debris", "bookkeeping"
    )
    for share in [*shares, _total(shares)]:
        add_row(table, *share.cells())
    out.print(table)
    for sentence in survey.damaged:
        out.print(styled(f"damaged: {sentence}", "red"))


def _print_plan(out: Console, plan: CleanupPlan) -> None:
    if plan.spared:
        spared = new_table("stays", "folder", "size", "why")
        for each in plan.spared:
            add_row(spared, each.path, size(each.bytes), each.reason)
        out.print(spared)
    if plan.returning:
        out.print(styled(f"an interrupted cleanup took back too much; these come back: {_listed(plan.returning)}"))
    if plan.items:
        table = new_table("could be deleted", "kind", "folder", "size", "owner", "why")
        for item in plan.items:
            add_row(table, item.kind, item.path, size(item.bytes), item.owner or "-", item.reason)
        out.print(table)
        sums = new_table("in all", "kind", "folders", "size")
        for kind, (count, total) in _totals(plan.items).items():
            add_row(sums, kind, count, size(total))
        add_row(sums, "total", len(plan.items), size(plan.bytes))
        out.print(sums)
    else:
        out.print("nothing to delete")
    if not plan.rules.unreferenced:
        undeclared = [each for each in plan.survey.holdings.values() if each.state == "committed" and not each.declared]
        if undeclared:
            total = sum(each.payload_bytes for each in undeclared)
            out.print(f"{len(undeclared)} artifacts with {size(total)} are declared by no experiment; --unreferenced considers them too")


def _totals(items: Sequence[Item]) -> dict[str, tuple[int, int]]:
    totals: dict[str, tuple[int, int]] = {}
    for item in items:
        count, total = totals.get(item.kind, (0, 0))
        totals[item.kind] = count + 1, total + item.bytes
    return totals


def _print_outcome(out: Console, outcome: Outcome) -> None:
    for kind, (count, total) in _totals(outcome.deleted).items():
        out.print(f"deleted {kind}: {count} folders, {size(total)}")
    for each in outcome.skipped:
        out.print(styled(f"kept {each.item.path}: {each.reason}", "yellow"))
    if outcome.restored:
        out.print(styled(f"came back: {_listed(outcome.restored)}"))
    out.print(f"{size(outcome.bytes)} are free")


def _listed(artifacts: Iterable[ArtifactId]) -> str:
    return ", ".join(map(str, artifacts))


# The document ---------------------------------------------------------------------------------------------------------


def _document(store: Store, plan: CleanupPlan, outcome: Outcome | None) -> dict[str, Any]:
    survey = plan.survey
    return {
        "store": store.prefix,
        "survey": {
            "shares": [vars(share) for share in _shares(survey)],
            "artifacts": [
                {
                    "artifact": str(each.artifact),
                    "state": each.state,
                    "declared": each.declared,
                    "owner": each.owner,
                    "experiments": list(each.experiments),
                    "payload_bytes": each.payload_bytes,
                    "building_bytes": each.bytes_of("building"),
                    "debris_bytes": each.debris_bytes,
                    "bookkeeping_bytes": each.bookkeeping_bytes,
                    "newest_activity": each.newest_activity.isoformat() if each.newest_activity else None,
                    "referrers": [str(referrer) for referrer in each.referrers],
                    "readers": [str(reader) for reader in each.readers],
                }
                for each in survey.holdings.values()
            ],
            "damaged": list(survey.damaged),
        },
        "plan": {
            "items": [_item(item) for item in plan.items],
            "totals": {kind: {"folders": count, "bytes": total} for kind, (count, total) in _totals(plan.items).items()},
            "spared": [
                {"path": each.path, "artifact": _named(each.artifact), "bytes": each.bytes, "reason": each.reason} for each in plan.spared
            ],
            "returning": [str(artifact) for artifact in plan.returning],
        },
        "outcome": None
        if outcome is None
        else {
            "deleted": [_item(item) for item in outcome.deleted],
            "skipped": [{**_item(each.item), "reason": each.reason} for each in outcome.skipped],
            "restored": [str(artifact) for artifact in outcome.restored],
            "bytes": outcome.bytes,
        },
    }


def _item(item: Item) -> Mapping[str, Any]:
    return {
        "kind": item.kind,
        "path": item.path,
        "artifact": _named(item.artifact),
        "bytes": item.bytes,
        "owner": item.owner,
        "reason": item.reason,
        "generation": item.generation,
    }


def _named(artifact: ArtifactId | None) -> str | None:
    return None if artifact is None else str(artifact)
