"""Stores outlive the code that wrote them: what the previous release left is served, judged and counted, and so is what the next one adds.

`fixtures/store_628d822` was written by commit 628d822: payloads lie at the address itself, attempts are files `attempts/NNNNN.json`, and
records know neither payload folders, nor stamps, nor the digest of a code table. It holds two fixed artifacts and a mutable one with a
lost first attempt, and one that was never finished: a failed attempt, one under way, and half a file.
"""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from marin_assets.builder import Builder, QuietEvents
from marin_assets.launch import Handle, InlineLauncher, Launcher
from marin_assets.launch.contract import NOTHING_SPECIAL
from marin_core import experiment as lab
from marin_core.artifact import ArtifactGraph, ArtifactId, Record, Store
from marin_core.artifact.drift import Difference, DriftFinder
from marin_core.artifact.job import JobSpec
from marin_core.artifact.step import Resources
from marin_core.artifact.store import committed_at
from marin_core.errors import DataError
from tests.artifact.small_lab import write_documents

FIXTURE = Path(__file__).parent / "fixtures" / "store_628d822"

RAW = ArtifactId("raw/words", "v1")
SHARD = ArtifactId("filtered/words", "v1", "00000")
DEV = ArtifactId("raw/fresh", "dev")
UNFINISHED = ArtifactId("raw/interrupted", "v1")


@pytest.fixture
def store(tmp_path: Path) -> Store:
    shutil.copytree(FIXTURE, tmp_path / "store")
    write_documents(tmp_path / "documents")
    return Store(f"file://{tmp_path / 'store'}")


def declared(folder: Path, characters: int = 40) -> ArtifactGraph:
    """What the experiment of that time declared, in the words of today."""
    source = lab.LocalFiles(root=str(folder / "documents"))
    raw = lab.raw_source(RAW.name, RAW.version, source, license="CC0-1.0")
    return ArtifactGraph(
        [
            lab.filtered(SHARD.name, SHARD.version, raw, shards=1, filters=(lab.MinCharacters(characters=characters),)),
            lab.raw_source(DEV.name, DEV.version, source, license="CC0-1.0"),
            lab.raw_source(UNFINISHED.name, UNFINISHED.version, source, license="CC0-1.0"),
        ]
    )


class RefusingLauncher(InlineLauncher):
    """Fails the test if anything is started."""

    def submit(self, name: str, spec: JobSpec, environment: Mapping[str, str], resources: Resources = NOTHING_SPECIAL) -> Handle:
        raise AssertionError(f"{spec.id} was built")


def build(store: Store, tmp_path: Path, artifact: ArtifactId, launcher: Launcher | None = None) -> tuple[Record, bool]:
    graph = declared(tmp_path)
    launcher = launcher or InlineLauncher(tmp_path / "jobs")
    builder = Builder(graph=graph, store=store, target=store, launcher=launcher, events=QuietEvents())
    return builder.build(graph[artifact], artifact)


@pytest.mark.parametrize("artifact", [RAW, SHARD, DEV], ids=str)
def test_an_old_artifact_is_served_and_nothing_is_claimed_over_it(store: Store, tmp_path: Path, artifact: ArtifactId) -> None:
    attempts = store.attempts(artifact)
    record, reused = build(store, tmp_path, artifact, RefusingLauncher(tmp_path / "jobs"))
    assert (record.id, reused) == (artifact, True)
    assert store.payload_path(record) == tmp_path / "store" / artifact.path
    store.require_intact(record, every_byte=True)
    assert store.attempts(artifact) == attempts
    assert store.settle(artifact) == record
    assert store.code_table(record) is None


def test_the_payload_of_an_old_artifact_is_read_and_checked_where_it_lies(store: Store, tmp_path: Path) -> None:
    record = store.record(RAW)
    assert record is not None
    assert json.loads(store.read_payload(record, "units.json"))
    store.download(record, tmp_path / "copy")
    assert {path.relative_to(tmp_path / "copy").as_posix() for path in (tmp_path / "copy").rglob("*") if path.is_file()} == {
        "units.json",
        "units/documents/part-0.jsonl",
        "units/documents/part-1.jsonl",
    }
    pinned, code = committed_at(store.address(RAW))
    assert (pinned.payload, code) == (store.address(RAW), None)
    path = tmp_path / "store" / RAW.path / "units" / "documents" / "part-0.jsonl"
    path.write_bytes(path.read_bytes().replace(b"Sentence", b"Sentinel"))
    with pytest.raises(DataError, match=r"corrupt: units/documents/part-0\.jsonl has another content"):
        store.require_intact(record)


