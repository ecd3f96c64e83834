"""`marin plan`: what materializing would do, why, and about what it would cost."""

import argparse
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.text import Text

from marin_assets.cli.main import Commands, Common
from marin_assets.cli.output import Sheet, console, duration, plain, print_json, size, styled
from marin_assets.cli.targets import declared, open_store
from marin_core.artifact import Attempt
from marin_core.artifact.drift import Difference, DriftFinder
from marin_core.artifact.plan import Action, Estimate, Plan, PlannedArtifact, PlannedStep, plan
from marin_core.redaction import redact

SOMETHING_TO_DO = 1

DIFFERENCES_SHOWN = 20
"""For each artifact; `--json` has all."""

STYLES: dict[Action, str] = {"serve": "", "refuse": "red", "blocked": "red"}
"""Everything else is work to be done, and yellow."""

SOURCES = {"siblings": "{} of its family", "versions": "{} of other versions", "job": "{} of the same job"}


def add_command(commands: Commands, common: Common) -> None:
    parser = commands.add_parser(
        "plan",
        parents=[common.targets, common.output],
        help="show what would be built, served or refused, what has drifted and why, and what it would cost",
        description="Show what materializing the targets and everything upstream of them would do; nothing is changed. "
        "Exit code 0 if everything is built as declared, 1 if there is something to build, drifted or corrupt.",
    )
    parser.add_argument("--check-files", action="store_true", help="also look whether the files of what is built are still there")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    known, store = declared(), open_store()
    found = plan(known.graph, known.artifacts(options.targets), store, DriftFinder(known.graph, store), check_files=options.check_files)
    if options.json:
        print_json(document(found, store.prefix))
    else:
        print_plan(console(), found, store.prefix)
    return 0 if found.is_done else SOMETHING_TO_DO


# For people ------------------------------------------------------------------------------------------------------------


def print_plan(out: Console, found: Plan, prefix: str) -> None:
    """A row for each artifact or family, the differences, and the sum."""
    sheet = Sheet(f"plan for {prefix}", "artifact", "does", "because", "on drift", "wall", "CPU", "size", "estimated from")
    for step in found.steps:
        sheet.add(step.step.id, _actions(step), _because(step), step.step.on_drift, *_cost(step))
    out.print(sheet)
    for step in found.steps:
        print_drift(out, step)
    out.print(_totals(found), soft_wrap=True)


def print_drift(out: Console, step: PlannedStep) -> None:
    """The step's own differences, one a line."""
    print_differences(out, str(step.step.id), step.drift)


def print_differences(out: Console, artifact: str, differences: Sequence[Difference]) -> None:
    """What an artifact was built with, and what it would be built with now."""
    for each in differences[:DIFFERENCES_SHOWN]:
        where = "" if each.artifact == artifact else f" of {each.artifact}"
        out.print(styled("drift", "yellow"), end=" ")
        text = f"{artifact}: {each.kind} {each.field}{where}: built with {each.recorded}, now {each.declared}"
        out.print(redact(plain(text)), soft_wrap=True)
    if len(differences) > DIFFERENCES_SHOWN:
        out.print(f"      {artifact}: {len(differences) - DIFFERENCES_SHOWN} more differences, which --json lists")


def _actions(step: PlannedStep) -> Text:
    counts: dict[Action, int] = {}
    for each in step.artifacts:
        counts[each.action] = counts.get(each.action, 0) + 1
    text = Text()
    for action, count in counts.items():
        text.append(", " if text else "").append(f"{count} {action}" if len(step.artifacts) > 1 else action, STYLES.get(action, "yellow"))
    return text


def _because(step: PlannedStep) -> str:
    """The reasons, each once; those of a family's members are alike for the most part."""
    reasons = dict.fromkeys(reason for each in step.artifacts for reason in _reasons(each))
    shown = [*list(reasons)[:3], *([f"{len(reasons) - 3} more reasons"] if len(reasons) > 3 else [])]
    if step.drift:
        kinds: dict[str, int] = {}
        for each in step.drift:
            kinds[each.kind] = kinds.get(each.kind, 0) + 1
        shown.append(f"drift: {', '.join(f'{count} {kind}' for kind, count in kinds.items())}")
    inherited = step.drifted_inputs
    if inherited:
        more = f" and {len(inherited) - 1} more" if len(inherited) > 1 else ""
        shown.append(f"inherits the drift of {inherited[0]}{more}")
    return "; ".join(shown)


