"""The code behind an artifact: every definition that a job module can reach in this project, read without importing any of it.

A table has one digest for each reached top-level definition, so that a difference names a function and not a commit. Digests are
taken over syntax trees: comments, docstrings and layout are no difference. The walk follows names, imports and re-exports; where it
can't know (a shadowed name, a module handed around as an object) it takes too much rather than too little.

Not seen: modules imported by a name that is computed (`importlib.import_module(name)`), and what runs at import only as a side effect
of a definition that nobody names (a decorator not called `register`, the right side of an assignment).
"""

import ast
import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import BaseModel, ConfigDict

from marin_core.artifact.canonical import FINGERPRINT_DIGITS, canonical_json, digest
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
)
"""Modules (and all below them) at which the walk stops. They find inputs, move bytes, report and commit, the same for every job, and
compute nothing of what an artifact holds: if they counted, a new field of the record would put every artifact of the lab in drift."""

MODULE = "module"
"""Stands in a table for a file's module-level statements; a definition of that name shares the entry."""

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
        self._sources: dict[str, _Source | None] = {}
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

    def _enter(self, found: "_Import", source: "_Source") -> None:
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
        origins: set[str] = set()
        for use in definition.uses:
            for target in self._resolve(place.module, use[0], inside=True):
                self._use(place.module, use, target, origins)
            for found in definition.imports:
                if found.name == use[0]:
                    for target in self._targets(found):
                        self._use(place.module, use, target, origins)
        known = self._digests.setdefault(source.file, {})
        known[place.definition] = digest([definition.form, sorted(origins)])[:FINGERPRINT_DIGITS]

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

    def _targets(self, found: "_Import") -> list[_Target]:
        if found.attribute is None:
            return [_module(found.bound_module)]
        return self._resolve(found.module, found.attribute)

    def _source(self, module: str) -> "_Source | None":
        """What a module's file says; None if there is no such module of the project."""
        if module not in self._sources:
            self._sources[module] = _read(self._root, module) if _followed(module) else None
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


def _lost_import(source: "_Source", found: "_Import", problem: str) -> ConfigError:
    return ConfigError(
        f"{source.file}:{found.line} imports what isn't there: {problem}",
        advice="Correct the import; what only type checkers need belongs under `if TYPE_CHECKING:`.",
    )


# One file ------------------------------------------------------------------------------------------------------------


class _Import(NamedTuple):
    """One name of an import statement.

    Attributes:
        name: what it binds.
        module: where it comes from, absolute.
        attribute: name in that module, `*` for all, None for the module itself.
        line: of the statement.
        optional: under a `try` that survives its failure.
        as_root: `import a.b.c`, which binds `a`.
    """

    name: str
    module: str
    attribute: str | None
    line: int
    optional: bool
    as_root: bool = False

    @property
    def bound_module(self) -> str:
        return self.module.partition(".")[0] if self.as_root else self.module


class _Definition(NamedTuple):
    """What a name's statements (usually one; several for overloads and redefinitions) say.

    Attributes:
        form: digest of the syntax alone.
        uses: names used, each with its attributes.
        imports: executed when the definition runs.
    """

    form: str
    uses: list[tuple[str, ...]]
    imports: list[_Import]


@dataclass(eq=False)
class _Source:
    """What a file defines, binds and imports at its top level.

    Attributes:
        file: path below the project, with `/`.
        module: dotted name.
        is_package: whether it has modules below it.
        bindings: name → definitions of this file (text) and imports; more than one where it depends on a condition.
        run_at_import: definitions that do their work by being imported.
    """

    file: str
    module: str
    is_package: bool
    definitions: dict[str, _Definition] = field(default_factory=dict)
    bindings: dict[str, list[str | _Import]] = field(default_factory=dict)
    imports: list[_Import] = field(default_factory=list)
    run_at_import: set[str] = field(default_factory=set)

    @property
    def package(self) -> str:
        return self.module if self.is_package else self.module.rpartition(".")[0]

    @cached_property
    def stars(self) -> list[str]:
        """Modules from which everything is imported."""
        return [found.module for found in self.imports if found.attribute == "*"]

    def bind(self, name: str, binding: str | _Import) -> None:
        bindings = self.bindings.setdefault(name, [])
        if binding not in bindings:
            bindings.append(binding)

    def add_imports(self, imports: Iterable[_Import]) -> None:
        for found in imports:
            self.imports.append(found)
            if found.attribute != "*":
                self.bind(found.name, found)


