"""`marin cutover`: a change in mid-run, tried in a fork beside the run, judged by what was agreed before, and taken back by one command."""

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Console

from marin_assets.cli.main import Commands, Common, positive
from marin_assets.cli.output import Sheet, console, plain, print_fields, print_json
from marin_assets.cli.targets import declared, find, open_store
from marin_assets.place import PROJECT, STATE, jobs_folder
from marin_core.artifact import ArtifactGraph, ArtifactId, ArtifactStep, Attempt, Record, Store
from marin_core.artifact.canonical import FieldNotes, value_differences
from marin_core.artifact.drift import DriftFinder
from marin_core.artifact.record import config_differences
from marin_core.artifact.store import local_path, standing_output
from marin_core.errors import ConfigError, ExitCode, InfrastructureError
from marin_core.experiment.jobs import AdoptJob, TrainJob
from marin_core.train.cutover.compare import Comparison, Thresholds, compare
from marin_core.train.cutover.point import METRICS_FILE, find_point, hand_off, hold, release
from marin_core.train.cutover.record import (
    CONTROL_STEPS,
    Change,
    Closed,
    Compared,
    CutoverRecord,
    Forked,
    Launch,
    Live,
    Plan,
    RolledBack,
)

NO_GO = 1

LAUNCH_SECONDS = 600.0
"""Longest that a launched job may take to appear."""

LOOK_SECONDS = 1.0

SAME_BATCHES = ("mixture", "components", "train.global_batch_size", "train.sequence_length", "train.batch_schedule")
"""Beginnings of the fields that say what is in a batch."""


def add_command(commands: Commands, common: Common) -> None:
    parser = commands.add_parser(
        "cutover",
        help="try a change to a training in a fork of it: plan, fork, launch, compare, roll back",
        description="A change in mid-run, as docs/how-to/cut-over.md tells: plan it and say what counts as success, hold and verify the "
        "checkpoint, launch the fork, compare it with the run it left, and go back if it is worse. Every step is put on record.",
    )
    actions = parser.add_subparsers(required=True, metavar="ACTION", dest="action")
    _add_plan(_action(actions, common, "plan", _plan, "say what the fork changes and what counts as success, before it starts"))
    _action(actions, common, "fork", _fork, "verify the checkpoint against its history, and hold it").add_argument("child", metavar="CHILD")
    launch = _action(actions, common, "launch", _launch, "start the fork from a clean tree, and see that exactly one job lives")
    launch.add_argument("child", metavar="CHILD")
    _add_compare(_action(actions, common, "compare", _compare, "go or no-go: the fork against its control; exit code 1 is no-go"))
    rollback = _action(actions, common, "rollback", _rollback, "record that the change is given up, and print the command that returns")
    rollback.add_argument("child", metavar="CHILD")
    window = rollback.add_mutually_exclusive_group(required=True)
    window.add_argument("--reason", metavar="TEXT", help="why the fork is given up; the checkpoint stays held")
    window.add_argument("--close", action="store_true", help="nobody will go back any more: release the checkpoint, and say so on record")


def _action(actions: Commands, common: Common, name: str, run: Callable[[argparse.Namespace], int], says: str) -> argparse.ArgumentParser:
    parser = actions.add_parser(name, parents=[common.output], help=says, description=says[0].upper() + says[1:] + ".")
    parser.set_defaults(run=run)
    return parser


