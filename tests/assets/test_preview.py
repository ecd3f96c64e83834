"""A preview says what rules would do, from what is built, and writes nothing."""

import json
from pathlib import Path

import pytest

from marin_assets.cli import preview as command
from marin_core import experiment as lab
from marin_core.artifact import ArtifactGraph
from marin_core.data.attributes.files import attribute_file
from marin_core.data.attributes.measure import measure_shard
from marin_core.data.consolidate import consolidate_shard
from marin_core.data.measures.config import LengthMeasure
from marin_core.data.preview import preview
from marin_core.data.stages import AttributesConfig, ConsolidateConfig
from marin_core.errors import ConfigError
from marin_core.report import SilentReporter
from tests.data.attributes.test_files import write_documents
from tests.data.conftest import sentences


def shards(folder: Path, count: int = 3) -> list[tuple[Path, list[Path]]]:
    made = []
    for index in range(count):
        part = write_documents(folder / str(index), [f"{index} {text}" for text in sentences(60, seed=index)])
        output = folder / f"{index}-attributes"
        measure_shard(AttributesConfig(measures=(LengthMeasure(),)), part.parent, {}, output, SilentReporter())
        made.append((part.parent, [attribute_file(output)]))
    return made


def test_a_preview_of_everything_is_what_consolidation_does(tmp_path: Path) -> None:
    config = ConsolidateConfig(rules=(lab.MinCharacters(characters=150),))
    made = shards(tmp_path, count=1)
    seen = preview(config, made, sample=1_000)
    report = consolidate_shard(config, *made[0], tmp_path / "out", SilentReporter())
    assert seen["documents"] == 60
    assert seen["tables"] == {name: list(rows) for name, rows in report.tables.items()}


def test_a_sample_is_taken_of_every_shard_and_nothing_is_written(tmp_path: Path) -> None:
    made = shards(tmp_path)
    before = sorted(path for path in tmp_path.rglob("*"))
    seen = preview(ConsolidateConfig(rules=(lab.MinCharacters(characters=150),)), made, sample=30)
    assert seen["documents"] == 30
    assert sorted(path for path in tmp_path.rglob("*")) == before
    json.dumps(seen)


def test_a_request_names_artifacts_and_folders_of_global_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    raw = lab.raw_source("raw/x", "v1", lab.PythonStdlib(), license="PSF-2.0")
    documents = lab.documents("documents/x", "v1", raw, shards=2)
    lengths = lab.attributes("attributes/x", "v1", documents, [lab.LengthMeasure()])
    twice = lab.exact_duplicates("duplicates/x", "v1", [documents])
    rules: list[lab.FilterRule] = [lab.MinCharacters(), lab.DropExactDuplicates()]
    step = lab.consolidated("filtered/x", "v1", documents, attributes=[lengths, twice], rules=rules)
    monkeypatch.setenv("MARIN_PREFIX", str(tmp_path))
    request = command._request(step, 10)
    assert request["shards"][1] == {
        "documents": {"artifact": "documents/x@v1/00001"},
        "attributes": [{"artifact": "attributes/x@v1/00001", "below": ""}, {"artifact": "duplicates/x@v1", "below": "x/00001"}],
    }
    with pytest.raises(ConfigError, match="is not built"):
        command._ask(request)
    assert ArtifactGraph([step]).depth >= 4


def test_only_a_consolidated_family_has_a_preview() -> None:
    with pytest.raises(ConfigError, match="decides while it reads its source"):
        command._step("filtered/python_code@v1")
    assert command._step("filtered/curated_pages@v1").job == "consolidate"
