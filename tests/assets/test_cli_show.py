"""`marin show` and `marin diff`: records for people and programs."""

from collections.abc import Callable

import pytest

from marin_core.artifact import ArtifactId
from marin_core.artifact.code import CodeTable
from marin_core.artifact.record import CheckResult, Code, Environment
from tests.artifact.test_store import claim, lost
from tests.assets.conftest import Said
from tests.assets.fabricated import Fabricated, step

Marin = Callable[..., Said]


def test_an_artifact_is_shown_although_no_experiment_declares_it(fabricated: Fabricated, marin: Marin) -> None:
    a = step("a")
    b = step("b", a, text="[red]red[/red] \x1b[2J")
    fabricated.build(a)
    checks = (CheckResult(name="no_nan", passed=False, description="[blink]loss[/blink]", values={"count": 3}),)
    tables = {"experts": [{"expert": 0, "load": 0.5}, {"expert": 1}]}
    built = fabricated.build(b, checks=checks, metrics={"loss": 2.5}, tables=tables, links={"W&B": "https://example.org/run"})
    said = marin("show", "b")
    assert said.code == 0
    assert "\x1b" not in said.out
    for text in (
        built.fingerprint,
        built.content_digest,
        f"{fabricated.store.prefix}/b/v1/attempt-1 (1 files, 4 B)",
        "a@v1",
        "[red]red[/red] \\x1b[2J",
        "[blink]loss[/blink]",
        "count 3",
        "2.5",
        "expert",
        "https://example.org/run",
        "no experiment declares it any more",
    ):
        assert text in said.out
    found = marin("show", "b@v1", "--json").json
    assert found["record"]["fingerprint"] == built.fingerprint
    assert (found["committed"], found["declared"], found["drift"], found["size_bytes"]) == (True, False, None, 4)
    assert [(each["number"], each["state"]) for each in found["attempts"]] == [(1, "succeeded")]


def test_attempts_are_shown_with_class_message_log_and_duration(fabricated: Fabricated, marin: Marin) -> None:
    a = ArtifactId("a", "v1")
    fabricated.store.claim(a, claim(1).model_copy(update={"submitted_at": "2026-11-29T10:00:00+00:00"}))
    end = lost("[red]no sign of life[/red]").model_copy(update={"ended_at": "2026-11-29T10:01:30+00:00", "log": "/logs/m-1"})
    fabricated.store.close(a, 1, end)
    fabricated.store.claim(a, claim(2))
    shown = marin("show", "a@v1").out
    assert all(text in shown for text in ("not committed", "infrastructure", "[red]no sign of life[/red]", "/logs/m-1", "90.0 s", "open"))
    first, second = marin("show", "a@v1", "--json").json["attempts"]
    assert (first["failure"], first["seconds"], first["log"]) == ("infrastructure", 90.0, "/logs/m-1")
    assert (second["state"], second["seconds"], second["ended_at"]) == ("open", None, None)


def test_todays_drift_is_part_of_what_is_shown(fabricated: Fabricated, marin: Marin) -> None:
    fabricated.build(step("a"))
    fabricated.declare(step("a", text="new"))
    assert "drift a@v1: config text: built with as before, now new" in marin("show", "a").out
    (difference,) = marin("show", "a", "--json").json["drift"]
    assert (difference["field"], difference["declared"]) == ("text", "new")
    fabricated.declare(step("a"))
    assert "it would be built the same today" in marin("show", "a").out


def test_experiments_that_cannot_be_loaded_hide_nothing_that_was_built(fabricated: Fabricated, marin: Marin) -> None:
    fabricated.build(step("a"))
    fabricated.declare(step("a"), step("a", text="a contradiction"))
    said = marin("show", "a")
    assert said.code == 0
    assert "drift is not known" in said.out
    assert marin("verify", "a@v1").code == 0


def test_a_family_is_shown_member_by_member(fabricated: Fabricated, marin: Marin) -> None:
    family = step("f", partitions=("00000", "00001"))
    fabricated.build(family, "00000")
    fabricated.store.claim(ArtifactId("f", "v1", "00001"), claim(1))
    said = marin("show", "f@v1", "--json")
    assert [(each["artifact"], each["committed"]) for each in said.json["members"]] == [("f@v1/00000", True), ("f@v1/00001", False)]
    shown = marin("show", "f").out
    assert "a family of 2" in shown
    assert "not committed" in shown


