"""A small lab for tests of drift: every stage up to a mixture, built by the real jobs in this process, and copies of it to change.

What changes in a `World` is a copy: the store, the source documents, and the project's own source code.
"""

import json
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest

from marin_assets.builder import Builder, QuietEvents
from marin_assets.launch import InlineLauncher
from marin_core import experiment as lab
from marin_core.artifact import ArtifactGraph, ArtifactId, ArtifactStep, Resources, Store
from marin_core.artifact.code import CodeTable, code_table
from marin_core.artifact.drift import Difference, DriftFinder
from marin_core.config import Config
from marin_core.experiment.jobs import SummaryJob
from marin_jobs import runtime
from tests.artifact.test_store import commit, record

PROJECT = Path(__file__).resolve().parents[2]
PACKAGES = ("marin_core", "marin_jobs")
JOBS = ("ingest", "filter", "tokenizer", "tokenize", "mixture", "summary")

Handles = dict[str, ArtifactStep]
Remake = Mapping[str, Callable[[ArtifactStep], ArtifactStep]]


class Free(Config):
    """A configuration with a field of any shape, as a job of the future may have."""

    settings: dict[str, Any]


SETTINGS: dict[str, Any] = {
    "whole": 1,
    "switch": True,
    "nothing": None,
    "text": "1",
    "colour": "red",
    "rule": {"name": "min_characters", "characters": 40},
    "sizes": [1, 2],
    "a.b": 1,
}


def write_documents(folder: Path, files: int = 4, tail: str = "") -> None:
    """Small JSONL files of distinct documents; `tail` ends the last document of the first one."""
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(files):
        texts = [f"Shard {number} says in sentence {line} that {line} times {number} is {line * number}. " * 4 for line in range(12)]
        if number == 0:
            texts[-1] += tail
        lines = [json.dumps({"id": f"{number}-{line}", "text": text}) + "\n" for line, text in enumerate(texts)]
        (folder / f"part-{number}.jsonl").write_text("".join(lines))


def declare(
    documents: Path,
    *,
    remake: Remake | None = None,
    pattern: str = "**/*.jsonl",
    characters: int = 40,
    shards: int = 2,
    vocab_size: int = 300,
    weight: float = 3.0,
    backwards: bool = False,
    metrics: tuple[str, ...] = ("documents", "vocab_size"),
    settings: dict[str, Any] = SETTINGS,
) -> Handles:
    """The lab's handles by short name, upstream first.

    Args:
        remake: what to make of a handle before others depend on it, by short name.
        backwards: whether mappings that mean the same either way are given in the other order.
    """
    handles: Handles = {}
    changes = remake or {}

    def keep(name: str, step: ArtifactStep) -> ArtifactStep:
        handles[name] = step if name not in changes else changes[name](step)
        return handles[name]

    source = lab.LocalFiles(root=str(documents), pattern=pattern)
    raw = keep("raw", lab.raw_source("raw/words", "v1", source, license="CC0-1.0"))
    rules = (lab.MinCharacters(characters=characters), lab.CodeQuality(max_line_characters=9_999, max_mean_line_characters=9_999))
    filtered = keep("filtered", lab.filtered("filtered/words", "v1", raw, shards=shards, filters=rules))
    bpe = keep("tokenizer", lab.tokenizer("tokenizer/words", "v1", [filtered], vocab_size=vocab_size))
    train = keep("train", lab.tokenized("tokenized/train", "v1", filtered, bpe))
    whole = keep("whole", lab.tokenized("tokenized/whole", "v1", filtered, bpe, split="all"))
    weights = {train: weight, whole: 1.0}
    weights = dict(reversed(weights.items())) if backwards else weights
    mixture = keep("mixture", lab.mixture("mixtures/words", "v1", weights, sequence_length=16))
    keep("summary", lab.summary("summaries/words", "v1", [bpe, mixture], metrics=metrics))
    keep(
        "folder",
        ArtifactStep(
            "summaries/folder",
            "v1",
            job="summary",
            build_config=lambda ctx: SummaryJob(of=(ctx.address(filtered),), metrics=("documents_kept",)),
            deps=(filtered,),
            resources=Resources(inline=True),
        ),
    )
    fresh = keep("dev_raw", lab.raw_source("raw/fresh", "dev", source, license="CC0-1.0"))
    keep("dev_filtered", lab.filtered("filtered/fresh", "dev", fresh, shards=2, filters=rules))
    given = dict(reversed(settings.items())) if backwards else dict(settings)
    keep("toy", ArtifactStep("toys/free", "v1", job="toy", build_config=lambda ctx: Free(settings=given)))
    return handles


