"""Parsed files, kept on disk between processes: parsing the whole project takes seconds, and every job and every UI would begin with it.

A file is trusted only if it was made from the same bytes by the same parser under the same Python. There is one a module, so the folder
(`marin/syntax` below the user's cache) stays as small as the project. Where it can't be written or read, everything is parsed anew.
"""

import hashlib
import json
import os
import sys
from functools import cache
from pathlib import Path
from typing import Any

from marin_core.artifact.source import Definition, Import, Source


def load(blank: Source, data: bytes) -> Source | None:
    """What the file of `blank`, with these bytes, says; None if it isn't known."""
    try:
        kept = json.loads(_place(blank).read_bytes())
        if kept["of"] != _key(blank, data):
            return None
        bindings = {name: [each if isinstance(each, str) else Import(*each) for each in found] for name, found in kept["bindings"].items()}
        return Source(
            file=blank.file,
            module=blank.module,
            is_package=blank.is_package,
            definitions={name: _definition(found) for name, found in kept["definitions"].items()},
            bindings=bindings,
            imports=[Import(*each) for each in kept["imports"]],
            run_at_import=set(kept["run_at_import"]),
        )
    except (OSError, RuntimeError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None


def keep(source: Source, data: bytes) -> None:
    """Remember what a file says, if there is a place for it."""
    content = {
        "of": _key(source, data),
        "definitions": source.definitions,
        "bindings": source.bindings,
        "imports": source.imports,
        "run_at_import": sorted(source.run_at_import),
    }
    try:
        place = _place(source)
        place.parent.mkdir(parents=True, exist_ok=True)
        part = place.with_name(f"{place.name}.{os.getpid()}")
        part.write_text(json.dumps(content, separators=(",", ":")))
        part.replace(place)
    except (OSError, RuntimeError, RecursionError):
        return


def _place(source: Source) -> Path:
    """Raises RuntimeError where there is no home."""
    caches = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    package = ".__init__" if source.is_package else ""
    return Path(caches, "marin", "syntax", f"{source.module}{package}.json")


def _key(source: Source, data: bytes) -> str:
    return hashlib.sha256(b"\0".join((_parser(), source.file.encode(), data))).hexdigest()


@cache
def _parser() -> bytes:
    """What parses: the code beside this file, and the Python whose syntax trees it reads."""
    here = Path(__file__).parent
    files = b"\0".join((here / name).read_bytes() for name in ("syntax.py", "source.py", "canonical.py", "parsed_files.py"))
    return hashlib.sha256(files + sys.version.encode()).digest()


def _definition(found: list[Any]) -> Definition:
    form, uses, imports, bases, split = found
    halves = (_definition(split[0]), _definition(split[1])) if split is not None else None
    return Definition(form, [tuple(use) for use in uses], [Import(*each) for each in imports], [tuple(base) for base in bases], halves)