@pytest.mark.parametrize(
    ("arguments", "message", "advice"),
    [
        (("show", "a"), "a has 2 versions", "a@v1, a@v2"),
        (("show", "a@v3"), "a@v3 was never built", "v1, v2"),
        (("show", "nothing"), "nothing called 'nothing' was ever built", "MARIN_PREFIX"),
        (("show", "A@v1"), "artifact name 'A'", "lower-case"),
        (("show", "deep@a/v1"), "deep@a/v1 was never built", "MARIN_PREFIX"),  # the address of deep/a@v1
        (("diff", "a@v1", "f@v1"), "f@v1 is a family", "f@v1/00000"),
        (("diff", "a@v1", "@v3"), "a@v3 was never built", "v1, v2"),
        (("lineage", "open@v1"), "open@v1 is not committed", "marin show open@v1"),
    ],
)
def test_what_is_not_there_is_explained(
    fabricated: Fabricated, marin: Marin, arguments: tuple[str, ...], message: str, advice: str
) -> None:
    for each in (step("a"), step("a", version="v2"), step("deep/a")):
        fabricated.build(each)
    fabricated.build(step("f", partitions=("00000",)), "00000")
    fabricated.store.claim(ArtifactId("open", "v1"), claim(1))
    said = marin(*arguments)
    assert (said.code, said.out) == (64, "")
    assert message in said.err
    assert advice in said.err


# Comparison -------------------------------------------------------------------------------------------------------------


def test_equal_artifacts_exit_0(fabricated: Fabricated, marin: Marin) -> None:
    a = step("a")
    fabricated.build(a)
    said = marin("diff", "a@v1", "@v1", "--json")
    assert (said.code, said.json["equal"], said.json["config"]) == (0, True, {})
    assert "equal: config, inputs, packages, environment, code, files" in marin("diff", "a@v1", "a@v1").out


def build_version(fabricated: Fabricated, version: str, text: str, run: str, files: dict[str, str], **metrics: float) -> None:
    table = CodeTable(files={"marin_jobs/toy.py": {"same": "1", "run": run}})
    source = step("source", version=version)
    fabricated.build(source, content=version)
    code = Code(git_commit=version * 20, packages={"jax": version, "numpy": "2"}, digest=table.digest)
    environment = Environment(python="3", platform=version, cpus=1)
    made = step("a", source, version=version, text=text)
    fabricated.build(made, content=files, table=table, code=code, environment=environment, metrics=metrics)


def test_two_versions_differ_in_fields_code_inputs_packages_machine_files_and_metrics(fabricated: Fabricated, marin: Marin) -> None:
    build_version(fabricated, "v1", "[red]", "2", {"equal": "x", "other": "y", "old": "z"}, loss=2.5, gone=1)
    build_version(fabricated, "v2", "1", "3", {"equal": "x", "other": "yy", "new": "z"}, loss=2.25)
    said = marin("diff", "a@v1", "@v2", "--json")
    found = said.json
    assert (said.code, found["equal"]) == (1, False)
    assert (found["a"]["artifact"], found["b"]["artifact"]) == ("a@v1", "a@v2")
    assert found["config"]["text"] == {"a": "[red]", "b": "1"}
    assert found["code"]["definitions"] == {"marin_jobs/toy.py:run": {"a": "2", "b": "3"}}
    assert {name: pair["b"]["artifact"] for name, pair in found["inputs"].items()} == {"source": "source@v2"}
    assert found["packages"] == {"jax": {"a": "v1", "b": "v2"}}
    assert found["environment"] == {"platform": {"a": "v1", "b": "v2"}}
    assert found["files"] == {"equal": 1, "only_a": ["old"], "only_b": ["new"], "different": {"other": {"a": 1, "b": 2}}}
    assert found["metrics"] == {"loss": {"a": 2.5, "b": 2.25}, "gone": {"a": 1}}
    shown = marin("diff", "a@v1", "a@v2").out
    assert "equal: nothing" in shown
    assert all(text in shown for text in ("[red]", "source@v2", "absent", "2 bytes"))


def test_equal_contents_of_other_settings_are_not_equal_artifacts(fabricated: Fabricated, marin: Marin) -> None:
    fabricated.build(step("a"))
    fabricated.build(step("a", version="v2", text="new"))
    said = marin("diff", "a@v1", "a@v2", "--json")
    assert said.code == 1
    assert said.json["a"]["content_digest"] == said.json["b"]["content_digest"]
