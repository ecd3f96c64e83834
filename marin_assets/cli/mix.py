"""`marin mix`: read a published mix, wherever it lies, and publish a declared one."""

import argparse
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from marin_assets.cli.main import Commands, Common, positive
from marin_assets.cli.output import add_row, console, new_table, plain, print_fields, print_json, short
from marin_assets.cli.targets import open_store
from marin_core.errors import ConfigError, ExitCode

if TYPE_CHECKING:
    from marin_core.experiment.publishing import PublishedMix
    from marin_core.mix.commit import Change, Commit
    from marin_core.mix.read import At, MixReader

DIFFERENT = 1
LOG_COMMITS = 20
ROWS_SHOWN = 200
"""Of a table for people; `--json` has all."""

WHICH = "HEAD (the newest), a number, an id, or a time like 2026-11-29T10:00Z"


def add_command(commands: Commands, common: Common) -> None:
    parser = commands.add_parser(
        "mix",
        help="read a published mix, or publish one: log, show, diff, at, blame, verify, publish",
        description="The history of a published mix: what is mixed, since when, and why (docs/explanation/mix.md). Every commit is "
        "hashed before it is shown.",
    )
    actions = parser.add_subparsers(required=True, metavar="ACTION", dest="action")
    log = _action(actions, common, "log", _log, "the newest commits, newest first")
    log.add_argument("-n", dest="count", type=positive, default=LOG_COMMITS, metavar="N", help="how many (default %(default)s)")
    show = _action(actions, common, "show", _show, "one commit: weights, tokens, caches, licences")
    show.add_argument("commit", nargs="?", default="HEAD", metavar="COMMIT", help=f"{WHICH}; default HEAD")
    diff = _action(actions, common, "diff", _diff, "how two commits differ; exit code 1 if they do")
    diff.add_argument("a", metavar="A", help=WHICH)
    diff.add_argument("b", metavar="B", nargs="?", default="HEAD", help="likewise; default HEAD")
    at = _action(actions, common, "at", _at, "the commit that was valid at a time")
    at.add_argument("time", metavar="TIME", help="like 2026-11-29T10:30Z; UTC if it says no zone")
    blame = _action(actions, common, "blame", _blame, "the commit that last changed a domain, and its message")
    blame.add_argument("domain", metavar="DOMAIN")
    _action(actions, common, "verify", _verify, "read every commit, and prove hashes, links, hours and diffs; exit code 65 if one is wrong")
    publish = _action(actions, common, "publish", _publish, "publish a declared mix now, if anything changed")
    publish.add_argument("--hour", metavar="TIME", help="the hour to publish for (default: the running one)")
    publish.add_argument("--message", metavar="TEXT", help="why weights changed (default: the declaration's, or its last git commit's)")
    publish.add_argument("--author", metavar="NAME", help="who changed them (default: the declaration's)")


def _action(actions: Commands, common: Common, name: str, run: Callable[[argparse.Namespace], int], says: str) -> argparse.ArgumentParser:
    parser = actions.add_parser(name, parents=[common.output], help=says, description=says[0].upper() + says[1:] + ".")
    parser.add_argument("--mix", metavar="MIX", help="a declared mix, or a folder, gs:// or https:// URL (default: the only declared one)")
    parser.set_defaults(run=run)
    return parser


# Which mix, and which commit -------------------------------------------------------------------------------------------


def _declared_mix(name: str | None) -> "PublishedMix":
    """The mix that an experiment declares under a name, or the only one."""
    from marin_assets.experiments import load_experiments

    mixes = {mix.name: mix for experiment in load_experiments() for mix in experiment.published}
    if name is None and len(mixes) == 1:
        return next(iter(mixes.values()))
    if name not in mixes:
        known = ", ".join(sorted(mixes)) or "none"
        what = "no experiment declares a mix" if not mixes else f"no mix is called {name!r}" if name else f"there are {len(mixes)} mixes"
        raise ConfigError(what, advice=f"Say --mix NAME, or --mix URL. Declared are: {known}.")
    return mixes[name]


def _reader(options: argparse.Namespace) -> "MixReader":
    from marin_core.mix.place import open_readable
    from marin_core.mix.read import MixReader

    text: str | None = options.mix
    if text is not None and ("://" in text or text.startswith(("/", "."))):
        return MixReader(open_readable(text))
    return MixReader(open_readable(_declared_mix(text).url(open_store().prefix)))


def commit_named(text: str) -> "At":
    """What somebody types for a commit."""
    from marin_core.mix.commit import is_id

    if text.upper() == "HEAD":
        return None
    if text.isdigit() and len(text) <= 8:
        return int(text)
    return text if is_id(text) else _time(text)


def _time(text: str) -> datetime:
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise ConfigError(f"{text!r} is no commit and no time", advice=f"Give {WHICH}.") from None
    return found if found.tzinfo else found.replace(tzinfo=UTC)


# Reading ---------------------------------------------------------------------------------------------------------------


def _log(options: argparse.Namespace) -> int:
    reader = _reader(options)
    commits = reader.log(options.count)
    if options.json:
        print_json({"mix": reader.url, "commits": [_summary(commit) for commit in commits]})
        return ExitCode.DONE
    sheet = new_table(reader.url, "commit", "hour", "author", "changes", "id", "message")
    for commit in commits:
        add_row(sheet, commit.seq, commit.hour, commit.author, len(commit.diff), short(commit.id), commit.message)
    console().print(sheet)
    return ExitCode.DONE


