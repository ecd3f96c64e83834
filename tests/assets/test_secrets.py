"""Secrets of the environment stay there: not in records, specs, logs, attempts, events."""

import gzip
from collections.abc import Iterator
from pathlib import Path

import dagster as dg
import pytest

from marin_core.experiment import LocalFiles, MinCharacters, filtered, raw_source
from marin_core.redaction import redact, secrets_of_environment
from tests.assets.conftest import LabUnderTest, failure, prose, write_documents

SECRETS = {"WANDB_API_KEY": "planted-wandb-1f7c", "HF_TOKEN": "planted-hub-9e2d", "LAB_DB_PASSWORD": "planted-base-77aa"}


@pytest.fixture(autouse=True)
def planted(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in SECRETS.items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[LabUnderTest]:
    """With Dagster's events in files."""
    with dg.instance_for_test(temp_dir=str(tmp_path)) as instance:
        yield LabUnderTest(tmp_path, instance)


def where_planted(folder: Path) -> list[str]:
    """Every file below a folder that holds one of the values."""
    found = []
    for path in folder.rglob("*"):
        if path.is_file():
            data = path.read_bytes()
            data += gzip.decompress(data) if path.suffix == ".gz" else b""
            found += [f"{path.relative_to(folder)}: {name}" for name, value in SECRETS.items() if value.encode() in data]
    return found


def test_nothing_that_a_build_or_its_failure_leaves_behind_holds_a_secret(lab: LabUnderTest, tmp_path: Path) -> None:
    source = tmp_path / "source"
    write_documents(source / "part-0.jsonl.gz", prose(0))
    raw = raw_source("raw/local", "v1", LocalFiles(root=str(source), pattern="*.jsonl.gz"), license="CC0-1.0")
    assert lab.materialize(raw).success
    assert lab.materialize(filtered("filtered/local", "v1", raw, shards=1, filters=[MinCharacters(characters=10)]), "00000").success
    missing = tmp_path / SECRETS["HF_TOKEN"]  # a path that ends in the secret: the job's own message will name it
    broken = raw_source("raw/broken", "v1", LocalFiles(root=str(missing), pattern="*.jsonl.gz"), license="CC0-1.0")
    message = failure(lab.materialize(broken))
    assert "environment variable HF_TOKEN" in message
    assert not any(value in message for value in SECRETS.values())
    assert where_planted(lab.folder) == []


def test_names_of_secrets_are_recognized_and_those_of_places_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    secret = {"PGPASSWORD", "DB_PASSWORD", "GITHUB_TOKEN", "LAB_API_KEY", "OPENAI_APIKEY", "sentry_dsn"}
    plain = {"PGPASSFILE", "PGUSER", "KEYBOARD", "MONKEY", "PASSWORDLESS_LOGIN"}
    for name in secret | plain:
        monkeypatch.setenv(name, f"value-of-{name}")
    found = {name for value, name in secrets_of_environment().items() if value.startswith("value-of-")}
    assert found == secret
    assert redact("psql: value-of-PGPASSWORD@db") == "psql: [redacted PGPASSWORD]@db"
