"""The code behind an artifact: what a job reaches, what counts as a change, and what doesn't."""

import ast
import os
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marin_core.artifact.code import BOOKKEEPING, CodeDifference, CodeTable, code_differences, code_table
from marin_core.errors import ConfigError

PROJECT = Path(__file__).resolve().parents[2]
JOBS = {
    "evaluate": ("marin_core/evaluate/evaluate.py", "evaluate"),
    "filter": ("marin_core/data/filter.py", "filter_shard"),
    "ingest": ("marin_core/data/ingest.py", "ingest"),
    "mixture": ("marin_core/data/mixture.py", "make_mixture"),
    "ngram": ("marin_core/evaluate/ngram.py", "NgramModel"),
    "tasks": ("marin_core/evaluate/tasks.py", "make_tasks"),
    "tokenize": ("marin_core/data/tokenize.py", "tokenize_shard"),
    "tokenizer": ("marin_core/data/tokenizer.py", "train_tokenizer"),
    "train": ("marin_core/train/loop.py", "train"),
}
"""Job → its library function."""


class Project:
    """A small project of real files: a job `marin_jobs.job` and whatever library a test gives it."""

    def __init__(self, root: Path, files: Mapping[str, str]) -> None:
        self.root = root
        for package in ("marin_core", "marin_jobs"):
            self.write(f"{package}/__init__.py", "")
        for file, source in files.items():
            self.write(file, source)

    def write(self, file: str, source: str) -> None:
        path = self.root / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(source))

    def table(self) -> CodeTable:
        return code_table("marin_jobs.job", root=self.root)

    def names(self) -> dict[str, set[str]]:
        """File → reached definitions, without the job's own."""
        return {file: set(names) for file, names in self.table().files.items() if file != "marin_jobs/job.py"}

    def changes(self, file: str, source: str) -> list[tuple[str, str]]:
        """File and definition of everything that differs once a file is rewritten."""
        before = self.table()
        self.write(file, source)
        return [(each.file, each.definition) for each in code_differences(before, self.table())]


def project(root: Path, job: str, **library: str) -> Project:
    """A job and modules of `marin_core` by name: `pack__a` is `marin_core/pack/a.py`, `pack__package` its `__init__.py`."""
    files = {f"marin_core/{name.replace('__', '/').replace('/package', '/__init__')}.py": source for name, source in library.items()}
    return Project(root, {"marin_jobs/job.py": job, **files})


def body_changes(root: Path, before: str, after: str) -> bool:
    """Whether rewriting a job's `run` counts as a change."""
    changes = project(root, before).changes("marin_jobs/job.py", after)
    assert changes in ([], [("marin_jobs/job.py", "run")])
    return bool(changes)


# What is no change ---------------------------------------------------------------------------------------------------


def test_a_comment_changes_nothing(tmp_path: Path) -> None:
    assert not body_changes(tmp_path, "def run():\n    return 1\n", "# why\n\n\ndef run():  # how\n    # because\n    return 1\n")


def test_a_docstring_changes_nothing(tmp_path: Path) -> None:
    before = '''
        """Job."""
        def run():
            class Local:
                field: int = 1
            return Local
    '''
    after = '''
        """A job."""
        def run():
            """Run."""
            class Local:
                """Doc."""
                field: int = 1
                """How many."""
            return Local
    '''
    assert not body_changes(tmp_path, before, after)


def test_a_docstring_in_place_of_pass_changes_nothing(tmp_path: Path) -> None:
    assert not body_changes(tmp_path, "def run():\n    pass\n", "def run():\n    '''Do nothing.'''\n")


def test_layout_changes_nothing(tmp_path: Path) -> None:
    before = """
        def run(a, b):
            return work('x', (a + b), [1, 2], 1_000, 'yz')
    """
    after = """
        def run(
            a,
            b,
        ):
            return work(
                "x",
                a + b,
                [
                    1,
                    2,
                ],
                1000,
                "y"
                "z",
            )
    """
    assert not body_changes(tmp_path, before, after)


def test_line_ends_and_a_byte_order_mark_change_nothing(tmp_path: Path) -> None:
    made = project(tmp_path, "def run():\n    return 1\n")
    before = made.table()
    (tmp_path / "marin_jobs/job.py").write_bytes(b"\xef\xbb\xbfdef run():\r\n    return 1\r\n")
    assert made.table() == before


