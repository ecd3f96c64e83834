"""What Dagster says about an artifact agrees with its record: unsynced, checks, reproduction."""

from pathlib import Path

import dagster as dg
import pytest
from dagster._core.definitions.data_version import CachingStaleStatusResolver, StaleStatus
from dagster._core.loader import LoadingContextForTest

from marin_assets.factory import build_definitions
from marin_assets.keys import asset_key
from marin_assets.lab import Lab
from marin_core.artifact import ArtifactStep
from marin_core.experiment import LocalFiles, MinCharacters, experiment, filtered, raw_source, summary
from tests.assets.conftest import LabUnderTest, checks, failure, prose, write_documents

pytestmark = pytest.mark.usefixtures("forked_jobs")


@pytest.fixture
def files(tmp_path: Path) -> Path:
    for number in range(2):
        write_documents(tmp_path / "source" / f"part-{number}.jsonl.gz", prose(number))
    return tmp_path / "source"


def source(files: Path, version: str = "v1") -> ArtifactStep:
    return raw_source("raw/local", version, LocalFiles(root=str(files), pattern="*.jsonl.gz"), license="CC0-1.0")


def kept(raw: ArtifactStep, characters: int = 10) -> ArtifactStep:
    return filtered("filtered/local", raw.version, raw, shards=2, filters=[MinCharacters(characters=characters)])


def status(lab: LabUnderTest, target: ArtifactStep, step: ArtifactStep, partition: str | None = None) -> tuple[StaleStatus, list[str]]:
    """Dagster's own opinion, with the categories of its causes, of an asset in today's definitions."""
    defs = build_definitions([experiment("under_test", target, question="?", hypothesis="!")])
    resolver = CachingStaleStatusResolver(lab.instance, defs.resolve_asset_graph(), LoadingContextForTest(lab.instance))
    key = asset_key(step.id)
    return resolver.get_status(key, partition), sorted({cause.category.value for cause in resolver.get_stale_causes(key, partition)})


FRESH: tuple[StaleStatus, list[str]] = (StaleStatus.FRESH, [])


def test_an_artifact_in_drift_stays_unsynced_however_often_it_is_served(lab: LabUnderTest, files: Path) -> None:
    raw = source(files)
    before, after = kept(raw, 10), kept(raw, 20)
    assert lab.materialize(raw).success
    assert lab.materialize(before, "00000").success
    assert status(lab, before, before, "00000") == FRESH
    for _ in range(2):
        result = lab.materialize(after, "00000")
        assert result.success
        assert not checks(result)["drift"].passed
        assert status(lab, after, after, "00000") == (StaleStatus.STALE, ["CODE"])
    assert lab.materialize(before, "00000").success
    assert status(lab, before, before, "00000") == FRESH


def test_a_changed_input_leaves_what_was_made_from_it_unsynced_and_an_equal_one_does_not(lab: LabUnderTest, files: Path) -> None:
    raw = source(files, "dev")
    shards = kept(raw)
    table = summary("tables/kept", "dev", [shards])
    assert lab.materialize(raw).success
    for partition in shards.partitions:
        assert lab.materialize(shards, partition).success
    assert lab.materialize(table).success
    assert lab.materialize(raw, rebuild=True).success  # equal bytes
    assert status(lab, table, shards, "00000") == FRESH
    write_documents(files / "part-0.jsonl.gz", prose(7))
    assert lab.materialize(raw, rebuild=True).success
    assert lab.materialize(shards, "00000").success  # served as it was
    assert status(lab, table, shards, "00000") == (StaleStatus.STALE, ["DATA"])
    assert status(lab, table, table) == FRESH  # Dagster looks one step up; the drift check looks further
    result = lab.materialize(table)
    assert [each.data["kind"] for each in checks(result)["drift"].metadata["differences"].records][:1] == ["data"]  # type: ignore[attr-defined]
    assert lab.materialize(shards, "00000", rebuild=True).success
    assert status(lab, table, shards, "00000") == FRESH
    assert lab.materialize(table).success  # served: one of its inputs is another
    assert status(lab, table, table) == (StaleStatus.STALE, ["DATA"])