def _add_plan(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("parent", metavar="PARENT", help="the training that goes on: name@version, as an experiment declares it")
    parser.add_argument("child", metavar="CHILD", help="its fork: name@version, declared with fork=lab.fork(…)")
    parser.add_argument("--control-steps", type=positive, default=CONTROL_STEPS, metavar="N", help="steps to compare (default %(default)s)")
    parser.add_argument(
        "--threshold",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="what the fork may cost; names and defaults: " + ", ".join(f"{name}={value}" for name, value in Thresholds()),
    )
    parser.add_argument("--parent-commit", metavar="COMMIT", help="of the code that the parent runs, where no record says it")


def _add_compare(parser: argparse.ArgumentParser) -> None:
    runs = "a metrics.jsonl, the directory of a run, or name@version"
    parser.add_argument("control", metavar="CONTROL", help=f"the run without the change: {runs}")
    parser.add_argument("child", metavar="CHILD", help=f"the fork: {runs}; if it was planned, the plan says from where and against what")
    parser.add_argument("--from", dest="first_step", type=positive, metavar="STEP", help="first step of the fork, if it wasn't planned")
    parser.add_argument("--steps", type=positive, metavar="N", help=f"steps to compare, if it wasn't planned (default {CONTROL_STEPS})")


# plan ------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Fork:
    """A fork as an experiment declares it: itself, and the artifact whose checkpoint of `step` it begins with."""

    step: ArtifactStep
    source: ArtifactStep
    at: int


def _plan(options: argparse.Namespace) -> int:
    store, graph = open_store(), declared().graph
    parent, fork = graph[ArtifactId.parse(options.parent)], _declared_fork(graph, ArtifactId.parse(options.child))
    if fork.source is not parent and not isinstance(fork.source.symbolic_config, AdoptJob):
        raise ConfigError(
            f"{fork.step.id} is a fork of {fork.source.id}, not of {parent.id}", advice="Plan it with the run that it leaves."
        )
    if store.attempts(fork.step.id):
        raise ConfigError(f"{fork.step.id} was started already", advice="Give the fork a new version, and plan that before it starts.")
    record = store.record(parent.id)
    commit = options.parent_commit or _parent_commit(record, _run_folder(store, parent.id), fork.at)
    if commit is None:
        raise ConfigError(
            f"nothing says which code {parent.id} runs, so nobody could go back to it",
            advice="Look it up where the run was started, and add --parent-commit COMMIT.",
        )
    changes = _changes(store, graph, parent, record, fork.step)
    plan = Plan(
        **_stamp(),
        parent=str(parent.id),
        parent_fingerprint=record.fingerprint if record else graph.fingerprint(parent),
        child=str(fork.step.id),
        child_fingerprint=graph.fingerprint(fork.step),
        source=str(fork.source.id),
        step=fork.at,
        control_steps=options.control_steps,
        thresholds=_thresholds(options.threshold),
        same_batches=not any(each.kind == "data" or each.field.startswith(SAME_BATCHES) for each in changes),
        changes=changes,
        parent_commit=commit,
        rollback=f"git checkout {commit} && marin materialize {parent.id}",
    )
    CutoverRecord(store.objects, fork.step.id).append(plan)
    if options.json:
        print_json(plan.model_dump(mode="json"))
    else:
        _print_plan(console(), plan)
    return ExitCode.DONE


def _declared_fork(graph: ArtifactGraph, child: ArtifactId) -> Fork:
    step = graph[child]
    job = step.symbolic_config
    if not isinstance(job, TrainJob) or job.train.fork is None:
        raise ConfigError(f"{step.id} is declared as no fork", advice="Declare it as train_lm(…, fork=lab.fork(run, step=N)).")
    source = next(dep for dep in step.deps if job.earlier_run == f"artifact:{dep.id}")
    return Fork(step, source, job.train.fork.step)


def _changes(store: Store, graph: ArtifactGraph, parent: ArtifactStep, record: Record | None, child: ArtifactStep) -> tuple[Change, ...]:
    """What differs between the parent, as it was built if it was, and the fork as it would be built today."""
    identity = graph.identity(parent) if record is None else record.identity
    fields = config_differences(identity, graph.identity(child), child.field_notes)
    found = [Change(kind="config", field=name, parent=old, child=new) for name, (old, new) in fields.items()]
    old_document, new_document = (each.symbolic_config.model_dump(mode="json") for each in (parent, child))
    everything = value_differences(old_document, new_document, FieldNotes())
    found += [
        Change(kind="operational", field=name, parent=old, child=new)
        for name, (old, new) in everything.items()
        if name in child.field_notes.operational and name not in fields
    ]
    if record is not None:
        found += [
            Change(kind=each.kind, field=each.field, parent=each.recorded, child=each.declared)
            for each in DriftFinder(graph, store).of(parent.id)
            if each.kind != "config"
        ]
    return tuple(found)


def _parent_commit(record: Record | None, folder: Path | None, step: int) -> str | None:
    if record is not None and record.code.git_commit is not None:
        return record.code.git_commit
    return None if folder is None else find_point(folder, step).source_commit


def _thresholds(given: Sequence[str]) -> Thresholds:
    values = {}
    for each in given:
        name, _, value = each.partition("=")
        try:
            values[name] = float(value)
        except ValueError:
            raise ConfigError(f"--threshold {each} is no NAME=VALUE", advice="Write for example --threshold loss_nats=0.01.") from None
    return Thresholds(**values)


def _print_plan(out: Console, plan: Plan) -> None:
    changes = Sheet(f"what {plan.child} changes", "kind", "field", plan.parent, plan.child)
    for change in plan.changes:
        changes.add(change.kind, change.field, change.parent, change.child)
    out.print(changes)
    limits = Sheet("what counts as success", "threshold", "value", "means")
    for name, value in plan.thresholds:
        limits.add(name, value, Thresholds.model_fields[name].description)
    out.print(limits)
    fields = {
        "fork": f"{plan.source} after {plan.step} updates",
        "control": f"{plan.parent} from step {plan.step} to {plan.step + plan.control_steps}",
        "batches": "the same" if plan.same_batches else "NOT the same: losses will differ by the data too",
        "roll back": plan.rollback,
        "next": f"marin cutover fork {plan.child}",
    }
    print_fields(out, fields)


# fork ------------------------------------------------------------------------------------------------------------------


def _fork(options: argparse.Namespace) -> int:
    store, child = open_store(), ArtifactId.parse(options.child)
    record = CutoverRecord(store.objects, child)
    plan = record.plan()
    parent = ArtifactId.parse(plan.parent)
    folder = _run_folder(store, parent)
    if folder is None:
        raise ConfigError(f"{parent} has no files on this machine", advice="Fork where the run's store is a local or mounted folder.")
    target = local_path(f"{store.prefix}/{record.folder}/handoff")
    if plan.source == plan.parent and store.record(parent) is None:
        raise ConfigError(
            f"{parent} isn't committed, so {child} would have to wait until it is finished",
            advice=f'Fork a hand-off of it instead: handoff = lab.adopted("handoffs/{parent.name}", "v1", "{target}"), and'
            f" fork=lab.fork(handoff, step={plan.step}); then plan it again.",
        )
    point = find_point(folder, plan.step)
    hold(folder, plan.step, f"cut-over to {child}")
    handed_off = None if plan.source == plan.parent else _hand_off(plan, folder, target)
    entry = Forked(**_stamp(), point=point, folder=str(folder), handed_off=handed_off)
    record.append(entry)
    if options.json:
        print_json(entry.model_dump(mode="json"))
    else:
        shown = {
            "held": f"checkpoint {point.checkpoint} of {parent} ({'temporary' if point.is_temporary else 'permanent'})",
            "content": point.content_digest,
            "history": f"up to row {point.history_row}, loss {point.loss:.5f}",
            "folder": folder,
            "handed off": handed_off,
            "next": f"marin cutover launch {child}",
        }
        print_fields(console(), shown)
    return ExitCode.DONE


def _hand_off(plan: Plan, folder: Path, target: Path | None) -> str:
    """Copy what the fork needs to the place from which the declared hand-off adopts it.

    Raises:
        ConfigError: the declared place isn't that of this fork.
    """
    job = declared().graph[ArtifactId.parse(plan.source)].symbolic_config
    if not isinstance(job, AdoptJob) or target is None or local_path(job.at) != target:
        at = job.at if isinstance(job, AdoptJob) else "nowhere"
        raise ConfigError(f"{plan.source} is adopted from {at}, and this fork is handed off at {target}", advice="Correct its address.")
    hand_off(folder, plan.step, target)
    return str(target)


def _run_folder(store: Store, run: ArtifactId) -> Path | None:
    """The files of a run on this machine: those that were committed, or else those of its newest attempt, which others may be writing."""
    record = store.record(run)
    if record is not None:
        return store.payload_path(record)
    folders = [store.output_path(run, attempt.number) for attempt in reversed(store.attempts(run))]
    standing = [standing_output(folder) for folder in folders if folder is not None]
    return next((folder for folder in standing if (folder / METRICS_FILE).exists()), None)


# launch ----------------------------------------------------------------------------------------------------------------


def _launch(options: argparse.Namespace) -> int:
    store, graph, child = open_store(), declared().graph, ArtifactId.parse(options.child)
    record = CutoverRecord(store.objects, child)
    plan, forked = record.plan(), record.forked()
    fork = _declared_fork(graph, child)
    if graph.fingerprint(fork.step) != plan.child_fingerprint:
        raise ConfigError(
            f"{child} is declared differently from how it was planned: its fingerprint is {graph.fingerprint(fork.step)}, not"
            f" {plan.child_fingerprint}",
            advice="Plan it again, and fork again, before it starts.",
        )
    commit = _clean_commit()
    _require_nothing_alive(store, ArtifactId.parse(plan.parent), child)
    job = fork.step.symbolic_config
    assert isinstance(job, TrainJob)  # noqa: S101  # a fork is a training
    entry = Launch(
        at=_now(),
        commit=commit,
        child=str(child),
        run_name=job.run_name,
        target=store.prefix,
        checkpoint=forked.point.checkpoint,
        content_digest=forked.point.content_digest,
    )
    record.append(entry)
    log = STATE / "cutovers" / f"{child.path.replace('/', '-')}.log"
    live = _only_job(store, child, start(child, log), log)
    record.append(live)
    if options.json:
        print_json({"launch": entry.model_dump(mode="json"), "live": live.model_dump(mode="json")})
    else:
        shown = {
            "live": f"job {live.job} on {live.host}, attempt {live.attempt}",
            "commit": commit,
            "log": log,
            "next": f"marin cutover compare {plan.parent} {child}",
        }
        print_fields(console(), shown)
    return ExitCode.DONE


def _clean_commit() -> str:
    """The commit of the checkout.

    Raises:
        ConfigError: there is none, or files were changed since.
    """
    commit, changed = checkout()
    if commit is None or changed:
        what = f"{len(changed)} files have changes, {changed[0]!r} first" if changed else "this is no git checkout"
        raise ConfigError(
            f"a fork is launched from a clean tree at a recorded commit, and {what}", advice="Commit or put away what has changed first."
        )
    return commit


def checkout() -> tuple[str | None, list[str]]:
    """Commit of the project, None outside a checkout, and what has changed since, one line a file."""
    try:
        said = [
            subprocess.run(["git", *arguments], cwd=PROJECT, capture_output=True, text=True, timeout=20, check=True).stdout  # noqa: S607
            for arguments in (["rev-parse", "HEAD"], ["status", "--porcelain"])
        ]
    except (OSError, subprocess.SubprocessError):
        return None, []
    return said[0].strip(), said[1].splitlines()


def _require_nothing_alive(store: Store, parent: ArtifactId, child: ArtifactId) -> None:
    """Refuse a second owner, and a fork whose parent has to be finished first.

    Raises:
        ConfigError: naming what is alive and where.
    """
    if store.record(child) is not None:
        raise ConfigError(f"{child} is committed already", advice="Compare it, or give another fork a new version.")
    for run in (parent, child):
        alive = alive_jobs(store, run)
        if alive:
            raise ConfigError(
                f"{run} is being built by {'; '.join(alive)}",
                advice="Let it end, or stop it there; two owners of one run or one machine can't be told apart in a comparison.",
            )


def alive_jobs(store: Store, run: ArtifactId) -> list[str]:
    """Jobs of a run that live, as `job on host`: open attempts of others, and whatever this machine runs, attempts or not."""
    from marin_assets.launch import LocalLauncher

    launcher = LocalLauncher(jobs_folder(store.prefix))
    found = {f"{job} on {launcher.host}" for job in _jobs_here(store, run) if not launcher.observe(launcher.handle(job)).state.final}
    for attempt in _open(store, run):
        claim = attempt.claim
        if claim.host != launcher.host or not launcher.observe(launcher.handle(claim.job)).state.final:
            found.add(f"{claim.job} on {claim.host}")
    return sorted(found)


def _jobs_here(store: Store, run: ArtifactId) -> list[str]:
    """Names of all jobs of a run that this machine's launcher remembers, ended ones too."""
    names = []
    for path in jobs_folder(store.prefix).glob("m-*/spec.json"):
        try:
            spec = json.loads(path.read_bytes())
        except (OSError, ValueError):  # being made, or cleared away
            continue
        if (spec.get("name"), spec.get("version"), spec.get("partition")) == (run.name, run.version, run.partition):
            names.append(path.parent.name)
    return names


def _open(store: Store, run: ArtifactId) -> list[Attempt]:
    return [attempt for attempt in store.attempts(run) if attempt.end is None]


def start(child: ArtifactId, log: Path) -> subprocess.Popen[bytes]:
    """Build the fork in a session of its own, which outlives this terminal, as `marin materialize` does."""
    log.parent.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "marin_assets.cli", "materialize", str(child)]
    with log.open("ab") as output:
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, start_new_session=True)


