"""`marin lineage` and `marin verify`: what was made from what, and whether it still is what was made."""

import os
from collections.abc import Callable
from typing import Any

from marin_core.artifact import ArtifactId, ArtifactStep
from marin_core.artifact.code import CodeTable
from tests.artifact.test_store import claim
from tests.assets.conftest import Said
from tests.assets.fabricated import Fabricated, step

Marin = Callable[..., Said]


def build_diamond(fabricated: Fabricated) -> ArtifactStep:
    """raw → left, right → top."""
    raw = step("raw")
    left, right = step("left", raw), step("right", raw)
    top = step("top", left, right)
    for each in (raw, left, right, top):
        fabricated.build(each, content=each.name)
    return top


def nodes(said: Said) -> dict[str, dict[str, Any]]:
    return {node["artifact"]: node for node in said.json["nodes"]}


def links(said: Said) -> dict[str, list[str]]:
    return {name: [link["artifact"] for link in node["links"]] for name, node in nodes(said).items()}


def test_upstream_follows_inputs_and_shows_what_is_shared_once(fabricated: Fabricated, marin: Marin) -> None:
    build_diamond(fabricated)
    said = marin("lineage", "top@v1", "--json")
    assert said.code == 0
    assert links(said) == {"top@v1": ["left@v1", "right@v1"], "left@v1": ["raw@v1"], "right@v1": ["raw@v1"], "raw@v1": []}
    shown = marin("lineage", "top").out.splitlines()
    digest = nodes(said)["raw@v1"]["content_digest"][:12]
    assert [line.lstrip("│├└─ ").rstrip() for line in shown][3:] == [
        *[line.lstrip("│├└─ ").rstrip() for line in shown if "right@v1" in line],
        "raw@v1  (shown elsewhere)",
    ]
    assert f"    └── raw@v1  {digest}" in shown[2] or f"│   └── raw@v1  {digest}" in shown[2]


def test_downstream_is_what_was_made_from_it_also_undeclared(fabricated: Fabricated, marin: Marin) -> None:
    build_diamond(fabricated)
    said = marin("lineage", "raw@v1", "--downstream", "--json")
    assert links(said) == {"raw@v1": ["left@v1", "right@v1"], "left@v1": ["top@v1"], "right@v1": ["top@v1"], "top@v1": []}
    assert marin("lineage", "left", "--downstream").out.splitlines()[1].startswith("└── top@v1")


def test_depth_cuts_and_says_so(fabricated: Fabricated, marin: Marin) -> None:
    build_diamond(fabricated)
    said = marin("lineage", "top", "--depth", "1", "--json")
    assert {name: node["cut"] for name, node in nodes(said).items()} == {"top@v1": False, "left@v1": True, "right@v1": True}
    assert marin("lineage", "top", "--depth", "1").out.count("… 1 more, which a larger --depth shows") == 2


def test_drift_and_inputs_of_another_content_are_marked(fabricated: Fabricated, marin: Marin) -> None:
    build_diamond(fabricated)
    raw = step("raw", text="new")
    fabricated.declare(step("top", step("left", raw), step("right", raw)))
    assert {name: node["drift"] for name, node in nodes(marin("lineage", "top", "--json")).items()} == {
        "top@v1": "inherited",
        "left@v1": "inherited",
        "right@v1": "inherited",
        "raw@v1": "own",
    }
    fabricated.store.forget(ArtifactId("raw", "v1"))
    shown = marin("lineage", "top").out
    assert "raw@v1  not committed any more" in shown
    fabricated.build(step("raw"), content="something else")
    assert "was read as" in marin("lineage", "top").out


def test_members_of_a_large_family_are_counted(fabricated: Fabricated, marin: Marin) -> None:
    keys = tuple(f"{number:05d}" for number in range(12))
    shards = step("shards", partitions=keys)
    for key in keys:
        fabricated.build(shards, key)
    fabricated.build(step("whole", shards))
    assert "… 8 more of shards@v1, which --json lists" in marin("lineage", "whole").out
    assert len(nodes(marin("lineage", "whole", "--json"))) == 13


def test_a_deep_chain_is_followed_without_recursion_and_cut_only_where_people_read(fabricated: Fabricated, marin: Marin) -> None:
    last = step("n0")
    fabricated.build(last)
    for number in range(1, 60):
        last = step(f"n{number}", last)
        fabricated.build(last)
    assert len(nodes(marin("lineage", "n59", "--json"))) == 60
    assert "… 1 more, which a larger --depth shows" in marin("lineage", "n59").out
    assert "n0@v1" in marin("lineage", "n59", "--depth", "1000").out
    assert "n59@v1" in marin("lineage", "n0", "--depth", "1000", "--downstream").out