_parsed: dict[Path, tuple[bytes, _Source]] = {}
"""Parsed files of this process, trusted only while the bytes are the same: reading is cheap next to parsing, and two edits of equal
size can fall into one tick of a file system's clock."""


def _read(root: Path, module: str) -> _Source | None:
    """The file of a module, as it is now.

    Raises:
        ConfigError: it is there but can't be read or parsed.
    """
    folder = root.joinpath(*module.split("."))
    path, is_package = folder / "__init__.py", True
    try:
        if not path.is_file():
            path, is_package = folder.with_name(f"{folder.name}.py"), False
            if not path.is_file():
                return _Source(module, module, is_package=True) if folder.is_dir() else None  # a folder alone is a package too
        data = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{path} can't be read: {error}", advice="Restore the file, or its permissions.") from error
    source = _Source(path.relative_to(root).as_posix(), module, is_package)
    known = _parsed.get(path)
    if known is not None and known[0] == data and known[1].file == source.file:
        return known[1]
    try:
        _parse(data, source)
    except SyntaxError as error:
        raise ConfigError(f"{source.file}:{error.lineno or 1} can't be parsed: {error.msg}", advice="Correct the syntax.") from error
    except (RecursionError, MemoryError, ValueError) as error:
        raise ConfigError(f"{source.file}:1 can't be parsed: {error}", advice="Make its expressions less deeply nested.") from error
    _parsed[path] = data, source
    return source


def _parse(data: bytes, source: _Source) -> None:
    """Fill in what the file says. Nothing of its syntax tree is kept: a process that looks every minute for days stays small."""
    statements: dict[str, list[ast.stmt]] = {}
    for statement in _effective(ast.parse(data).body):
        names = list(_stored(statement))
        definitions = names
        match statement:
            case ast.Import() | ast.ImportFrom():
                source.add_imports(_imported(statement, source.package, optional=False))
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                if any(_registers(decorator) for decorator in statement.decorator_list):
                    source.run_at_import.add(statement.name)
            case ast.Assign() | ast.AnnAssign() | ast.AugAssign() if "__all__" in names:
                continue
            case ast.Assign() | ast.AnnAssign() | ast.TypeAlias() if _binds_names_only(statement):
                pass
            case _:
                definitions = [MODULE]
                source.run_at_import.add(MODULE)
                source.add_imports(_names([statement], source.package)[1])
        for name in names:
            source.bind(name, MODULE if definitions == [MODULE] else name)
        for definition in definitions:
            statements.setdefault(definition, []).append(statement)
    for name, nodes in statements.items():
        form = hashlib.sha256(canonical_json(_tokens(nodes))).hexdigest()
        source.definitions[name] = _Definition(form, *_names(nodes, source.package))


def _registers(decorator: ast.expr) -> bool:
    """`@registry.register` and `@registry.register(…)` work by being imported: nobody needs to name what they decorate."""
    called = decorator.func if isinstance(decorator, ast.Call) else decorator
    return isinstance(called, ast.Attribute) and called.attr == "register"