def _only_job(store: Store, child: ArtifactId, builder: subprocess.Popen[bytes], log: Path) -> Live:
    """Wait until the fork's job lives, and see that it is alone.

    Raises:
        InfrastructureError: it didn't start.
        ConfigError: there are several.
    """
    deadline = time.monotonic() + LAUNCH_SECONDS
    while time.monotonic() < deadline:
        ended = builder.poll()
        attempts = store.attempts(child)
        alive = alive_jobs(store, child)
        if len(alive) > 1:
            raise ConfigError(
                f"{child} has {len(alive)} live jobs: {'; '.join(alive)}", advice="Stop all but one, and start the fork anew."
            )
        if attempts and (alive or store.record(child) is not None):  # a short one may be done already
            newest = attempts[-1]
            return Live(**_stamp(), job=newest.claim.job, host=newest.claim.host, attempt=newest.number)
        if ended is not None:
            break
        time.sleep(LOOK_SECONDS)
    raise InfrastructureError(f"no job of {child} came to life", advice=f"Read {log}, then start it: marin materialize {child}.")


# compare ---------------------------------------------------------------------------------------------------------------


def _compare(options: argparse.Namespace) -> int:
    control, child = (_metrics(each) for each in (options.control, options.child))
    record = _record_of(options.child)
    plan = None if record is None else record.newest(Plan)
    if plan is not None and (options.first_step or options.steps):
        raise ConfigError(f"the plan of {plan.child} says which steps to compare", advice="Leave --from and --steps out.")
    if plan is None and options.first_step is None:
        raise ConfigError(f"{options.child} was not planned, so nothing says where it left", advice="Add --from STEP.")
    comparison = compare(
        control,
        child,
        first_step=options.first_step if plan is None else plan.step,
        steps=options.steps or CONTROL_STEPS if plan is None else plan.control_steps,
        thresholds=Thresholds() if plan is None else plan.thresholds,
    )
    if record is not None and plan is not None:
        record.append(Compared(**_stamp(), control=options.control, child=options.child, comparison=comparison))
    if options.json:
        print_json({"planned": plan is not None, **comparison.model_dump(mode="json")})
    else:
        _print_comparison(console(), comparison, plan)
    return ExitCode.DONE if comparison.go else NO_GO


