"""The catalogue: every artifact is one asset with a readable key, an owner, a kind and a sentence."""

import re
import warnings
from pathlib import Path

import dagster as dg
import pytest
import yaml

from marin_assets.experiments import load_experiments
from marin_assets.factory import build_definitions, code_versions
from marin_assets.keys import artifact_id, asset_key
from marin_core import experiment as lab
from marin_core.artifact import ArtifactGraph
from marin_core.errors import ConfigError
from marin_core.experiment import Experiment


@pytest.fixture(scope="module")
def definitions() -> dg.Definitions:
    return build_definitions(load_experiments())


@pytest.fixture(scope="module")
def graph() -> ArtifactGraph:
    return ArtifactGraph(target for experiment in load_experiments() for target in experiment.targets)


def specs(definitions: dg.Definitions) -> dict[dg.AssetKey, dg.AssetSpec]:
    return {spec.key: spec for spec in definitions.resolve_all_asset_specs()}


def test_the_definitions_load(definitions: dg.Definitions) -> None:
    dg.Definitions.validate_loadable(definitions)


def test_whoever_loads_them_is_not_warned_of_what_only_this_project_can_change() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        build_definitions(load_experiments()).get_repository_def()


def test_each_artifact_is_one_asset_with_everything_a_catalogue_needs(definitions: dg.Definitions, graph: ArtifactGraph) -> None:
    found = specs(definitions)
    published = {dg.AssetKey(mix.name.split("/")) for experiment in load_experiments() for mix in experiment.published}
    assert published
    assert set(found) == {asset_key(step.id) for step in graph} | published
    versions = code_versions(graph)
    for key, spec in found.items():
        if key in published:  # no artifact: it has hours instead of a version
            continue
        step = graph[artifact_id(key)]
        assert spec.code_version == versions[step.id]
        assert spec.metadata["fingerprint"] == graph.fingerprint(step)
        assert {dep.asset_key for dep in spec.deps} == {asset_key(dep.id) for dep in step.deps}
        assert spec.description
        assert spec.description.endswith(".")
        assert spec.kinds
        assert all(re.fullmatch(r"team:\w+|\S+@\S+", owner) for owner in spec.owners)
        assert spec.owners
        assert spec.group_name == step.stage
        assert spec.metadata["artifact"] == str(step.id)
        assert spec.tags["marin/version"] == step.version


def test_families_are_partitions_and_have_a_backfill_job(definitions: dg.Definitions, graph: ArtifactGraph) -> None:
    repository = definitions.get_repository_def()
    for step in graph:
        partitions = repository.asset_graph.get(asset_key(step.id)).partitions_def
        assert (partitions.get_partition_keys() if partitions else []) == list(step.partitions)
        if step.partitions:
            job = repository.get_job("_".join([step.job, *step.name.split("/")[1:]]))
            assert job.partitions_def is not None


def test_two_trainings_never_share_a_machine(definitions: dg.Definitions, graph: ArtifactGraph) -> None:
    """Trainings wait for the one slot of their pool; nothing else competes for it."""
    instance = yaml.safe_load((Path(__file__).resolve().parents[2] / "dagster.yaml").read_text())
    assert instance["concurrency"]["pools"] == {"granularity": "op", "default_limit": 1}
    for step in graph:
        pool = definitions.get_assets_def(asset_key(step.id)).op.pool
        assert pool == ("training" if step.job == "train" else None)


def two(first: float, second: float) -> list[Experiment]:
    """Two experiments that share a raw source and a filtered family; the filter's threshold may differ."""
    experiments = []
    for name, threshold in (("one", first), ("two", second)):
        raw = lab.raw_source("raw/shared", "v1", lab.PythonStdlib(), license="PSF-2.0")
        shards = lab.filtered("filtered/shared", "v1", raw, shards=2, filters=[lab.CodeQuality(max_mean_line_characters=threshold)])
        bpe = lab.tokenizer(f"tokenizer/{name}", "v1", [shards], vocab_size=300)
        experiments.append(lab.experiment(name, bpe, question="?", hypothesis="!"))
    return experiments


def test_two_experiments_that_use_one_artifact_share_one_asset() -> None:
    found = specs(build_definitions(two(100, 100)))
    assert len(found) == 4
    tags = found[dg.AssetKey(["raw", "shared-v1"])].tags
    assert {"experiment/one", "experiment/two"} <= set(tags)
    assert "experiment/two" not in found[dg.AssetKey(["tokenizer", "one-v1"])].tags


def test_two_versions_of_a_family_live_side_by_side() -> None:
    raw = lab.raw_source("raw/x", "v1", lab.PythonStdlib(), license="PSF-2.0")
    versions = [lab.filtered("filtered/x", version, raw, shards=2) for version in ("v1", "v2")]
    definitions = build_definitions([lab.experiment("both", *versions, question="?", hypothesis="!")])
    dg.Definitions.validate_loadable(definitions)
    assert {job.name for job in definitions.resolve_all_job_defs()} >= {"filter_x_v1", "filter_x_v2"}


def test_one_name_with_two_configurations_is_a_load_error_with_both_places_and_the_field() -> None:
    with pytest.raises(ConfigError) as error:
        build_definitions(two(100, 120))
    message = str(error.value)
    assert "filtered/shared@v1 is declared twice" in message
    assert message.count(Path(__file__).name) == 2
    assert "config.filter.filters.0.max_mean_line_characters: 100.0 against 120.0" in message


def test_nothing_that_comes_from_data_becomes_markup() -> None:
    from marin_assets.metadata import table

    shown = table([{"sample": "<script>alert(1)</script>", "count": 3}])
    assert [record.data for record in shown.records] == [{"sample": "&lt;script&gt;alert(1)&lt;/script&gt;", "count": 3}]