def _binds_names_only(statement: ast.Assign | ast.AnnAssign | ast.TypeAlias) -> bool:
    """Not `x.field = …` or `x[key] = …`, which change a thing that has its name already."""
    if isinstance(statement, ast.TypeAlias):
        return True
    waiting: list[ast.expr] = list(statement.targets) if isinstance(statement, ast.Assign) else [statement.target]
    while waiting:
        target = waiting.pop()
        if isinstance(target, ast.Tuple | ast.List):
            waiting += target.elts
        elif isinstance(target, ast.Starred):
            waiting.append(target.value)
        elif not isinstance(target, ast.Name):
            return False
    return True


def _stored(statement: ast.stmt) -> dict[str, None]:
    """Names that a statement binds in its own scope."""
    names: dict[str, None] = {}
    waiting: list[ast.AST] = [statement]
    while waiting:
        node = waiting.pop()
        match node:
            case ast.Name(id=name, ctx=ast.Store()):
                names[name] = None
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                names[name] = None
                continue
            case ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)) | ast.MatchMapping(rest=str(name)):
                names[name] = None
            case ast.Lambda():
                continue
        waiting += [child for name, child in _children(node) if not (isinstance(node, ast.comprehension) and name == "target")]
    return names


# Syntax trees: nothing here depends on position ----------------------------------------------------------------------


def _effective(body: Sequence[ast.stmt]) -> list[ast.stmt]:
    """The statements that do something at run time: no docstrings, no `pass`, nothing for type checkers or for running as a script."""
    kept = []
    waiting = list(reversed(body))
    while waiting:
        statement = waiting.pop()
        match statement:
            case ast.Pass() | ast.Expr(value=ast.Constant()):
                pass
            case ast.If(test=test) if _is_false(test):
                waiting += reversed(statement.orelse)
            case ast.If(test=ast.UnaryOp(op=ast.Not(), operand=test)) if _is_false(test):
                waiting += reversed(statement.body)
            case _:
                kept.append(statement)
    return kept


def _is_false(test: ast.expr) -> bool:
    match test:
        case ast.Name(id="TYPE_CHECKING") | ast.Attribute(attr="TYPE_CHECKING"):
            return True
        case ast.Compare(left=ast.Name(id="__name__"), ops=[ast.Eq()], comparators=[ast.Constant(value="__main__")]):
            return True
    return False


_NO_MEANING = frozenset(("ctx", "type_comment", "kind"))


def _fields(node: ast.AST) -> list[tuple[str, Any]]:
    """The fields that mean something; empty ones are left out, as later versions of Python add fields that older code leaves empty."""
    fields = []
    for name in node._fields:
        value = getattr(node, name, None)
        if value is None or name in _NO_MEANING:
            continue
        if isinstance(value, list):
            if name in ("body", "orelse", "finalbody"):
                value = _effective(value)
            elif isinstance(node, ast.JoinedStr):
                value = _joined(value)
            if not value:
                continue
        fields.append((name, value))
    return fields


def _children(node: ast.AST) -> Iterator[tuple[str, ast.AST]]:
    for name, value in _fields(node):
        for child in value if isinstance(value, list) else (value,):
            if isinstance(child, ast.AST):
                yield name, child


def _joined(values: Sequence[ast.expr]) -> list[ast.expr]:
    """Parts of an f-string; how its literal text is cut into constants differs between versions of Python."""
    joined: list[ast.expr] = []
    for value in values:
        if isinstance(value, ast.Constant) and joined and isinstance(joined[-1], ast.Constant):
            joined[-1] = ast.Constant(f"{joined[-1].value!s}{value.value!s}")
        elif not (isinstance(value, ast.Constant) and value.value == ""):
            joined.append(value)
    return joined


