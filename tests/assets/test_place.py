"""Where things lie: jobs of a store on files in it, those of a bucket in Dagster's home."""

from pathlib import Path

import pytest

from marin_assets.place import STATE, jobs_folder


def test_jobs_of_a_local_store_lie_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DAGSTER_HOME", "/home/dagster")
    assert jobs_folder("file:///data/lab") == jobs_folder("/data/lab") == Path("/data/lab/.jobs")


def test_jobs_of_a_bucket_lie_in_dagsters_home_apart_from_those_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DAGSTER_HOME", raising=False)
    embedded = jobs_folder("gs://bucket/lab")
    assert embedded.parent == STATE / "jobs"
    monkeypatch.setenv("DAGSTER_HOME", "/home/dagster")
    assert jobs_folder("gs://bucket/lab") == Path("/home/dagster/jobs") / embedded.name
    assert jobs_folder("gs://bucket/other") != jobs_folder("gs://bucket/lab")
