"""`marin gc`: what it shows, when it deletes, and when it refuses."""

import io
import json
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from marin_assets.cli import gc, main
from marin_assets.cli.targets import Declared
from marin_core.artifact import ArtifactGraph, ArtifactId, End, Store
from marin_core.artifact.housekeeping import execute
from marin_core.artifact.inventory import committed
from marin_core.artifact.objects import LocalObjects
from marin_core.experiment import LocalFiles, experiment, raw_source, summary
from tests.artifact import test_housekeeping as built
from tests.artifact.test_graph import toy
from tests.assets.conftest import LabUnderTest, prose, write_documents


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    """A store with something of every kind, and an experiment that declares a part of it."""
    monkeypatch.setenv("MARIN_PREFIX", str(tmp_path / "lab"))
    monkeypatch.setattr(built, "NOW", datetime.now(UTC))
    store = Store(str(tmp_path / "lab"))
    built.put(store, "raw/base", days=99)
    built.put(store, "kept", "raw/base", days=9)
    built.put(store, "temporary", days=9, keep_days=2)
    built.put(store, "raw/old", days=40)
    built.give_up(store, "kept", built.begin(store, "kept"), days=9)
    built.job(store, "raw/base", 1, name="m-base-a1")
    built.put(Store(f"{store.prefix}/.reproductions/18f"), "kept", days=9)
    base = replace(toy("raw/base"), owner="team:[red]data[/red]")
    graph = ArtifactGraph([toy("kept", base)])
    question = experiment("tutorial", *(step for step in graph if step.name == "kept"), question="?", hypothesis="!")
    monkeypatch.setattr(gc, "declared", lambda: Declared({"tutorial": question}, graph))
    return store


def holds(store: Store) -> set[str]:
    return {str(each.id) for each in committed(store)}


def payload_folders(store: Store) -> list[str]:
    return sorted({path.rpartition("/")[0] for path in store.objects.files("") if "/attempt-" in path})


Terminal = Callable[[str], None]


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """Somebody sits there and answers."""

    class Keyboard(io.StringIO):
        def isatty(self) -> bool:
            return True

    return lambda answer: monkeypatch.setattr("sys.stdin", Keyboard(answer))


