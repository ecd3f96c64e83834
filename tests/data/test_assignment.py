"""Shards stay as they are while a source grows: what is assigned to them, and that nothing is computed again."""

import json
import random
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from hypothesis import given
from hypothesis import strategies as st

from marin_assets.builder import Builder, QuietEvents
from marin_assets.factory import build_definitions
from marin_assets.lab import Lab
from marin_assets.launch import InlineLauncher
from marin_assets.reproduce import reproduce
from marin_core import experiment as lab
from marin_core.artifact import ArtifactGraph, ArtifactId, ArtifactStep, Record, Store
from marin_core.artifact.drift import DriftFinder
from marin_core.artifact.housekeeping import Rules, execute, plan_cleanup
from marin_core.artifact.link import LINKED, is_same_work
from marin_core.artifact.plan import plan
from marin_core.data.assignment import Cut, assign, reads_alike, shard_units
from marin_core.data.stages import FilterConfig, OlderCut
from marin_core.data.units import Unit, UnitList, assign_units
from marin_core.errors import ConfigError
from marin_core.experiment.documents import filtered
from marin_core.experiment.tokens import tokenized
from tests.data.conftest import sentences, write_jsonl

# Assignment ---------------------------------------------------------------------------------------------------------------


def unit(path: str, size: int = 10, digest: str = "0" * 64) -> Unit:
    return Unit(path, size, digest, None, "CC0-1.0", "TRAINING_ALLOWED", None, "text")


def in_path_order(units: Sequence[Unit]) -> tuple[Unit, ...]:
    return tuple(sorted(units, key=lambda each: each.path.encode()))


PATHS = st.text("abcxyz0189", min_size=1, max_size=4)
SIZES = st.dictionaries(PATHS, st.integers(0, 10**9), min_size=1, max_size=30)


@st.composite
def growths(draw: st.DrawFn) -> list[Cut]:
    """A family and one or two versions that continue it: units come, go and change, and there is room for the new ones."""
    known: set[str] = set()
    shards = 0
    cuts = []
    for _ in range(draw(st.integers(2, 3))):
        sizes = draw(SIZES)
        stay = {path for path in known if draw(st.booleans())}
        units = in_path_order([unit(path, sizes.get(path, 7)) for path in sizes.keys() | stay])
        new = {each.path for each in units} - known
        shards += draw(st.integers(1, len(new))) if new else 0
        known |= new
        cuts.append(Cut(units, shards))
    return cuts


def places(cuts: Sequence[Cut]) -> dict[str, int]:
    return {each.path: index for index, run in enumerate(assign(cuts)) for each in run}


@given(growths())
def test_every_unit_has_one_shard_and_units_that_were_known_never_move(cuts: list[Cut]) -> None:
    for length in range(1, len(cuts) + 1):
        runs = assign(cuts[:length])
        assert len(runs) == cuts[length - 1].shards
        assert sorted(each.path for run in runs for each in run) == sorted(each.path for each in cuts[length - 1].units)
        assert all(run == in_path_order(run) for run in runs)
    first: dict[str, int] = {}
    for length in range(1, len(cuts) + 1):
        now = places(cuts[:length])
        before = cuts[length - 2].shards if length > 1 else 0
        for path, index in now.items():
            assert first.setdefault(path, index) == index
            assert index >= before or path in {each.path for cut in cuts[: length - 1] for each in cut.units}


@given(growths(), st.data())
def test_a_unit_that_goes_leaves_one_shard_and_no_other(cuts: list[Cut], data: st.DataObject) -> None:
    before = assign(cuts)
    gone = data.draw(st.sampled_from(cuts[-1].units)).path
    after = assign([*cuts, Cut(tuple(each for each in cuts[-1].units if each.path != gone), cuts[-1].shards)])
    assert [tuple(each for each in run if each.path != gone) for run in before] == list(after)


@given(growths(), st.randoms())
def test_the_order_of_a_listing_makes_no_difference(cuts: list[Cut], shuffler: random.Random) -> None:
    listed = list(cuts[-1].units)
    shuffler.shuffle(listed)
    assert assign([*cuts[:-1], replace(cuts[-1], units=in_path_order(listed))]) == assign(cuts)


def test_without_a_base_it_is_a_cut_into_contiguous_runs() -> None:
    units = in_path_order([unit(f"u{index:02d}", size=index + 1) for index in range(11)])
    assert assign([Cut(units, 4)]) == assign_units(units, 4)


