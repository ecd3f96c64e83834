"""Reproduction: what is built again is equal, and what isn't is said."""

from pathlib import Path

import pytest

from marin_assets.lab import Lab
from marin_assets.reproduce import reproduce
from marin_core.artifact import ArtifactGraph, ArtifactStep
from marin_core.artifact.reproduction import newest
from marin_core.errors import ConfigError
from marin_core.experiment import LocalFiles, MinCharacters, filtered, raw_source, summary
from tests.assets.conftest import LabUnderTest, prose, write_documents

pytestmark = pytest.mark.usefixtures("forked_jobs")


@pytest.fixture
def files(tmp_path: Path) -> Path:
    for number in range(2):
        write_documents(tmp_path / "source" / f"part-{number}.jsonl.gz", prose(number))
    return tmp_path / "source"


def source(files: Path, version: str = "v1") -> ArtifactStep:
    return raw_source("raw/local", version, LocalFiles(root=str(files), pattern="*.jsonl.gz"), license="CC0-1.0")


def shards(raw: ArtifactStep, characters: int = 10) -> ArtifactStep:
    return filtered("filtered/local", raw.version, raw, shards=2, filters=[MinCharacters(characters=characters)])


def test_every_kind_of_step_reproduces_byte_for_byte_on_another_prefix(lab: LabUnderTest, files: Path, tmp_path: Path) -> None:
    raw = source(files)
    kept = shards(raw)
    table = summary("tables/kept", "v1", [kept])
    for step in (raw, kept, table):
        for partition in step.partitions or (None,):
            assert lab.materialize(step, partition).success
    graph = ArtifactGraph([table])
    resource = Lab(prefix=lab.store.prefix)
    for artifact in (raw.id, *kept.ids(), table.id):
        result = reproduce(resource, graph, artifact, prefix=f"file://{tmp_path}/elsewhere")
        assert result.verdict == "bytes", result.summary
        assert result.files == len(lab.record(graph[artifact], artifact.partition).files)
        assert newest(lab.store, lab.record(graph[artifact], artifact.partition)) == result


def test_a_build_that_is_not_what_the_record_says_is_found_out(lab: LabUnderTest, files: Path) -> None:
    raw = source(files)
    assert lab.materialize(raw).success
    write_documents(files / "part-1.jsonl.gz", prose(99))  # the source itself has changed since
    result = reproduce(Lab(prefix=lab.store.prefix), ArtifactGraph([raw]), raw.id)
    assert result.verdict == "different"
    assert "rebuilt differently: content" in result.summary
    assert any("part-1" in path for path in result.differing_files)
    assert not list((lab.folder / "store" / ".reproductions").glob("*/*/*/*/attempt-*"))


def test_what_was_built_with_another_configuration_or_from_other_inputs_is_refused(lab: LabUnderTest, files: Path) -> None:
    raw = source(files, "dev")
    kept = shards(raw)
    assert lab.materialize(raw).success
    assert lab.materialize(kept, "00000").success
    resource = Lab(prefix=lab.store.prefix)
    changed = shards(raw, characters=99)
    with pytest.raises(ConfigError, match=r"filter\.filters\.0\.characters: 10 → 99"):
        reproduce(resource, ArtifactGraph([changed]), kept.ids()[0])
    with pytest.raises(ConfigError, match="not committed"):
        reproduce(resource, ArtifactGraph([kept]), kept.ids()[1])
    write_documents(files / "part-0.jsonl.gz", prose(7))
    assert lab.materialize(raw, rebuild=True).success
    with pytest.raises(ConfigError, match=r"input raw/local@dev holds \w{16}, was read as"):
        reproduce(resource, ArtifactGraph([kept]), kept.ids()[0])
