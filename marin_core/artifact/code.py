"""The code behind an artifact: every definition that a job module can reach in this project, read without importing any of it.

A table has one digest for each reached top-level definition, so that a difference names a function and not a commit. Digests are
taken over syntax trees: comments, docstrings and layout are no difference. The walk follows names, imports and re-exports; where it
can't know (a shadowed name, a module handed around as an object) it takes too much rather than too little.

The fields of a `Config` class have an entry of their own, `Name (fields)`: where a job's configuration can hold such a class, values
are compared instead (`marin_core.artifact.drift`).

Not seen: modules imported by a name that is computed (`importlib.import_module(name)`), and what runs at import only as a side effect
of a definition that nobody names (a decorator not called `register`, the right side of an assignment).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from marin_core.artifact.canonical import FINGERPRINT_DIGITS, digest
from marin_core.artifact.source import Definition, Import, Source
from marin_core.artifact.syntax import read_source
from marin_core.errors import ConfigError

PACKAGES = ("marin_core", "marin_jobs")
"""Packages whose code is followed; every other import is a third party's, which a record names by version."""

BOOKKEEPING = (
    "marin_jobs.runtime",
    "marin_jobs.reporting",
    "marin_jobs.provenance",
    "marin_core.artifact",
    "marin_core.errors",
    "marin_core.report",
    "marin_core.config",
    "marin_core.train.tracking",
    "marin_core.train.checkpoint.mirror",
)
"""Modules (and all below them) at which the walk stops. They find inputs, move bytes, report and commit, the same for every job, and
compute nothing of what an artifact holds: if they counted, a new field of the record would put every artifact of the lab in drift."""

_CONFIG = "marin_core.config.Config"

_ROOT = Path(__file__).resolve().parents[2]


class CodeTable(BaseModel):
    """Which code a job reaches: file → definition → digest of 16 hex digits; files are relative to the project, with `/`."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    files: dict[str, dict[str, str]]

    @property
    def digest(self) -> str:
        """One digest over the whole table, 64 lower-case hex digits."""
        return digest(self.files)


@dataclass(frozen=True)
class CodeDifference:
    """A definition that differs between two tables; a digest is None where the definition is absent (or no longer reached)."""

    file: str
    definition: str
    recorded: str | None
    declared: str | None


def code_table(module: str, *, root: Path = _ROOT) -> CodeTable:
    """The table of a job module such as `marin_jobs.filter`, as its files are now; parsed trees are kept while a file's bytes stay.

    Args:
        root: folder that holds the project's packages.

    Raises:
        ConfigError: there is no such module, a file can't be read or parsed, or an import inside the project leads nowhere.
    """
    parts = module.split(".")
    if parts[0] not in PACKAGES or not all(part.isidentifier() for part in parts) or _under(module, BOOKKEEPING):
        raise ConfigError(f"{module!r} is no job's module", advice="Name a module that builds artifacts, such as marin_jobs.filter.")
    return _Walk(root).table(module)


def fields_entry(name: str) -> str:
    """Where a table keeps the fields of a `Config` class."""
    return f"{name} (fields)"


def code_differences(recorded: CodeTable, declared: CodeTable) -> list[CodeDifference]:
    """What differs between the code that built an artifact and today's, in order of file and definition."""
    differences = []
    for file in sorted(recorded.files.keys() | declared.files.keys()):
        old, new = recorded.files.get(file, {}), declared.files.get(file, {})
        for name in sorted(old.keys() | new.keys()):
            if old.get(name) != new.get(name):
                differences.append(CodeDifference(file, name, old.get(name), new.get(name)))
    return differences


# The walk ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Outside:
    """Something that isn't followed: a third party's, or bookkeeping."""

    origin: str


@dataclass(frozen=True)
class _Module:
    """A module as an object: everything in it, unless an attribute says which part."""

    name: str


@dataclass(frozen=True)
class _Place:
    """A definition of a module."""

    module: str
    definition: str


_Target = _Outside | _Module | _Place