def _tokens(nodes: Sequence[ast.AST]) -> list[str]:
    """A syntax tree as a flat list, unambiguous by its brackets; flat, since JSON nests no deeper than a stack allows."""
    tokens: list[str] = []
    waiting: list[Any] = list(reversed(nodes))  # syntax trees, lists of them, and finished tokens
    while waiting:
        item = waiting.pop()
        if isinstance(item, str):
            tokens.append(item)
        elif isinstance(item, ast.Name):
            tokens.append(f"name {item.id}")
        elif isinstance(item, ast.Constant):
            tokens.append(_constant(item.value))
        elif isinstance(item, ast.AST):
            tokens.append(f"({type(item).__name__}")
            waiting.append(")")
            for name, value in reversed(_fields(item)):
                if isinstance(value, ast.AST | list):
                    waiting += (value, f".{name}")
                else:
                    waiting.append(f".{name}={value}")
        elif isinstance(item, list):
            tokens.append("[")
            waiting.append("]")
            waiting += reversed(item)
        else:
            tokens.append(str(item))  # a gap: a dict that unpacks another has no key there
    return tokens


def _constant(value: Any) -> str:
    """Type and value: 1, 1.0 and True are equal in Python. Hexadecimal, as the decimal form of an integer has a limited length;
    ASCII, as what `repr` escapes depends on the Unicode version."""
    return f"{type(value).__name__} {value:x}" if type(value) is int else f"{type(value).__name__} {value!a}"


def _names(nodes: Sequence[ast.AST], package: str) -> tuple[list[tuple[str, ...]], list[_Import]]:
    """Names that are used, each with the attributes that follow it, annotations in quotes included; and the imports in between."""
    uses: dict[tuple[str, ...], None] = {}
    imports: list[_Import] = []
    waiting: list[tuple[ast.AST, bool, bool]] = [(node, False, False) for node in nodes]
    while waiting:
        node, quoted, optional = waiting.pop()
        match node:
            case ast.Import() | ast.ImportFrom():
                imports += _imported(node, package, optional=optional)
                continue
            case ast.Name():
                if not isinstance(node.ctx, ast.Store):
                    uses[node.id,] = None
                continue
            case ast.Attribute() if chain := _chain(node):
                uses[chain] = None
                continue
            case ast.Constant(value=str(text)) if quoted:
                waiting += [(tree, True, optional) for tree in _quoted(text)]
            case ast.Global():
                uses |= {(name,): None for name in node.names}
            case ast.AugAssign(target=ast.Name(id=name)):
                uses[name,] = None
        literal = isinstance(node, ast.Subscript) and (_chain(node.value) or ("",))[-1] == "Literal"
        survives = isinstance(node, ast.Try) and any(_survives(handler) for handler in node.handlers)
        for name, child in _children(node):
            annotation = name in ("annotation", "returns") or (quoted and not literal)
            waiting.append((child, annotation, optional or (survives and name == "body")))
    return list(uses), imports


def _chain(node: ast.expr) -> tuple[str, ...]:
    """`a.b.c` as its parts; empty if it doesn't begin with a name."""
    parts = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return (node.id, *reversed(parts)) if isinstance(node, ast.Name) else ()


def _quoted(text: str) -> list[ast.expr]:
    try:
        return [ast.parse(text, mode="eval").body]
    except (SyntaxError, ValueError):  # text in an annotation that is no type, as in `Annotated[int, "seconds"]`
        return []


def _survives(handler: ast.ExceptHandler) -> bool:
    caught = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    names = {_chain(each)[-1:] for each in caught if each is not None}
    return handler.type is None or bool(names & {(name,) for name in ("ImportError", "ModuleNotFoundError", "Exception", "BaseException")})


def _imported(statement: ast.Import | ast.ImportFrom, package: str, *, optional: bool) -> list[_Import]:
    line = statement.lineno
    if isinstance(statement, ast.Import):
        return [
            _Import(alias.asname or alias.name.partition(".")[0], alias.name, None, line, optional, as_root=alias.asname is None)
            for alias in statement.names
        ]
    module = statement.module or ""
    if statement.level:
        parts = package.split(".")
        above = parts[: max(1, len(parts) - statement.level + 1)]  # beyond the top package it can't be imported anyway
        module = ".".join([*above, module] if module else above)
    return [_Import(alias.asname or alias.name, module, alias.name, line, optional) for alias in statement.names]