def test_an_unrelated_function_in_the_same_file_changes_nothing(tmp_path: Path) -> None:
    made = project(tmp_path, "from marin_core.a import f\ndef run(): return f()\n", a="def f(): return 1\ndef g(): return 1\n")
    assert made.changes("marin_core/a.py", "import os\ndef g(): return os.name\nUNUSED = 2\ndef f(): return 1\n") == []


def test_the_order_of_definitions_changes_nothing(tmp_path: Path) -> None:
    made = project(tmp_path, "def run(): return f()\ndef f(): return 1\n")
    assert made.changes("marin_jobs/job.py", "def f(): return 1\ndef run(): return f()\n") == []


def test_an_import_through_another_module_changes_nothing(tmp_path: Path) -> None:
    made = project(
        tmp_path, "from marin_core.a import f\ndef run(): return f()\n", a="def f(): return 1\n", b="from marin_core.a import f\n"
    )
    assert made.changes("marin_jobs/job.py", "from marin_core.b import f\ndef run(): return f()\n") == []


def test_the_export_list_changes_nothing(tmp_path: Path) -> None:
    made = project(tmp_path, "from marin_core.a import f\ndef run(): return f()\n", a="def f(): return 1\n")
    assert made.changes("marin_core/a.py", "__all__ = ['f']\n__all__ += ['g']\ndef f(): return 1\n") == []


FILES = sorted(
    path.relative_to(PROJECT)
    for folder in ("marin_core", "marin_jobs")
    for path in (PROJECT / folder).rglob("*.py")
    if not path.relative_to(PROJECT).with_suffix("").as_posix().replace("/", ".").startswith(BOOKKEEPING)
)


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the real project's code."""
    root = tmp_path_factory.mktemp("project")
    for folder in ("marin_core", "marin_jobs"):
        shutil.copytree(PROJECT / folder, root / folder, ignore=shutil.ignore_patterns("__pycache__"))
    return root


def module_of(file: Path) -> str:
    return ".".join(file.with_suffix("").parts).removesuffix(".__init__")


def relaid(source: str, rewritten: set[int]) -> str:
    """A file whose statements at the given positions have another layout, with comments between them."""
    lines = source.splitlines(keepends=True)
    parts, at = [], 0
    for number, statement in enumerate(ast.parse(source).body):
        end = statement.end_lineno or 0
        kept = "".join(lines[at:end])
        parts.append(f"\n\n# {number}\n{ast.unparse(statement)}  # end\n" if number in rewritten else kept)
        at = end
    return "".join([*parts, *lines[at:]])


@settings(max_examples=40, deadline=None)
@given(file=st.sampled_from(FILES), data=st.data())
def test_no_real_file_changes_by_its_layout(copy: Path, file: Path, data: st.DataObject) -> None:
    original = (PROJECT / file).read_text()
    rewritten = data.draw(st.sets(st.integers(0, max(0, len(ast.parse(original).body) - 1))))
    (copy / file).write_text(original)
    before = code_table(module_of(file), root=copy)
    try:
        (copy / file).write_text(relaid(original, rewritten))
        assert code_differences(before, code_table(module_of(file), root=copy)) == []
    finally:
        (copy / file).write_text(original)


@pytest.mark.parametrize("file", FILES, ids=str)
def test_a_real_file_written_anew_from_its_syntax_tree_has_the_same_digests(copy: Path, file: Path) -> None:
    original = (copy / file).read_text()
    before = code_table(module_of(file), root=copy)
    try:
        (copy / file).write_text(ast.unparse(ast.parse(original)))
        assert code_table(module_of(file), root=copy) == before
    finally:
        (copy / file).write_text(original)


# What is a change ----------------------------------------------------------------------------------------------------


def test_a_changed_helper_three_imports_away_is_named_by_file_and_function(tmp_path: Path) -> None:
    made = project(
        tmp_path,
        "from marin_core.a import f\ndef run(): return f()\n",
        a="from marin_core.deep.b import g\ndef f(): return g()\n",
        deep__b="from marin_core.c import h\ndef g(): return h()\n",
        c="def h(): return 1\n",
    )
    before = made.table()
    made.write("marin_core/c.py", "def h(): return 2\n")
    (difference,) = code_differences(before, made.table())
    assert (difference.file, difference.definition) == ("marin_core/c.py", "h")
    assert difference.recorded == before.files["marin_core/c.py"]["h"] != difference.declared
    assert before.digest != made.table().digest


