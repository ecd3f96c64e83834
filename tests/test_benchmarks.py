"""The benchmarks run: small, without peers, and what they write is complete."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks import balancers, checkpoint, executor, moe_step, moe_step_ours, moe_step_profile
from benchmarks.moe_step_shapes import SHAPES, Shape
from benchmarks.peers import PeerError
from benchmarks.timing import Timing
from marin_core.model.counts import parameter_count

KEYS = {"measure", "ours", "peer", "peer_name", "unit", "ratio", "reason"}


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """What the executor's benchmark writes of a chain of 8 and a fan of 20."""
    file = tmp_path_factory.mktemp("benchmarks") / "executor.json"
    size = ["--chain", "8", "--fan", "20", "--steps", "2", "--rounds", "1", "--process-steps", "1"]
    executor.main(["--no-peer", "--json", str(file), *size])
    return json.loads(file.read_text())


@pytest.mark.slow
def test_the_file_says_what_was_measured_on_which_machine(written: Any) -> None:
    assert written.keys() == {"machine", "versions", "rows"}
    assert len(written["machine"]["load_average"]) == 3
    assert {"python", "dagster"} <= written["versions"].keys()


@pytest.mark.slow
def test_every_row_has_a_number_of_ours_and_a_reason_for_the_missing_peer(written: Any) -> None:
    assert all(row.keys() == KEYS for row in written["rows"])
    here = [row for row in written["rows"] if row["peer_name"] == "Dagster's SQLite storage"]
    assert len(here) == 4
    assert all(row["peer"] > 0 for row in here)
    assert all(row["ours"] >= 0 and row["peer"] is None and row["reason"] for row in written["rows"] if row not in here)
    names = [(row["measure"], row["peer_name"]) for row in written["rows"]]
    assert len(set(names)) == len(names)


@pytest.mark.slow
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


@pytest.mark.slow
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


TINY = {"MoE": Shape(32, 2, 2, 64, 32, 4, 2, 2, 16), "dense": Shape(32, 2, 2, 64, 64, 0, 0, 2, 16)}


def printed(shape: Shape, **changed: Any) -> dict[str, Any]:
    """What a peer's process prints of a shape: steps of 1, 2 and 6 s, on two CPUs."""
    told = {
        "seconds": [1.0, 6.0, 2.0],
        "cpu_seconds": [2.0, 12.0, 4.0],
        "first_loss": math.log(shape.vocabulary),
        "parameters": shape.parameters,
    }
    return told | changed


@pytest.mark.parametrize("name", SHAPES)
def test_our_model_of_a_shape_has_the_parameters_that_peers_must_have(name: str) -> None:
    shape = SHAPES[name]
    selection_biases = shape.layers * shape.experts  # counted, but not trained
    assert parameter_count(moe_step_ours.train_config(shape).model).total - selection_biases == shape.parameters


def test_the_two_shapes_of_the_specification_have_its_parameters_and_the_same_work() -> None:
    assert (SHAPES["MoE"].parameters, SHAPES["dense"].parameters) == (30_427_392, 8_390_912)
    assert SHAPES["MoE"].matmul_flops == pytest.approx(SHAPES["dense"].matmul_flops, rel=0.01)
    assert SHAPES["MoE"].matmul_flops == pytest.approx(84e9, rel=0.1)


