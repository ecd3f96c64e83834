"""One training in one, two and four processes: what is exact, what is to rounding, and that a lost process costs no step twice."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from marin_core.errors import ExitCode
from marin_core.train.checkpoint.store import CheckpointStore
from marin_core.train.metrics import Row, read_metrics
from marin_core.train.step import abstract_state
from tests.train.gang_run import STEPS, Gang, gang_config
from tests.train.test_distributed import free_address
from tests.train.test_loop import exact_rows

MESH = (2, 4)
SIGKILL = -9

COUNTED = ("step", "batch", "loss_tokens", "load", "valid_assignments", "sender_dropped", "receiver_dropped", "drop_fraction")
"""What no order of summation changes: numbers of batches and tokens, and loads as long as no two experts' scores are all but equal."""

RELATIVE = 2e-6
"""Farthest that a loss may lie from another's whose sums were rounded in another order: some sixteen units of float32's last place."""

pytestmark = [pytest.mark.long, pytest.mark.timeout(1800)]

Trained = Callable[[int], Path]


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("compiled")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory, compiled: Path) -> Trained:
    """The finished run of so many processes on one mesh of 2×4 devices."""
    finished: dict[int, Path] = {}

    def run(processes: int) -> Path:
        if processes not in finished:
            run_dir = tmp_path_factory.mktemp("gang") / str(processes)
            with Gang(run_dir, processes, MESH, compiled, free_address()) as gang:
                assert gang.end() == [ExitCode.DONE] * processes, "\n".join(gang.logs)
            finished[processes] = run_dir
        return finished[processes]

    return run


def rows_of(run_dir: Path) -> list[Row]:
    return read_metrics(run_dir / "metrics.jsonl")


def parameters(run_dir: Path) -> list[np.ndarray[Any, Any]]:
    state = CheckpointStore(run_dir).restore(STEPS, abstract_state(gang_config(None)))
    return [np.asarray(leaf) for leaf in jax.tree.leaves(state.params)]


def assert_alike_to_rounding(ours: Path, theirs: Path) -> None:
    for mine, other in zip(rows_of(ours), rows_of(theirs), strict=True):
        assert {name: mine.get(name) for name in COUNTED} == {name: other.get(name) for name in COUNTED}
        rates = [name for name in mine if name.startswith("learning_rate/")]
        assert [mine[name] for name in rates] == [other[name] for name in rates]
        for name in ("loss", "cross_entropy"):
            assert mine[name] == pytest.approx(other[name], rel=RELATIVE)
        assert mine["gradient_norm"] == pytest.approx(other["gradient_norm"], rel=20 * RELATIVE)
    assert_parameters_alike(ours, theirs)


def assert_parameters_alike(ours: Path, theirs: Path) -> None:
    for mine, other in zip(parameters(ours), parameters(theirs), strict=True):
        np.testing.assert_allclose(mine, other, atol=2e-4)


@pytest.mark.parametrize("processes", [2, 4])
def test_a_mesh_over_several_processes_trains_like_one_process_to_rounding(trained: Trained, processes: int) -> None:
    """Sums over devices of one process and over processes are added in another order; everything that is counted is equal."""
    assert_alike_to_rounding(trained(processes), trained(1))
    metadata = CheckpointStore(trained(processes)).metadata(STEPS)
    assert (metadata.processes, metadata.mesh) == (processes, {"rack": 2, "expert": 4})


def test_two_processes_that_are_stopped_and_killed_end_with_the_bits_of_two_that_were_not(
    trained: Trained, compiled: Path, tmp_path: Path
) -> None:
    run_dir = tmp_path / "run"
    with Gang(run_dir, 2, MESH, compiled, free_address(), stop=(1, 0)) as gang:  # one of them is asked, both agree on the step
        assert gang.end() == [ExitCode.PREEMPTED] * 2, "\n".join(gang.logs)
    assert CheckpointStore(run_dir).steps() == [1]
    with Gang(run_dir, 2, MESH, compiled, free_address(), kill=(1, 2)) as gang:
        assert gang.end() == [ExitCode.TRY_AGAIN, SIGKILL], "\n".join(gang.logs)
    newest = CheckpointStore(run_dir).steps()[-1]
    assert newest in (1, 2)  # a save in which the dead process had no part any more is none
    with Gang(run_dir, 2, MESH, compiled, free_address()) as gang:
        assert gang.end() == [ExitCode.DONE] * 2, "\n".join(gang.logs)
    assert f"from step {newest} to {STEPS}" in gang.logs[0]
    assert exact_rows(run_dir) == exact_rows(trained(2))
    assert CheckpointStore(run_dir).permanent_digests() == CheckpointStore(trained(2)).permanent_digests()


def test_a_run_goes_on_with_fewer_processes_on_another_mesh_to_rounding(trained: Trained, compiled: Path, tmp_path: Path) -> None:
    """From the middle of a run of two processes of four devices, by one process of four: what was done stays, to the bit."""
    run_dir = tmp_path / "run"
    shutil.copytree(trained(2), run_dir)
    with CheckpointStore(run_dir, gang_config(None).checkpoints) as store:
        store.delete(STEPS)
        assert store.steps() == [STEPS // 2]
    with Gang(run_dir, 1, (1, 4), compiled, free_address()) as gang:
        assert gang.end() == [ExitCode.DONE], "\n".join(gang.logs)
    assert f"from step {STEPS // 2} to {STEPS}" in gang.logs[0]
    assert exact_rows(run_dir)[: STEPS // 2] == exact_rows(trained(2))[: STEPS // 2]
    for mine, other in zip(rows_of(run_dir), rows_of(trained(2)), strict=True):
        assert (mine["batch"], mine["loss_tokens"], mine["drop_fraction"]) == (other["batch"], other["loss_tokens"], other["drop_fraction"])
        assert mine["loss"] == pytest.approx(other["loss"], rel=RELATIVE)
    assert_parameters_alike(run_dir, trained(2))
    assert CheckpointStore(run_dir).metadata(STEPS).mesh == {"rack": 1, "expert": 4}
