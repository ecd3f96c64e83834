"""The benchmarks run: small, without peers, and what they write is complete."""

import json
from typing import Any

import pytest

from benchmarks import executor
from benchmarks.peers import PeerError

KEYS = {"measure", "ours", "peer", "peer_name", "unit", "ratio", "reason"}


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """What the executor's benchmark writes of a chain of 8 and a fan of 20."""
    file = tmp_path_factory.mktemp("benchmarks") / "executor.json"
    size = ["--chain", "8", "--fan", "20", "--steps", "2", "--rounds", "1", "--process-steps", "1"]
    executor.main(["--no-peer", "--json", str(file), *size])
    return json.loads(file.read_text())


def test_the_file_says_what_was_measured_on_which_machine(written: Any) -> None:
    assert written.keys() == {"machine", "versions", "rows"}
    assert len(written["machine"]["load_average"]) == 3
    assert {"python", "dagster"} <= written["versions"].keys()


def test_every_row_has_a_number_of_ours_and_a_reason_for_the_missing_peer(written: Any) -> None:
    assert all(row.keys() == KEYS for row in written["rows"])
    here = [row for row in written["rows"] if row["peer_name"] == "Dagster's SQLite storage"]
    assert len(here) == 4
    assert all(row["peer"] > 0 for row in here)
    assert all(row["ours"] >= 0 and row["peer"] is None and row["reason"] for row in written["rows"] if row not in here)
    names = [(row["measure"], row["peer_name"]) for row in written["rows"]]
    assert len(set(names)) == len(names)


def test_steps_graphs_and_definitions_are_all_measured(written: Any) -> None:
    ours = {row["measure"]: row["ours"] for row in written["rows"]}
    assert {
        "chained step, cold",
        "independent step, cold",
        "step that exists, asked for",
        "step that exists, run again with others",
        "end of a chain that exists, asked for",
        "independent step, cold, as a process",
        "chain of 8: plan, nothing there",
        "fan of 20: plan, everything there",
        "fan of 20: memory, an artifact",
        "Dagster loads a chain of 8",
        "Dagster loads a fan of 20: an artifact, CPU",
        "import of an experiment's library",
    } <= ours.keys()
    assert ours["deepest chain planned, all there"] == 8


def test_a_step_is_more_than_our_share_of_it_and_more_than_dagsters(written: Any) -> None:
    ours = {row["measure"]: row["ours"] for row in written["rows"]}
    assert 0 < ours["independent step, cold: ours, CPU"] < ours["independent step, cold, CPU"]
    assert 0 < ours["independent step, served: ours"] < ours["step that exists, run again with others"]
    assert ours["independent step: Dagster's own (control run), CPU"] > 0


def test_a_peer_that_cannot_be_installed_leaves_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: Any) -> None:
        raise PeerError("peer marin-core can't be installed: no route to host", advice="Look at the network.")

    monkeypatch.setattr(executor, "peer_environment", refuse)
    peer = executor.Peer(None)
    peer.measure([])
    row = peer.row("a measure", 1.0, "s", lambda found: found["seconds"])
    assert row.peer is None
    assert row.reason == "peer marin-core can't be installed: no route to host"


def test_rounds_of_a_peer_become_medians_of_costs_and_the_best_of_abilities() -> None:
    peer = executor.Peer(None)
    peer.rounds = [{"seconds": 3.0, "depth": 200}, {"seconds": 9.0, "depth": 0}, {"seconds": 4.0, "depth": 0}]
    cost = peer.row("a cost", 2.0, "s", lambda found: found["seconds"])
    assert (cost.peer, cost.ratio) == (4.0, 2.0)
    depth = peer.row("an ability", 1000, "artifacts", lambda found: found["depth"], better="higher")
    assert (depth.peer, depth.ratio) == (200, 5.0)
