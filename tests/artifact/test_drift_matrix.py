"""The drift matrix: what may change in a lab, and the verdict on everything that was built before.

Each row changes one thing in a copy of a small real lab and says which artifacts drift, of which kind, and by which field, definition or
input. What is downstream of them drifts with them, and nothing else does. `pytest -s` prints the matrix.
"""

import enum
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import fsspec
import pytest
from pydantic import Field

from marin_core import experiment as lab
from marin_core.artifact import ArtifactId, CheckDeclaration, Resources
from marin_core.artifact.canonical import flatten, identity_value
from marin_core.artifact.drift import Difference
from marin_core.config import OPERATIONAL
from marin_core.data.limits import Limits
from marin_core.experiment.jobs import IngestJob
from tests.artifact.changes import (
    ACCOUNTS,
    ASSIGNMENT,
    CONFIG,
    ENCODING_CONFIG,
    FILTER,
    NORMAL_FORM,
    PART,
    SHARD,
    TOKENIZER,
    UNITS,
    WORDS,
    Change,
    append,
    configured,
    declared,
    edit,
    evolved,
    from_another_source,
    gone,
    in_first_rule,
    move_documents,
    move_store,
    move_to_bucket,
    rebuild_tokenizer_otherwise,
    rebuilt,
    reformat,
    remade,
    rename_helper,
    settings,
    with_more_members,
    with_other_code_rebuilt,
    within,
    without_code_table,
)
from tests.artifact.small_lab import PROJECT, World, built_lab, copied, declare, write_documents
from tests.artifact.test_code import project

Verdict = Literal["none", "config", "code", "data"]


@dataclass(frozen=True)
class Row:
    """One change and what it must mean.

    Attributes:
        name: the change, in a few words.
        change: makes it.
        verdict: kind of drift that it is.
        at: short name of an artifact → fields, definitions or inputs that must be named there; nothing else may be.
    """

    name: str
    change: Change
    verdict: Verdict = "none"
    at: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


class Colour(enum.Enum):
    RED = "red"


SHARDS = ("filtered/words@v1/00000", "filtered/words@v1/00001")


def filters(*fields: str) -> dict[str, tuple[str, ...]]:
    """The same in both families of filtered shards."""
    return {"filtered": fields, "dev_filtered": fields}


CHARACTERS = ("filter.filters.0.characters",)
other_characters = configured("filtered", in_first_rule(lambda rule: rule.changed(characters=60)))
GOPHER = tuple(f"filter.filters.2.{name}" for name in flatten(identity_value(lab.GopherQuality())))

# Code: syntax counts, and only that of what the job reaches ----------------------------------------------------------

