"""What may be read across regions, against the real protocol: the server's buckets all lie in us-central1."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from marin_core.artifact import Record, Store
from marin_core.artifact.job import JobSpec
from marin_core.artifact.record import File
from marin_core.artifact.region import LIMIT_VARIABLE, REGION_VARIABLE, EgressGuard, bucket_locations, is_near
from marin_core.data.ingest import ingest
from marin_core.data.sources.config import IngestConfig
from marin_core.errors import ConfigError, InfrastructureError
from marin_core.report import SilentReporter
from marin_jobs.runtime import JobContext
from tests.storage.gcs import FakeGcs, ask, emulator_environment, free_port

GIB = 2**30


@pytest.fixture(scope="module")
def server() -> Iterator[FakeGcs]:
    with FakeGcs() as server:
        yield server


@pytest.fixture(autouse=True)
def emulator(server: FakeGcs, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name, value in emulator_environment(server.url).items():
        monkeypatch.setenv(name, value)
    bucket_locations.cache_clear()
    yield
    bucket_locations.cache_clear()


@pytest.mark.parametrize(
    ("machine", "bucket", "near"),
    [
        ("us-central1", ("us-central1",), True),
        ("us-central1", ("us-central2",), False),
        ("us-central1", ("us",), True),
        ("us-central1", ("eu",), False),
        ("us-central1", ("nam4",), True),
        ("us-west1", ("nam4",), False),
        ("europe-west4", ("eur4",), True),
        ("europe-west4", ("europe-west1", "europe-west4"), True),
        ("us-east1", ("europe-west1", "europe-west4"), False),
        ("australia-southeast1", ("asia",), False),
        ("us-central1", (), False),
    ],
)
def test_a_bucket_is_near_where_it_has_a_copy(machine: str, bucket: tuple[str, ...], near: bool) -> None:
    assert is_near(machine, bucket) is near


def test_the_buckets_own_metadata_say_where_it_lies() -> None:
    assert bucket_locations("lab") == ("us-central1",)
    assert bucket_locations("nobody-may-ask-for-this-one") == ()


def test_a_store_that_does_not_answer_is_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", f"http://127.0.0.1:{free_port()}")
    monkeypatch.setenv("MARIN_STORE_TIMEOUT_SECONDS", "3")
    with pytest.raises(InfrastructureError):
        bucket_locations("silent")


def test_a_near_bucket_and_a_disk_have_no_limit() -> None:
    guard = EgressGuard("us-central1", 0)
    guard.require("gs://lab/x", 1000 * GIB, "the input a@v1")
    EgressGuard("europe-west4", 0).require("file:///lab/x", 1000 * GIB, "the input a@v1")
    EgressGuard("", 0).require("gs://lab/x", 1000 * GIB, "the input a@v1")
    assert guard.taken_bytes == 0


@given(sizes=st.lists(st.integers(min_value=0, max_value=4 * GIB), max_size=20), limit=st.integers(min_value=0, max_value=20))
def test_what_is_granted_never_exceeds_the_limit(sizes: list[int], limit: int) -> None:
    guard, granted = EgressGuard("europe-west4", limit), 0
    for size in sizes:
        try:
            guard.require("gs://lab/x", size, "the input a@v1")
        except ConfigError:
            assert granted + size > limit * GIB
        else:
            granted += size
    assert guard.taken_bytes == granted <= limit * GIB


def test_the_refusal_names_size_places_limit_and_the_way_out() -> None:
    guard = EgressGuard("europe-west4", 10)
    guard.require("gs://lab/a", 8 * GIB, "the input a@v1")
    with pytest.raises(ConfigError) as refused:
        guard.require("gs://lab/b", 3 * GIB, "the input b@v1")
    assert refused.value.message == (
        "the input b@v1 is 3.0 GiB in the bucket lab, which lies in us-central1, and this machine is in europe-west4: "
        "11.0 GiB would cross regions, with the 8.0 GiB before it, and 10 may"
    )
    assert LIMIT_VARIABLE in refused.value.advice


@pytest.mark.parametrize("text", ["ten", "-1", "nan"])
def test_a_limit_that_is_no_number_is_refused(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(LIMIT_VARIABLE, text)
    with pytest.raises(ConfigError, match=LIMIT_VARIABLE):
        EgressGuard()


def test_a_source_in_a_far_bucket_is_refused_before_a_byte_is_fetched(
    server: FakeGcs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = b'{"text": "words"}\n' * 100
    assert ask(server.url, "POST", "/upload/storage/v1/b/lab/o?uploadType=media&name=far/a.jsonl", body)[0] == 200
    source = {"kind": "bucket_files", "prefix": "gs://lab/far", "pattern": "*.jsonl"}
    config = IngestConfig.from_json({"source": source, "license": "CC0-1.0", "policy": "TRAINING_ALLOWED"})
    monkeypatch.setenv(REGION_VARIABLE, "europe-west4")
    monkeypatch.setenv(LIMIT_VARIABLE, "1e-6")
    with pytest.raises(ConfigError, match="us-central1"):
        ingest(config, tmp_path / "refused", SilentReporter())
    assert not list((tmp_path / "refused").rglob("*.jsonl"))
    monkeypatch.setenv(LIMIT_VARIABLE, "1")
    assert ingest(config, tmp_path / "granted", SilentReporter()).metrics["units"] == 1


def test_a_job_downloads_no_more_than_it_may(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All its inputs count together, and what stands on this machine doesn't."""
    monkeypatch.setenv(REGION_VARIABLE, "europe-west4")
    downloaded: list[str] = []

    def download(store: Store, record: Record, folder: Path, below: str = "") -> None:
        folder.mkdir(parents=True)
        downloaded.append(record.name)

    monkeypatch.setattr(Store, "download", download)
    records = {
        name: Record.model_construct(name=name, version="v1", payload="payload/00001", files=files(6, 1)) for name in ("a", "b", "c")
    }
    spec = JobSpec.model_construct(name="x", version="v1", scratch=str(tmp_path))
    job = JobContext(spec, Store("gs://lab/store"), tmp_path, tmp_path, records, SilentReporter())
    job.local("a")
    job.local("a")  # is there already
    job.local("b", "small")
    with pytest.raises(ConfigError, match=r"the input c@v1 is 7\.0 GiB"):
        job.local("c")
    assert downloaded == ["a", "b"]
    assert job.egress.taken_bytes == 8 * GIB


def files(large: int, small: int) -> tuple[File, ...]:
    """Of so many GiB, the second one in a folder."""
    return (File(path="large", size=large * GIB, sha256="0" * 64), File(path="small/one", size=small * GIB, sha256="0" * 64))
