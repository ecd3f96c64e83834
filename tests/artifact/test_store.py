"""The store: attempts are claimed, closed and committed once, on local files and on another fsspec backend."""

import threading
from collections.abc import Iterator
from pathlib import Path

import fsspec
import pytest

from marin_core.artifact import ArtifactId, Claim, End, Record, Store
from marin_core.artifact.lease import Heartbeat, LeaseWatch
from marin_core.artifact.objects import local_state
from marin_core.artifact.record import Code, Environment, File, Usage, file_sha256, manifest_digest
from marin_core.errors import ConfigError, DataError, SupersededError
from tests.storage.gcs import FakeGcs


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


def claim(number: int) -> Claim:
    return Claim(number=number, job=f"m-{number}", fingerprint="f" * 16, submitted_at="now", host="here")


def success(record: Record) -> End:
    return End(state="succeeded", ended_at="now", exit_code=0, record=record)


def lost(reason: str = "no sign of life") -> End:
    return End(state="lost", ended_at="now", failure="infrastructure", error=reason)


def commit(store: Store, record: Record) -> Record:
    """Claim, close and publish, as one builder that nobody disturbs."""
    number = len(store.attempts(record.id)) + 1
    record = record.model_copy(update={"attempt": number})
    assert store.claim(record.id, claim(number))
    return store.commit(record.id, success(record))


@pytest.fixture(scope="module")
def gcs() -> Iterator[FakeGcs]:
    with FakeGcs() as server:
        yield server