# Verification -----------------------------------------------------------------------------------------------------------


def states(said: Said) -> dict[str, str]:
    return {each["artifact"]: each["state"] for each in said.json["artifacts"]}


def test_what_is_intact_exits_0(fabricated: Fabricated, marin: Marin) -> None:
    fabricated.declare(build_diamond(fabricated))
    said = marin("verify", "under_test", "--json")
    assert (said.code, set(states(said).values()), len(states(said))) == (0, {"intact"}, 4)
    assert "4 artifacts: 4 intact; read" in marin("verify", "under_test").out
    assert states(marin("verify", "--all", "--json")) == states(said)


def test_every_damaged_file_is_listed_and_exits_65(fabricated: Fabricated, marin: Marin) -> None:
    made = fabricated.build(step("a"), content={"kept": "1", "flipped": "1", "cut": "12", "deep/gone": "1"})
    folder = fabricated.folder / "a" / "v1" / made.payload
    stamp = (folder / "flipped").stat()
    (folder / "flipped").write_text("2")
    os.utime(folder / "flipped", ns=(stamp.st_atime_ns, stamp.st_mtime_ns))  # a bit that rots changes no time
    (folder / "cut").write_text("1")
    (folder / "deep" / "gone").unlink()
    said = marin("verify", "a@v1", "--json")
    (found,) = said.json["artifacts"]
    assert (said.code, found["state"], said.json["exit_code"]) == (65, "corrupt", 65)
    assert {each["path"]: each["problem"] for each in found["damage"]} == {
        "flipped": "has another content",
        "cut": "has 1 bytes instead of 2",
        "deep/gone": "is gone",
    }
    shown = marin("verify", "a@v1").out
    assert "corrupt a@v1" in shown
    assert "  deep/gone is gone" in shown


def test_a_missing_artifact_is_reported_and_exits_1_but_damage_weighs_more(fabricated: Fabricated, marin: Marin) -> None:
    a = step("a")
    fabricated.declare(step("b", a))
    fabricated.build(a)
    said = marin("verify", "under_test", "--json")
    assert (said.code, states(said)) == (1, {"b@v1": "missing", "a@v1": "intact"})
    fabricated.payload(a).write_text("tada")
    assert marin("verify", "under_test").code == 65


def test_bookkeeping_is_verified_too(fabricated: Fabricated, marin: Marin) -> None:
    table = CodeTable(files={"a.py": {"run": "1"}})
    for name in ("changed", "gone", "rotten"):
        fabricated.build(step(name), table=table)
    fabricated.build(step("manifest"), manifest_digest="0" * 64)

    def attempt(name: str) -> Any:
        return fabricated.folder / name / "v1" / ".artifact" / "attempts" / "00001"

    (attempt("changed") / "code.json").write_text(CodeTable(files={}).model_dump_json())
    (attempt("gone") / "code.json").unlink()
    (attempt("rotten") / "code.json").write_text("{")
    said = marin("verify", "--all", "--json")
    assert said.code == 65
    problems = {each["artifact"]: each["damage"][0]["problem"] for each in said.json["artifacts"]}
    assert problems["changed@v1"].startswith("has the digest")
    assert problems["gone@v1"] == "is gone"
    assert problems["rotten@v1"].startswith("can't be read")
    assert problems["manifest@v1"] == "lists other files than those of which it has the digest"


def test_a_record_that_cannot_be_read_does_not_stop_the_others(fabricated: Fabricated, marin: Marin) -> None:
    a, b = step("a"), step("b")
    fabricated.declare(a, b)
    for each in (a, b):
        fabricated.build(each)
    (fabricated.folder / "a" / "v1" / ".artifact" / "record.json").write_text("{}")
    said = marin("verify", "under_test", "--json")
    assert (said.code, states(said)) == (65, {"a@v1": "corrupt", "b@v1": "intact"})
    everything = marin("verify", "--all", "--json")
    assert (everything.code, sorted(states(everything).values())) == (65, ["corrupt", "intact"])


def test_targets_or_all_must_be_given(marin: Marin, fabricated: Fabricated) -> None:
    assert marin("verify").code == 64
    assert marin("verify", "a", "--all").code == 64
    fabricated.store.claim(ArtifactId("a", "v1"), claim(1))
    assert states(marin("verify", "a@v1", "--json")) == {"a@v1": "missing"}