def test_a_renamed_local_variable_is_a_change(tmp_path: Path) -> None:
    assert body_changes(tmp_path, "def run():\n    a = 1\n    return a\n", "def run():\n    b = 1\n    return b\n")


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("1", "True"),
        ("1", "1.0"),
        ("1", "1j"),
        ("0.0", "-0.0"),
        ("'a'", "b'a'"),
        ("'a'", "f'a{x}'"),
        ("f'{x}'", "f'{x!r}'"),
        ("f'{x:3}'", "f'{x:4}'"),
        ("None", "..."),
        ("None", "'None'"),
        ("None", "False"),
        ("()", "[]"),
        ("{}", "{**x}"),
        ("{None: x}", "{**x}"),
        ("x[1:]", "x[:1]"),
        ("0x" + "f" * 5000, "0x" + "e" * 5000),
        ("'\\ud800'", "'\\ud801'"),
        ("x", "'x'"),
        ("x", "(x,)"),
        ("a < b", "a <= b"),
        ("a - b", "b - a"),
        ("a - (b - c)", "a - b - c"),
        ("f(a, b)", "f(b, a)"),
        ("f(a=b)", "f(b=a)"),
        ("lambda x: x", "lambda x, /: x"),
        ("[x for x in y]", "{x for x in y}"),
    ],
)
def test_other_values_and_operations_are_changes(tmp_path: Path, before: str, after: str) -> None:
    assert body_changes(tmp_path, f"def run(x, y):\n    return {before}\n", f"def run(x, y):\n    return {after}\n")


def test_a_removed_default_decorator_or_annotation_is_a_change(tmp_path: Path) -> None:
    full = "import functools\n@functools.cache\ndef run(x: int = 1): return x\n"
    for number, shorter in enumerate(
        [
            "import functools\ndef run(x: int = 1): return x\n",
            "import functools\n@functools.cache\ndef run(x: int): return x\n",
            "import functools\n@functools.cache\ndef run(x=1): return x\n",
        ]
    ):
        assert body_changes(tmp_path / str(number), full, shorter)


def test_a_changed_method_names_its_class(tmp_path: Path) -> None:
    made = project(
        tmp_path,
        "from marin_core.a import Thing\ndef run(): return Thing().f()\n",
        a="class Thing:\n    def f(self): return 1\n    def g(self): return 1\n",
    )
    changed = "class Thing:\n    def f(self): return 1\n    def g(self): return 2\n"
    assert made.changes("marin_core/a.py", changed) == [("marin_core/a.py", "Thing")]


def test_a_base_class_a_decorator_a_default_and_an_annotation_are_reached(tmp_path: Path) -> None:
    library = "class Base: ...\ndef wrap(f): return f\nLIMIT = 1\nclass Kind: ...\nclass Quoted: ...\nclass Other: ...\n"
    job = """
        from typing import Literal
        from marin_core.a import LIMIT, Base, Kind, Other, Quoted, wrap
        class Made(Base):
            kind: Kind
            quoted: "list[Quoted]"
            text: Literal["Other"]
        @wrap
        def run(limit=LIMIT): ...
    """
    assert project(tmp_path, job, a=library).names() == {"marin_core/a.py": {"Base", "wrap", "LIMIT", "Kind", "Quoted"}}


def test_a_third_party_name_bound_to_something_else_changes_those_who_use_it(tmp_path: Path) -> None:
    job = "from json import loads\ndef run(x): return loads(x)\ndef other(x): return x\n"
    assert project(tmp_path, job).changes("marin_jobs/job.py", job.replace("json", "orjson")) == [("marin_jobs/job.py", "run")]


def test_a_third_party_module_bound_to_something_else_changes_those_who_use_it(tmp_path: Path) -> None:
    job = "import numpy as np\ndef run(x): return np.sum(x)\ndef other(x): return x\n"
    changed = job.replace("numpy", "jax.numpy")
    assert project(tmp_path, job).changes("marin_jobs/job.py", changed) == [("marin_jobs/job.py", "run")]


def test_a_project_name_bound_to_something_else_is_a_change_even_if_both_are_reached(tmp_path: Path) -> None:
    library = "def f(): return 1\ndef g(): return 2\n"
    job = "from marin_core.a import f, g\ndef run(): return f\ndef other(): return g\n"
    changed = "from marin_core.a import g as f, f as g\ndef run(): return f\ndef other(): return g\n"
    assert [name for _, name in project(tmp_path, job, a=library).changes("marin_jobs/job.py", changed)] == ["other", "run"]


