"""Moments in the host's memory change nothing but where they lie."""

from pathlib import Path

import jax
import numpy as np
import pytest

from marin_core.errors import ConfigError
from marin_core.model.mesh import batch_sharding, make_mesh
from marin_core.train.checkpoint.config import CheckpointPolicy
from marin_core.train.checkpoint.store import CheckpointStore, flatten
from marin_core.train.loop import TrainResult
from marin_core.train.step import HOST_MEMORY, abstract_state, initial_state
from tests.train.test_loop import Recorder, exact_rows
from tests.train.tiny_run import run, tiny_config


def test_moments_lie_on_the_host_and_everything_else_on_the_devices() -> None:
    for mesh in (None, make_mesh(2, 4)):
        state = flatten(initial_state(tiny_config(offload_optimizer_state=True), mesh))
        on_host = {path for path, leaf in state.items() if leaf.sharding.memory_kind == HOST_MEMORY}
        assert on_host == {path for path, leaf in state.items() if path.startswith("optimizer_state/") and leaf.ndim}
        abstract = flatten(abstract_state(tiny_config(offload_optimizer_state=True), mesh))
        assert all(leaf.sharding == abstract[path].sharding for path, leaf in state.items())


@pytest.mark.slow
def test_a_run_is_the_same_bit_for_bit_across_a_stop(finished: tuple[Path, TrainResult], tmp_path: Path) -> None:
    run_dir, result = finished
    with pytest.raises(Exception, match="after step 7 of 12"):
        run(tmp_path, Recorder(stop_after=6), offload_optimizer_state=True)
    assert exact_rows(tmp_path) == exact_rows(run_dir)[:7]
    assert run(tmp_path, offload_optimizer_state=True).checkpoint_digests == result.checkpoint_digests
    assert exact_rows(tmp_path) == exact_rows(run_dir)


def test_flags_that_corrupt_an_offloaded_run_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    limit = "--xla_gpu_experimental_parallel_collective_overlap_limit=2"
    monkeypatch.setenv("XLA_FLAGS", f"--xla_gpu_enable_latency_hiding_scheduler=true {limit}")
    with pytest.raises(ConfigError, match="overlap_limit = 2 corrupts parameters"):
        run(tmp_path, offload_optimizer_state=True)


def test_large_moments_on_the_host_are_saved_and_restored_where_they_lay(tmp_path: Path) -> None:
    """Larger than what is digested on the host; on one device and spread over eight."""
    for name, mesh in (("one", None), ("eight", make_mesh(2, 4))):
        place = batch_sharding(mesh).with_memory_kind(HOST_MEMORY)
        moments = jax.device_put(np.arange(2**19, dtype=np.float32).reshape(512, 1024), place)
        abstract = {"moments": jax.ShapeDtypeStruct(moments.shape, moments.dtype, sharding=place)}
        with CheckpointStore(tmp_path / name, CheckpointPolicy(permanent_every_steps=1)) as store:
            store.save(1, {"moments": moments}, temporary=False)
            store.save(2, {"moments": moments}, temporary=False)
            store.wait()
            restored = store.restore(2, abstract)["moments"]
        assert restored.sharding == place
        np.testing.assert_array_equal(restored, moments)