class _Walk:
    """One walk over the files as they are now: a list of work instead of recursion, since chains of calls and imports are deep."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._sources: dict[str, Source | None] = {}
        self._resolved: dict[tuple[str, str, bool], list[_Target]] = {}
        self._digests: dict[str, dict[str, str]] = {}
        self._reached: set[_Place] = set()
        self._touched: set[str] = set()
        self._whole: set[str] = set()
        self._to_follow: list[_Place] = []
        self._to_touch: list[str] = []
        self._to_open: list[str] = []

    def table(self, job: str) -> CodeTable:
        source = self._source(job)
        if source is None:
            raise ConfigError(f"there is no module {job} in {self._root}", advice="Correct the job's name, or write the module.")
        self._touch(job)
        for name in source.definitions:
            self._reach(_Place(job, name))
        while True:  # the order doesn't matter: every list only adds to what is reached
            if self._to_touch:
                self._run_imports(self._to_touch.pop())
            elif self._to_follow:
                self._follow(self._to_follow.pop())
            elif self._to_open:
                self._open(self._to_open.pop())
            else:
                break
        return CodeTable(files={file: dict(sorted(digests.items())) for file, digests in sorted(self._digests.items())})

    # What is reached: each thing is put on its list once -------------------------------------------------------------

    def _reach(self, place: _Place) -> None:
        if place not in self._reached:
            self._reached.add(place)
            self._to_follow.append(place)
            self._touch(place.module)

    def _touch(self, module: str) -> None:
        """The module gets imported, and with it the packages that it is in."""
        while module and module not in self._touched and _followed(module):
            self._touched.add(module)
            self._to_touch.append(module)
            module = module.rpartition(".")[0]

    def _reach_all(self, module: str) -> None:
        if module not in self._whole:
            self._whole.add(module)
            self._to_open.append(module)
            self._touch(module)

    # What reaching a thing brings along ------------------------------------------------------------------------------

    def _run_imports(self, module: str) -> None:
        source = self._source(module)
        if source is None:  # whoever imports it says so, with the line
            return
        for name in sorted(source.run_at_import):
            self._reach(_Place(module, name))
        for found in source.imports:
            self._enter(found, source)

    def _enter(self, found: Import, source: Source) -> None:
        """Execute an import statement: load what it names, and refuse what isn't there."""
        if not _followed(found.module):
            return
        if self._source(found.module) is None:
            if not found.optional:
                raise _lost_import(source, found, f"there is no module {found.module}")
            return
        self._touch(found.module)
        if found.attribute == "*":
            self._reach_all(found.module)
        elif found.attribute is not None:
            targets = self._resolve(found.module, found.attribute)
            if not targets and not found.optional and not _is_dunder(found.attribute):
                raise _lost_import(source, found, f"{found.module} has no {found.attribute}")
            for target in targets:
                if isinstance(target, _Module):
                    self._touch(target.name)

    def _open(self, module: str) -> None:
        source = self._source(module)
        for name in source.bindings if source else ():
            for target in self._resolve(module, name):
                if isinstance(target, _Place):
                    self._reach(target)
                elif isinstance(target, _Module):
                    self._reach_all(target.name)

    def _follow(self, place: _Place) -> None:
        source = self._source(place.module)
        if source is None:  # never: only definitions of parsed files are reached
            return
        definition = source.definitions[place.definition]
        for found in definition.imports:
            self._enter(found, source)
        known = self._digests.setdefault(source.file, {})
        if definition.split is None or not self._is_config(place):
            known[place.definition] = self._digest(place, definition)
        else:
            known[place.definition], known[fields_entry(place.definition)] = (self._digest(place, part) for part in definition.split)

    def _is_config(self, place: _Place) -> bool:
        """Whether a class derives from `marin_core.config.Config`."""
        waiting, seen = [place], {place}
        while waiting:
            place = waiting.pop()
            source = self._source(place.module)
            for base in source.definitions[place.definition].bases if source else ():
                for target in self._resolve(place.module, base[0], inside=True):
                    if isinstance(target, _Outside) and ".".join((target.origin, *base[1:])) == _CONFIG:
                        return True
                    if isinstance(target, _Place) and target not in seen:
                        seen.add(target)
                        waiting.append(target)
        return False

    def _digest(self, place: _Place, definition: Definition) -> str:
        """Digest of a definition, or of a part of it, and of what its names turn out to be; reaches all of that."""
        origins: set[str] = set()
        for use in definition.uses:
            for target in self._resolve(place.module, use[0], inside=True):
                self._use(place.module, use, target, origins)
            for found in definition.imports:
                if found.name == use[0]:
                    for target in self._targets(found):
                        self._use(place.module, use, target, origins)
        return digest([definition.form, sorted(origins)])[:FINGERPRINT_DIGITS]

    def _use(self, module: str, use: tuple[str, ...], target: _Target, origins: set[str]) -> None:
        """Follow a name and its attributes as far as they lead through modules; note what it turned out to be."""
        waiting = [(target, 1)]
        while waiting:
            target, length = waiting.pop()
            name = ".".join(use[:length])
            if isinstance(target, _Outside):
                origins.add(f"{name} is {target.origin}")
            elif isinstance(target, _Place):
                self._reach(target)
                if target.module != module:
                    origins.add(f"{name} is {target.module}:{target.definition}")
            elif length < len(use) and (inner := self._resolve(target.name, use[length])):
                waiting += [(each, length + 1) for each in inner]
            else:
                origins.add(f"{name} is {target.name}")
                if length < len(use) and _is_dunder(use[length]):  # `__name__` and its like are no definitions
                    self._touch(target.name)
                else:
                    self._reach_all(target.name)

    # What a name means -----------------------------------------------------------------------------------------------

    def _resolve(self, module: str, name: str, *, inside: bool = False) -> list[_Target]:
        """Everything that a name of a module may be bound to, re-exports followed to their source; empty if nothing binds it.

        Args:
            inside: the name is used in the module itself, where no `__getattr__` steps in.
        """
        key = (module, name, inside)
        if key in self._resolved:
            return self._resolved[key]
        found: dict[_Target, None] = {}
        waiting = [(module, name)]
        seen: set[tuple[str, str]] = set()
        while waiting:
            place = waiting.pop()
            again, inner = place in seen, inside and not seen
            seen.add(place)
            source = self._source(place[0])
            if source is None:
                if not _followed(place[0]):
                    found[_Outside(".".join(place))] = None
                continue
            bindings = () if again else source.bindings.get(place[1], ())
            for binding in bindings:
                if isinstance(binding, str):
                    found[_Place(place[0], binding)] = None
                elif binding.attribute is None:
                    found[_module(binding.bound_module)] = None
                else:
                    waiting.append((binding.module, binding.attribute))
            if bindings:
                continue
            below = _module(".".join(place))
            if source.is_package and (isinstance(below, _Outside) or self._source(below.name) is not None):
                found[below] = None  # also if a package imports it from itself
            elif not again:
                waiting += [(star, place[1]) for star in source.stars if _followed(star)]
                found |= {_Outside(f"{star}.*"): None for star in source.stars if not _followed(star)}
                if "__getattr__" in source.definitions and not inner:
                    found[_Place(place[0], "__getattr__")] = None
        self._resolved[key] = list(found)
        return self._resolved[key]

    def _targets(self, found: Import) -> list[_Target]:
        if found.attribute is None:
            return [_module(found.bound_module)]
        return self._resolve(found.module, found.attribute)

    def _source(self, module: str) -> Source | None:
        """What a module's file says; None if there is no such module of the project."""
        if module not in self._sources:
            self._sources[module] = read_source(self._root, module) if _followed(module) else None
        return self._sources[module]


def _module(name: str) -> _Module | _Outside:
    return _Module(name) if _followed(name) else _Outside(name)


@lru_cache(maxsize=4096)  # asked for every name
def _followed(module: str) -> bool:
    return _under(module, PACKAGES) and not _under(module, BOOKKEEPING)


def _under(module: str, prefixes: Sequence[str]) -> bool:
    return any(module == prefix or module.startswith(f"{prefix}.") for prefix in prefixes)


def _is_dunder(name: str) -> bool:
    return name.startswith("__") and name.endswith("__")


def _lost_import(source: Source, found: Import, problem: str) -> ConfigError:
    return ConfigError(
        f"{source.file}:{found.line} imports what isn't there: {problem}",
        advice="Correct the import; what only type checkers need belongs under `if TYPE_CHECKING:`.",
    )