CODE = (
    Row("a comment", edit(FILTER, ("    rules = make_rules(", "    # The order counts.\n    rules = make_rules("))),
    Row("a docstring", edit(NORMAL_FORM, ('"""Normal form of a text, and', '"""The form of a text, and'))),
    Row("another layout of every file", reformat),
    Row("a new function in a file of the job", append(FILTER, "\n\ndef unused() -> int:\n    return 1\n")),
    Row("a function of the job's files that it doesn't reach", edit(SHARD, ("def read_rejected(", "def read_all_rejected("))),
    Row("another job's module", append("marin_jobs/train.py", "\n\nEXTRA = 1\n")),
    Row("the runtime of all jobs", append("marin_jobs/runtime.py", "\n\nEXTRA = 1\n")),
    Row("the store's code", edit("marin_core/artifact/store.py", ('META = ".artifact"', 'META = ".about"'))),
    # The fields of a configuration's classes are compared by their values; as code they would count twice, or against their meaning.
    Row(
        "a new optional field in a configuration's source",
        edit(CONFIG, ("    words: Literal", "    urls: bool = False\n    words: Literal")),
    ),
    Row("another default of an operational field", edit(ENCODING_CONFIG, ("default=4 * MIB, ge=KIB", "default=8 * MIB, ge=KIB"))),
    Row(
        "a renamed local variable",
        edit(FILTER, ("rules = make_rules(", "decisions = make_rules("), ("state.take(record, rules)", "state.take(record, decisions)")),
        "code",
        filters(f"{FILTER}:filter_shard"),
    ),
    Row(
        "a helper three imports away",
        edit(NORMAL_FORM, ('sub("\\ufffd", text)', 'sub("?", text)')),
        "code",
        filters(f"{NORMAL_FORM}:_REPAIRS"),
    ),
    Row(
        "a constant",
        edit(ACCOUNTS, ("MAX_ERROR_SHARE = 0.01", "MAX_ERROR_SHARE = 0.02")),
        "code",
        filters(f"{ACCOUNTS}:MAX_ERROR_SHARE"),
    ),
    Row(
        "another library under the same name",
        edit(WORDS, ("import re\n", "import regex as re\n")),
        "code",
        filters(f"{WORDS}:_SENTENCE", f"{WORDS}:_WORD"),
    ),
    Row(
        "a renamed helper",
        rename_helper,
        "code",
        filters(f"{ASSIGNMENT}:shard_units", f"{UNITS}:shard_index", f"{UNITS}:shard_number"),
    ),
    Row(
        "a function that several jobs share",
        edit(TOKENIZER, ("start == 3 for _, (start, _)", "start > 2 for _, (start, _)")),
        "code",
        # Rules may count tokens, so whoever applies rules reaches it too.
        dict.fromkeys(("tokenizer", "train", "whole", "filtered", "dev_filtered"), (f"{TOKENIZER}:_splittable",)),
    ),
    Row(
        "a validator of a configuration",
        edit(CONFIG, ("each rule may stand once", "each rule may stand only once")),
        "code",
        filters(f"{CONFIG}:FilterConfig"),
    ),
    # `PartInfo` is a `Config` too, but what is written to disk, and in no job's configuration.
    Row(
        "a default in a file's schema",
        edit(PART, ('special_text: Literal["plain"] = "plain"', 'special_text: Literal["plain"] = "escaped"')),
        "code",
        dict.fromkeys(("train", "whole", "mixture"), (f"{PART}:PartInfo (fields)",)),
    ),
    Row("code whose table is lost", without_code_table, "code", {"tokenizer": ("source",)}),
)

# Configuration: what is said, not how or from where ------------------------------------------------------------------

DECLARATION = (
    Row("another literal", declared(characters=60), "config", filters(*CHARACTERS)),
    Row("another weight", declared(weight=2.0), "config", {"mixture": ("mixture.weights.train",)}),
    Row("a mapping in another order", declared(backwards=True)),
    Row(
        "a list in another order",
        declared(metrics=("vocab_size", "documents")),
        "config",
        {"summary": ("metrics.0", "metrics.1")},
    ),
    Row("an integer for an equal float", declared(weight=3)),
    Row(
        "one more rule, at its defaults throughout",
        configured("filtered", within("filter", lambda found: found.changed(filters=(*found.filters, lab.GopherQuality())))),
        "config",
        {"filtered": GOPHER},
    ),
    Row(
        "fewer bytes a batch, which is operational", configured("train", within("tokenize", lambda found: found.changed(batch_bytes=2**12)))
    ),
    Row("more processors", remade("filtered", resources=Resources(cpus=64, pool="filters"))),
    Row("another policy", remade("filtered", on_drift="fail")),
    Row("a pin", remade("filtered", pin="gs://other-lab/filtered/words/v1")),
    Row("a time to keep it", remade("filtered", keep_days=3)),
    Row("another description, owner and label", remade("filtered", description="Words.", owner="team:words", kinds=("arrow",))),
    Row("another check", remade("filtered", checks=(CheckDeclaration("new", "It is there."),))),
    Row("a handle made in another file", remade("filtered", declared_at="/elsewhere/experiment.py:7")),
    Row("an experiment of another name", lambda world: setattr(world, "experiment", "renamed")),
    Row("a store that was moved", move_store),
    Row("a store in a bucket of another region", move_to_bucket),
    Row("source documents that were moved", move_documents(rebuild=False)),
    Row("source documents that were moved, and read anew", move_documents(rebuild=True)),
    Row(
        "other source documents by pattern",
        declared(pattern="**/part-*.jsonl"),
        "config",
        {"raw": ("ingest.source.pattern",), "dev_raw": ("ingest.source.pattern",)},
    ),
    # All members are cut anew, so every one of them says so. Whoever reads all of a family names the member that came.
    Row(
        "a family cut into more shards",
        declared(shards=3),
        "config",
        {
            "filtered": ("filter.shards",),
            "tokenizer": ("deps.filtered/words@v1/00002", "shards.2"),
            "mixture": ("components.train.2", "components.whole.2", "deps.tokenized/train@v1/00002", "deps.tokenized/whole@v1/00002"),
            "folder": ("deps.filtered/words@v1/00002",),
        },
    ),
    # The members that were there are what they were. `folder` names no member in its configuration, but reads all of them.
    Row(
        "a family that grew by a member",
        with_more_members("filtered"),
        "config",
        {
            "tokenizer": ("deps.filtered/words@v1/00002", "shards.2"),
            "mixture": ("components.train.2", "components.whole.2", "deps.tokenized/train@v1/00002", "deps.tokenized/whole@v1/00002"),
            "folder": ("deps.filtered/words@v1/00002",),
        },
    ),
    Row(
        "another input",
        from_another_source("raw/other", "v1"),
        "config",
        {"filtered": ("deps.raw/other@v1", "deps.raw/words@v1", "raw")},
    ),
    Row(
        "another version of an input",
        from_another_source("raw/words", "v2"),
        "config",
        {"filtered": ("deps.raw/words@v1", "deps.raw/words@v2", "raw")},
    ),
)

