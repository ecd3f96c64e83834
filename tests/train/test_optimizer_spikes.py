"""The rule of sigmas: what is left out, what never is, and what it remembers."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from marin_core.train.optimizers.build import make_optimizer, optimizer_metrics
from marin_core.train.optimizers.config import AdamW, SkipSpikes
from marin_core.train.optimizers.spikes import SpikeState, judge, no_spikes
from marin_core.train.schedules import Wsd

CONFIG = SkipSpikes(sigmas=3.0, window=8)


def verdicts(config: SkipSpikes, losses: Any, norms: Any = None) -> tuple[list[bool], SpikeState]:
    """Whether each step is taken, and the state after all."""
    norms = np.ones(len(losses)) if norms is None else norms

    def body(state: SpikeState, seen: tuple[jax.Array, jax.Array]) -> tuple[SpikeState, jax.Array]:
        take, state = judge(config, state, *seen)
        return state, take

    state, taken = jax.lax.scan(body, no_spikes(config), (jnp.asarray(losses, jnp.float32), jnp.asarray(norms, jnp.float32)))
    return [bool(take) for take in taken], state


def reference(config: SkipSpikes, losses: Any, norms: Any) -> list[bool]:
    """The rule in float64, from whole histories."""
    taken: list[bool] = []
    history: list[tuple[float, float]] = []
    for loss, norm in zip(losses, norms, strict=True):
        if not np.isfinite([loss, norm]).all():
            taken.append(not config.non_finite)
            continue
        last = np.asarray(history[-config.window :]).reshape(-1, 2)
        ready = len(history) >= config.window // 2
        above = ready and bool(np.any(np.asarray([loss, norm]) > last.mean(axis=0) + config.sigmas * last.std(axis=0)))
        taken.append(not above)
        history.append((loss, norm))
    return taken


@pytest.mark.parametrize("non_finite", [True, False])
def test_the_rule_is_the_reference_over_a_long_history(non_finite: bool) -> None:
    rng = np.random.default_rng(3)
    losses, norms = 3 + 0.1 * rng.normal(size=200), np.exp(0.2 * rng.normal(size=200))
    losses[[20, 90]], norms[[50, 91]], losses[[60, 61]], norms[120] = [4.5, 9.0], [8.0, 20.0], np.nan, np.inf
    losses[150:] += 2.0
    losses, norms = losses.astype(np.float32).astype(float), norms.astype(np.float32).astype(float)
    config = CONFIG.changed(non_finite=non_finite)
    taken, state = verdicts(config, losses, norms)
    assert taken == reference(config, losses, norms)
    assert not any(taken[step] for step in (20, 50, 90, 91, 150))
    assert taken[60] == taken[61] == taken[120] == (not non_finite)
    assert int(state.skipped_steps) == taken.count(False)


def test_nothing_is_left_out_for_its_size_before_the_window_is_half_full() -> None:
    assert all(verdicts(CONFIG, [1.0, 1.1, 50.0, 1.0])[0])
    assert verdicts(CONFIG, [1.0, 1.1, 1.0, 1.1, 50.0])[0] == [True] * 4 + [False]
    assert verdicts(CONFIG, [np.nan])[0] == [False], "non-finite is left out from the first step on"


def test_a_lasting_rise_is_not_left_out_for_ever() -> None:
    taken, _ = verdicts(CONFIG, [1.0, 1.1] * 8 + [5.0, 5.1] * 8)
    assert not taken[16]
    assert all(taken[20:])


def test_a_fall_is_always_taken() -> None:
    assert all(verdicts(CONFIG, np.linspace(10, 1, 30), np.linspace(5, 0.1, 30))[0])


def test_a_step_that_is_left_out_changes_neither_parameters_nor_moments() -> None:
    optimizer = make_optimizer(AdamW(schedule=Wsd(), skip_spikes=CONFIG), 20)
    update = jax.jit(optimizer.update, compiler_options={"xla_backend_optimization_level": 0})
    params, gradient = {"output": jnp.ones((2, 3))}, {"output": jnp.full((2, 3), 0.01)}
    state = optimizer.init(params)
    for step in range(6):
        _, state = update(gradient, state, params, value=jnp.float32(1 + 0.01 * (step % 2)))
    bad = {"output": gradient["output"].at[0, 0].set(jnp.nan)}
    for spike, loss in ((bad, 1.0), (gradient, 7.0)):
        updates, after = update(spike, state, params, value=jnp.float32(loss))
        assert not np.any(updates["output"])
        assert int(after.step) == int(state.step) + 1, "the schedule goes on"
        for before, kept in zip(jax.tree.leaves(state.inner), jax.tree.leaves(after.inner), strict=True):
            np.testing.assert_array_equal(before, kept)
        assert int(optimizer_metrics(after)["skipped_steps"]) == 1
    updates, _ = update(gradient, after, params, value=jnp.float32(1.0))
    assert np.all(np.asarray(updates["output"]) < 0)
