"""`marin plan`: what would be done, why, and at what cost, from records alone."""

from collections.abc import Callable
from typing import Any

import pytest

from marin_core.artifact import ArtifactId, Record
from marin_core.artifact.code import CodeTable
from marin_core.artifact.drift import job_code
from marin_core.artifact.objects import LocalObjects
from marin_core.artifact.record import Usage
from tests.artifact.test_store import claim, lost, record, success
from tests.assets.conftest import Said
from tests.assets.fabricated import Fabricated, step

Marin = Callable[..., Said]

KEYS = ("00000", "00001", "00002")


def rows(said: Said) -> dict[str, dict[str, Any]]:
    return {row["artifact"]: row for row in said.json["artifacts"]}


def actions(said: Said) -> dict[str, str]:
    return {member["artifact"]: member["action"] for row in said.json["artifacts"] for member in row["members"]}


def test_nothing_to_do_and_no_drift_exits_0(fabricated: Fabricated, marin: Marin) -> None:
    a = step("a")
    b = step("b", a)
    fabricated.declare(b)
    fabricated.build(a)
    fabricated.build(b)
    said = marin("plan", "under_test", "--json")
    assert (said.code, actions(said)) == (0, {"a@v1": "serve", "b@v1": "serve"})
    assert said.json["done"] is True
    shown = marin("plan", "b")
    assert shown.code == 0
    assert "2 artifacts: 2 serve" in shown.out


def test_what_is_missing_is_built_after_what_it_reads_and_exits_1(fabricated: Fabricated, marin: Marin) -> None:
    a = step("z")
    fabricated.declare(step("b", a))
    fabricated.build(a)
    said = marin("plan", "b@v1", "--json")
    assert (said.code, list(actions(said).items())) == (1, [("z@v1", "serve"), ("b@v1", "build")])


def test_one_partition_needs_its_own_shard_of_a_family_cut_alike_and_all_of_another(fabricated: Fabricated, marin: Marin) -> None:
    shards = step("shards", partitions=KEYS)
    whole = step("whole", shards)
    fabricated.declare(step("alike", shards, partitions=KEYS), step("other", whole, partitions=("x", "y")))
    assert list(actions(marin("plan", "alike@v1/00001", "--json"))) == ["shards@v1/00001", "alike@v1/00001"]
    assert list(actions(marin("plan", "other@v1/y", "--json"))) == [*(f"shards@v1/{key}" for key in KEYS), "whole@v1", "other@v1/y"]


def test_drift_is_named_where_it_lies_and_inherited_below(fabricated: Fabricated, marin: Marin) -> None:
    a = step("a")
    for each in (a, step("b", a), step("c", step("b", a))):
        fabricated.build(each)
    changed = step("a", text="[red]now[/red]")
    fabricated.declare(step("c", step("b", changed)))
    said = marin("plan", "c", "--json")
    assert (said.code, set(actions(said).values())) == (1, {"serve"})
    assert [(name, row["drift"], row["inherits_from"]) for name, row in rows(said).items()] == [
        ("a@v1", [{"kind": "config", "artifact": "a@v1", "field": "text", "recorded": "as before", "declared": "[red]now[/red]"}], []),
        ("b@v1", [], ["a@v1"]),
        ("c@v1", [], ["b@v1"]),
    ]
    shown = marin("plan", "c").out
    assert "drift a@v1: config text: built with as before, now [red]now[/red]" in shown
    assert "inherits the drift of b@v1" in shown


def test_data_drift_names_the_input(fabricated: Fabricated, marin: Marin) -> None:
    a = step("a")
    b = step("b", a)
    fabricated.declare(b)
    fabricated.build(a)
    fabricated.build(b)
    fabricated.store.forget(a.id)
    fabricated.build(a, content="else")
    (drift,) = rows(marin("plan", "b", "--json"))["b@v1"]["drift"]
    assert (drift["kind"], drift["field"]) == ("data", "a@v1")


def test_code_drift_names_the_definition(fabricated: Fabricated, marin: Marin) -> None:
    today = job_code("summary")
    file = next(iter(today.files))
    then = CodeTable(files={**today.files, file: {**today.files[file], "gone": "0" * 16}})
    a = step("a", job="summary")
    fabricated.declare(a)
    fabricated.build(a, table=then)
    (drift,) = rows(marin("plan", "a", "--json"))["a@v1"]["drift"]
    assert drift == {"kind": "code", "artifact": "a@v1", "field": f"{file}:gone", "recorded": "0" * 16, "declared": "absent"}


def test_drift_with_the_policy_to_fail_is_refused_and_blocks_what_reads_it(fabricated: Fabricated, marin: Marin) -> None:
    a = step("a", on_drift="fail")
    fabricated.build(a)
    fabricated.declare(step("c", step("b", step("a", text="new", on_drift="fail"))), step("d"))
    assert actions(marin("plan", "under_test", "--json")) == {"a@v1": "refuse", "b@v1": "blocked", "c@v1": "blocked", "d@v1": "build"}