@pytest.fixture(params=["file", "memory", "gcs"])
def store(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    if request.param == "file":
        yield Store(f"file://{tmp_path}/lab")
        return
    if request.param == "gcs":
        server: FakeGcs = request.getfixturevalue("gcs")
        for name, value in server.environment().items():
            monkeypatch.setenv(name, value)
        yield Store(server.prefix(f"lab/{tmp_path.name}"))
        return
    yield Store("memory://lab")
    fsspec.filesystem("memory").store.clear()


A = ArtifactId("a/b", "v1", "00003")
DEV = ArtifactId("a/b", "dev")


def test_a_committed_record_reads_back_and_is_never_replaced(store: Store) -> None:
    assert store.record(A) is None
    assert store.settle(A) is None
    built = commit(store, record(A))
    assert store.record(A) == built
    assert store.records([A, DEV]) == {A: built, DEV: None}


def test_of_many_claims_at_once_one_wins(tmp_path: Path) -> None:
    store = Store(str(tmp_path))
    barrier = threading.Barrier(16)
    won: list[int] = []

    def write(number: int) -> None:
        barrier.wait()
        if store.claim(A, claim(1)):
            won.append(number)

    threads = [threading.Thread(target=write, args=(number,)) for number in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(won) == 1
    assert [path.name for path in (tmp_path / A.path / ".artifact" / "attempts" / "00001").iterdir()] == ["claim.json"]


def test_attempts_are_claimed_once_closed_once_and_kept_in_order(store: Store) -> None:
    assert store.attempts(A) == []
    assert store.claim(A, claim(1))
    assert not store.claim(A, claim(1))
    assert store.attempts(A)[0].state == "open"
    first = lost("full disk")
    assert store.close(A, 1, first) == first
    assert store.close(A, 1, lost("another view")) == first
    assert store.claim(A, claim(2))
    assert [(each.number, each.state, each.error) for each in store.attempts(A)] == [(1, "lost", "full disk"), (2, "open", None)]


def test_a_builder_that_was_given_up_cannot_commit(store: Store) -> None:
    store.claim(A, claim(1))
    store.close(A, 1, lost())
    store.claim(A, claim(2))
    with pytest.raises(SupersededError, match="lost its lease"):
        store.commit(A, success(record(A, attempt=1)))
    assert store.record(A) is None
    winner = store.commit(A, success(record(A, content="d" * 64, attempt=2)))
    with pytest.raises(SupersededError):
        store.commit(A, success(record(A, attempt=1)))
    assert store.record(A) == winner


def test_a_success_that_its_builder_could_not_publish_is_published_by_the_next(store: Store) -> None:
    store.claim(A, claim(1))
    built = record(A)
    assert store.close(A, 1, success(built)).record == built
    assert store.record(A) is None
    assert store.close(A, 1, lost()).record == built
    assert store.settle(A) == built
    assert store.record(A) == built


def test_a_withdrawn_dev_artifact_does_not_come_back_by_a_late_builder(store: Store) -> None:
    old = commit(store, record(DEV))
    store.withdraw(DEV)
    assert store.record(DEV) is None
    assert store.settle(DEV) is None
    store.objects.create(f"{DEV.path}/.artifact/record.json", old.model_dump_json().encode())  # as a builder that was stopped would
    assert store.record(DEV) is None
    new = commit(store, record(DEV, content="d" * 64))
    assert new.attempt == 2
    assert store.record(DEV) == new


def test_a_fixed_version_is_never_withdrawn(store: Store) -> None:
    commit(store, record(A))
    with pytest.raises(ConfigError, match="never rebuilt"):
        store.withdraw(A)


@pytest.mark.parametrize("damage", ["", "{", '{"name": 1}', "\x00\x01"])
def test_a_damaged_record_is_an_error_and_never_guessed(tmp_path: Path, damage: str) -> None:
    store = Store(str(tmp_path))
    commit(store, record(A))
    (tmp_path / A.path / ".artifact" / "record.json").write_text(damage)
    with pytest.raises(DataError, match="damaged"):
        store.record(A)


def test_a_record_with_fields_of_a_newer_writer_still_loads(tmp_path: Path) -> None:
    store = Store(str(tmp_path))
    commit(store, record(A))
    path = tmp_path / A.path / ".artifact" / "record.json"
    path.write_text(path.read_text().replace('"attempt":1', '"attempt":1,"from_the_future":{"x":1}'))
    assert store.record(A) is not None


def with_payload(store: Store, folder: Path, **content: bytes) -> Record:
    """A committed artifact with real files, built in `folder` and uploaded where the store is remote."""
    for name, data in content.items():
        (folder / "deep").mkdir(parents=True, exist_ok=True)
        (folder / "deep" / name).write_bytes(data)
    paths = sorted((folder / "deep").iterdir())
    if store.is_local:
        stamps = {f"deep/{path.name}": local_state(path).stamp for path in paths}
    else:
        stamps = {name: state.stamp for name, state in store.upload(folder, A, "attempt-1").items()}
    files = tuple(
        File(path=f"deep/{path.name}", size=path.stat().st_size, sha256=file_sha256(path), stamp=stamps[f"deep/{path.name}"])
        for path in paths
    )
    return commit(store, record(A, files=files, payload="attempt-1"))


def output(store: Store, tmp_path: Path) -> Path:
    return store.output_path(A, 1) or tmp_path / "scratch"


def test_a_payload_travels_and_is_checked_on_the_way(store: Store, tmp_path: Path) -> None:
    built = with_payload(store, output(store, tmp_path), data=b"payload", more=b"")
    assert store.read_payload(built, "deep/data") == b"payload"
    store.download(built, tmp_path / "in")
    assert (tmp_path / "in" / "deep" / "data").read_bytes() == b"payload"
    with pytest.raises(DataError, match="gone is gone"):
        store.read_payload(built, "gone")
    store.objects.replace(f"{A.path}/attempt-1/deep/data", b"PAYLOAD")
    with pytest.raises(DataError, match="another content"):
        store.download(built, tmp_path / "again")


def test_an_upload_sends_what_is_missing_and_leaves_nothing_else(store: Store, tmp_path: Path) -> None:
    folder = tmp_path / "built"
    (folder / "deep").mkdir(parents=True)
    (folder / "deep" / "same").write_bytes(b"1")
    (folder / "changed").write_bytes(b"2")
    store.objects.replace(f"{A.path}/attempt-1/gone", b"3")
    first = store.upload(folder, A, "attempt-1")
    (folder / "changed").write_bytes(b"4")
    second = store.upload(folder, A, "attempt-1")
    assert set(first) == set(second) == {"deep/same", "changed"}
    assert store.objects.read(f"{A.path}/attempt-1/changed") == b"4"
    if second["changed"].md5:  # the store says what it has
        assert second["deep/same"] == first["deep/same"]


@pytest.mark.parametrize(("damage", "named"), [("gone", "gone"), ("cut", "3 bytes instead of 7"), ("changed", "another content")])
def test_an_artifact_whose_payload_changed_is_corrupt_and_says_where(store: Store, tmp_path: Path, damage: str, named: str) -> None:
    built = with_payload(store, output(store, tmp_path), data=b"payload", other=b"x")
    store.require_intact(built)
    path = f"{A.path}/attempt-1/deep/data"
    if damage == "gone":
        store.objects.delete(path)
    else:
        store.objects.replace(path, b"pay" if damage == "cut" else b"PAYLOAD")
    with pytest.raises(DataError, match=f"corrupt: deep/data .*{named}"):
        store.require_intact(built)


def test_debris_of_given_up_attempts_is_cleared_and_nothing_else(store: Store) -> None:
    for number in (1, 2, 3):
        store.objects.replace(f"{A.path}/attempt-{number}/data", b"x")
        store.claim(A, claim(number))
        if number < 3:
            store.close(A, number, lost())
    store.clear_debris(A, keep=3)
    assert [name for name in store.objects.files(A.path) if name.startswith("attempt")] == ["attempt-3/data"]
    store.commit(A, success(record(A, attempt=3, payload="attempt-3")))
    store.clear_debris(A, keep=7)
    assert store.objects.read(f"{A.path}/attempt-3/data") == b"x"


def test_a_heartbeat_keeps_a_lease_and_hears_of_its_loss(store: Store) -> None:
    store.claim(A, claim(1))
    heard = threading.Event()
    with Heartbeat(store, A, 1, lease_seconds=0.3, on_lost=lambda end: heard.set()) as heartbeat:
        watch = LeaseWatch(store, A, 1, lease_seconds=0.3)
        seen = {store.last_beat(A, 1)}
        while len(seen) < 5:  # it lives through many lengths of the lease
            seen.add(store.last_beat(A, 1))
            assert not watch.expired()
        store.close(A, 1, lost())
        assert heard.wait(timeout=300)
        assert heartbeat.lost == lost()
    silent = LeaseWatch(store, A, 1, lease_seconds=0.1)
    while not silent.expired():
        pass


def test_a_prefix_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(ConfigError, match=r"can't be written"):
        Store(str(tmp_path / "file" / "lab")).ensure_writable()
    with pytest.raises(ConfigError, match="can't be opened"):
        Store("nonsense://x")


def test_who_has_no_credentials_for_a_bucket_is_told_how_to_get_some(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("STORAGE_EMULATOR_HOST", "GOOGLE_APPLICATION_CREDENTIALS"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("CLOUDSDK_CONFIG", str(tmp_path))
    monkeypatch.setenv("NO_GCE_CHECK", "true")
    with pytest.raises(ConfigError, match="no credentials for gs://nobodys/lab") as refused:
        Store("gs://nobodys/lab")
    assert "application-default login" in refused.value.advice


@pytest.mark.parametrize("variable", ["WANDB_API_KEY", "MY_SECRET", "db_password"])
def test_no_secret_of_the_environment_is_kept(store: Store, monkeypatch: pytest.MonkeyPatch, variable: str) -> None:
    monkeypatch.setenv(variable, "hunter2-hunter2")
    commit(store, record(A, metrics={"note": "sent hunter2-hunter2 to the service"}))
    store.claim(DEV, claim(1))
    store.close(DEV, 1, lost("refused: hunter2-hunter2"))
    for artifact in (A, DEV):
        for name, _ in store.objects.files(artifact.path).items():
            assert b"hunter2" not in (store.objects.read(f"{artifact.path}/{name}") or b"")
    assert store.attempts(DEV)[0].error == f"refused: [redacted {variable}]"
