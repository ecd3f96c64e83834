"""The running interpreter's standard library as documents: code, docstrings, help topics, and pydoc's pages.

Nothing is imported or executed here; for the pages a child process does it (`pydoc_pages`).
"""

import ast
import inspect
import io
import os
import sysconfig
import tokenize
import warnings
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from marin_core.data.sources import pydoc_pages
from marin_core.data.sources.config import StdlibDomain
from marin_core.errors import DataError

EXCLUDED_PARTS = frozenset({"site-packages", "dist-packages", "__pycache__", "test", "tests", "idle_test", "_bundled", "lib2to3"})
EXCLUDED_PREFIXES = ("config-", "_sysconfigdata")
"""These hold host paths (`config-3.12-…`, `_sysconfigdata…`), and slim images lack the tests anyway."""
TOPICS_MODULE = "pydoc_data/topics.py"


def documents(domain: StdlibDomain, skipped: Counter[str], root: Path | None = None) -> Iterator[dict[str, Any]]:
    """Documents of a domain as `{id, text, created, metadata}`, in sorted order; `skipped` counts what can't be one.

    Args:
        domain: `code` = each file, `docstrings` = each module's docstrings under dotted names, `topics` = pydoc's help topics,
            `html` = pydoc's page of each public module, as `html` instead of `text`.
        skipped: reason → files or modules left out (`undecodable`, `blank`, `syntax_error`, `no_docstring`, `not_importable`, …).
        root: folder of the standard library; the running interpreter's by default.

    Raises:
        DataError: if there is no document at all.
    """
    root = root or Path(sysconfig.get_path("stdlib"))
    make = {"code": _code, "docstrings": _docstrings, "topics": _topics, "html": _html}[domain]
    empty = True
    for document in make(root, skipped):
        empty = False
        yield document
    if empty:
        raise DataError(
            f"the standard library of this interpreter has no {domain!r}",
            advice="Use an interpreter with its *.py files (not a zipped or stripped standard library).",
        )


def _code(root: Path, skipped: Counter[str]) -> Iterator[dict[str, Any]]:
    for name, text in _source_files(root, skipped):
        yield _document(name, text, _module_name(name), "python")


def _docstrings(root: Path, skipped: Counter[str]) -> Iterator[dict[str, Any]]:
    for name, text in _source_files(root, skipped):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", SyntaxWarning)
                tree = ast.parse(text)
        except (SyntaxError, ValueError, RecursionError):
            skipped["syntax_error"] += 1
            continue
        module = _module_name(name)
        parts = [f"{dotted}\n\n{docstring}" for dotted, docstring in _named_docstrings(tree, module)]
        if parts:
            yield _document(name, "\n\n".join(parts), module, "en")
        else:
            skipped["no_docstring"] += 1


def _topics(root: Path, skipped: Counter[str]) -> Iterator[dict[str, Any]]:
    path = root / TOPICS_MODULE
    try:
        tree = ast.parse(path.read_bytes())
        assignment = next(node for node in tree.body if isinstance(node, ast.Assign))
        topics: dict[str, str] = ast.literal_eval(assignment.value)
    except (OSError, SyntaxError, ValueError, StopIteration) as error:
        raise DataError(f"{TOPICS_MODULE} has no readable topics ({error})", advice="Leave 'topics' out of the domains.") from error
    for topic in sorted(topics):
        if topics[topic].strip():
            yield _document(f"{TOPICS_MODULE}:{topic}", topics[topic], topic, "en")
        else:
            skipped["blank"] += 1


def _html(root: Path, skipped: Counter[str]) -> Iterator[dict[str, Any]]:
    """Of the running interpreter, whatever the root."""
    try:
        yield from pydoc_pages.pages(skipped)
    except pydoc_pages.PageError as error:
        raise DataError(f"pydoc's pages could not be made: {error}", advice="Leave 'html' out of the domains.") from error


def _document(origin: str, text: str, title: str, lang: str) -> dict[str, Any]:
    return {"id": origin, "text": text, "added": None, "created": None, "metadata": {"title": title, "group": title, "lang": lang}}


def _source_files(root: Path, skipped: Counter[str]) -> Iterator[tuple[str, str]]:
    """(relative path, text) of every `*.py`, sorted by path; decoded by its coding cookie."""
    names: list[str] = []
    for folder, subfolders, files in os.walk(root):
        subfolders[:] = [part for part in subfolders if not _excluded(part)]
        names += [(Path(folder) / file).relative_to(root).as_posix() for file in files if file.endswith(".py") and not _excluded(file)]
    for name in sorted(names):
        if name.startswith("pydoc_data/"):
            continue  # one huge literal, which the domain `topics` has as text
        try:
            raw = (root / name).read_bytes()
            encoding, _ = tokenize.detect_encoding(io.BytesIO(raw).readline)
            text = raw.decode(encoding)
        except (SyntaxError, UnicodeDecodeError, LookupError):
            skipped["undecodable"] += 1
            continue
        if text.strip():
            yield name, text
        else:
            skipped["blank"] += 1


def _excluded(part: str) -> bool:
    return part in EXCLUDED_PARTS or part.startswith(EXCLUDED_PREFIXES)


def _module_name(name: str) -> str:
    parts = name.removesuffix(".py").split("/")
    return ".".join(parts[:-1] if parts[-1] == "__init__" and len(parts) > 1 else parts)


def _named_docstrings(node: ast.AST, dotted: str) -> Iterator[tuple[str, str]]:
    """(dotted name, clean docstring) of a node and of all classes and functions inside it, in source order."""
    if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        docstring = ast.get_docstring(node, clean=False)
        if docstring and (clean := inspect.cleandoc(docstring).strip()):
            yield dotted, clean
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.expr):
            continue  # no definition stands inside an expression
        name = getattr(child, "name", None)
        named = isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        yield from _named_docstrings(child, f"{dotted}.{name}" if named else dotted)