def _metrics(text: str) -> Path:
    """The metrics file of a run that is named by its file, its directory or its artifact."""
    path = Path(text)
    if "@" not in text or path.exists():
        return path / METRICS_FILE if path.is_dir() else path
    store = open_store()
    run = find(store, text).artifact
    folder = _run_folder(store, run)
    if folder is None:
        raise ConfigError(f"{run} has no metrics on this machine", advice="Give the path of its metrics.jsonl.")
    return folder / METRICS_FILE


def _record_of(text: str) -> CutoverRecord | None:
    return None if "@" not in text or Path(text).exists() else CutoverRecord(open_store().objects, ArtifactId.parse(text))


def _print_comparison(out: Console, found: Comparison, plan: Plan | None) -> None:
    sides = Sheet(f"steps {found.first_step} to {found.first_step + found.steps - 1}", "measure", "control", "fork")
    for name, value in found.control:
        sides.add(name, _number(value), _number(getattr(found.child, name)))
    out.print(sides)
    if found.loss is not None:
        loss = found.loss
        fields = {
            "Δloss": f"{loss.mean:+.6f} nats, 95 % interval {loss.low:+.6f} to {loss.high:+.6f}",
            "pairs": f"{loss.pairs}, sd {loss.sd:.6f}, standard error {loss.standard_error:.6f} over {loss.lag} lags",
            "first Δ": f"{loss.first:+.6f}, of equal parameters",
        }
        print_fields(out, fields)
    judged = Sheet("criteria", "criterion", "found", "limit", "verdict")
    for each in found.criteria:
        judged.add(
            each.name, _number(each.value), _number(each.limit), {True: "passed", False: "FAILED", None: "not measured"}[each.passed]
        )
    out.print(judged)
    if found.missing:
        out.print(plain(f"missing steps: {', '.join(map(str, found.missing))}"), soft_wrap=True)
    if plan is None:
        out.print("not planned: judged by the default thresholds, and not put on record")
    elif not plan.same_batches:
        out.print("the plan says that the batches differ: Δloss is that of the data too")
    out.print("go" if found.go else "NO-GO")


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:,.6g}"


