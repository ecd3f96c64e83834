"""Schedules, decay rules and configuration limits."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from marin_core.errors import ConfigError, MarinError
from marin_core.model.presets import moe_tiny
from marin_core.model.transformer import SplitTransformer
from marin_core.train.config import OptimizerConfig
from marin_core.train.optimizer import decay_mask, learning_rate_schedule, make_optimizer
from tests.train.tiny_run import tiny_config


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        ("linear", {0: 0.1, 9: 1.0, 10: 0.95 * 89 / 89 + 0.05, 99: 0.05}),
        ("cosine", {0: 0.1, 9: 1.0, 99: 0.05}),
        ("wsd", {0: 0.1, 9: 1.0, 50: 1.0, 79: 1.0, 89: 0.525, 99: 0.05}),
    ],
)
def test_the_schedule_warms_up_and_ends_where_it_says(schedule: Any, expected: dict[int, float]) -> None:
    config = OptimizerConfig(learning_rate=1.0, warmup_steps=10, schedule=schedule, final_ratio=0.05)
    rate = learning_rate_schedule(config, 100)
    for step, value in expected.items():
        assert float(rate(jnp.int32(step))) == pytest.approx(value, abs=1e-5)
    rates = np.asarray([rate(jnp.int32(step)) for step in range(9, 100, 9)])
    assert np.all(np.diff(rates) <= 0)


def test_the_applied_rate_is_the_logged_one() -> None:
    config = OptimizerConfig(learning_rate=0.1, warmup_steps=2, gradient_clip=None, weight_decay=0.0, b1=0.0, b2=0.0)
    optimizer, rate = make_optimizer(config, 10), learning_rate_schedule(config, 10)
    params = {"output": jnp.ones((2, 2))}
    state = optimizer.init(params)
    for step in range(10):
        updates, state = optimizer.update({"output": jnp.full((2, 2), 3.0)}, state, params)
        np.testing.assert_allclose(updates["output"], -rate(jnp.int32(step)), rtol=1e-5)


def test_decay_acts_on_matrices_only() -> None:
    shapes = jax.eval_shape(SplitTransformer(moe_tiny()).init, jax.random.key(0))
    mask = decay_mask(shapes)
    decayed = {jax.tree_util.keystr(path) for path, value in jax.tree_util.tree_flatten_with_path(mask)[0] if value}
    kept = {jax.tree_util.keystr(path) for path, value in jax.tree_util.tree_flatten_with_path(mask)[0] if not value}
    assert "['blocks']['feed_forward']['router']['weight']" in decayed
    assert "['output']" in decayed
    assert "['embedding']" in kept
    assert all(path.endswith(("['gain']", "taps']", "['embedding']")) for path in kept)
    with pytest.raises(MarinError, match="No weight-decay rule for parameter"):
        decay_mask({"surprise": jnp.ones(2)})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"sequence_length": 256}, "sequence_length = 256 exceeds model.max_sequence_length = 128"),
        ({"num_steps": 2}, "optimizer.warmup_steps = 2 must be below num_steps = 2"),
        ({"seed": -1}, "seed"),
    ],
)
def test_a_run_that_cannot_be_is_refused(changes: dict[str, int], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        tiny_config(**changes)


def test_checkpoint_steps_include_the_last() -> None:
    assert tiny_config(num_steps=10, checkpoint_every_steps=4).checkpoint_steps == (4, 8, 10)
    assert tiny_config(num_steps=8, checkpoint_every_steps=4).checkpoint_steps == (4, 8)
    assert tiny_config(num_steps=8, checkpoint_every_steps=100).checkpoint_steps == (8,)
