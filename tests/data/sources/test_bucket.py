import base64
import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import google_crc32c
import pytest
from gcsfs.core import GCSFileSystem

from marin_core.data.ingest import ingest
from marin_core.data.sources import bucket_files
from marin_core.data.sources.bucket_files import OpenedBucketFiles
from marin_core.data.sources.config import BucketFiles, IngestConfig
from marin_core.data.sources.interface import Watch
from marin_core.data.units import read_units
from marin_core.errors import ConfigError, DataError
from marin_core.report import Report, SilentReporter
from tests.storage.gcs import FakeGcs, emulator_environment

OBJECTS = {
    "a.jsonl": b'{"text": "a"}\n',
    "deep/er/b.jsonl": b'{"text": "b"}\n' * 100_000,
    "deep/notes.txt": b"notes",
    "c d+ü.jsonl": b"{}\n",
}


@pytest.fixture(scope="module")
def server() -> Iterator[FakeGcs]:
    with FakeGcs() as server:
        yield server


@pytest.fixture
def bucket(server: FakeGcs, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> tuple[Any, str]:
    """A file system, and a prefix of this test's own with the objects below it."""
    for name, value in emulator_environment(server.url).items():
        monkeypatch.setenv(name, value)
    fs = GCSFileSystem(token="anon", endpoint_url=server.url, use_listings_cache=False, skip_instance_cache=True)  # noqa: S106
    prefix = f"lab/{hashlib.md5(request.node.nodeid.encode(), usedforsecurity=False).hexdigest()}"
    for name, data in OBJECTS.items():
        fs.pipe_file(f"{prefix}/{name}", data)
    return fs, f"gs://{prefix}"


def take(prefix: str, output: Path, **source: object) -> Report:
    config = {"source": {"kind": "bucket_files", "prefix": prefix, **source}, "license": "CC0-1.0", "policy": "TRAINING_ALLOWED"}
    return ingest(IngestConfig.from_json(config), output, SilentReporter())


def test_objects_come_with_their_generation_and_checksum(bucket: tuple[Any, str], tmp_path: Path) -> None:
    fs, prefix = bucket
    report = take(prefix, tmp_path, pattern="**/*.jsonl")
    units = {unit.origin: unit for unit in read_units(tmp_path).units}
    assert len(units) == 3
    assert report.metrics["skipped/other_pattern"] == 1
    info = fs.info(f"{prefix}/deep/er/b.jsonl")
    unit = units["deep%2fer%2fb.jsonl"]
    data = OBJECTS["deep/er/b.jsonl"]
    assert (unit.size, unit.sha256) == (len(data), hashlib.sha256(data).hexdigest())
    assert unit.generation == str(info["generation"])
    assert unit.crc32c == base64.b64encode(google_crc32c.value(data).to_bytes(4, "big")).decode()
    assert (tmp_path / unit.path).read_bytes() == data


def test_what_an_earlier_try_fetched_is_known_by_its_generation(bucket: tuple[Any, str], tmp_path: Path) -> None:
    fs, prefix = bucket
    watch = Watch(SilentReporter())
    opened = OpenedBucketFiles(BucketFiles(prefix=prefix, pattern="a.jsonl"))
    [listed] = opened.files(watch)
    fetched = opened.fetch(listed, tmp_path / "a", watch)
    assert opened.still(listed, fetched, watch)
    fs.pipe_file(f"{prefix}/a.jsonl", OBJECTS["a.jsonl"])
    [listed] = opened.files(watch)
    assert not opened.still(listed, fetched, watch)


@pytest.mark.parametrize("change", ["overwritten", "deleted", "overwritten with as many bytes"])
def test_an_object_that_changes_after_the_listing_is_an_error(bucket: tuple[Any, str], tmp_path: Path, change: str) -> None:
    fs, prefix = bucket
    opened = OpenedBucketFiles(BucketFiles(prefix=prefix))
    watch = Watch(SilentReporter())
    listed = next(each for each in opened.files(watch) if each.name == "a.jsonl")
    if change == "deleted":
        fs.rm_file(f"{prefix}/a.jsonl")
    else:
        fs.pipe_file(f"{prefix}/a.jsonl", b'{"text": "z"}\n' if "as many" in change else b"other")
    with pytest.raises(DataError, match=r"a\.jsonl (was overwritten or deleted|came as)"):
        opened.fetch(listed, tmp_path / "a", watch)


def test_the_listed_generation_is_asked_for(bucket: tuple[Any, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, prefix = bucket
    opened = OpenedBucketFiles(BucketFiles(prefix=prefix, pattern="a.jsonl"))
    watch = Watch(SilentReporter())
    [listed] = opened.files(watch)
    asked: list[dict[str, Any]] = []
    get_file = opened._fs.get_file

    def noted(*paths: str, **options: Any) -> None:
        asked.append(options)
        get_file(*paths, **options)

    monkeypatch.setattr(opened._fs, "get_file", noted)
    opened.fetch(listed, tmp_path / "a", watch)
    assert asked[0]["generation"] == str(listed.key["generation"])
    assert asked[0]["concurrency"] == 1  # else gcsfs asks for the newest generation's size first


def test_an_empty_prefix_and_a_missing_bucket_are_named(bucket: tuple[Any, str], tmp_path: Path) -> None:
    for prefix in (f"{bucket[1]}/nothing", "gs://no-such-bucket/x"):
        with pytest.raises(DataError, match=f"no object below {prefix}"):
            take(prefix, tmp_path)


def test_any_store_of_fsspec_will_do_and_a_change_there_is_seen_too(tmp_path: Path) -> None:
    fs = fsspec.filesystem("memory")
    fs.pipe({f"/ingest-test/{name}": data for name, data in OBJECTS.items()})
    report = take("memory://ingest-test", tmp_path)
    assert report.metrics["units"] == len(OBJECTS)
    opened = OpenedBucketFiles(BucketFiles(prefix="memory://ingest-test"))
    watch = Watch(SilentReporter())
    listed = opened.files(watch)[0]
    fs.pipe_file(f"/ingest-test/{listed.name}", b"longer than " + OBJECTS[listed.name])
    with pytest.raises(DataError, match="overwritten"):
        opened.fetch(listed, tmp_path / "x", watch)
    fs.rm("/ingest-test", recursive=True)


def test_bad_prefixes_are_refused(tmp_path: Path) -> None:
    for prefix in (
        "bucket/folder",
        "gs://",
        "gs:///",
        "file:///etc",
        "https://a.org/x",
        "simplecache::gs://b/x",
        "zip://x::https://a.org/y",
    ):
        with pytest.raises(ConfigError, match="prefix"):
            BucketFiles(prefix=prefix)
    with pytest.raises(ConfigError, match="prefix") as error:
        BucketFiles(prefix="s3://key:do-not-leak@bucket/x")
    assert "do-not-leak" not in str(error.value)
    with pytest.raises(ConfigError, match="can't be opened"):
        take("nosuchprotocol://x/y", tmp_path)
    assert bucket_files.SILENCE_SECONDS < bucket_files.SECONDS_OF_A_CALL