# rollback --------------------------------------------------------------------------------------------------------------


def _rollback(options: argparse.Namespace) -> int:
    store, child = open_store(), ArtifactId.parse(options.child)
    record = CutoverRecord(store.objects, child)
    plan = record.plan()
    entry: RolledBack | Closed
    if options.close:
        folder = _run_folder(store, ArtifactId.parse(plan.parent))
        entry = Closed(**_stamp(), released=folder is not None and release(folder, plan.step))
    else:
        alive = alive_jobs(store, child)
        if alive:
            raise ConfigError(f"{child} is still built by {'; '.join(alive)}", advice="Stop it first: only one of the two may go on.")
        reason, command = options.reason, plan.rollback
        entry = RolledBack(**_stamp(), reason=reason, parent=plan.parent, parent_commit=plan.parent_commit, command=command)
    record.append(entry)
    if options.json:
        print_json(entry.model_dump(mode="json"))
    elif isinstance(entry, Closed):
        console().print(plain(f"checkpoint {plan.step} of {plan.parent} {'is held no more' if entry.released else 'was not held'}"))
    else:
        console().print(plain(entry.command), soft_wrap=True)
    return ExitCode.DONE


def _stamp() -> dict[str, Any]:
    """When and where an entry is written."""
    return {"at": _now(), "commit": checkout()[0]}


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
