"""`marin show`: everything that is known about an artifact, from its record and its attempts."""

import argparse
import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from rich.console import Console
from rich.text import Text

from marin_assets.cli.main import Commands, Common
from marin_assets.cli.output import Sheet, console, duration, plain, print_fields, print_json, short, size, styled
from marin_assets.cli.plan import attempt_document, difference_document, print_differences
from marin_assets.cli.targets import Found, Today, find, open_store
from marin_core.artifact import Attempt, Record, Store
from marin_core.artifact.drift import Difference
from marin_core.artifact.reproduction import Reproduction, newest
from marin_core.errors import ExitCode

ROWS_SHOWN = 20
"""Rows of a table and files of a manifest that are shown; `--json` has all."""

ERROR_LENGTH = 300


def add_command(commands: Commands, common: Common) -> None:
    parser = commands.add_parser(
        "show",
        parents=[common.artifact, common.output],
        help="show the record of an artifact, and its attempts",
        description="Show what an artifact is, from what, by which code and at what cost it was built, what it holds, every attempt, and "
        "how it would be built differently today. It need not be declared by an experiment any more.",
    )
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    store = open_store()
    found = find(store, options.artifact)
    if found.members:
        return _show_family(store, found, as_json=options.json)
    record, attempts, today = store.record(found.artifact), store.attempts(found.artifact), Today(store)
    drift = today.differences(found.artifact) if record else None
    reproduction = newest(store, record) if record else None
    if options.json:
        print_json(document(store, found, record, attempts, drift, reproduction))
        return ExitCode.DONE
    out = console()
    _print_identity(out, store, found, record)
    if record is not None:
        _print_record(out, store, record)
    _print_attempts(out, attempts)
    if reproduction is not None:
        out.print(plain(f"reproduced at {reproduction.at}: {reproduction.summary}"), soft_wrap=True)
    if record is not None:
        _print_drift(out, record, today, drift)
    return ExitCode.DONE


# An artifact, for people -----------------------------------------------------------------------------------------------


def _print_identity(out: Console, store: Store, found: Found, record: Record | None) -> None:
    if record is None:
        state = styled("not committed", "yellow")
        print_fields(out, {"artifact": found.artifact, "state": state, "address": store.address(found.artifact)})
        return
    dirty = {True: " with changes", False: "", None: ""}[record.code.dirty]
    environment, usage = record.environment, record.usage
    packages = ", ".join(f"{name} {version}" for name, version in sorted(record.code.packages.items()))
    print_fields(
        out,
        {
            "artifact": Text(str(found.artifact), "bold"),
            "job": record.identity.get("job"),
            "fingerprint": record.fingerprint,
            "content": record.content_digest,
            "address": store.address(record.id),
            "payload": f"{store.payload_url(record)} ({len(record.files)} files, {size(record.size)})",
            "kept": "for good" if record.keep_days is None else f"{record.keep_days} days",
            "built": f"{record.started_at} to {record.ended_at}, attempt {record.attempt}",
            "run": record.dagster_run_id,
            "cost": f"{duration(usage.wall_seconds)}, {duration(usage.cpu_seconds)} of CPU, {size(usage.peak_memory_bytes)} of memory",
            "code": f"{record.code.git_commit or 'no commit'}{dirty}, definitions {short(record.code.digest) or 'not recorded'}",
            "packages": packages,
            "machine": f"Python {environment.python}, {environment.platform}, {environment.cpus} CPUs",
        },
    )


def _print_record(out: Console, store: Store, record: Record) -> None:
    _print_sheet(out, "inputs", ("artifact", "content", "fingerprint"), [(i.id, i.content_digest, i.fingerprint) for i in record.inputs])
    _print_sheet(out, "configuration", ("field", "value"), list(_config(record).items()))
    checks = [(each.name, _passed(passed=each.passed), each.description, _values(each.values)) for each in record.checks]
    _print_sheet(out, "checks", ("check", "result", "says", "values"), checks)
    _print_sheet(out, "metrics", ("metric", "value"), list(record.metrics.items()))
    for name, rows in record.tables.items():
        columns = tuple(dict.fromkeys(column for row in rows for column in row))
        _print_sheet(out, f"table {name}", columns, [tuple(row.get(column, "") for column in columns) for row in rows])
    plots = [(name, f"{store.payload_url(record)}/{path}") for name, path in record.plots.items()]
    _print_sheet(out, "plots and links", ("name", "address"), [*plots, *record.links.items()])
    _print_sheet(out, "files", ("path", "size", "sha256"), [(file.path, size(file.size), file.sha256) for file in record.files])