def test_old_attempts_are_counted_and_none_is_under_way(store: Store) -> None:
    def seen(artifact: ArtifactId) -> list[tuple[int, str, str | None]]:
        return [(each.number, each.state, each.error) for each in store.attempts(artifact)]

    assert seen(RAW) == [(1, "succeeded", None)]
    assert seen(DEV) == [(1, "lost", "the job's process was killed by SIGKILL"), (2, "succeeded", None)]
    assert seen(UNFINISHED) == [
        (1, "failed", "ValueError: a bug of the time"),
        (2, "lost", "it was under way when attempts were kept in another form"),
    ]
    assert [each.end.failure for each in store.attempts(UNFINISHED) if each.end] == ["bug", "infrastructure"]


@pytest.mark.parametrize(("artifact", "number"), [(DEV, 3), (RAW, 2), (UNFINISHED, 3)], ids=str)
def test_what_is_built_anew_takes_the_next_number_and_a_folder_of_its_own(
    store: Store, tmp_path: Path, artifact: ArtifactId, number: int
) -> None:
    store.forget(artifact)
    record, reused = build(store, tmp_path, artifact)
    assert (reused, record.attempt, record.payload) == (False, number, f"attempt-{number}")
    assert [(each.number, each.state) for each in store.attempts(artifact)][-1] == (number, "succeeded")
    assert store.record(artifact) == record
    store.require_intact(record, every_byte=True)
    assert not [file.path for file in record.files if "half" in file.path]


def drift(store: Store, tmp_path: Path, artifact: ArtifactId, **options: Any) -> tuple[Difference, ...]:
    return DriftFinder(declared(tmp_path, **options), store).of(artifact)


@pytest.mark.parametrize("artifact", [RAW, SHARD, DEV], ids=str)
def test_an_old_artifact_has_no_drift_from_fields_and_code_that_came_later(store: Store, tmp_path: Path, artifact: ArtifactId) -> None:
    """Its fingerprint differs from today's, which covers other fields, and there is no code table to compare."""
    graph = declared(tmp_path)
    record = store.record(artifact)
    assert record is not None
    assert record.fingerprint != graph.fingerprint(graph[artifact])
    assert drift(store, tmp_path, artifact) == ()


def test_the_drift_of_an_old_artifact_is_named(store: Store, tmp_path: Path) -> None:
    expected = (Difference("config", "filtered/words@v1", "filter.filters.0.characters", "40", "60"),)
    assert drift(store, tmp_path, SHARD, characters=60) == expected
    store.forget(RAW)  # of which nothing is left then: old attempts hold no records, and old fingerprints covered other fields
    assert drift(store, tmp_path, SHARD, characters=60) == expected
    raw, _ = build(store, tmp_path, RAW)  # from other documents
    assert [(each.kind, each.field, each.declared) for each in drift(store, tmp_path, SHARD)] == [("data", str(RAW), raw.content_digest)]


# The next release ----------------------------------------------------------------------------------------------------


def from_the_future(document: Any) -> Any:
    """A document with fields that nobody knows today, at every level where fields have fixed names."""
    if not isinstance(document, dict):
        return document
    inner = {
        name: from_the_future(value) for name, value in document.items() if name in ("code", "environment", "usage", "record", "claim")
    }
    lists = {name: [from_the_future(each) for each in document[name]] for name in ("files", "inputs", "checks") if name in document}
    return {**document, **inner, **lists, "from_the_future": {"x": [1, None]}}


def rewrite(path: Path, **changes: Any) -> None:
    path.write_text(json.dumps(from_the_future(json.loads(path.read_text())) | changes))


def test_a_store_with_fields_of_the_next_release_is_served_and_judged(store: Store, tmp_path: Path) -> None:
    store.forget(RAW)
    built, _ = build(store, tmp_path, RAW)
    meta = tmp_path / "store" / RAW.path / ".artifact"
    for path in (meta / "record.json", *meta.glob("attempts/*/*.json")):
        rewrite(path)
    (meta / "attempts" / "00002" / "progress.json").write_text("{}")
    (meta / "attempts" / "00003").mkdir()  # of a release that begins attempts in another way
    assert store.record(RAW) == built
    assert build(store, tmp_path, RAW, RefusingLauncher(tmp_path / "jobs")) == (built, True)
    assert [each.state for each in store.attempts(RAW)] == ["succeeded", "succeeded"]
    assert drift(store, tmp_path, RAW) == ()


def test_a_record_of_another_schema_is_an_error_and_never_guessed(store: Store, tmp_path: Path) -> None:
    rewrite(tmp_path / "store" / RAW.path / ".artifact" / "record.json", schema_version=2)
    with pytest.raises(DataError, match="schema_version"):
        store.record(RAW)
    with pytest.raises(DataError, match="schema_version"):
        build(store, tmp_path, RAW, RefusingLauncher(tmp_path / "jobs"))
