"""Learning rates start, peak and end where they say; batch schedules count exactly."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marin_core.errors import ConfigError
from marin_core.train import laws
from marin_core.train.optimizers.build import learning_rates
from marin_core.train.optimizers.config import AdamW, Muon, MuonH
from marin_core.train.schedules import BatchSchedule, BatchStage, Cosine, Linear, Reslope, Wsd

HERO_STEPS = 390_251


def ratios(schedule: Any, num_steps: int) -> Any:
    return schedule.ratio(np.arange(num_steps, dtype=np.float64), num_steps)


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        (Linear(warmup_steps=10), {0: 0.1, 9: 1.0, 10: 1.0, 99: 0.05, 55: 0.05 + 0.95 * 44 / 89}),
        (Cosine(warmup_steps=10), {0: 0.1, 9: 1.0, 10: 1.0, 99: 0.05, 54: 0.05 + 0.475 * (1 - np.cos(np.pi * 45 / 89))}),
        (Wsd(warmup_steps=10), {0: 0.1, 9: 1.0, 50: 1.0, 79: 1.0, 89: 0.525, 99: 0.05}),
        (Wsd(warmup_steps=10, decay_fraction=1.0), {9: 1.0, 10: 1.0, 99: 0.05}),
        (Wsd(warmup_steps=10, start_ratio=0.2, final_ratio=0.0), {0: 0.28, 4: 0.6, 9: 1.0, 99: 0.0}),
        (Reslope(start_step=40, start_ratio=0.8), {0: 0.8, 40: 0.8, 99: 0.05, 70: 0.05 + 0.75 * 29 / 59}),
    ],
    ids=str,
)
def test_a_schedule_passes_through_its_points(schedule: Any, expected: dict[int, float]) -> None:
    values = ratios(schedule, 100)
    for step, value in expected.items():
        assert values[step] == pytest.approx(value, abs=1e-12), step


schedules = st.one_of(
    st.builds(Linear, warmup_steps=st.integers(0, 40), start_ratio=st.floats(0, 1), final_ratio=st.floats(0, 1)),
    st.builds(Cosine, warmup_steps=st.integers(0, 40), start_ratio=st.floats(0, 1), final_ratio=st.floats(0, 1)),
    st.builds(
        Wsd, warmup_steps=st.integers(0, 40), start_ratio=st.floats(0, 1), final_ratio=st.floats(0, 1), decay_fraction=st.floats(0.01, 1)
    ),
)


@given(schedules, st.integers(2, 300))
@settings(max_examples=100, deadline=None)
def test_a_schedule_rises_to_its_peak_and_then_falls_to_its_end(schedule: Any, num_steps: int) -> None:
    if schedule.warmup_steps >= num_steps:
        with pytest.raises(ValueError, match="warmup_steps"):
            schedule.check(num_steps)
        return
    schedule.check(num_steps)
    values, warmup = ratios(schedule, num_steps), schedule.warmup_steps
    assert np.all((values >= 0) & (values <= 1 + 1e-12))
    assert np.all(np.diff(values[:warmup]) >= -1e-12)
    assert np.all(np.diff(values[max(warmup - 1, 0) :]) <= 1e-12)
    if warmup:
        assert values[warmup - 1] == pytest.approx(1)
        assert values[0] >= schedule.start_ratio - 1e-12
    if warmup < num_steps - 1:
        assert values[warmup] == pytest.approx(1)
        assert values[-1] == pytest.approx(schedule.final_ratio)


@given(schedules, st.integers(60, 300), st.floats(0.2, 0.9), st.floats(0.75, 1))
@settings(max_examples=60, deadline=None)
def test_a_resloped_run_continues_from_the_rate_that_it_has(schedule: Any, num_steps: int, at: float, kept: float) -> None:
    start, shorter = int(at * num_steps * kept), int(num_steps * kept)
    if start >= shorter - 1:
        return
    sloped = Reslope.at(start, schedule, num_steps)
    before, after = ratios(schedule, num_steps), ratios(sloped, shorter)
    assert after[start] == pytest.approx(before[start])
    assert after[-1] == pytest.approx(0.05)
    assert np.allclose(np.diff(after[start:], n=2), 0, atol=1e-12), "it isn't a straight line"


def test_a_reslope_needs_steps_left() -> None:
    Reslope(start_step=97, start_ratio=0.5).check(100)
    with pytest.raises(ValueError, match=r"start_step = 99 must be below the last step, 99"):
        Reslope(start_step=99, start_ratio=0.5).check(100)


def test_the_hero_schedule_in_float32_is_that_in_float64() -> None:
    optimizer = laws.hero_optimizer(HERO_STEPS * 11_264 * 4096, 6144, 11_264 * 4096, HERO_STEPS)
    rates = jax.jit(jax.vmap(learning_rates(optimizer, HERO_STEPS)))
    steps = np.asarray([0, 1, 3900, 3901, 3902, 3903, 58_014, 214_913, HERO_STEPS - 2, HERO_STEPS - 1])
    found = rates(jnp.asarray(steps, jnp.int32))
    exact = optimizer.schedule.ratio(steps.astype(np.float64), HERO_STEPS)
    assert set(found) == {"muonh", "adamh", "adam"}
    np.testing.assert_allclose(found["muonh"], optimizer.learning_rate * exact, rtol=2e-6)
    np.testing.assert_allclose(found["adam"], (optimizer.adam_learning_rate or 0) * exact, rtol=2e-6)
    np.testing.assert_array_equal(found["adamh"], found["muonh"])
    assert float(found["muonh"][3]) == pytest.approx(0.00329047, abs=5e-9)
    assert float(found["muonh"][-1]) == pytest.approx(0.00016452, abs=5e-9)
    assert float(found["adam"][-1]) == pytest.approx(0.00003797, abs=5e-9)


def test_groups_without_a_rate_of_their_own_follow_the_matrices() -> None:
    step, schedule = jnp.int32(0), Wsd(final_ratio=1.0)
    assert {name: float(rate) for name, rate in learning_rates(AdamW(learning_rate=0.5, schedule=schedule), 10)(step).items()} == {
        "adamw": 0.5
    }
    assert learning_rates(Muon(learning_rate=0.5, schedule=schedule), 10)(step)["adam"] == 0.5
    muonh = learning_rates(MuonH(learning_rate=0.13, schedule=schedule), 10)(step)
    assert float(muonh["adam"]) == pytest.approx(0.03)
    assert float(learning_rates(MuonH(adam_learning_rate=0.25, schedule=schedule), 10)(step)["adam"]) == 0.25


@given(st.lists(st.tuples(st.integers(1, 50), st.integers(1, 64), st.integers(1, 64)), min_size=1, max_size=5), st.integers(0, 300))
@settings(max_examples=100, deadline=None)
def test_tokens_before_a_step_are_the_sum_over_the_steps_before(parts: list[tuple[int, int, int]], step: int) -> None:
    first, stages = 0, []
    for length, batch, sequence in parts:
        stages.append(BatchStage(first_step=first, global_batch_size=batch, sequence_length=sequence))
        first += length
    schedule = BatchSchedule(stages=tuple(stages))
    assert schedule.tokens_before(step) == sum(schedule.stage(k).tokens_per_step for k in range(step))
    assert schedule.sequences_before(step) == sum(schedule.stage(k).global_batch_size for k in range(step))


def test_a_stage_begins_at_its_first_step() -> None:
    schedule = BatchSchedule.with_context(46_137_344, {0: 4096, 195_000: 16_384, 370_000: 65_536})
    assert [schedule.stage(step).sequence_length for step in (0, 194_999, 195_000, 369_999, 370_000)] == [
        4096,
        4096,
        16_384,
        16_384,
        65_536,
    ]
    assert [stage.global_batch_size for stage in schedule.stages] == [11_264, 2816, 704]
    assert schedule.tokens_before(HERO_STEPS) == 18_005_144_633_344
    assert schedule.sequences_before(195_001) == 195_000 * 11_264 + 2816


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: BatchSchedule.with_context(1000, {0: 300}), "300 from step 0 on, which doesn't divide tokens_per_step = 1000"),
        (lambda: BatchSchedule.with_context(1024, {5: 256}), r"begin at steps \[5\]"),
        (lambda: BatchSchedule(stages=()), "stages"),
        (lambda: BatchSchedule(stages=(BatchStage(first_step=0, global_batch_size=1, sequence_length=1),) * 2), r"\[0, 0\]"),
        (lambda: Wsd(decay_fraction=0), "decay_fraction"),
        (lambda: Linear(final_ratio=1.5), "final_ratio"),
        (lambda: AdamW(schedule={"name": "steps"}), "wsd"),  # type: ignore[arg-type]
    ],
)
def test_a_schedule_that_cannot_be_is_refused(make: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make()