# Configuration: classes that changed since -------------------------------------------------------------------------

CLASSES = (
    # A new field has to mean "as before" at its default. Whoever changes what is done without it changes code, which is named.
    Row("a new optional field", configured("filtered", within("filter", lambda found: evolved(found, urls=(bool, False))))),
    Row("a new optional model", configured("filtered", within("filter", lambda found: evolved(found, more=(Limits, Limits()))))),
    Row(
        "a new optional field of a model in a list",
        configured("filtered", in_first_rule(lambda rule: evolved(rule, unit=(str, "character")))),
    ),
    Row(
        "a new optional field that is set",
        configured("filtered", within("filter", lambda found: evolved(found, urls=(bool, False)).changed(urls=True))),
        "config",
        {"filtered": ("filter.urls",)},
    ),
    Row(
        "a new required field",
        configured("filtered", within("filter", lambda found: evolved(found, given={"urls": False}, urls=(bool, ...)))),
        "config",
        {"filtered": ("filter.urls",)},
    ),
    Row(
        "another default",
        configured("filtered", within("filter", lambda found: evolved(found, drop=("on_truncated",), on_truncated=(str, "reject")))),
        "config",
        {"filtered": ("filter.on_truncated",)},
    ),
    # It might as well be a field that went and an unrelated one that came: both are shown.
    Row(
        "a renamed field",
        configured("filtered", within("filter", lambda found: evolved(found, drop=("words",), splitter=(str, found.words)))),
        "config",
        {"filtered": ("filter.splitter", "filter.words")},
    ),
    Row(
        "a field that went away",
        configured("filtered", within("filter", lambda found: evolved(found, drop=("words",)))),
        "config",
        {"filtered": ("filter.words",)},
    ),
    Row(
        "a float where an integer was",
        configured("filtered", within("filter", lambda found: evolved(found, drop=("shards",), shards=(float, 2.0)))),
    ),
    Row(
        "a new operational field",
        configured(
            "filtered", within("filter", lambda found: evolved(found, workers=(int, Field(default=4, json_schema_extra=OPERATIONAL))))
        ),
    ),
    Row(
        "a field that became operational",
        configured(
            "filtered",
            within(
                "filter", lambda found: evolved(found, drop=("words",), words=(str, Field(default="any", json_schema_extra=OPERATIONAL)))
            ),
        ),
    ),
    # What it was, nobody wrote down. At its default it is taken to be what it was.
    Row(
        "a field that was operational",
        configured("train", within("tokenize", lambda found: evolved(found, drop=("batch_bytes",), batch_bytes=(int, found.batch_bytes)))),
    ),
    Row("an enum for its value", settings(colour=Colour.RED)),
    Row("a model for a mapping of its fields", settings(rule=lab.MinCharacters(characters=40))),
    Row("a tuple for a list", settings(sizes=(1, 2))),
    Row("a float for an integer in a field of any shape", settings(whole=1.0)),
    Row("an integer for a switch", settings(switch=1), "config", {"toy": ("settings.switch",)}),
    Row("a number for text", settings(text=1), "config", {"toy": ("settings.text",)}),
    Row("zero for nothing", settings(nothing=0), "config", {"toy": ("settings.nothing",)}),
    Row("a key with a dot in it", settings(**{"a.b": 2}), "config", {"toy": ('settings."a.b"',)}),
)