def test_a_fallback_import_counts_with_both_origins(tmp_path: Path) -> None:
    job = """
        try:
            from orjson import loads
        except ImportError:
            from json import loads
        def run(x): return loads(x)
    """
    changes = project(tmp_path, job).changes("marin_jobs/job.py", job.replace("orjson", "ujson"))
    assert changes == [("marin_jobs/job.py", "module"), ("marin_jobs/job.py", "run")]


def test_differences_name_what_came_and_what_went(tmp_path: Path) -> None:
    recorded = CodeTable(files={"a.py": {"f": "1", "g": "2"}, "gone.py": {"x": "3"}})
    declared = CodeTable(files={"a.py": {"f": "1", "g": "4"}, "new.py": {"y": "5"}})
    assert code_differences(recorded, declared) == [
        CodeDifference("a.py", "g", "2", "4"),
        CodeDifference("gone.py", "x", "3", None),
        CodeDifference("new.py", "y", None, "5"),
    ]
    assert code_differences(recorded, recorded) == []


def test_the_digest_of_a_known_job_never_changes(tmp_path: Path) -> None:
    """Records hold these digests for years: a change here puts every artifact in drift."""
    job = """
        import numpy as np
        from marin_core.a import f as g

        LIMITS: dict[str, float] = {"a": 1.5, **{}}

        class Thing:
            size: int = 10**20

        def run(x: "Thing", *rest: int, key: bytes = b"k") -> str:
            with open("x") as file:
                return f"{g(x)!r:>{LIMITS['a']}} ü {np.sum(rest)}" if key else file.read()
    """
    files = project(tmp_path, job, a="def f(x): return not x\n").table().files
    assert files == {
        "marin_core/a.py": {"f": "07aa2b086d8b0413"},
        "marin_jobs/job.py": {"LIMITS": "a7a14ccce1311df8", "Thing": "fdffdebf620fdc4f", "run": "560dfadeb0c58037"},
    }


# What is reached -----------------------------------------------------------------------------------------------------


def test_re_exports_are_followed_to_their_source(tmp_path: Path) -> None:
    made = project(
        tmp_path,
        "from marin_core.pack import f\ndef run(): return f()\n",
        pack__package="from marin_core.pack.middle import g as f\nfrom marin_core.pack.other import unused\n",
        pack__middle="from marin_core.pack.source import g\n",
        pack__source="def g(): return 1\n",
        pack__other="def unused(): return 1\n",
    )
    assert made.names() == {"marin_core/pack/source.py": {"g"}}


def test_a_relative_import_is_followed(tmp_path: Path) -> None:
    made = project(
        tmp_path,
        "from marin_core.pack import f\ndef run(): return f()\n",
        pack__package="from .source import f\n",
        pack__source="from .. import base\nfrom . import near\nfrom ..far import h\ndef f(): return base.g() + near.i() + h()\n",
        pack__near="def i(): return 1\n",
        base="def g(): return 1\ndef unused(): return 1\n",
        far="def h(): return 1\n",
    )
    assert made.names() == {
        "marin_core/base.py": {"g"},
        "marin_core/far.py": {"h"},
        "marin_core/pack/near.py": {"i"},
        "marin_core/pack/source.py": {"f"},
    }


@pytest.mark.parametrize(
    ("statement", "use"),
    [
        ("import marin_core.a as z", "z.f"),
        ("import marin_core.a", "marin_core.a.f"),
        ("from marin_core import a", "a.f"),
        ("from marin_core import a as z", "z.f.attribute"),
        ("import marin_core", "marin_core.a.f"),
    ],
)
def test_an_attribute_of_a_module_reaches_that_definition_alone(tmp_path: Path, statement: str, use: str) -> None:
    made = project(tmp_path, f"{statement}\ndef run(): return {use}()\n", a="def f(): return 1\ndef g(): return 1\n")
    assert made.names() == {"marin_core/a.py": {"f"}}


