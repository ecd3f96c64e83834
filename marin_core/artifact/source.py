"""What is known of one Python file: its definitions, what they use, and what it imports."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple


class Import(NamedTuple):
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


class Definition(NamedTuple):
    """What a name's statements (usually one; several for overloads and redefinitions) say.

    Attributes:
        form: digest of the syntax alone.
        uses: names used, each with its attributes.
        imports: executed when the definition runs.
        bases: of a class, each with its attributes.
        split: of a class with annotated fields, all but these fields, and the fields alone.
    """

    form: str
    uses: list[tuple[str, ...]]
    imports: list[Import]
    bases: list[tuple[str, ...]]
    split: "tuple[Definition, Definition] | None" = None


@dataclass(eq=False)
class Source:
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
    definitions: dict[str, Definition] = field(default_factory=dict)
    bindings: dict[str, list[str | Import]] = field(default_factory=dict)
    imports: list[Import] = field(default_factory=list)
    run_at_import: set[str] = field(default_factory=set)

    @property
    def package(self) -> str:
        return self.module if self.is_package else self.module.rpartition(".")[0]

    @cached_property
    def stars(self) -> list[str]:
        """Modules from which everything is imported."""
        return [found.module for found in self.imports if found.attribute == "*"]

    def bind(self, name: str, binding: str | Import) -> None:
        bindings = self.bindings.setdefault(name, [])
        if binding not in bindings:
            bindings.append(binding)

    def add_imports(self, imports: Iterable[Import]) -> None:
        for found in imports:
            self.imports.append(found)
            if found.attribute != "*":
                self.bind(found.name, found)