@pytest.mark.parametrize(("key", "wrong"), [("parameters", 1), ("first_loss", 9.0)])
def test_a_peer_that_trained_another_model_leaves_a_reason_instead_of_a_speed(
    key: str, wrong: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    shape = TINY["dense"]
    monkeypatch.setattr(moe_step, "peer_environment", lambda *arguments: Path("python"))
    monkeypatch.setattr(moe_step, "run_peer", lambda *arguments, **options: printed(shape, **{key: wrong}))
    measured = moe_step.Measured()
    moe_step.measure_peer(measured, moe_step.PEERS["transformers"], shape, steps=3)
    assert not measured.steps
    assert measured.reason is not None
    assert str(wrong).removesuffix(".0") in measured.reason


@pytest.mark.parametrize("key", moe_step.PEERS)
def test_a_peer_is_the_same_release_in_every_run(key: str) -> None:
    assert all("==" in requirement for requirement in moe_step.PEERS[key].requirements)


def test_a_speed_is_of_the_median_step_and_the_roof_of_what_the_products_would_take() -> None:
    shape = TINY["MoE"]
    ours, peer, absent = moe_step.Measured(), moe_step.Measured(), moe_step.Measured(reason="no route to host")
    ours.add(printed(shape), shape)
    peer.add(printed(shape, seconds=[4.0, 4.0, 4.0], cpu_seconds=[4.0, 4.0, 4.0]), shape)
    roof = moe_step.Peak(per_second=[float(shape.matmul_flops)], per_cpu_second=[float(shape.matmul_flops)])
    rows = moe_step.speed_rows("MoE", shape, ours, {"a peer": peer, "another": absent}, {"JAX": roof})
    found = {(row.measure, row.peer_name): row for row in rows}
    assert found["MoE: speed", "a peer"].ours == shape.tokens / 2
    assert found["MoE: speed", "a peer"].ratio == 2
    assert found["MoE: speed by CPU", "a peer"].ratio == 1
    assert found["MoE: speed", "another"].reason == "no route to host"
    # The products of a step take a second at the peak and our median step two: half of the peak.
    assert found["MoE: speed", "roof, by JAX's product"].ratio == 0.5
    assert found["MoE: speed by CPU", "roof, by JAX's product"].ratio == 0.25


def test_the_share_of_routing_is_its_cpu_time_over_the_steps() -> None:
    ours = moe_step.Measured(steps=[Timing(1.0, 2.0)], dropped=[0.03])
    ours.parts = {"routing": [Timing(0.5, 0.1)], "routing and rows": [Timing(0.5, 0.3)]}
    alone, with_rows, dropped = moe_step.routing_rows("MoE", ours)
    assert [alone.ours, with_rows.ours, dropped.ours] == pytest.approx([5, 15, 3])
    assert alone.ratio == pytest.approx(2)  # half of the goal's 10 %


def test_a_profile_shows_the_most_first_and_loses_nothing() -> None:
    profile = {"products": {"experts": 3.0, "loss": 1.0}, "rest": {"experts": 0.96, "norms": 0.04}}
    shares = {row.measure: row.ours for row in moe_step.profile_rows("MoE", profile)}
    assert list(shares) == ["MoE: experts, products", "MoE: loss, products", "MoE: experts, rest", "MoE: all else"]
    assert list(shares.values()) == pytest.approx([60, 20, 19.2, 0.8])


def test_an_operation_belongs_to_the_innermost_part_and_a_product_is_told_by_its_name() -> None:
    program = """
  %dot.3 = f32[16,320,512]{2,1,0} dot(%a, %b), metadata={op_name="jit(step)/jvp(feed_forward)/dispatch/experts/dot_general"}
  %onednn_fusion.1 = f32[256,8192]{1,0} fusion(%c), metadata={op_name="jit(step)/jvp(loss)/while/body/dot_general"}
  ROOT %add.7 = f32[8]{0} add(%e, %f), metadata={op_name="jit(train_step)/transpose(jvp(attention))/add"}
  %copy.2 = f32[8]{0} copy(%g), metadata={op_name="jit(train_step)/copy"}
"""
    assert moe_step_profile.parts_of_program(program) == {
        "dot.3": ("experts", True),
        "onednn_fusion.1": ("loss", True),
        "add.7": ("attention", False),
        "copy.2": ("other", False),
    }


@pytest.mark.long
def test_the_training_step_is_measured_without_peers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(moe_step, "SHAPES", TINY)
    file = tmp_path / "moe_step.json"
    moe_step.main(["--json", str(file), "--rounds", "1", "--steps", "2", "--peers"])
    rows = json.loads(file.read_text())["rows"]
    assert all(row.keys() == KEYS and row["ours"] > 0 for row in rows if "dropped" not in row["measure"])
    assert {row["peer_name"] for row in rows if row["reason"] == "not asked for (--peers)"} == {
        peer.name for peer in moe_step.PEERS.values()
    }
    measures = [row["measure"] for row in rows]
    assert {
        "MoE: speed",
        "dense: speed by CPU",
        "MoE: router, balancer and bookkeeping, CPU",
        "MoE: assignments dropped",
        "dense: attention, products",
    } <= set(measures)


def test_checkpoints_are_measured_beside_orbax_and_tensorstore(tmp_path: Path) -> None:
    file = tmp_path / "checkpoint.json"
    checkpoint.main(["--json", str(file), "--gigabytes", "0.02", "--rounds", "1", "--steps", "2", "--folder", str(tmp_path)])
    written = json.loads(file.read_text())
    assert {"jax", "orbax-checkpoint", "tensorstore"} <= written["versions"].keys()
    rows = {(row["measure"], row["peer_name"]): row for row in written["rows"]}
    assert len(rows) == len(written["rows"]) == 12
    assert all(row["ours"] is not None and row["peer"] is not None and row["reason"] is None for row in rows.values())
    share = rows["the same, share of Orbax's blocking save", "goal"]
    waits = rows["a save keeps the training waiting", "Orbax, blocking"]
    assert share["ours"] == pytest.approx(100 * waits["ours"] / waits["peer"])
    assert not any(path.is_dir() for path in tmp_path.iterdir())


def made_up_steps(balancer: Any, steps: int, seed: int) -> list[dict[str, float]]:
    """Rows of a run whose loads settle from a spread of 1 to one that tells the balancers apart."""
    spread = {"none": 1.0, "aux_loss": 0.5}.get(balancer.name, 0.25)
    start = {"cross_entropy": 5.0, "load_cv": 1.0, "load_max_violation": 4.0, "drop_fraction": 0.4}
    return [{name: value * (1.0 if step < 10 else spread) for name, value in start.items()} for step in range(steps)]


def test_balancers_are_shown_side_by_side_at_the_end_and_drawn_over_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(balancers, "trained", made_up_steps)
    balancers.main(["--steps", "60", "--json", str(tmp_path / "balancers.json")])
    rows = json.loads((tmp_path / "balancers.json").read_text())["rows"]
    assert {(row["measure"], row["peer_name"]) for row in rows} == {
        (measure, name) for measure, _ in balancers.SHOWN.values() for name in balancers.BALANCERS if name != balancers.DEFAULT
    }
    ratios = {row["peer_name"]: row["ratio"] for row in rows if row["measure"] == "load CV"}
    assert ratios == {"quantile_exact": 1, "loss_free": 1, "aux_loss": 2, "none": 4}
    assert (tmp_path / "balancers.png").read_bytes().startswith(b"\x89PNG")
    shown = capsys.readouterr().out
    assert all(shown.count(name) >= len(balancers.SHOWN) for name in balancers.BALANCERS)


def test_every_balancer_sees_the_same_topics() -> None:
    whole = balancers.topic_batch(3, 0, 1)
    parts = [balancers.topic_batch(3, host, 2).tokens for host in range(2)]
    assert np.array_equal(np.concatenate(parts), whole.tokens)
    assert whole.tokens.shape == (balancers.SEQUENCES, balancers.LENGTH)
    assert not np.array_equal(balancers.topic_batch(4, 0, 1).tokens, whole.tokens)
    texts = [bytes(text) for text in balancers.topic_texts()]
    found = [next((number for number, text in enumerate(texts) if bytes(row.astype(np.uint8)) in text), None) for row in whole.tokens]
    assert None not in found
    assert len(set(found)) < len(found)  # few topics most of the time


@pytest.mark.slow
@pytest.mark.long
def test_a_balancer_is_trained_with_the_loop_that_every_training_has(monkeypatch: pytest.MonkeyPatch) -> None:
    steps = balancers.trained(balancers.BALANCERS["quantile_histogram"], steps=12, seed=0)
    assert len(steps) == 12
    assert all(0 <= row["drop_fraction"] <= 1 for row in steps)
    assert steps[-1]["cross_entropy"] < steps[0]["cross_entropy"] < 1.05 * math.log(256)