# Data: what was read, and what is there now --------------------------------------------------------------------------

DATA = (
    Row("everything rebuilt", rebuilt("raw", "filtered", "tokenizer", "train", "whole", "mixture", "summary", "folder")),
    Row(
        "a tokenizer that came out otherwise",
        rebuild_tokenizer_otherwise,
        "data",
        dict.fromkeys(("train", "whole", "summary"), ("tokenizer/words@v1",)),
    ),
    # Nobody watches a folder: what was read is what counts, until somebody reads it again.
    Row("another source, not read again", lambda world: write_documents(world.documents, tail="More.")),
    Row("another source, rebuilt", rebuilt("raw", tail="More."), "data", {"filtered": ("raw/words@v1",)}),
    Row(
        "another source, rebuilt with its shards",
        rebuilt("raw", "filtered", tail="More."),
        "data",
        dict.fromkeys(("tokenizer", "train", "whole", "folder"), SHARDS[:1]),
    ),
    Row("another source of a mutable version, rebuilt", rebuilt("dev_raw", tail="More."), "data", {"dev_filtered": ("raw/fresh@dev",)}),
    Row("a source of a mutable version, rebuilt", rebuilt("dev_raw")),
    Row("another literal, rebuilt with equal content", rebuilt("filtered", "dev_filtered", characters=41)),
    Row(
        "another literal, rebuilt with other content",
        rebuilt("filtered", "dev_filtered", characters=192),
        "data",
        dict.fromkeys(("tokenizer", "folder", "train", "whole"), SHARDS),
    ),
    Row("other code, rebuilt with it", with_other_code_rebuilt),
    # Housekeeping may delete what nobody needs any more; what was made from it is no worse for it.
    Row("an input that housekeeping deleted", gone("filtered")),
    Row(
        "an input that housekeeping deleted, declared otherwise",
        gone("filtered", then=other_characters),
        "config",
        {"filtered": CHARACTERS},
    ),
    Row(
        "an input that housekeeping deleted, and other code",
        gone("filtered", then=edit(ACCOUNTS, ("MAX_ERROR_SHARE = 0.01", "MAX_ERROR_SHARE = 0.02"))),
        "code",
        filters(f"{ACCOUNTS}:MAX_ERROR_SHARE"),
    ),
    Row("an input of which no trace is left", gone("filtered", erase=True)),
    # Its record is gone, so the field can't be named; that something differs can, by the fingerprint that was read.
    Row(
        "an input of which no trace is left, declared otherwise",
        gone("filtered", erase=True, then=other_characters),
        "config",
        {"filtered": ("fingerprint",)},
    ),
)

MATRIX = (*CODE, *DECLARATION, *CLASSES, *DATA)


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> World:
    return built_lab(tmp_path_factory.mktemp("lab"))


@pytest.fixture
def world(original: World, tmp_path: Path) -> Iterator[World]:
    world = copied(original, tmp_path)
    yield world
    world.undo()
    fsspec.filesystem("memory").store.clear()


def test_a_lab_in_which_nothing_changed_has_no_drift(world: World) -> None:
    found = world.drift()
    assert len(found) == len(world.artifacts(*world.built)) == 15
    assert not any(found.values())


@pytest.mark.parametrize("row", MATRIX, ids=lambda row: row.name)
def test_drift(world: World, row: Row) -> None:
    row.change(world)
    found = world.drift()
    assert named(world, found) == {name: tuple(sorted(fields)) for name, fields in row.at.items()}
    assert {each.kind for differences in found.values() for each in differences} <= {row.verdict}
    drifted = {short_name(world, artifact) for artifact, differences in found.items() if differences}
    present = {short_name(world, artifact) for artifact in found}
    assert drifted == downstream(world, row.at) & present
    for differences in found.values():
        assert all(each.recorded != each.declared for each in differences)


def named(world: World, found: Mapping[ArtifactId, tuple[Difference, ...]]) -> dict[str, tuple[str, ...]]:
    """Short name of the artifact in which a difference lies → fields, wherever the difference was seen."""
    fields: dict[str, set[str]] = {}
    for each in (each for differences in found.values() for each in differences):
        fields.setdefault(short_name(world, ArtifactId.parse(each.artifact)), set()).add(each.field)
    return {name: tuple(sorted(each)) for name, each in fields.items()}