def test_without_delete_it_only_shows_who_holds_what_and_what_could_go(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    before = store.objects.files("")
    assert main(["gc"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    lines = [" ".join(line.split()) for line in out.splitlines()]
    for path in ("temporary/v1/attempt-1", "kept/v1/attempt-2", ".jobs/m-base-a1", ".reproductions/18f"):
        assert any(path in line for line in lines), path
    assert "raw/old" not in out
    assert any(line.startswith("team:[red]data[/red] raw 1 ") for line in lines)  # it is text, and no colour
    assert any(line.startswith("(undeclared) raw 1 ") for line in lines)
    assert "2 artifacts with" in out
    assert "--unreferenced considers them too" in out
    assert store.objects.files("") == before


def test_delete_with_yes_deletes_and_says_what(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["gc", "--delete", "--yes"]) == 0
    out = capsys.readouterr().out
    for kind in ("expired", "debris", "jobs", "reproductions"):
        assert f"deleted {kind}: 1 folders" in out
    assert "are free" in out
    assert holds(store) == {"raw/base@v1", "kept@v1", "raw/old@v1"}
    assert payload_folders(store) == ["kept/v1/attempt-1", "raw/base/v1/attempt-1", "raw/old/v1/attempt-1"]
    assert main(["gc"]) == 0
    assert "nothing to delete" in capsys.readouterr().out


@pytest.mark.parametrize(("days", "stays"), [("39", False), ("41", True)])
def test_unreferenced_artifacts_go_when_asked_for_and_old_enough(store: Store, days: str, stays: bool) -> None:
    assert main(["gc", "--unreferenced", "--older-than", days, "--delete", "--yes"]) == 0
    assert ("raw/old@v1" in holds(store)) == stays


def test_jobs_days_is_how_long_folders_of_finished_jobs_are_kept(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["gc", "--jobs-days", "100"]) == 0
    assert ".jobs/m-base-a1" not in capsys.readouterr().out


@pytest.mark.parametrize(("answer", "deletes"), [("y\n", True), ("yes\n", True), ("n\n", False), ("\n", False), ("", False)])
def test_on_a_terminal_it_asks(store: Store, terminal: Terminal, capsys: pytest.CaptureFixture[str], answer: str, deletes: bool) -> None:
    terminal(answer)
    assert main(["gc", "--delete"]) == 0
    out, err = capsys.readouterr()
    assert "Delete 4 folders with" in err
    assert ("nothing was deleted" in out) == (not deletes)
    assert ("temporary@v1" in holds(store)) == (not deletes)


def test_where_nobody_can_be_asked_it_refuses_before_it_looks(
    store: Store, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], terminal: Terminal
) -> None:
    before = store.objects.files("")
    monkeypatch.setattr("sys.stdin", io.StringIO("y\n"))
    assert main(["gc", "--delete"]) == 64
    assert "standard input is no terminal" in capsys.readouterr().err
    terminal("y\n")
    assert main(["gc", "--delete", "--json"]) == 64
    assert "--yes" in json.loads(capsys.readouterr().err)["error"]["advice"]
    assert store.objects.files("") == before


@pytest.mark.parametrize("arguments", [["--older-than", "-1"], ["--jobs-days", "soon"], ["--older-than", "1.5"]])
def test_days_that_are_no_days_are_refused(store: Store, arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["gc", *arguments]) == 64
    assert arguments[0] in capsys.readouterr().err


def test_json_is_one_document_with_the_survey_the_plan_and_the_outcome(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    def document(*arguments: str) -> dict[str, Any]:
        assert main(["gc", "--json", *arguments]) == 0
        found: dict[str, Any] = json.loads(capsys.readouterr().out)
        return found

    planned = document()
    assert planned["store"] == store.prefix
    artifacts = {each["artifact"]: each for each in planned["survey"]["artifacts"]}
    assert artifacts["raw/base@v1"]["owner"] == "team:[red]data[/red]"
    assert artifacts["raw/base@v1"]["referrers"] == ["kept@v1"]
    assert artifacts["raw/base@v1"]["experiments"] == ["tutorial"]
    assert artifacts["raw/old@v1"]["declared"] is False
    items = {each["path"]: each for each in planned["plan"]["items"]}
    assert {each["kind"] for each in items.values()} == {"expired", "debris", "jobs", "reproductions"}
    assert planned["plan"]["totals"]["expired"] == {"folders": 1, "bytes": items["temporary/v1/attempt-1"]["bytes"]}
    assert planned["outcome"] is None
    done = document("--delete", "--yes")
    assert [each["path"] for each in done["outcome"]["deleted"]] == list(items)
    assert done["outcome"]["skipped"] == []
    assert document("--delete", "--yes")["plan"]["items"] == []


def test_what_is_kept_after_all_is_said_with_its_reason(
    store: Store, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def late(plan: Any, *arguments: Any, **options: Any) -> Any:
        built.put(store, "reader", "temporary")
        return execute(plan, *arguments, **options)

    monkeypatch.setattr(gc, "execute", late)
    assert main(["gc", "--delete", "--yes"]) == 0
    assert "kept temporary/v1/attempt-1: reader@v1 refers to it" in capsys.readouterr().out
    assert {"temporary@v1", "reader@v1"} <= holds(store)


def test_damage_is_shown_and_nothing_that_it_may_refer_to_goes(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    store.objects.replace("kept/v1/.artifact/record.json", b"\x1b[2J")
    assert main(["gc", "--unreferenced", "--delete", "--yes"]) == 0
    out = capsys.readouterr().out
    assert "damaged: " in out
    assert "\x1b[2J" not in out
    assert store.record(ArtifactId("temporary", "v1")) is not None
    assert store.record(ArtifactId("raw/base", "v1")) is not None


def test_names_in_the_store_drive_no_terminal(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    number = built.begin(store, "broken")
    end = End(state="failed", ended_at=(datetime.now(UTC) - timedelta(days=30)).isoformat(), error="[bold]\x1b]0;title\x07[/bold]")
    store.close(ArtifactId("broken", "v1"), number, end)
    assert main(["gc"]) == 0
    out = capsys.readouterr().out
    assert "[bold]" in out
    assert "\x1b" not in out


def test_an_empty_store_is_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MARIN_PREFIX", str(tmp_path / "nowhere"))
    assert main(["gc", "--delete", "--yes"]) == 0
    assert "nothing to delete" in capsys.readouterr().out
    assert not (tmp_path / "nowhere").exists()


def test_folders_that_cannot_be_deleted_are_named(
    store: Store, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LocalObjects, "delete_tree", lambda self, path: None)
    assert main(["gc", "--delete", "--yes"]) == 0
    assert "kept temporary/v1/attempt-1: 1 of its files could not be deleted" in capsys.readouterr().out


def test_days_to_keep_and_what_is_read_travel_from_the_step_into_the_store(lab: LabUnderTest, tmp_path: Path) -> None:
    write_documents(tmp_path / "source" / "part.jsonl.gz", prose(1))
    files = LocalFiles(root=str(tmp_path / "source"), pattern="*.jsonl.gz")
    raw = replace(raw_source("raw/local", "v1", files, license="CC0-1.0"), keep_days=3)
    table = summary("tables/raw", "v1", [raw])
    for step in (raw, table):
        assert lab.materialize(step).success
    assert (lab.record(raw).keep_days, lab.record(table).keep_days) == (3, None)
    assert [attempt.claim.reads for attempt in lab.store.attempts(table.id)] == [("raw/local@v1",)]
