"""`marin diff`: what differs between two artifacts, or two versions of one."""

import argparse
import json
from collections import Counter
from collections.abc import Mapping
from typing import Any

from rich.console import Console

from marin_assets.cli.main import Commands, Common
from marin_assets.cli.output import Sheet, console, print_json
from marin_assets.cli.targets import find, open_store
from marin_core.artifact import ArtifactId, Record, Store
from marin_core.artifact.canonical import flatten
from marin_core.artifact.code import CodeTable
from marin_core.errors import ConfigError, ExitCode

DIFFERENT = 1

ROWS_SHOWN = 50
"""Differences of one kind that are shown; `--json` has all."""

Pair = dict[str, Any]
"""`a` and `b`, each if it is there: null is a value."""


def add_command(commands: Commands, common: Common) -> None:
    parser = commands.add_parser(
        "diff",
        parents=[common.output],
        help="compare two artifacts, or two versions of one",
        description="Compare two committed artifacts: configuration, code, inputs, packages, environment, files, metrics. "
        "Exit code 0 if fingerprints and contents are equal, else 1.",
    )
    parser.add_argument("a", metavar="A", help="name@version or name@version/partition")
    parser.add_argument("b", metavar="B", help="the same, or @version for another version of A")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    store = open_store()
    a = _committed(store, options.a)
    b = _committed(store, _other_version(a.id, options.b) if options.b.startswith("@") else options.b)
    found = document(store, a, b)
    if options.json:
        print_json(found)
    else:
        print_diff(console(), found)
    return ExitCode.DONE if found["equal"] else DIFFERENT


def _other_version(artifact: ArtifactId, text: str) -> str:
    return artifact.name + text + (f"/{artifact.partition}" if artifact.partition and "/" not in text else "")


def _committed(store: Store, text: str) -> Record:
    found = find(store, text)
    if found.members:
        raise ConfigError(f"{found.artifact} is a family", advice=f"Choose a member, for example {found.members[0]}.")
    record = store.record(found.artifact)
    if record is None:
        raise ConfigError(f"{found.artifact} is not committed", advice=f"`marin show {found.artifact}` lists the attempts.")
    return record


# What differs ----------------------------------------------------------------------------------------------------------


def document(store: Store, a: Record, b: Record) -> dict[str, Any]:
    """The comparison as JSON (docs/reference/cli.md)."""
    return {
        "a": _identity(a),
        "b": _identity(b),
        "equal": (a.fingerprint, a.content_digest) == (b.fingerprint, b.content_digest),
        "config": _pairs(_config(a), _config(b)),
        "code": {"commit": {"a": _commit(a), "b": _commit(b)}, "definitions": _definitions(store, a, b)},
        "inputs": _pairs(_inputs(a), _inputs(b)),
        "packages": _pairs(a.code.packages, b.code.packages),
        "environment": _pairs(a.environment.model_dump(mode="json"), b.environment.model_dump(mode="json")),
        "files": _files(a, b),
        "metrics": {name: _pair(name, a.metrics, b.metrics) for name in _names(a.metrics, b.metrics)},
    }


def _identity(record: Record) -> dict[str, Any]:
    return {
        "artifact": str(record.id),
        "job": record.identity.get("job"),
        "fingerprint": record.fingerprint,
        "content_digest": record.content_digest,
        "size_bytes": record.size,
        "ended_at": record.ended_at,
        "wall_seconds": record.usage.wall_seconds,
        "cpu_seconds": record.usage.cpu_seconds,
    }