def _reasons(each: PlannedArtifact) -> list[str]:
    attempt = each.attempt
    if each.action == "blocked":
        return ["something that it reads is refused"]
    if each.damage:
        more = f" and {len(each.damage) - 1} more files" if len(each.damage) > 1 else ""
        return [f"corrupt: {each.damage[0]}{more}"]
    if attempt is None:
        return [] if each.record else ["never built"]
    if attempt.end is None:
        return [f"attempt {attempt.number} is open on {attempt.claim.host or 'an unknown machine'} since {attempt.claim.submitted_at}"]
    if each.action == "publish":
        return [f"attempt {attempt.number} succeeded and was not published"]
    error = (attempt.error or attempt.state).splitlines()[0]
    return [f"attempt {attempt.number} {attempt.state}" + (f" ({attempt.end.failure})" if attempt.end.failure else "") + f": {error[:200]}"]


def _cost(step: PlannedStep) -> tuple[str, str, str, str]:
    if not step.to_build or step.estimate is None:
        return ("-",) * 4
    cost, count = step.estimate.cost, step.to_build
    source = SOURCES[step.estimate.source].format(step.estimate.samples)
    return duration(count * cost.wall_seconds), duration(count * cost.cpu_seconds), size(count * cost.size_bytes), source


def _totals(found: Plan) -> str:
    counts, cost = found.counts(), found.cost()
    artifacts = f"{sum(counts.values())} artifacts: {', '.join(f'{count} {action}' for action, count in sorted(counts.items()))}"
    drifted = sum(each.has_drift for each in found.artifacts)
    if drifted:
        artifacts += f"; {drifted} drifted"
    to_build = sum(step.to_build for step in found.steps)
    if not to_build:
        return artifacts
    known = to_build - found.without_estimate
    if not known:
        return f"{artifacts}; nothing is known of what building them costs"
    parts = f"{duration(cost.wall_seconds)} one after another, {duration(cost.cpu_seconds)} of CPU, {size(cost.size_bytes)}"
    return f"{artifacts}; about {parts}" + (f", and {found.without_estimate} of which nothing is known" if known < to_build else "")


# For programs ----------------------------------------------------------------------------------------------------------


def document(found: Plan, prefix: str) -> dict[str, Any]:
    """The plan as JSON (docs/reference/cli.md)."""
    cost = found.cost()
    return {
        "store": prefix,
        "done": found.is_done,
        "artifacts": [_row(step) for step in found.steps],
        "totals": {
            "artifacts": sum(found.counts().values()),
            "actions": found.counts(),
            "drifted": sum(each.has_drift for each in found.artifacts),
            "wall_seconds": cost.wall_seconds,
            "cpu_seconds": cost.cpu_seconds,
            "size_bytes": cost.size_bytes,
            "without_estimate": found.without_estimate,
        },
    }


def _row(step: PlannedStep) -> dict[str, Any]:
    return {
        "artifact": str(step.step.id),
        "job": step.step.job,
        "on_drift": step.step.on_drift,
        "drift": [difference_document(each) for each in step.drift],
        "inherits_from": [str(each) for each in step.drifted_inputs],
        "estimate": _estimate(step.estimate),
        "members": [_member(each) for each in step.artifacts],
    }


def _estimate(estimate: Estimate | None) -> dict[str, Any] | None:
    if estimate is None:
        return None
    cost = estimate.cost
    return {
        "wall_seconds": cost.wall_seconds,
        "cpu_seconds": cost.cpu_seconds,
        "size_bytes": cost.size_bytes,
        "source": estimate.source,
        "samples": estimate.samples,
    }


def _member(each: PlannedArtifact) -> dict[str, Any]:
    return {
        "artifact": str(each.artifact),
        "action": each.action,
        "drifted": each.has_drift,
        "damage": list(each.damage),
        "attempt": None if each.attempt is None else attempt_document(each.attempt),
    }


def difference_document(each: Difference) -> dict[str, str]:
    """One difference as JSON."""
    return {"kind": each.kind, "artifact": each.artifact, "field": each.field, "recorded": each.recorded, "declared": each.declared}


def attempt_document(attempt: Attempt) -> dict[str, Any]:
    """One attempt as JSON."""
    end = attempt.end
    return {
        "number": attempt.number,
        "state": attempt.state,
        "host": attempt.claim.host,
        "job": attempt.claim.job,
        "submitted_at": attempt.claim.submitted_at,
        "ended_at": end.ended_at if end else None,
        "failure": end.failure if end else None,
        "exit_code": end.exit_code if end else None,
        "error": end.error if end else None,
        "log": end.log if end else None,
    }
