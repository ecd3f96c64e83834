"""The store: commits are create-only and whole, on local files and on another fsspec backend."""

import threading
from collections.abc import Iterator
from pathlib import Path

import fsspec
import pytest

from marin_core.artifact import ArtifactId, Attempt, Record, Store
from marin_core.artifact.record import Code, Environment, File, Usage, manifest_digest
from marin_core.errors import ConfigError, DataError


def record(artifact: ArtifactId, content: str = "c" * 64, attempt: int = 1, **changes: object) -> Record:
    files = (File(path="data", size=4, sha256=content),)
    values: dict[str, object] = {
        "name": artifact.name,
        "version": artifact.version,
        "partition": artifact.partition,
        "fingerprint": "f" * 16,
        "identity": {"job": "toy", "config": {}, "deps": {}},
        "files": files,
        "manifest_digest": manifest_digest(files),
        "content_digest": content,
        "attempt": attempt,
        "code": Code(),
        "environment": Environment(python="3", platform="any", cpus=1),
        "started_at": "2026-11-29T00:00:00+00:00",
        "ended_at": "2026-11-29T00:00:01+00:00",
        "usage": Usage(wall_seconds=1, cpu_seconds=1, peak_memory_bytes=1),
    }
    return Record.model_validate(values | changes)


@pytest.fixture(params=["file", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    if request.param == "file":
        yield Store(f"file://{tmp_path}/lab")
        return
    yield Store("memory://lab")
    fsspec.filesystem("memory").store.clear()


A = ArtifactId("a/b", "v1", "00003")


def test_a_committed_record_reads_back_and_the_first_commit_stays(store: Store) -> None:
    assert store.record(A) is None
    assert store.commit(record(A, attempt=1))
    assert not store.commit(record(A, attempt=2))
    found = store.record(A)
    assert found is not None
    assert found.attempt == 1


def test_of_many_writers_at_once_exactly_one_commits(tmp_path: Path) -> None:
    store = Store(str(tmp_path))
    barrier = threading.Barrier(16)
    won: list[int] = []

    def write(number: int) -> None:
        barrier.wait()
        if store.commit(record(A, attempt=number)):
            won.append(number)

    threads = [threading.Thread(target=write, args=(number,)) for number in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = store.record(A)
    assert found is not None
    assert won == [found.attempt]
    assert [path.name for path in (tmp_path / A.path / ".artifact").iterdir()] == ["record.json"]


def test_attempts_are_claimed_once_and_kept_in_order(store: Store) -> None:
    def attempt(number: int) -> Attempt:
        return Attempt(number=number, state="submitted", job=f"m-{number}", fingerprint="f", submitted_at="now")

    assert store.attempts(A) == []
    assert store.begin_attempt(A, attempt(1))
    assert not store.begin_attempt(A, attempt(1))
    assert store.begin_attempt(A, attempt(2))
    store.end_attempt(A, attempt(1).model_copy(update={"state": "failed", "error": "full disk"}))
    assert [(each.number, each.state) for each in store.attempts(A)] == [(1, "failed"), (2, "submitted")]


@pytest.mark.parametrize("damage", ["", "{", '{"name": 1}', "\x00\x01"])
def test_a_damaged_record_is_an_error_and_never_guessed(tmp_path: Path, damage: str) -> None:
    store = Store(str(tmp_path))
    store.commit(record(A))
    (tmp_path / A.path / ".artifact" / "record.json").write_text(damage)
    with pytest.raises(DataError, match="damaged"):
        store.record(A)


def test_a_record_with_fields_of_a_newer_writer_still_loads(tmp_path: Path) -> None:
    store = Store(str(tmp_path))
    store.commit(record(A))
    path = tmp_path / A.path / ".artifact" / "record.json"
    path.write_text(path.read_text().replace('"attempt":1', '"attempt":1,"from_the_future":{"x":1}'))
    assert store.record(A) is not None


def test_a_payload_travels_to_a_remote_store_and_back(tmp_path: Path) -> None:
    store = Store("memory://lab")
    (tmp_path / "out" / "deep").mkdir(parents=True)
    (tmp_path / "out" / "deep" / "data").write_bytes(b"payload")
    store.upload(tmp_path / "out", A)
    assert store.read_payload(A, "deep/data") == b"payload"
    store.download(A.path, tmp_path / "in")
    assert (tmp_path / "in" / "deep" / "data").read_bytes() == b"payload"
    with pytest.raises(DataError, match="lost its file gone"):
        store.read_payload(A, "gone")
    fsspec.filesystem("memory").store.clear()


def test_a_fixed_version_is_never_withdrawn(store: Store) -> None:
    store.commit(record(A))
    with pytest.raises(ConfigError, match="never rebuilt"):
        store.withdraw(A)
    dev = ArtifactId("a/b", "dev")
    store.commit(record(dev))
    store.withdraw(dev)
    assert store.record(dev) is None


def test_a_prefix_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(ConfigError, match=r"can't be written"):
        Store(str(tmp_path / "file" / "lab")).ensure_writable()
    with pytest.raises(ConfigError, match="can't be opened"):
        Store("nonsense://x")