def _summary(commit: "Commit") -> dict[str, Any]:
    fields = ("seq", "id", "parent", "hour", "author", "message", "content_digest")
    return {name: getattr(commit, name) for name in fields} | {"changes": len(commit.diff)}


def _show(options: argparse.Namespace) -> int:
    reader = _reader(options)
    return _print_commit(options, reader, reader.commit(commit_named(options.commit)))


def _at(options: argparse.Namespace) -> int:
    reader = _reader(options)
    return _print_commit(options, reader, reader.commit(_time(options.time)))


def _blame(options: argparse.Namespace) -> int:
    reader = _reader(options)
    return _print_commit(options, reader, reader.blame(options.domain), options.domain)


def _print_commit(options: argparse.Namespace, reader: "MixReader", commit: "Commit", domain: str | None = None) -> int:
    if options.json:
        print_json({"mix": reader.url, "commit": commit.document()})
        return ExitCode.DONE
    out, content = console(), commit.content
    mixture, tokenizer = content.get("mixture", {}), content.get("tokenizer", {})
    fields = {
        "commit": commit.seq,
        "id": commit.id,
        "hour": commit.hour,
        "author": commit.author,
        "message": commit.message,
        "code": f"{commit.code.commit}{' with changes' if commit.code.dirty else ''}",
        "mixture": f"{mixture.get('name')}@{mixture.get('version')} {mixture.get('fingerprint', '')}",
        "tokenizer": f"{short(str(tokenizer.get('digest', '')))} of {tokenizer.get('vocab_size')}",
        "sequence length": content.get("sequence_length"),
    }
    print_fields(out, fields)
    if domain is None:
        _print_domains(content)
    changes = [each for each in commit.diff if domain is None or domain in each.path.split("/")]
    _print_changes("changed by it", changes)
    return ExitCode.DONE


def _print_domains(content: dict[str, Any]) -> None:
    from marin_core.mix.read import domain_names

    phases = content.get("phases", [])
    columns = ["weight"] if len(phases) == 1 else [f"from {phase['start']}" for phase in phases]
    sheet = new_table("domains", "domain", *columns, "tokens", "documents", "shards", "missing", "epochs", "licence", "artifact")
    for name in domain_names(content):
        domain = content.get("domains", {}).get(name, {})
        weights = [phase["weights"].get(name, "0") for phase in phases]
        counts = [domain.get(field, "") for field in ("tokens", "documents", "shards")]
        missing = len(domain.get("missing_shards", ()))
        add_row(sheet, name, *weights, *counts, missing, *(domain.get(each, "") for each in ("epochs_at_planned", "license", "artifact")))
    console().print(sheet)


def _print_changes(title: str, changes: Sequence["Change"]) -> None:
    if not changes:
        return
    sheet = new_table(title, "field", "before", "now")
    for change in changes[:ROWS_SHOWN]:
        add_row(sheet, change.path, "-" if change.old is None else change.old, "-" if change.new is None else change.new)
    out = console()
    out.print(sheet)
    if len(changes) > ROWS_SHOWN:
        out.print(f"and {len(changes) - ROWS_SHOWN} more; --json has all")


def _diff(options: argparse.Namespace) -> int:
    reader = _reader(options)
    a, b = commit_named(options.a), commit_named(options.b)
    old, new, changes = reader.commit(a), reader.commit(b), reader.diff(a, b)
    if options.json:
        rows = [{"path": each.path, "old": each.old, "new": each.new} for each in changes]
        print_json({"mix": reader.url, "a": _summary(old), "b": _summary(new), "equal": not changes, "diff": rows})
    elif changes:
        _print_changes(f"from commit {old.seq} of {old.hour} to commit {new.seq} of {new.hour}", changes)
    else:
        console().print(f"commits {old.seq} and {new.seq} mix the same")
    return DIFFERENT if changes else ExitCode.DONE


def _verify(options: argparse.Namespace) -> int:
    from marin_core.mix.read import verify

    reader = _reader(options)
    verdict = verify(reader)
    code = ExitCode.BAD_DATA if verdict.problems else ExitCode.DONE
    if options.json:
        print_json({"mix": reader.url, **vars(verdict), "exit_code": int(code)})
        return code
    out = console()
    for problem in verdict.problems:
        out.print(plain(problem), soft_wrap=True)
    for path in verdict.unreachable:
        out.print(plain(f"{path} was never published: its publisher died, or lost a race"), soft_wrap=True)
    out.print(f"{verdict.commits} commits read, {len(verdict.problems) or 'no'} problems")
    return code


# Publishing ------------------------------------------------------------------------------------------------------------


def _publish(options: argparse.Namespace) -> int:
    from marin_assets.automation.desk import Desk, utc_now
    from marin_core.mix.commit import floor_hour

    desk = Desk.of(_declared_mix(options.mix), open_store())
    hour = floor_hour(utc_now()) if options.hour is None else _time(options.hour)
    found = desk.publish(hour, message=options.message, author=options.author)
    summary = None if found.commit is None else _summary(found.commit)
    if options.json:
        print_json({"mix": desk.url, "outcome": found.outcome, "tries": found.tries, "page": found.page, "commit": summary})
        return ExitCode.DONE
    out = console()
    if found.commit is None:
        out.print("nothing was published by then")
        return ExitCode.DONE
    print_fields(out, {"mix": desk.url, "outcome": found.outcome, **(summary or {}), "page": found.page})
    _print_changes("changed by it", found.commit.diff)
    return ExitCode.DONE