def _pair(name: str, ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> Pair:
    return {side: values[name] for side, values in (("a", ours), ("b", theirs)) if name in values}


def _pairs(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> dict[str, Pair]:
    """What differs or is in one of two mappings alone."""
    both = {name: _pair(name, ours, theirs) for name in _names(ours, theirs)}
    return {name: pair for name, pair in both.items() if len(pair) < 2 or pair["a"] != pair["b"]}


def _names(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> list[str]:
    return sorted(ours.keys() | theirs.keys())


def _config(record: Record) -> dict[str, Any]:
    return {"job": record.identity.get("job"), **flatten(record.identity.get("config") or {})}


def _commit(record: Record) -> str | None:
    commit = record.code.git_commit
    return f"{commit} with changes" if commit and record.code.dirty else commit


def _definitions(store: Store, a: Record, b: Record) -> dict[str, Pair]:
    """Definitions of the jobs' code that differ, or the digests of the whole where a table is missing."""
    if a.code.digest == b.code.digest:
        return {}
    tables = store.code_table(a), store.code_table(b)
    if tables[0] is None or tables[1] is None:
        return {"(all)": {side: digest for side, digest in (("a", a.code.digest), ("b", b.code.digest)) if digest}}
    return _pairs(_flat(tables[0]), _flat(tables[1]))


def _flat(table: CodeTable) -> dict[str, str]:
    return {f"{file}:{definition}": digest for file, digests in table.files.items() for definition, digest in digests.items()}


def _inputs(record: Record) -> dict[str, Any]:
    """By name, so that another version of one input is one difference; where two versions are read, by the whole identity."""
    names = [_input_name(read.id) for read in record.inputs]
    counts = Counter(names)
    return {
        name if counts[name] == 1 else str(read.id): {"artifact": str(read.id), "content_digest": read.content_digest}
        for name, read in zip(names, record.inputs, strict=True)
    }


def _input_name(artifact: ArtifactId) -> str:
    return artifact.name + (f"/{artifact.partition}" if artifact.partition else "")


def _files(a: Record, b: Record) -> dict[str, Any]:
    ours, theirs = {file.path: file for file in a.files}, {file.path: file for file in b.files}
    common = sorted(ours.keys() & theirs.keys())
    different = [path for path in common if ours[path].sha256 != theirs[path].sha256]
    return {
        "equal": len(common) - len(different),
        "only_a": sorted(ours.keys() - theirs.keys()),
        "only_b": sorted(theirs.keys() - ours.keys()),
        "different": {path: {"a": ours[path].size, "b": theirs[path].size} for path in different},
    }


# For people ------------------------------------------------------------------------------------------------------------


def print_diff(out: Console, found: Mapping[str, Any]) -> None:
    """A table for each kind of difference, and what is equal in words."""
    _print_pairs(out, "artifacts", {name: {"a": found["a"][name], "b": found["b"][name]} for name in found["a"]})
    same = [name for name in ("config", "inputs", "packages", "environment") if not found[name]]
    for name in ("config", "inputs", "packages", "environment"):
        values = found[name] if name != "inputs" else {key: _input_texts(pair) for key, pair in found[name].items()}
        _print_pairs(out, name, values)
    code = found["code"]
    _print_pairs(out, "code", {**({"commit": code["commit"]} if code["commit"]["a"] != code["commit"]["b"] else {}), **code["definitions"]})
    if not code["definitions"]:
        same.append("code")
    files = found["files"]
    _print_pairs(
        out,
        f"files ({files['equal']} are equal)",
        {
            **{path: {"a": f"{pair['a']} bytes", "b": f"{pair['b']} bytes"} for path, pair in files["different"].items()},
            **{path: {"a": "present"} for path in files["only_a"]},
            **{path: {"b": "present"} for path in files["only_b"]},
        },
    )
    if not (files["different"] or files["only_a"] or files["only_b"]):
        same.append("files")
    _print_pairs(out, "metrics", found["metrics"])
    out.print(f"equal: {', '.join(same) or 'nothing'}")


def _input_texts(pair: Mapping[str, Any]) -> dict[str, Any]:
    return {side: f"{read['artifact']} {read['content_digest'][:16]}" for side, read in pair.items()}


def _print_pairs(out: Console, title: str, pairs: Mapping[str, Mapping[str, Any]]) -> None:
    if not pairs:
        return
    cut = f", first {ROWS_SHOWN} of {len(pairs)}" if len(pairs) > ROWS_SHOWN else ""
    sheet = Sheet(f"{title}{cut}", "what", "A", "B")
    for name, pair in list(pairs.items())[:ROWS_SHOWN]:
        sheet.add(name, *(_text(pair[side]) if side in pair else "absent" for side in ("a", "b")))
    out.print(sheet)
    out.print()


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