@pytest.mark.parametrize("use", ["z", "getattr(z, name)", "z.unknown"])
def test_a_module_used_as_an_object_is_reached_whole(tmp_path: Path, use: str) -> None:
    made = project(
        tmp_path,
        f"from marin_core import a as z\ndef run(name): return {use}\n",
        a="from marin_core.b import h\ndef f(): return 1\ndef g(): return 1\n",
        b="def h(): return 1\ndef unused(): return 1\n",
    )
    assert made.names() == {"marin_core/a.py": {"f", "g"}, "marin_core/b.py": {"h"}}


def test_the_name_of_a_module_reaches_nothing_in_it(tmp_path: Path) -> None:
    assert project(tmp_path, "from marin_core import a\ndef run(): return a.__name__\n", a="def f(): return 1\n").names() == {}


def test_a_package_without_init_is_followed(tmp_path: Path) -> None:
    made = project(tmp_path, "from marin_core.bare import a\ndef run(): return a.f()\n", bare__a="def f(): return 1\n")
    assert made.names() == {"marin_core/bare/a.py": {"f"}}


def test_a_name_of_a_package_comes_before_a_module_of_the_same_name(tmp_path: Path) -> None:
    made = project(
        tmp_path,
        "from marin_core.pack import evaluate\ndef run(): return evaluate()\n",
        pack__package="from marin_core.pack.evaluate import evaluate\n",
        pack__evaluate="def evaluate(): return 1\ndef unused(): return 1\n",
    )
    assert made.names() == {"marin_core/pack/evaluate.py": {"evaluate"}}


def test_an_import_inside_a_function_is_followed_if_the_function_is_reached(tmp_path: Path) -> None:
    made = project(
        tmp_path,
        "from marin_core.a import f\ndef run(): return f()\n",
        a="def f():\n    from marin_core.b import g\n    return g()\ndef unused():\n    from marin_core.c import h\n    return h()\n",
        b="def g(): return 1\n",
        c="def h(): return 1\n",
    )
    assert made.names() == {"marin_core/a.py": {"f"}, "marin_core/b.py": {"g"}}


def test_a_star_import_reaches_everything(tmp_path: Path) -> None:
    made = project(
        tmp_path,
        "from marin_core.pack import f\ndef run(): return f()\n",
        pack__package="from marin_core.pack.a import *\n",
        pack__a="from marin_core.pack.b import *\nTABLE = {}\ndef f(): return 1\n",
        pack__b="def g(): return 1\n",
    )
    assert made.names() == {"marin_core/pack/a.py": {"TABLE", "f"}, "marin_core/pack/b.py": {"g"}}


def test_a_name_from_a_third_partys_star_import_counts_with_its_origin(tmp_path: Path) -> None:
    job = "from numpy import *\ndef run(x): return asarray(x)\n"
    assert project(tmp_path, job).changes("marin_jobs/job.py", job.replace("numpy", "jax.numpy")) == [("marin_jobs/job.py", "run")]


def test_a_lazy_package_reaches_what_its_getattr_uses(tmp_path: Path) -> None:
    made = project(
        tmp_path,
        "from marin_core.pack import f\ndef run(): return f()\n",
        pack__package="def __getattr__(name):\n    from marin_core.pack import a\n    return getattr(a, name)\n",
        pack__a="def f(): return 1\n",
    )
    assert made.names() == {"marin_core/pack/__init__.py": {"__getattr__"}, "marin_core/pack/a.py": {"f"}}


def test_modules_that_import_each_other_end(tmp_path: Path) -> None:
    made = project(
        tmp_path,
        "from marin_core.a import f\ndef run(): return f(3)\n",
        a="from marin_core import b\ndef f(n): return n and b.g(n - 1)\n",
        b="from marin_core import a\ndef g(n): return n and a.f(n - 1)\n",
    )
    assert made.names() == {"marin_core/a.py": {"f"}, "marin_core/b.py": {"g"}}


def test_names_that_only_point_at_each_other_are_an_error(tmp_path: Path) -> None:
    made = project(
        tmp_path,
        "from marin_core.a import f\ndef run(): return f()\n",
        a="from marin_core.b import f\n",
        b="from marin_core.a import f\n",
    )
    with pytest.raises(ConfigError, match="imports what isn't there"):
        made.table()


def test_a_table_of_functions_reaches_them(tmp_path: Path) -> None:
    made = project(
        tmp_path,
        "from marin_core.a import RULES\ndef run(name): return RULES[name]()\n",
        a="def f(): return 1\ndef g(): return 1\ndef unused(): return 1\nRULES = {'f': f, 'g': g}\n",
    )
    assert made.names() == {"marin_core/a.py": {"RULES", "f", "g"}}


