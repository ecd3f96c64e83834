"""What one Python file says, read without running it: its definitions, what they use, and what it imports."""

import ast
import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from marin_core.artifact import parsed_files
from marin_core.artifact.canonical import canonical_json
from marin_core.artifact.source import Definition, Import, Source
from marin_core.errors import ConfigError

MODULE = "module"
"""Stands in a table for a file's module-level statements; a definition of that name shares the entry."""


_parsed: dict[str, tuple[bytes, Source]] = {}
"""Parsed files of this process, trusted only while the bytes are the same: reading is cheap next to parsing, and two edits of equal
size can fall into one tick of a file system's clock."""


def read_source(root: Path, module: str) -> Source | None:
    """The file of a module, as it is now.

    Raises:
        ConfigError: it is there but can't be read or parsed.
    """
    place = module.replace(".", "/")
    for file in (f"{place}/__init__.py", f"{place}.py"):
        data = _bytes(f"{root}/{file}")
        if data is not None:
            break
    else:
        return Source(module, module, is_package=True) if Path(root, place).is_dir() else None  # a folder alone is a package too
    known = _parsed.get(f"{root}/{file}")
    if known is not None and known[0] == data and known[1].file == file:
        return known[1]
    source = Source(file, module, is_package=file.endswith("/__init__.py"))
    kept = parsed_files.load(source, data)
    if kept is not None:
        _parsed[f"{root}/{file}"] = data, kept
        return kept
    try:
        _parse(data, source)
    except SyntaxError as error:
        raise ConfigError(f"{source.file}:{error.lineno or 1} can't be parsed: {error.msg}", advice="Correct the syntax.") from error
    except (RecursionError, MemoryError, ValueError) as error:
        raise ConfigError(f"{source.file}:1 can't be parsed: {error}", advice="Make its expressions less deeply nested.") from error
    parsed_files.keep(source, data)
    _parsed[f"{root}/{file}"] = data, source
    return source


def _bytes(path: str) -> bytes | None:
    """A file's content; None if there is none."""
    try:
        return Path(path).read_bytes()
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        return None
    except OSError as error:
        raise ConfigError(f"{path} can't be read: {error}", advice="Restore the file, or its permissions.") from error


def _parse(data: bytes, source: Source) -> None:
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
        source.definitions[name] = _definition(nodes, source.package)


def _definition(nodes: Sequence[ast.stmt], package: str) -> Definition:
    form = hashlib.sha256(canonical_json(_tokens(nodes))).hexdigest()
    uses, imports = _names(nodes, package)
    match nodes:
        case [ast.ClassDef(body=body) as node]:
            bases = [chain for base in node.bases if (chain := _chain(base))]
            fields = [each for each in body if _is_field(each)]
            split = None
            if bases and fields:
                node.body = [each for each in body if not _is_field(each)]
                split = _definition([node], package), _definition(fields, package)
            return Definition(form, uses, imports, bases, split)
    return Definition(form, uses, imports, [])


def _is_field(statement: ast.stmt) -> bool:
    """Whether a statement of a class body declares a pydantic field: an annotated name that is neither private nor the class's own."""
    match statement:
        case ast.AnnAssign(target=ast.Name(id=name), annotation=annotation) if not name.startswith("_"):
            whole = annotation.value if isinstance(annotation, ast.Subscript) else annotation
            return (_chain(whole) or ("",))[-1] not in ("ClassVar", "Final")
    return False


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


def _names(nodes: Sequence[ast.AST], package: str) -> tuple[list[tuple[str, ...]], list[Import]]:
    """Names that are used, each with the attributes that follow it, annotations in quotes included; and the imports in between."""
    uses: dict[tuple[str, ...], None] = {}
    imports: list[Import] = []
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


def _imported(statement: ast.Import | ast.ImportFrom, package: str, *, optional: bool) -> list[Import]:
    line = statement.lineno
    if isinstance(statement, ast.Import):
        return [
            Import(alias.asname or alias.name.partition(".")[0], alias.name, None, line, optional, as_root=alias.asname is None)
            for alias in statement.names
        ]
    module = statement.module or ""
    if statement.level:
        parts = package.split(".")
        above = parts[: max(1, len(parts) - statement.level + 1)]  # beyond the top package it can't be imported anyway
        module = ".".join([*above, module] if module else above)
    return [Import(alias.asname or alias.name, module, alias.name, line, optional) for alias in statement.names]
