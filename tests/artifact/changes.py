"""Changes to a small lab (`small_lab.World`): to what is declared, to the classes of configurations, to source code, store and documents.

Each function here returns a change or is one: something that is called with a world.
"""

import ast
import shutil
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest
from pydantic import BaseModel, create_model

from marin_core.artifact import ArtifactStep, Store
from marin_core.config import Config
from marin_core.data.tokenizer import train_tokenizer
from tests.artifact.small_lab import SETTINGS, World, write_documents

Change = Callable[[World], object]

ACCOUNTS = "marin_core/data/accounts.py"
ASSIGNMENT = "marin_core/data/assignment.py"
CONFIG = "marin_core/data/stages.py"
ENCODING_CONFIG = "marin_core/data/config.py"
FILTER = "marin_core/data/filter.py"
NORMAL_FORM = "marin_core/data/normal_form.py"
PART = "marin_core/data/part.py"
SHARD = "marin_core/data/shard.py"
TOKENIZER = "marin_core/data/tokenizer.py"
UNITS = "marin_core/data/units.py"
WORDS = "marin_core/data/words.py"


def declared(**options: Any) -> Change:
    return lambda world: world.declare(**options)


def remade(name: str, **changes: Any) -> Change:
    """A handle with other attributes."""
    return lambda world: world.declare(remake={name: lambda step: replace(step, **changes)})


def configured(name: str, change: Callable[[Any], Config]) -> Change:
    """A handle whose job has another configuration, or another class for it."""

    def remake(step: ArtifactStep) -> ArtifactStep:
        return replace(step, build_config=lambda ctx: change(step.build_config(ctx)))

    return lambda world: world.declare(remake={name: remake})


def evolved(model: BaseModel, drop: tuple[str, ...] = (), given: Mapping[str, Any] | None = None, **fields: Any) -> Any:
    """The same values in a class some of whose fields went away or came anew, as after an update of the library."""
    kept = {name: (found.annotation, found) for name, found in type(model).model_fields.items() if name not in drop}
    changed: type[Config] = create_model(type(model).__name__, __base__=Config, **kept, **fields)  # type: ignore[call-overload]
    return changed(**{name: getattr(model, name) for name in kept}, **(given or {}))


def within(name: str, change: Callable[[Any], Any]) -> Callable[[Any], Config]:
    """Change the model in a field of a configuration."""

    def changed(model: BaseModel) -> Config:
        fields: dict[str, Any] = {name: (Any, change(getattr(model, name)))}
        made: Config = evolved(model, drop=(name,), **fields)
        return made

    return changed


def in_first_rule(change: Callable[[Any], Any]) -> Callable[[Any], Config]:
    return within("filter", within("filters", lambda rules: (change(rules[0]), *rules[1:])))


def settings(**changes: Any) -> Change:
    return declared(settings={**SETTINGS, **changes})


# Changes of several steps --------------------------------------------------------------------------------------------


def edit(file: str, *changes: tuple[str, str]) -> Change:
    def change(world: World) -> None:
        for old, new in changes:
            world.edit(file, old, new)

    return change


def append(file: str, text: str) -> Change:
    return lambda world: world.append(file, text)


def reformat(world: World) -> None:
    """Everything of the data path as a printer of syntax trees would write it: no comments, other quotes and line breaks."""
    for path in sorted((world.source / "marin_core" / "data").glob("*.py")):
        world.rewrite(path.relative_to(world.source).as_posix(), ast.unparse(ast.parse(path.read_text())))


def rename_helper(world: World) -> None:
    for file in (UNITS, ASSIGNMENT):
        world.rewrite(file, (world.source / file).read_text().replace("shard_index", "shard_number"))


def from_another_source(name: str, version: str) -> Change:
    return lambda world: world.declare(remake={"raw": lambda step: replace(step, name=name, version=version)})


def with_more_members(name: str) -> Change:
    """A family gets one more member, and nothing else is said about it."""
    return lambda world: world.declare(remake={name: lambda step: replace(step, partitions=(*step.partitions, "00002"))})


def move_store(world: World) -> None:
    target = world.folder.with_name("moved")
    shutil.move(world.folder, target)
    world.store = Store(f"file://{target}")


def move_to_bucket(world: World) -> None:
    """Another region is another prefix; here, one of another backend."""
    bucket = Store("memory://europe/lab")
    for path in world.folder.rglob("*"):
        if path.is_file():
            bucket.objects.upload(path, path.relative_to(world.folder).as_posix())
    world.store = bucket


def move_documents(*, rebuild: bool) -> Change:
    def change(world: World) -> None:
        target = world.documents.with_name("moved")
        shutil.move(world.documents, target)
        world.documents = target
        world.declare()
        if rebuild:
            world.rebuild("raw")

    return change


def rebuilt(*names: str, tail: str = "", **options: Any) -> Change:
    """Artifacts are declared otherwise, or the source documents end otherwise, and they are built anew."""

    def change(world: World) -> None:
        write_documents(world.documents, tail=tail)
        world.declare(**options)
        world.rebuild(*names)

    return change


def rebuild_tokenizer_otherwise(world: World) -> None:
    """A library that learns something else from the same text: here, from all shards but the last."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("marin_jobs.tokenizer.train_tokenizer", lambda config, shards, *rest: train_tokenizer(config, shards[:-1], *rest))
        world.rebuild("tokenizer")


def gone(*names: str, erase: bool = False, then: Change = lambda world: None) -> Change:
    """Artifacts are deleted, by housekeeping or with all that is known about them; then something else happens."""

    def change(world: World) -> None:
        (world.erase if erase else world.forget)(*names)
        then(world)

    return change


def with_other_code_rebuilt(world: World) -> None:
    world.edit(ACCOUNTS, "MAX_ERROR_SHARE = 0.01", "MAX_ERROR_SHARE = 0.02")
    world.rebuild("filtered", "dev_filtered")


def without_code_table(world: World) -> None:
    for path in world.folder.glob("tokenizer/**/code.json"):
        path.unlink()
    world.edit(TOKENIZER, "[:20]", "[:30]")