def test_an_assignment_defines_each_of_its_names(tmp_path: Path) -> None:
    library = "A, (B, *C) = 1, (2, 3)\nD = E = 4\nF: int = 5\ntype G = int\nUNUSED = 6\n"
    job = "from marin_core.a import A, B, C, D, E, F, G\ndef run(): return A, B, C, D, E, F, G\n"
    assert project(tmp_path, job, a=library).names() == {"marin_core/a.py": set("ABCDEFG")}


def test_several_definitions_of_a_name_count_together(tmp_path: Path) -> None:
    library = "from typing import overload\n@overload\ndef f(x: int) -> int: ...\ndef f(x): return x\n"
    made = project(tmp_path, "from marin_core.a import f\ndef run(): return f(1)\n", a=library)
    assert made.changes("marin_core/a.py", library.replace("int", "str")) == [("marin_core/a.py", "f")]


@pytest.mark.parametrize("decorator", ["@REGISTRY.register", "@REGISTRY.register('f')", "@registry.REGISTRY.register"])
def test_what_registers_itself_is_reached_when_its_module_is_imported(tmp_path: Path, decorator: str) -> None:
    made = project(
        tmp_path,
        "import marin_core.rules\nfrom marin_core.registry import REGISTRY\ndef run(name): return REGISTRY[name]()\n",
        registry="class Registry(dict): ...\nREGISTRY = Registry()\n",
        rules="from marin_core import registry\nfrom marin_core.registry import REGISTRY\n" + decorator + "\ndef f(): return g()\n"
        "def g(): return 1\ndef unused(): return 1\n",
    )
    assert made.names() == {"marin_core/registry.py": {"Registry", "REGISTRY"}, "marin_core/rules.py": {"f", "g"}}


@pytest.mark.parametrize(
    "statement", ["REGISTRY.register(f)", "REGISTRY['f'] = f", "REGISTRY.f = f", "for each in (f,):\n    REGISTRY.add(each)"]
)
def test_a_statement_that_registers_is_reached_when_its_module_is_imported(tmp_path: Path, statement: str) -> None:
    made = project(
        tmp_path,
        "from marin_core.rules import unrelated\ndef run(): return 1\n",
        rules="from marin_core.registry import REGISTRY\ndef f(): return 1\ndef unrelated(): return 1\n" + statement + "\n",
        registry="REGISTRY = {}\n",
    )
    assert made.names() == {"marin_core/registry.py": {"REGISTRY"}, "marin_core/rules.py": {"f", "module"}}


def test_importing_a_module_runs_the_packages_it_is_in(tmp_path: Path) -> None:
    made = project(
        tmp_path,
        "from marin_core.pack.a import f\ndef run(): return f()\n",
        pack__package="import os\nos.environ['THREADS'] = '1'\n",
        pack__a="def f(): return 1\n",
    )
    assert made.names() == {"marin_core/pack/__init__.py": {"module"}, "marin_core/pack/a.py": {"f"}}


def test_what_a_condition_defines_is_reached_with_its_statement(tmp_path: Path) -> None:
    library = """
        import sys
        from marin_core.b import g
        if sys.platform == "linux":
            def f(): return g()
        else:
            f = None
        def module(): return 1
        def unused(): return 1
    """
    made = project(tmp_path, "from marin_core.a import f\ndef run(): return f()\n", a=library, b="def g(): return 1\n")
    assert made.names() == {"marin_core/a.py": {"module"}, "marin_core/b.py": {"g"}}
    assert made.changes("marin_core/a.py", library.replace("None", "1")) == [("marin_core/a.py", "module")]


def test_what_is_for_type_checkers_or_for_running_as_a_script_is_left_out(tmp_path: Path) -> None:
    job = """
        import typing
        from typing import TYPE_CHECKING
        if TYPE_CHECKING:
            from marin_core.a import Thing
            from marin_core.nowhere import Nothing
        else:
            LIMIT = 1
        if not typing.TYPE_CHECKING:
            OTHER = 2
        def run(x: "Thing") -> "Nothing": return x
        if __name__ == "__main__":
            run(1)
    """
    table = project(tmp_path, job, a="class Thing: ...\n").table()
    assert {file: set(names) for file, names in table.files.items()} == {"marin_jobs/job.py": {"LIMIT", "OTHER", "run"}}