def test_numbers_of_shards_that_do_not_fit_are_refused_with_those_that_would() -> None:
    old = Cut((unit("a"), unit("b")), 2)
    grown = (unit("a"), unit("b"), unit("c"))
    with pytest.raises(ConfigError, match=r"1 new units, such as 'c'(.|\n)*3 to 3 shards"):
        assign([old, Cut(grown, 2)])
    with pytest.raises(ConfigError, match=r"2 more than in the base, but there are only 1(.|\n)*3 to 3 shards"):
        assign([old, Cut(grown, 4)])
    with pytest.raises(ConfigError, match=r"only 0(.|\n)*2 shards, as in the base"):
        assign([old, Cut(old.units, 3)])
    with pytest.raises(ConfigError, match=r"at least as many shards, got \[3, 2\]"):
        FilterConfig(shards=2, older=(OlderCut(shards=3),))


def test_a_new_domain_is_new_units() -> None:
    web = [unit(f"units/web/{index}") for index in range(4)]
    code = [replace(unit(f"units/code/{index}"), domain="code") for index in range(2)]
    sources = [UnitList("raw/a", in_path_order([replace(each, domain="web") for each in web]))]
    sources.append(UnitList("raw/a", in_path_order([*sources[0].units, *code])))
    grown = FilterConfig(domains=("code", "web"), shards=3, older=(OlderCut(domains=("web",), shards=2),))
    assert [each.domain for each in shard_units(grown, sources, "00002")] == ["code", "code"]
    assert shard_units(grown, sources, "00001") == shard_units(FilterConfig(domains=("web",), shards=2), sources[:1], "00001")


def test_what_a_source_says_about_a_unit_without_changing_documents_makes_no_difference() -> None:
    one = unit("a")
    assert reads_alike([one], [replace(one, etag="other", origin="elsewhere", documents=3)])
    changes: dict[str, Any] = {"sha256": "1" * 64, "acquired": "2026-01-01T00:00:00Z", "license": "MIT", "policy": "BLOCKED", "path": "b"}
    for field, value in changes.items():
        assert not reads_alike([one], [replace(one, **{field: value})])


# Linking ------------------------------------------------------------------------------------------------------------------