def _print_sheet(out: Console, title: str, columns: tuple[str, ...], rows: Sequence[Sequence[object]]) -> None:
    if not rows:
        return
    cut = f", first {ROWS_SHOWN} of {len(rows)}" if len(rows) > ROWS_SHOWN else ""
    sheet = Sheet(f"{title}{cut}", *columns)
    for row in rows[:ROWS_SHOWN]:
        sheet.add(*row)
    out.print()
    out.print(sheet)


def _config(record: Record) -> dict[str, object]:
    from marin_core.artifact.canonical import flatten

    return {
        name: value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        for name, value in flatten(record.identity.get("config") or {}).items()
    }


def _passed(*, passed: bool) -> Text:
    return Text("passed", "green") if passed else Text("FAILED", "red")


def _values(values: Mapping[str, object]) -> str:
    return ", ".join(f"{name} {value}" for name, value in values.items())


def _print_attempts(out: Console, attempts: Sequence[Attempt]) -> None:
    sheet = Sheet("attempts", "attempt", "state", "class", "started", "took", "host", "log", "error")
    for each in attempts:
        end = each.end
        took = _seconds(each.claim.submitted_at, end.ended_at) if end else None
        error = plain(end.error or "")[:ERROR_LENGTH] if end else ""
        failure = (end.failure or "-") if end else "-"
        log = (end.log or "-") if end else "-"
        sheet.add(
            each.number, each.state, failure, each.claim.submitted_at, "-" if took is None else duration(took), each.claim.host, log, error
        )
    out.print()
    out.print(sheet)


def _seconds(start: str, end: str) -> float | None:
    try:
        return (datetime.fromisoformat(end) - datetime.fromisoformat(start)).total_seconds()
    except (ValueError, TypeError):
        return None


def _print_drift(out: Console, record: Record, today: Today, drift: tuple[Difference, ...] | None) -> None:
    out.print()
    if today.problem is not None:
        out.print(styled(f"drift is not known, since the experiments can't be loaded: {today.problem.message}", "yellow"), soft_wrap=True)
    elif drift is None:
        out.print("no experiment declares it any more")
    elif drift:
        print_differences(out, str(record.id.family), drift)
    else:
        out.print("no drift: it would be built the same today")


# For programs ----------------------------------------------------------------------------------------------------------


def document(
    store: Store,
    found: Found,
    record: Record | None,
    attempts: Sequence[Attempt],
    drift: tuple[Difference, ...] | None,
    reproduction: Reproduction | None,
) -> dict[str, Any]:
    """One artifact as JSON (docs/reference/cli.md)."""
    return {
        "artifact": str(found.artifact),
        "address": store.address(found.artifact),
        "committed": record is not None,
        "payload": None if record is None else store.payload_url(record),
        "size_bytes": None if record is None else record.size,
        "record": None if record is None else record.model_dump(mode="json"),
        "attempts": [
            {**attempt_document(each), "seconds": _seconds(each.claim.submitted_at, each.end.ended_at) if each.end else None}
            for each in attempts
        ],
        "declared": drift is not None if record is not None else None,
        "drift": None if drift is None else [difference_document(each) for each in drift],
        "reproduction": None if reproduction is None else reproduction.model_dump(mode="json"),
    }


# A family --------------------------------------------------------------------------------------------------------------


def _show_family(store: Store, found: Found, *, as_json: bool) -> int:
    records = store.records(found.members)
    today = Today(store)
    members = [
        {
            "artifact": str(member),
            "committed": record is not None,
            "fingerprint": record.fingerprint if record else None,
            "content_digest": record.content_digest if record else None,
            "size_bytes": record.size if record else None,
            "files": len(record.files) if record else None,
            "ended_at": record.ended_at if record else None,
            "wall_seconds": record.usage.wall_seconds if record else None,
            "drift": today.drift(member) if record else None,
        }
        for member, record in records.items()
    ]
    if as_json:
        print_json({"artifact": str(found.artifact), "address": store.address(found.artifact), "members": members})
        return ExitCode.DONE
    sheet = Sheet(
        f"{found.artifact}, a family of {len(members)} at {store.address(found.artifact)}",
        "member", "state", "content", "fingerprint", "size", "files", "built", "took",
    )  # fmt: skip
    for member, record in records.items():
        if record is None:
            sheet.add(member.partition, styled("not committed", "yellow"), *["-"] * 6)
            continue
        mark = {"own": "drifted", "inherited": "inherits drift"}.get(today.drift(member) or "", "committed")
        sheet.add(
            member.partition, mark, short(record.content_digest), record.fingerprint, size(record.size), len(record.files),
            record.ended_at, duration(record.usage.wall_seconds),
        )  # fmt: skip
    console().print(sheet)
    return ExitCode.DONE