def test_bookkeeping_is_not_in_the_table(tmp_path: Path) -> None:
    made = project(
        tmp_path,
        "import marin_core.errors\nfrom marin_core import artifact, report\nfrom marin_core.report import Report\n"
        "from marin_jobs.runtime import JobContext\n"
        "def run(job: JobContext):\n    return Report(report.x, marin_core.errors.ConfigError, artifact)\n",
        report="def helper(): return 1\nclass Report:\n    x = helper()\n",
        artifact__store="def f(): return 1\n",
        errors="class ConfigError: ...\n",
    )
    made.write("marin_jobs/runtime.py", "class JobContext: ...\n")
    assert made.names() == {}
    changed = (tmp_path / "marin_jobs/job.py").read_text().replace("import Report", "import Other as Report")
    assert made.changes("marin_jobs/job.py", changed) == [("marin_jobs/job.py", "run")]


# Size, time, errors --------------------------------------------------------------------------------------------------


def test_a_chain_of_3000_functions_is_followed(tmp_path: Path) -> None:
    links = "".join(f"def f{n}(): return f{n + 1}()\n" for n in range(3000))
    made = project(tmp_path, "from marin_core.a import f0\ndef run(): return f0()\n", a=links + "def f3000(): return 1\n")
    assert len(made.names()["marin_core/a.py"]) == 3001


def test_a_chain_of_1500_modules_is_followed(tmp_path: Path) -> None:
    library = {f"m{n}": f"from marin_core.m{n + 1} import f{n + 1}\ndef f{n}(): return f{n + 1}()\n" for n in range(1500)}
    made = project(tmp_path, "from marin_core.m0 import f0\ndef run(): return f0()\n", **library, m1500="def f1500(): return 1\n")
    assert len(made.names()) == 1501


def test_a_name_re_exported_1200_times_is_followed(tmp_path: Path) -> None:
    library = {f"m{n}": f"from marin_core.m{n + 1} import f\n" for n in range(1200)}
    made = project(tmp_path, "from marin_core.m1 import f\ndef run(): return f()\n", **library, m1200="def f(): return 1\n")
    assert made.names() == {"marin_core/m1200.py": {"f"}}


def test_a_deep_expression_is_hashed(tmp_path: Path) -> None:
    chain = "def run(x):\n    return " + " + ".join(["x"] * 2000)
    assert body_changes(tmp_path, f"{chain} + x\n", f"{chain} - x\n")


def test_a_long_lived_process_sees_an_edit_at_once(tmp_path: Path) -> None:
    made = project(tmp_path, "from marin_core.a import f\ndef run(): return f()\n", a="def f(): return 0\n")
    status = (tmp_path / "marin_core/a.py").stat()
    digests = set()
    for value in range(10):  # of equal size and, as some copying tools leave it, of equal time
        made.write("marin_core/a.py", f"def f(): return {value}\n")
        os.utime(tmp_path / "marin_core/a.py", ns=(status.st_atime_ns, status.st_mtime_ns))
        digests.add(made.table().digest)
    assert len(digests) == 10


def test_a_long_lived_process_sees_files_come_and_go(tmp_path: Path) -> None:
    made = project(tmp_path, "from marin_core.a import f\ndef run(): return f()\n")
    with pytest.raises(ConfigError):
        made.table()
    made.write("marin_core/a.py", "def f(): return 1\n")
    assert made.names() == {"marin_core/a.py": {"f"}}
    (tmp_path / "marin_core/a.py").unlink()
    made.write("marin_core/a/__init__.py", "from marin_core.a.b import f\n")
    made.write("marin_core/a/b.py", "def f(): return 1\n")
    assert made.names() == {"marin_core/a/b.py": {"f"}}


@pytest.mark.parametrize(
    ("source", "problem"),
    [
        ("\nfrom marin_core.nowhere import f\n", "there is no module marin_core.nowhere"),
        ("\nimport marin_core.nowhere\n", "there is no module marin_core.nowhere"),
        ("\nfrom marin_core.b import missing\n", "marin_core.b has no missing"),
        ("def f():\n    from marin_core.b import missing\n", "marin_core.b has no missing"),
        ("from marin_core import b, \\\n    nowhere\ndef f(): ...\n".replace("\\\n    ", ""), "marin_core has no nowhere"),
    ],
)
def test_an_import_that_leads_nowhere_names_file_and_line(tmp_path: Path, source: str, problem: str) -> None:
    made = project(
        tmp_path, "from marin_core.a import f\ndef run(): return f()\n", a=source + "\ndef f(): ...\n" * ("def f" not in source), b=""
    )
    line = source[: source.index("marin_core")].count("\n") + 1
    with pytest.raises(ConfigError, match=rf"marin_core/a\.py:{line} imports what isn't there: {problem}"):
        made.table()