class Family:
    """A source that grows, with the versions of a family made of it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.store = Store(f"file://{folder}/store")

    def write(self, version: str, files: dict[str, list[str]]) -> ArtifactStep:
        for name, texts in files.items():
            write_jsonl(self.folder / version / name, texts)
        return lab.raw_source("raw/words", version, lab.LocalFiles(root=str(self.folder / version)), license="CC0-1.0")

    def build(self, *steps: ArtifactStep, keys: Sequence[str] = ()) -> None:
        graph = ArtifactGraph(steps)
        launcher = InlineLauncher(self.folder / "store" / ".jobs")
        builder = Builder(graph=graph, store=self.store, target=self.store, launcher=launcher, events=QuietEvents())
        for step in steps:
            for artifact in step.ids():
                if not keys or artifact.partition in (None, *keys):
                    builder.build(graph[step.id], artifact)

    def record(self, step: ArtifactStep, key: str | None = None) -> Record:
        found = self.store.record(ArtifactId(step.name, step.version, key))
        assert found is not None
        return found

    def linked(self, step: ArtifactStep) -> list[str]:
        """Shards of a family that are linked."""
        return [key for key in step.partitions if LINKED in self.record(step, key).metrics]


RULES = (lab.MinCharacters(characters=40),)


@pytest.fixture
def family(tmp_path: Path) -> Family:
    return Family(tmp_path)


@pytest.fixture
def grown(family: Family) -> tuple[Family, ArtifactStep, ArtifactStep]:
    """Four units in three shards; then one of them has changed, and two are new."""
    files = {f"{index}.jsonl": sentences(20, index) for index in range(4)}
    old = filtered("filtered/words", "v1", family.write("v1", files), shards=3, filters=RULES)
    raw = family.write("v2", files | {"0.jsonl": sentences(20, 99), "1a.jsonl": sentences(20, 5), "z.jsonl": sentences(20, 6)})
    new = filtered("filtered/words", "v2", raw, shards=4, filters=RULES, base=old)
    family.build(old.deps[0], old)
    return family, old, new


def test_only_new_and_changed_shards_are_computed(grown: tuple[Family, ArtifactStep, ArtifactStep]) -> None:
    family, old, new = grown
    family.build(new.deps[0], new)
    changed, *same = old.partitions
    assert family.linked(new) == same
    for key in same:
        before, after = family.record(old, key), family.record(new, key)
        assert after.metrics == {LINKED: f"filtered/words@v1/{key}", **before.metrics}
        assert (after.content_digest, after.manifest_digest, after.files) == (before.content_digest, before.manifest_digest, before.files)
        assert family.store.payload_url(after) == family.store.payload_url(before)
        assert after.code == before.code
        assert family.store.code_table(after) == family.store.code_table(before)
        assert {str(read.id) for read in after.inputs} == {"raw/words@v1", "raw/words@v2", f"filtered/words@v1/{key}"}
        assert not (family.folder / "store" / after.id.path / "attempt-1").exists()
    assert family.record(old, changed).content_digest != family.record(new, changed).content_digest
    sources = {row["unit"] for key in new.partitions[3:] for row in documents(family, new, key)}
    assert sources == {"units/documents/1a.jsonl", "units/documents/z.jsonl"}
    for artifact in new.ids():
        assert family.store.damage(family.record(new, artifact.partition)) == []


def documents(family: Family, step: ArtifactStep, key: str) -> list[dict[str, str]]:
    """What each document of a shard says about itself."""
    import pyarrow.parquet as pq

    folder = family.store.payload_path(family.record(step, key))
    assert folder is not None
    (part,) = folder.glob("*.parquet")
    return [json.loads(row) for row in pq.read_table(part, columns=["metadata"]).column("metadata").to_pylist()]


def test_a_linked_shard_is_byte_for_byte_what_would_be_computed(grown: tuple[Family, ArtifactStep, ArtifactStep]) -> None:
    family, _, new = grown
    family.build(new.deps[0], new)
    result = reproduce(Lab(prefix=family.store.prefix), ArtifactGraph([new]), ArtifactId("filtered/words", "v2", "00001"))
    assert result.verdict == "bytes", result.summary


def test_a_base_that_is_not_there_spares_nothing_and_changes_nothing(grown: tuple[Family, ArtifactStep, ArtifactStep]) -> None:
    family, old, new = grown
    family.store.forget(ArtifactId("filtered/words", "v1", "00001"))
    family.build(new.deps[0], new)
    assert family.linked(new) == ["00002"]
    computed = family.record(new, "00001")
    family.build(old)
    assert family.record(old, "00001").manifest_digest == computed.manifest_digest
    finder = DriftFinder(ArtifactGraph([new]), family.store)
    assert all(finder.of(artifact) == () for artifact in new.ids())


def test_other_rules_or_terms_are_other_work(grown: tuple[Family, ArtifactStep, ArtifactStep]) -> None:
    family, old, new = grown
    stricter = filtered("filtered/words", "v3", new.deps[0], shards=4, filters=[lab.MinCharacters(characters=50)], base=old)
    family.build(stricter.deps[0], stricter)
    assert family.linked(stricter) == []
    relicensed = lab.raw_source("raw/words", "v4", lab.LocalFiles(root=str(family.folder / "v2")), license="MIT")
    relicensed_family = filtered("filtered/words", "v4", relicensed, shards=4, filters=RULES, base=old)
    family.build(relicensed, relicensed_family)
    assert family.linked(relicensed_family) == []


def test_what_is_made_shard_by_shard_is_linked_too_and_a_third_version_to_where_the_payload_is(
    grown: tuple[Family, ArtifactStep, ArtifactStep],
) -> None:
    family, old, new = grown
    bpe = lab.tokenizer("tokenizer/words", "v1", [old], vocab_size=300)
    old_tokens = tokenized("tokenized/words", "v1", old, bpe)
    new_tokens = tokenized("tokenized/words", "v2", new, bpe, base=old_tokens)
    raw = lab.raw_source("raw/words", "v3", lab.LocalFiles(root=str(family.folder / "v2")), license="CC0-1.0")
    third = filtered("filtered/words", "v3", raw, shards=4, filters=RULES, base=new)
    family.build(bpe, old_tokens, new.deps[0], new, new_tokens, raw, third)
    assert family.linked(new_tokens) == ["00001", "00002"]
    assert family.linked(third) == list(third.partitions)
    assert family.record(third, "00001").metrics[LINKED] == "filtered/words@v1/00001"
    assert family.store.payload_url(family.record(third, "00001")) == family.store.payload_url(family.record(old, "00001"))
    assert family.record(third, "00003").metrics[LINKED] == "filtered/words@v2/00003"


def test_measures_and_decisions_of_old_shards_are_linked(family: Family) -> None:
    files = {f"{index}.jsonl": sentences(20, index) for index in range(2)}
    measures, rules = [lab.LengthMeasure()], [lab.MinCharacters(characters=100)]
    documents = attributes = filtered = None
    for version, shards in (("v1", 2), ("v2", 3)):
        raw = family.write(version, files | ({"2.jsonl": sentences(20, 2)} if shards == 3 else {}))
        documents = lab.documents("documents/words", version, raw, shards=shards, base=documents)
        attributes = lab.attributes("attributes/words", version, documents, measures, base=attributes)
        filtered = lab.consolidated("filtered/words", version, documents, attributes=[attributes], rules=rules, base=filtered)
        family.build(raw, documents, attributes, filtered)
    for step in (documents, attributes, filtered):
        assert step is not None
        assert family.linked(step) == ["00000", "00001"]


def test_a_unit_that_is_gone_leaves_an_empty_shard_and_the_others_linked(family: Family) -> None:
    files = {f"{index}.jsonl": sentences(20, index) for index in range(3)}
    old = filtered("filtered/words", "v1", family.write("v1", files), shards=3, filters=RULES)
    fewer = family.write("v2", {name: texts for name, texts in files.items() if name != "1.jsonl"})
    new = filtered("filtered/words", "v2", fewer, shards=3, filters=RULES, base=old)
    family.build(old.deps[0], old, fewer, new)
    assert family.linked(new) == ["00000", "00002"]
    assert family.record(new, "00001").metrics["documents_in"] == 0


def test_housekeeping_keeps_what_links_point_at(grown: tuple[Family, ArtifactStep, ArtifactStep]) -> None:
    family, old, new = grown
    alone = filtered("filtered/spare", "v1", old.deps[0], shards=3, filters=RULES)
    family.build(new.deps[0], new, alone)
    without_base = ArtifactGraph([filtered("filtered/words", "v2", new.deps[0], shards=4, filters=RULES)])
    rules = Rules(unreferenced=True)
    outcome = execute(plan_cleanup(family.store, without_base, rules, now=datetime.now(UTC) + timedelta(days=1)), family.store)
    assert {item.artifact for item in outcome.deleted if item.kind != "jobs"} == set(alone.ids())
    assert all(family.store.damage(family.record(new, key)) == [] for key in new.partitions)


def test_planning_neither_builds_a_base_nor_waits_for_it(grown: tuple[Family, ArtifactStep, ArtifactStep]) -> None:
    family, _, new = grown
    graph = ArtifactGraph([new])
    store = Store(f"file://{family.folder}/empty")
    planned = plan(graph, [new.id], store, DriftFinder(graph, store))
    assert {str(step.step.id) for step in planned.steps} == {"raw/words@v1", "raw/words@v2", "filtered/words@v2"}


def test_dagster_maps_shards_to_those_of_the_base(grown: tuple[Family, ArtifactStep, ArtifactStep]) -> None:
    _, old, new = grown
    defs = build_definitions([lab.experiment("grown", new, question="?", hypothesis="!")])
    specs = {spec.key.to_user_string(): spec for spec in defs.resolve_all_asset_specs()}
    mappings = {dep.asset_key.to_user_string(): dep.partition_mapping for dep in specs["filtered/words-v2"].deps}
    upstream, downstream = (dg.StaticPartitionsDefinition(list(step.partitions)) for step in (old, new))
    mapping = mappings["filtered/words-v1"]
    assert isinstance(mapping, dg.StaticPartitionMapping)
    for key, keys in (("00001", {"00001"}), ("00003", set())):
        found = mapping.get_upstream_mapped_partitions_result_for_partitions(
            downstream.subset_with_partition_keys([key]), downstream, upstream
        )
        assert set(found.partitions_subset.get_partition_keys()) == keys


def test_only_an_older_version_of_the_same_family_is_a_base(grown: tuple[Family, ArtifactStep, ArtifactStep]) -> None:
    _, old, new = grown
    raw = new.deps[0]
    with pytest.raises(ConfigError, match="a family that is cut anew gets a new name"):
        filtered("filtered/other", "v2", raw, shards=4, filters=RULES, base=old)
    with pytest.raises(ConfigError, match="not cut from a raw source"):
        filtered("filtered/words", "v2", raw, shards=4, base=raw)
    with pytest.raises(ConfigError, match=r"at least as many shards, got \[3, 2\]"):
        filtered("filtered/words", "v2", raw, shards=2, base=old)


def test_work_is_job_configuration_and_content_and_not_versions(grown: tuple[Family, ArtifactStep, ArtifactStep]) -> None:
    family, old, _ = grown
    record = family.record(old, "00001")
    renamed = {**record.identity, "config": json.loads(json.dumps(record.identity["config"]).replace("words@v1", "words@v9"))}
    renamed["deps"] = {"raw/words@v9": "0" * 16}
    inputs = [each.model_copy(update={"version": "v9"}) for each in record.inputs]
    assert is_same_work(record, renamed, inputs)
    assert not is_same_work(record, renamed, [each.model_copy(update={"content_digest": "1" * 64}) for each in inputs])
    assert not is_same_work(record, {**renamed, "job": "other"}, inputs)
