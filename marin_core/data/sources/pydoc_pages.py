"""pydoc's HTML page of every public module of the standard library, without a trace of the machine (spec: data §2.1).

Importing a module runs its code, and stock pydoc prints the values of `os.environ`, `sys.argv` and `sys.path` into its pages. So this
file is also a program of its own, which `pages` runs in a child process with an empty environment, no input, no site packages and a limit
of CPU time. It imports nothing but the standard library.
"""

import importlib
import io
import json
import os
import pkgutil
import pydoc
import re
import resource
import subprocess
import sys
import sysconfig
import tempfile
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

CPU_SECONDS = 120

_WINDOWS = {"msilib", "msvcrt", "nt", "winreg", "winsound"}
LEFT_OUT = _WINDOWS | {
    "antigravity",
    "this",
    "idlelib",
    "turtle",
    "turtledemo",
    "tkinter",
    "test",
    "lib2to3",
    "ensurepip",
    "venv",
    "ntpath",
}
TEST_PARTS = frozenset({"test", "tests", "idle_test"})


class PageError(Exception):
    """The child process ended before its last page; carries why."""


def pages(skipped: Counter[str], names: Sequence[str] = ()) -> Iterator[dict[str, Any]]:
    """Pages as `{id, html, added, created, metadata}`, by module name; `skipped` counts modules without one.

    Args:
        skipped: `not_importable` (slim interpreters lack some modules, others are of another system), `not_rendered`.
        names: modules; all public ones by default.

    Raises:
        PageError: if the child fails or needs more than its time.
    """
    # -I ignores environment and user; -S leaves out site packages, whose hooks could change what is documented; -B writes no bytecode.
    command = [sys.executable, "-I", "-S", "-B", __file__, *names]
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryFile() as errors:
        child = subprocess.Popen(command, env={}, cwd=folder, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors)
        complete = False
        try:
            assert child.stdout is not None  # noqa: S101 - it is a pipe
            for line in child.stdout:
                record = json.loads(line)
                if "counts" in record:
                    skipped.update(record["counts"])
                    complete = True
                else:
                    yield record
        finally:
            child.kill()
            child.wait()
            if child.stdout is not None:
                child.stdout.close()
        if not complete:
            errors.seek(0)
            said = errors.read()[-300:].decode(errors="replace").strip()
            raise PageError(f"it ended with {child.returncode} after {CPU_SECONDS} CPU-s or less: {said or 'nothing said'}")


class _Pages(pydoc.HTMLDoc):
    """Data members show their type and never their value; files show their name and never their folder."""

    def docother(self, object: Any, name: Any = None, mod: Any = None, *ignored: Any) -> str:
        shown = self.escape(type(object).__name__)
        return f"<strong>{name}</strong> = {shown}" if name else shown

    def filelink(self, url: str, path: str) -> str:
        return self.escape(os.path.basename(path))  # noqa: PTH119 - pathlib would be one more module to import here


def _main(arguments: Sequence[str]) -> None:
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS, CPU_SECONDS))
    output = os.fdopen(os.dup(1), "w", encoding="utf-8", newline="\n")
    os.dup2(2, 1)  # what modules print when they are imported is no page
    sys.stdout = io.StringIO()
    warnings.simplefilter("ignore")
    counts: Counter[str] = Counter()
    clean = _cleaner()
    modules = {name: module for name in (arguments or _public_names()) for name, module in _imported(name, counts)}
    render = _Pages()
    for name in sorted(modules):
        try:
            page = clean(render.page(pydoc.describe(modules[name]), render.document(modules[name], name)))
        except Exception:  # a module may hold anything
            counts["not_rendered"] += 1
            continue
        metadata = {"title": name, "group": name, "lang": "en"}
        record = {"id": f"pydoc:{name}", "html": page, "added": None, "created": None, "metadata": metadata}
        output.write(json.dumps(record, ensure_ascii=True) + "\n")
    output.write(json.dumps({"counts": dict(counts)}) + "\n")
    output.flush()
    os._exit(0)  # modules may have started threads


def _public_names() -> list[str]:
    return sorted(name for name in sys.stdlib_module_names if not name.startswith("_") and name not in LEFT_OUT)


def _imported(name: str, counts: Counter[str]) -> Iterator[tuple[str, Any]]:
    """A module and all public ones inside it, in the order of their names."""
    try:
        module = importlib.import_module(name)
    except BaseException:  # also SystemExit: importing runs code
        counts["not_importable"] += 1
        return
    yield name, module
    for found in sorted(pkgutil.iter_modules(getattr(module, "__path__", ())), key=lambda each: each.name):
        if not found.name.startswith("_") and found.name not in TEST_PARTS:
            yield from _imported(f"{name}.{found.name}", counts)


def _cleaner() -> Any:
    """A function that takes addresses, file names of modules and the interpreter's folders out of a page."""
    paths = sysconfig.get_paths()
    folders = {paths["stdlib"], paths["platstdlib"], sys.prefix, sys.base_prefix, sys.exec_prefix, sys.base_exec_prefix}
    folders |= {os.path.realpath(folder) for folder in folders}
    longest_first = sorted((folder for folder in folders if len(folder) > 1), key=lambda folder: (-len(folder), folder))
    prefix = re.compile("(?:" + "|".join(re.escape(folder) for folder in longest_first) + r")(?![\w.-])")
    address = re.compile(r"\bat( |&nbsp;)0x[0-9a-fA-F]+")
    origin = re.compile(r"from( |&nbsp;)'/[^']*'")

    def clean(page: str) -> str:
        page = page.replace(sys.executable, "python3")  # a default of `platform.architecture`
        return prefix.sub("PREFIX", origin.sub(r"from\1'…'", address.sub(r"at\g<1>0x…", page)))

    return clean


if __name__ == "__main__":
    _main(sys.argv[1:])