def short_name(world: World, artifact: ArtifactId) -> str:
    return next(name for name, step in world.built.items() if step.id == artifact.family)


def downstream(world: World, names: Iterable[str]) -> set[str]:
    reached = {world.built[name].id for name in names}
    for step in world.built.values():  # upstream first
        if any(dep.id in reached for dep in step.deps):
            reached.add(step.id)
    return {name for name, step in world.built.items() if step.id in reached}


def test_the_matrix_covers_every_verdict_and_prints_itself() -> None:
    assert len({row.name for row in MATRIX}) == len(MATRIX) >= 30
    assert {row.verdict for row in MATRIX} == {"none", "config", "code", "data"}
    assert all(bool(row.at) == (row.verdict != "none") for row in MATRIX)
    width = max(len(row.name) for row in MATRIX)
    print()
    for row in MATRIX:
        where = "; ".join(f"{name}: {', '.join(fields)}" for name, fields in row.at.items())
        print(f"{row.name:{width}}  {row.verdict:6}  {where if len(where) < 160 else where[:160] + '…'}")


PLAIN = """
from marin_core.config import Config
class Settings(Config):
    size: int = 1
    _hidden: int = 1
    shared: ClassVar[int] = 1
    def double(self):
        return 2 * self.size
"""
DERIVED = """
from marin_core import config
class Base(config.Config):
    size: int = 1
class Settings(Base):
    more: int = 1
"""
OTHERS = """
from pydantic import BaseModel
class Settings(BaseModel):
    size: int = 1
"""


@pytest.mark.parametrize(
    ("before", "old", "new", "entry"),
    [
        (PLAIN, "size: int = 1", "size: int = 2", "Settings (fields)"),
        (PLAIN, "size: int = 1", "size: int = 1\n    more: str = ''", "Settings (fields)"),
        (PLAIN, "_hidden: int = 1", "_hidden: int = 2", "Settings"),
        (PLAIN, "ClassVar[int] = 1", "ClassVar[int] = 2", "Settings"),
        (PLAIN, "2 * self.size", "3 * self.size", "Settings"),
        (DERIVED, "more: int = 1", "more: int = 2", "Settings (fields)"),
        (DERIVED, "size: int = 1", "size: int = 2", "Base (fields)"),
        (OTHERS, "size: int = 1", "size: int = 2", "Settings"),
    ],
)
def test_the_fields_of_a_configuration_have_an_entry_of_their_own(tmp_path: Path, before: str, old: str, new: str, entry: str) -> None:
    """Drift leaves it out for classes that the job's configuration can hold; every other change of a class is code."""
    made = project(tmp_path, "from marin_core.settings import Settings\ndef run():\n    return Settings()\n", settings=before)
    assert made.changes("marin_core/settings.py", before.replace(old, new)) == [("marin_core/settings.py", entry)]


def test_a_moved_source_folder_reaches_the_job(world: World) -> None:
    moved = world.documents.with_name("moved")
    job = declare(moved)["raw"].config("file:///anywhere")
    assert isinstance(job, IngestJob)
    assert isinstance(job.ingest.source, lab.LocalFiles)
    assert job.model_dump(mode="json")["ingest"]["source"]["root"] == job.ingest.source.root == str(moved)


FINGERPRINTS = """
from pathlib import Path
from marin_core.artifact import ArtifactGraph
from marin_core.artifact.code import code_table
from tests.artifact.small_lab import JOBS, declare
graph = ArtifactGraph(declare(Path("/documents")).values())
print({str(step.id): graph.fingerprint(step) for step in graph})
print({job: code_table(f"marin_jobs.{job}").digest for job in JOBS})
"""


def test_fingerprints_do_not_depend_on_the_order_of_sets(world: World) -> None:
    def printed(seed: str) -> str:
        script = f"import sys; sys.path.insert(0, {str(PROJECT)!r}){FINGERPRINTS}"
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        done = subprocess.run([sys.executable, "-c", script], env=environment, cwd=world.source, capture_output=True, text=True, check=True)
        return done.stdout

    assert printed("1") == printed("2")