@dataclass
class World:
    """A lab whose parts a test may change.

    Attributes:
        source: folder with a copy of the project's packages; its code is what a job runs today.
        handles: what is declared today.
        built: what was declared when the store was filled.
    """

    store: Store
    documents: Path
    source: Path
    handles: Handles
    built: Handles
    experiment: str = "small"
    edited: dict[Path, str] = field(default_factory=dict)

    @property
    def folder(self) -> Path:
        return Path(self.store.prefix.removeprefix("file://"))

    def declare(self, **options: Any) -> None:
        self.handles = declare(options.pop("documents", self.documents), **options)

    def edit(self, file: str, old: str, new: str) -> None:
        """Replace text in a file of the project's copy."""
        text = (self.source / file).read_text()
        assert text.count(old) == 1, f"{file} has {text.count(old)} times {old!r}"
        self.rewrite(file, text.replace(old, new))

    def append(self, file: str, text: str) -> None:
        self.rewrite(file, (self.source / file).read_text() + text)

    def rewrite(self, file: str, text: str) -> None:
        path = self.source / file
        self.edited.setdefault(path, path.read_text())
        path.write_text(text)

    def undo(self) -> None:
        for path, text in self.edited.items():
            path.write_text(text)

    def forget(self, *names: str) -> None:
        """Delete artifacts as housekeeping does: the attempts stay, with what was committed."""
        for artifact in self.artifacts(*names):
            self.store.forget(artifact)

    def erase(self, *names: str) -> None:
        """Delete artifacts with everything that is known about them."""
        for artifact in self.artifacts(*names):
            shutil.rmtree(self.folder / artifact.path)

    def rebuild(self, *names: str) -> None:
        """Build artifacts anew, as they are declared today."""
        for name in names:
            self.forget(name)
            build(self.store, self.handles, [name], self.source)

    def artifacts(self, *names: str) -> list[ArtifactId]:
        return [artifact for name in names for artifact in self.built[name].ids()]

    def drift(self) -> dict[ArtifactId, tuple[Difference, ...]]:
        """Differences of everything that was built, is committed and is still declared."""
        declared = lab.experiment(self.experiment, *self.handles.values(), question="Does it drift?", hypothesis="Only if it must.")
        graph = ArtifactGraph(declared.targets)
        finder = DriftFinder(graph, self.store, code=self._code if self.edited else code_of(self.source))
        known = (artifact for artifact in self.artifacts(*self.built) if artifact in graph and finder.record(artifact) is not None)
        return {artifact: finder.of(artifact) for artifact in known}

    def _code(self, job: str) -> CodeTable:
        return code_of_job(job, self.source)


def code_of_job(job: str, source: Path) -> CodeTable:
    return code_table(f"marin_jobs.{job}", root=source) if job in JOBS else CodeTable(files={})


@cache
def code_of(source: Path) -> Callable[[str], CodeTable]:
    """Tables of a copy that nobody has edited, made once."""
    return cache(partial(code_of_job, source=source))


@contextmanager
def jobs_run(source: Path) -> Iterator[None]:
    """Jobs of this process say that they run the code of a copy, so that nobody who edits the project meanwhile is in the way."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runtime, "code_table", partial(code_table, root=source))
        yield


def build(store: Store, handles: Handles, names: list[str], source: Path) -> None:
    """Build artifacts in this process, by their real jobs; the toy has none and gets its record from here."""
    graph = ArtifactGraph(handles.values())
    launcher = InlineLauncher(Path(store.prefix.removeprefix("file://")) / ".jobs")
    builder = Builder(graph=graph, store=store, target=store, launcher=launcher, events=QuietEvents())
    with jobs_run(source):
        for name in names:
            step = handles[name]
            if step.job not in JOBS:
                commit(store, record(step.id, fingerprint=graph.fingerprint(step), identity=graph.identity(step)))
                continue
            for artifact in step.ids():
                builder.build(step, artifact)


def copy_of_the_project(folder: Path) -> Path:
    for package in PACKAGES:
        shutil.copytree(PROJECT / package, folder / package, ignore=shutil.ignore_patterns("__pycache__"))
    return folder


def built_lab(folder: Path, **options: Any) -> World:
    """A lab in which everything is built as declared."""
    write_documents(folder / "documents")
    handles = declare(folder / "documents", **options)
    store = Store(f"file://{folder / 'store'}")
    world = World(store, folder / "documents", copy_of_the_project(folder / "project"), handles, handles)
    build(store, handles, list(handles), world.source)
    return world


def copied(world: World, folder: Path) -> World:
    """The same lab with a store and documents of its own; the copy of the source code is shared, so `undo` what was edited."""
    shutil.copytree(world.folder, folder / "store")
    shutil.copytree(world.documents, folder / "documents")
    return World(Store(f"file://{folder / 'store'}"), folder / "documents", world.source, world.handles, world.built)
