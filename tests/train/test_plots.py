"""Pictures show what rows have numbers for, are small, and depend on nothing else."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from marin_core.train.metrics import LAYERS, PER_EXPERT, ROUTED_EXPERTS, Row, RowSample
from marin_core.train.plots import draw_plots

LAYER_COUNT, EXPERTS, STEPS = 12, 64, 2_100


def rows(*, moe: bool) -> list[Row]:
    """A run with noise, which compresses badly."""
    rng = np.random.default_rng(0)
    made: list[Row] = []
    for step in range(STEPS):
        loss = 3 + 8 / (1 + step / 50) + 0.05 * rng.normal()
        row: Row = {"step": step, "loss": loss, "cross_entropy": loss - 0.01, "gradient_norm": 0.3 + 0.05 * rng.random()}
        row |= {"learning_rate/muonh": 1e-3, "learning_rate/adam": 2e-4, "throughput/iteration_time": 1.2}
        row |= {f"throughput/{name}": rng.random() / 5 for name in ("duration", "loading_time", "checkpoint_time", "hook_time", "gc_time")}
        if moe:
            row |= {"load_cv": 0.1 + 0.02 * rng.random(), "drop_fraction": 0.02 * rng.random()}
        if step % 10 == 0:
            row["norms"] = {LAYERS: rng.random(LAYER_COUNT).tolist()}
            if moe:
                row["norms"] |= {ROUTED_EXPERTS: rng.random(LAYER_COUNT).tolist(), PER_EXPERT: [[0.0]]}
                row["load"] = rng.integers(0, 100, (LAYER_COUNT, EXPERTS)).tolist()
        made.append(row)
    return made


@pytest.fixture(scope="module")
def drawn(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return draw_plots(rows(moe=True), tmp_path_factory.mktemp("plots"))


def test_all_pictures_are_there_and_small(drawn: dict[str, Path]) -> None:
    expected = ["expert_load", "gradient_norm", "layer_gradients", "learning_rates", "load_cv", "loss", "throughput"]
    assert sorted(drawn) == expected
    for name, path in drawn.items():
        assert path.name == f"{name}.png"
        assert path.read_bytes().startswith(b"\x89PNG")
        assert 1_000 < path.stat().st_size < 100_000, name


def test_a_sample_draws_the_same_bytes_as_all_rows(drawn: dict[str, Path], tmp_path: Path) -> None:
    sample = RowSample()
    for row in rows(moe=True):
        sample.add(row)
    again = draw_plots(sample.rows, tmp_path)
    assert {name: path.read_bytes() for name, path in again.items()} == {name: path.read_bytes() for name, path in drawn.items()}
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(path.name for path in again.values())


def test_other_rows_draw_other_bytes(tmp_path: Path) -> None:
    first: list[Row] = [{"step": step, "loss": 3.0, "cross_entropy": 3.0} for step in range(20)]
    other = [*first[:-1], first[-1] | {"loss": 3.5}]
    before = draw_plots(first, tmp_path)["loss"].read_bytes()
    assert draw_plots(first, tmp_path)["loss"].read_bytes() == before
    assert draw_plots(other, tmp_path)["loss"].read_bytes() != before


def test_a_dense_model_and_a_run_of_one_step_draw_what_they_have(tmp_path: Path) -> None:
    dense = rows(moe=False)[:1]
    assert sorted(draw_plots(dense, tmp_path)) == ["gradient_norm", "layer_gradients", "learning_rates", "loss", "throughput"]
    bare: list[dict[str, Any]] = [{"step": 0, "loss": 3.0, "cross_entropy": 3.0}]
    assert sorted(draw_plots(bare, tmp_path)) == ["loss"]


def test_a_layer_without_gradient_and_a_norm_that_is_no_number_can_be_drawn(tmp_path: Path) -> None:
    broken = [{name: row[name] for name in ("step", "loss", "norms")} for row in rows(moe=True)[:30:10]]
    for row in broken:
        row["norms"][ROUTED_EXPERTS][3] = 0.0
    broken[2]["norms"][ROUTED_EXPERTS][4] = float("nan")
    assert draw_plots(broken, tmp_path)["layer_gradients"].stat().st_size > 1_000
