"""A step on a mesh of several devices is the step on one: the same losses, the same loads, compiled once, and lying where it should."""

from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

import jax
import numpy as np
import pytest
from jax.sharding import Mesh, PartitionSpec

from marin_core.data.batch import Batch
from marin_core.errors import ConfigError
from marin_core.model.config import MoEConfig
from marin_core.model.mesh import make_mesh
from marin_core.model.presets import moe_tiny
from marin_core.train import step as step_module
from marin_core.train.checkpoint.config import CheckpointPolicy
from marin_core.train.config import TrainConfig
from marin_core.train.optimizers.config import AdamW
from marin_core.train.schedules import Wsd
from marin_core.train.step import TrainState, abstract_batch, abstract_state, initial_state, make_train_step
from tests.train.tiny_run import batches

pytestmark = pytest.mark.slow
STEPS = 3
Outputs = list[dict[str, Any]]


def config(**changes: Any) -> TrainConfig:
    """Room for every assignment, so that nothing depends on which devices tokens lie on."""
    moe = MoEConfig(experts=8, experts_per_token=2, latent_dim=16, expert_width=16, capacity_factor=4.0)
    features: dict[str, Any] = {"d_model": 32, "head_dim": 8, "layers": 2, "window": 16, "gated_norm_rank": 0, "short_conv_kernel": 2}
    model = moe_tiny(64, moe=moe, **features)
    values: dict[str, Any] = {"num_steps": 12, "global_batch_size": 8, "sequence_length": 64}
    values["checkpoints"] = CheckpointPolicy(permanent_every_steps=4)
    return TrainConfig(model=model, optimizer=AdamW(schedule=Wsd(warmup_steps=2)), **(values | changes))


def run(chosen: TrainConfig, mesh: Mesh | None) -> tuple[Outputs, TrainState]:
    """Some steps; their outputs, and the state behind them."""
    state, step, outputs = initial_state(chosen, mesh), make_train_step(chosen, mesh), []
    places = abstract_batch(chosen, mesh)
    for number in range(STEPS):
        batch: Batch = jax.tree.map(lambda leaf, place: jax.device_put(leaf, place.sharding), batches(number), places)
        if mesh is None:
            state, output = step(state, batch)
        else:
            with jax.set_mesh(mesh):
                state, output = step(state, batch)
        outputs.append(jax.device_get(output))
    assert step._cache_size() == 1, "the step was compiled again for the state that it made"  # type: ignore[attr-defined]
    return outputs, state


@pytest.fixture(scope="module", autouse=True)
def compile_quickly() -> Iterator[None]:
    with patch.object(step_module, "compiler_options", lambda *_: {"xla_backend_optimization_level": 0}):
        yield
    step_module._make_train_step.cache_clear()


@pytest.fixture(scope="module")
def single(compile_quickly: None) -> tuple[Outputs, TrainState]:
    return run(config(), None)


@pytest.mark.parametrize(
    ("shape", "micro_batches"),
    [(None, 2), ((2, 2), 2), ((2, 4), 1)],
    ids=str,
)
def test_meshes_and_micro_batches_make_the_same_step(
    single: tuple[Outputs, TrainState], shape: tuple[int, int] | None, micro_batches: int
) -> None:
    mesh = None if shape is None else make_mesh(*shape)
    outputs, state = run(config(micro_batches=micro_batches), mesh)
    for ours, theirs in zip(outputs, single[0], strict=True):
        for name in ("loss", "cross_entropy", "gradient_norm", "loss_tokens", "router_z_loss", "margin_min", "margin_max", "bias_max"):
            np.testing.assert_allclose(ours[name], theirs[name], rtol=2e-5, err_msg=name)
        for name in ("load", "valid_assignments", "saturated_experts"):
            np.testing.assert_array_equal(ours[name], theirs[name], err_msg=name)
        assert ours["sender_dropped"].sum() + ours["receiver_dropped"].sum() == 0
    for mine, other in zip(jax.tree.leaves(state.params), jax.tree.leaves(single[1].params), strict=True):
        np.testing.assert_allclose(np.asarray(mine), np.asarray(other), atol=2e-4)


def test_parameters_and_their_moments_lie_where_the_design_says() -> None:
    state = abstract_state(config(), make_mesh(2, 4))
    lies = {
        jax.tree_util.keystr(path, simple=True, separator="/"): leaf.sharding.spec
        for path, leaf in jax.tree_util.tree_flatten_with_path(state)[0]
    }
    everywhere, second, third = PartitionSpec(), PartitionSpec(None, "expert"), PartitionSpec(None, None, "expert")
    params = {name.removeprefix("params/"): spec for name, spec in lies.items() if name.startswith("params/")}
    assert params["embedding"] == params["final_norm/norm/gain"] == everywhere
    assert params["blocks/feed_forward/experts/w_gate"] == params["blocks/feed_forward/experts/w_down"] == second
    assert params["blocks/attention/w_q"] in (second, third)
    assert params["output"] == second
    assert lies["balancer_state/pending_beta"] == lies["step"] == everywhere
    moments = {name: spec for name, spec in lies.items() if "/mu/" in name or "/nu/" in name}
    assert len(moments) == 2 * len(params)
    assert all(spec == params[name.split("/mu/")[-1].split("/nu/")[-1]] for name, spec in moments.items())


def test_a_mesh_of_more_devices_than_there_are_is_refused() -> None:
    with pytest.raises(ConfigError, match="A mesh of 3×4 needs 12 devices, here are 8"):
        make_mesh(3, 4)


def test_micro_batches_must_divide_the_batch() -> None:
    with pytest.raises(ConfigError, match="global_batch_size = 8 must be a multiple of micro_batches = 3"):
        config(micro_batches=3)