def test_drift_of_a_mutable_version_with_the_policy_to_rebuild_is_rebuilt(fabricated: Fabricated, marin: Marin) -> None:
    fabricated.build(step("a", version="dev", on_drift="rebuild"))
    fabricated.declare(step("a", version="dev", on_drift="rebuild", text="new"))
    assert actions(marin("plan", "a", "--json")) == {"a@dev": "rebuild"}


def test_a_corrupt_artifact_is_refused_if_files_are_checked(fabricated: Fabricated, marin: Marin) -> None:
    a = step("a")
    fabricated.declare(a)
    fabricated.build(a)
    fabricated.payload(a).write_text("longer than it was")
    assert marin("plan", "a").code == 0
    said = marin("plan", "a", "--check-files", "--json")
    (member,) = rows(said)["a@v1"]["members"]
    assert (said.code, member["action"], member["damage"]) == (1, "refuse", ["data has 18 bytes instead of 4"])
    assert "corrupt: data has 18 bytes instead of 4" in marin("plan", "a", "--check-files").out


def test_an_open_attempt_is_attached_to_and_says_where_it_runs(fabricated: Fabricated, marin: Marin) -> None:
    fabricated.declare(step("a"))
    fabricated.store.claim(ArtifactId("a", "v1"), claim(1).model_copy(update={"host": "node-7"}))
    said = marin("plan", "a", "--json")
    (member,) = rows(said)["a@v1"]["members"]
    assert (said.code, member["action"], member["attempt"]["host"], member["attempt"]["state"]) == (1, "attach", "node-7", "open")
    assert "attempt 1 is open on node-7 since now" in marin("plan", "a").out


def test_a_failed_attempt_says_why_it_is_built_again(fabricated: Fabricated, marin: Marin) -> None:
    a = ArtifactId("a", "v1")
    fabricated.declare(step("a"))
    fabricated.store.claim(a, claim(1))
    fabricated.store.close(a, 1, lost("[bold]disk full[/bold]\nand more"))
    assert actions(marin("plan", "a", "--json")) == {"a@v1": "build"}
    assert "attempt 1 lost (infrastructure): [bold]disk full[/bold]" in marin("plan", "a").out


def test_a_success_without_a_record_only_needs_to_be_published(fabricated: Fabricated, marin: Marin) -> None:
    a = ArtifactId("a", "v1")
    fabricated.declare(step("a"))
    fabricated.store.claim(a, claim(1))
    fabricated.store.close(a, 1, success(record(a)))
    assert actions(marin("plan", "a", "--json")) == {"a@v1": "publish"}
    assert fabricated.store.record(a) is None  # planning changes nothing


@pytest.fixture
def built(fabricated: Fabricated) -> Callable[..., Record]:
    def build(name: str, version: str = "v1", partition: str | None = None, wall_seconds: float = 1.0, job: str = "toy") -> Record:
        made = step(name, version=version, job=job, partitions=KEYS if partition else ())
        usage = Usage(wall_seconds=wall_seconds, cpu_seconds=2 * wall_seconds, peak_memory_bytes=1)
        return fabricated.build(made, partition, usage=usage)

    return build


def estimate(said: Said, artifact: str) -> tuple[str, int, float, float] | None:
    found = rows(said)[artifact]["estimate"]
    return found and (found["source"], found["samples"], found["wall_seconds"], found["cpu_seconds"])


def test_costs_are_medians_of_siblings_then_of_other_versions_then_of_the_same_job(
    fabricated: Fabricated, marin: Marin, built: Callable[..., Record]
) -> None:
    family = step("family", partitions=KEYS)
    fabricated.declare(
        family, step("models/named", version="v4"), step("new"), step("unknown", job="other"), step("x", job="kin"), step("y", job="kin")
    )
    built("family", partition="00000", wall_seconds=10)
    for version, seconds in (("v1", 1.0), ("v2", 3.0), ("v3", 100.0)):
        built("models/named", version, wall_seconds=seconds)
    built("x", job="kin", wall_seconds=7)
    said = marin("plan", "under_test", "--json")
    assert estimate(said, "family@v1") == ("siblings", 1, 10, 20)
    assert estimate(said, "models/named@v4") == ("versions", 3, 3, 6)
    assert estimate(said, "new@v1") == ("job", 1, 10, 20)
    assert estimate(said, "y@v1") == ("job", 1, 7, 14)
    assert estimate(said, "unknown@v1") is None
    totals = said.json["totals"]
    assert (totals["wall_seconds"], totals["without_estimate"]) == (2 * 10 + 3 + 10 + 7, 1)
    shown = marin("plan", "under_test").out
    assert "3 of other versions" in shown
    assert "and 1 of which nothing is known" in shown


def test_reading_is_linear_in_artifacts(fabricated: Fabricated, marin: Marin, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every record is read once, together with the mark of its withdrawal, whatever the graph's shape."""
    last = step("n0")
    fabricated.build(last)
    for number in range(1, 60):
        last = step(f"n{number}", last)
        fabricated.build(last)
    fabricated.declare(last)
    reads: list[str] = []
    read = LocalObjects.read

    def counted(self: LocalObjects, path: str) -> bytes | None:
        reads.append(path)
        return read(self, path)

    monkeypatch.setattr(LocalObjects, "read", counted)
    assert marin("plan", "n59").code == 0
    assert len(reads) == len(set(reads)) == 2 * 60