def test_an_import_that_may_fail_may_lead_nowhere(tmp_path: Path) -> None:
    library = """
        try:
            from marin_core.fast import f
        except ImportError:
            def f(): return 1
    """
    made = project(tmp_path, "from marin_core.a import f\ndef run(): return f()\n", a=library)
    assert made.names() == {"marin_core/a.py": {"module"}}
    made.write("marin_core/fast.py", "def f(): return 1\n")
    assert made.names() == {"marin_core/a.py": {"module"}, "marin_core/fast.py": {"f"}}


@pytest.mark.parametrize(
    ("source", "place"),
    [(b"def f():\n    return (\n", r"a\.py:2"), (b"def f(): return '\xff'\n", r"a\.py:1"), (b"def f():\x00\n", r"a\.py:1")],
)
def test_a_file_that_is_no_python_names_file_and_line(tmp_path: Path, source: bytes, place: str) -> None:
    made = project(tmp_path, "from marin_core.a import f\ndef run(): return f()\n", a="")
    (tmp_path / "marin_core/a.py").write_bytes(source)
    with pytest.raises(ConfigError, match=f"marin_core/{place} can't be parsed"):
        made.table()


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = project(tmp_path, "def run(): ...\n")
    read = Path.read_bytes

    def refuse(path: Path) -> bytes:
        if path.name == "job.py":
            raise PermissionError(13, "Permission denied")
        return read(path)

    monkeypatch.setattr(Path, "read_bytes", refuse)
    with pytest.raises(ConfigError, match=r"job\.py can't be read: .*Permission denied"):
        made.table()


@pytest.mark.parametrize("module", ["marin_jobs.nowhere", "json", "marin_jobs/filter", "marin_jobs...filter", "", "marin_jobs.runtime"])
def test_a_module_that_is_no_job_is_refused(module: str) -> None:
    with pytest.raises(ConfigError, match=r"no module|no job's module"):
        code_table(module)


# The real project ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("job", sorted(path.stem for path in (PROJECT / "marin_jobs").glob("*.py") if "def run(job" in path.read_text()))
def test_every_job_has_a_table_without_bookkeeping(job: str) -> None:
    files = code_table(f"marin_jobs.{job}").files
    assert "run" in files[f"marin_jobs/{job}.py"]
    assert not [file for file in files if file.removesuffix(".py").replace("/", ".").startswith(BOOKKEEPING)]


@pytest.mark.parametrize("job", sorted(JOBS))
def test_a_jobs_table_has_its_library_function(job: str) -> None:
    file, function = JOBS[job]
    assert function in code_table(f"marin_jobs.{job}").files[file]


@pytest.mark.parametrize("job", ["filter", "ingest", "mixture", "tasks", "tokenize", "tokenizer"])
def test_the_data_jobs_reach_no_model_and_no_training(job: str) -> None:
    files = code_table(f"marin_jobs.{job}").files
    assert not [file for file in files if file.startswith(("marin_core/train/", "marin_core/model/"))]


@pytest.mark.parametrize("job", sorted(JOBS))
def test_a_jobs_table_has_no_other_jobs_library_function(job: str) -> None:
    files = code_table(f"marin_jobs.{job}").files
    reached = {other for other, (file, function) in JOBS.items() if function in files.get(file, {})}
    assert reached == {job}


def test_computing_a_table_imports_nothing_heavy() -> None:
    script = f"""
import sys
from marin_core.artifact.code import code_table
for job in {sorted(JOBS)!r}:
    code_table(f"marin_jobs.{{job}}")
print(sorted({{"jax", "flax", "numpy", "datatrove", "pyarrow", "tokenizers"}} & set(sys.modules)))
print(sorted(name for name in sys.modules if name.startswith("marin_jobs")))
"""
    done = subprocess.run([sys.executable, "-c", script], cwd=PROJECT, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["[]", "[]"]