def execute_check(lab: LabUnderTest, step: ArtifactStep, name: str) -> dg.ExecuteInProcessResult:
    """The button *Execute* beside a check."""
    defs = build_definitions([experiment("under_test", step, question="?", hypothesis="!")])
    return dg.materialize(
        [each for each in defs.assets or () if isinstance(each, dg.AssetsDefinition)],
        selection=dg.AssetSelection.checks(dg.AssetCheckKey(asset_key(step.id), name)),
        instance=lab.instance,
        resources={"lab": Lab(prefix=lab.store.prefix)},
        raise_on_error=False,
    )


def test_a_check_executed_alone_looks_again_and_materializes_nothing(lab: LabUnderTest, files: Path) -> None:
    raw = source(files)
    assert "not committed" in failure(execute_check(lab, raw, "drift"))
    assert lab.materialize(raw).success
    result = execute_check(lab, raw, "drift")
    assert result.success
    assert {name: each.passed for name, each in checks(result).items()} == {"drift": True}
    assert result.get_asset_materialization_events() == []
    proof = execute_check(lab, raw, "reproduced")
    assert {name: each.passed for name, each in checks(proof).items()} == {"reproduced": True}
    assert proof.get_asset_materialization_events() == []
    assert checks(lab.materialize(raw))["reproduced"].passed


def test_an_artifact_that_was_never_put_to_the_test_claims_nothing(lab: LabUnderTest, files: Path) -> None:
    result = lab.materialize(source(files))
    assert set(checks(result)) == {"drift", "units_complete"}


def test_the_job_reproduce_proves_an_artifact_and_the_proof_stays_with_it(lab: LabUnderTest, files: Path) -> None:
    raw = source(files)
    shards = kept(raw)
    assert lab.materialize(raw).success
    assert lab.materialize(shards, "00001").success
    defs = build_definitions([experiment("under_test", shards, question="?", hypothesis="!")])
    job = defs.resolve_job_def("reproduce")
    for artifact in ("raw/local@v1", "filtered/local@v1/00001"):
        config = {"ops": {"reproduce_artifacts": {"config": {"artifacts": [artifact]}}}}
        resources = {"lab": Lab(prefix=lab.store.prefix)}
        result = job.execute_in_process(instance=lab.instance, run_config=config, resources=resources, raise_on_error=False)
        assert result.success
        (evaluation,) = result.get_asset_check_evaluations()
        assert (evaluation.check_name, evaluation.passed) == ("reproduced", True)
        assert evaluation.description is not None
        assert "equal bytes in all" in evaluation.description
        assert evaluation.target_materialization_data is not None
    assert checks(lab.materialize(shards, "00001"))["reproduced"].passed  # served again: the proof is still known


def test_a_policy_of_failing_stops_at_drift_and_names_it(lab: LabUnderTest, files: Path) -> None:
    raw = source(files)
    before = kept(raw, 10)
    assert lab.materialize(raw).success
    assert lab.materialize(before, "00000").success
    strict = filtered("filtered/local", "v1", raw, shards=2, filters=[MinCharacters(characters=20)])
    object.__setattr__(strict, "on_drift", "fail")
    result = lab.materialize(strict, "00000")
    assert not result.success
    assert "config filter.filters.0.characters of filtered/local@v1: 10 → 20" in failure(result)


def test_a_policy_of_rebuilding_keeps_a_dev_artifact_as_declared(lab: LabUnderTest, files: Path) -> None:
    raw = source(files, "dev")
    assert lab.materialize(raw).success
    for characters, attempt in ((10, 1), (10, 1), (20, 2)):
        step = kept(raw, characters)
        object.__setattr__(step, "on_drift", "rebuild")
        result = lab.materialize(step, "00000")
        assert result.success
        assert checks(result)["drift"].passed
        assert lab.record(step, "00000").attempt == attempt
