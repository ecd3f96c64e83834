"""Transports between devices: equal to one device's result when nothing drops, fair and counted when something does.

Numbers are small integers and multiples of 1/8, and experts have no rounding of their own, so every sum is exact in float32 and results
must agree bit for bit in whatever order they were added.
"""

import functools
import json
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.sharding import PartitionSpec as P

from benchmarks import dispatch
from marin_core.errors import ConfigError
from marin_core.model.config import DenseTransportConfig, MoEConfig, PooledWavesConfig, RaggedConfig, TransportConfig
from marin_core.model.mesh import AXES, EXPERT, make_mesh, mesh_size, over_shards
from marin_core.model.moe.dispatch import Experts, TransportStatistics, local_transport, make_transport
from marin_core.model.moe.dispatch.pooled_waves import PooledWaves
from marin_core.model.moe.dispatch.ragged import Ragged, fill_levels

DEVICES, T, M, F, E, A = 8, 12, 5, 4, 16, 3
"""T tokens on each device, of width M; E experts of width F, A for each token."""

AMPLE, TIGHT = 100.0, 0.75
WAVES, CHUNKS = PooledWavesConfig(waves=2), RaggedConfig(expert_chunks=2)
FAST = {"xla_backend_optimization_level": 0}


def name_of(transport: TransportConfig) -> str:
    return transport.name


class Inputs(NamedTuple):
    """All devices' tokens: x [8·T, M], selected [8·T, A], weights [8·T, A], valid [8·T], and expert weights w1 [E, M, F], w2 [E, F, M]."""

    x: jax.Array
    selected: jax.Array
    weights: jax.Array
    valid: jax.Array
    w1: jax.Array
    w2: jax.Array


def inputs(seed: int, skew: float = 1.0, valid_share: float = 1.0) -> Inputs:
    """Experts chosen with popularity exp(skew · normal): 0 is even, 3 sends most tokens to the same few."""
    rng = np.random.default_rng(seed)
    scores = rng.gumbel(size=(DEVICES * T, E)) + skew * rng.normal(size=E)
    integers = (rng.integers(-3, 4, size=shape).astype(np.float32) for shape in ((DEVICES * T, M), (E, M, F), (E, F, M)))
    x, w1, w2 = integers
    weights = rng.integers(1, 9, size=(DEVICES * T, A)).astype(np.float32) / 8
    valid = rng.random(DEVICES * T) < valid_share
    return Inputs(*map(jnp.asarray, (x, np.argsort(-scores, axis=1)[:, :A].astype(np.int32), weights, valid, w1, w2)))


def experts_of(w1: jax.Array, w2: jax.Array) -> Experts:
    def experts(rows: jax.Array, first: int = 0, /) -> jax.Array:
        chunk = slice(first, first + rows.shape[0])
        hidden = jax.nn.relu(jnp.einsum("erm,emf->erf", rows, w1[chunk].astype(rows.dtype)))
        return jnp.einsum("erf,efm->erm", hidden, w2[chunk].astype(rows.dtype))

    return experts


def moe_config(transport: TransportConfig, capacity_factor: float) -> MoEConfig:
    return MoEConfig(experts=E, experts_per_token=A, expert_width=F, capacity_factor=capacity_factor, transport=transport)


def pass_through(moe: MoEConfig, given: Inputs, step: jax.Array, dropless: bool = False) -> tuple[jax.Array, TransportStatistics]:
    """The transport as the layer calls it on the ambient mesh; statistics with a leading device axis."""
    transport = make_transport(moe, tokens=T, expert_devices=mesh_size(EXPERT), axis=EXPERT, dropless=dropless)

    def here(given: Inputs, step: jax.Array) -> tuple[jax.Array, TransportStatistics]:
        y, statistics = transport(given.x, given.selected, given.weights, given.valid, experts_of(given.w1, given.w2), step)
        return y, jax.tree.map(lambda leaf: leaf[None], statistics)

    specs: Any = Inputs(*(cast(Any, P(axes)) for axes in (AXES, AXES, AXES, AXES, EXPERT, EXPERT)))
    return over_shards(here, in_specs=(specs, P()), out_specs=(P(AXES), P(AXES)))(given, step)


class Outcome(NamedTuple):
    """y, gradients of Σ y·dy by x, weights, w1, w2 with dy a fixed pattern, and statistics."""

    y: jax.Array
    gradients: tuple[jax.Array, ...]
    statistics: TransportStatistics


def outcome_of(function: Callable[[Inputs], tuple[jax.Array, TransportStatistics]], given: Inputs) -> Outcome:
    def of(x: jax.Array, weights: jax.Array, w1: jax.Array, w2: jax.Array) -> tuple[jax.Array, TransportStatistics]:
        return function(given._replace(x=x, weights=weights, w1=w1, w2=w2))

    y, pull, statistics = jax.vjp(of, given.x, given.weights, given.w1, given.w2, has_aux=True)
    dy = ((jnp.arange(y.size, dtype=jnp.int32) * 7 % 5) - 2).reshape(y.shape).astype(y.dtype)
    return Outcome(y, pull(dy), statistics)


class Compiled:
    """(inputs, step) → Outcome on a mesh, compiled once before any routing is known."""

    def __init__(self, mesh: tuple[int, int], transport: TransportConfig, factor: float, *, dropless: bool = False) -> None:
        self.mesh, self.moe = make_mesh(*mesh), moe_config(transport, factor)

        def run(given: Inputs, step: jax.Array) -> Outcome:
            return outcome_of(lambda given: pass_through(self.moe, given, step, dropless), given)

        with jax.set_mesh(self.mesh):
            self.executable = jax.jit(run).lower(inputs(0), jnp.int32(0)).compile(compiler_options=FAST)

    def __call__(self, given: Inputs, step: int = 0) -> Outcome:
        with jax.set_mesh(self.mesh):
            outcome: Outcome = jax.tree.map(np.asarray, self.executable(given, jnp.int32(step)))
        return outcome

    def kept(self, given: Inputs, step: int) -> np.ndarray:
        """bool [8·T, A], the assignments that reached their expert: experts answer 1, and weights are binary digits."""
        one = np.zeros((E, M, F), np.float32)
        one[:, 0, 0] = 1
        marked = given._replace(
            x=jnp.ones_like(given.x),
            weights=jnp.broadcast_to(2.0 ** jnp.arange(A), given.weights.shape),
            w1=jnp.asarray(one),
            w2=jnp.asarray(one.swapaxes(1, 2)),
        )
        digits = np.asarray(self(marked, step).y[:, :1]).astype(int)
        kept: np.ndarray = (digits >> np.arange(A)) % 2 == 1
        return kept


compiled = functools.cache(Compiled)


@functools.cache
def reference() -> Any:
    """All tokens and experts on one device, with room for all."""

    def whole(given: Inputs) -> tuple[jax.Array, TransportStatistics]:
        experts = experts_of(given.w1, given.w2)
        return local_transport(given.x, given.selected, given.weights, given.valid, experts, experts=E, capacity=DEVICES * T)

    return jax.jit(lambda given: outcome_of(whole, given), compiler_options=FAST)


def assert_same(found: Outcome, expected: Outcome) -> None:
    """Outputs and gradients, bit for bit."""
    np.testing.assert_array_equal(found.y, expected.y)
    for mine, theirs in zip(found.gradients, expected.gradients, strict=True):
        np.testing.assert_array_equal(mine, theirs)


def total(statistics: TransportStatistics) -> TransportStatistics:
    summed: TransportStatistics = jax.tree.map(lambda leaf: np.asarray(leaf).sum(axis=0), statistics)
    return summed


# Without drops ------------------------------------------------------------------------------------------------------

FEW_WAVES = PooledWavesConfig(waves=3, rotate=False)
slow = pytest.mark.slow
ROOMY = [
    pytest.param((1, 8), FEW_WAVES, id="pooled_waves-1x8"),
    pytest.param((2, 4), FEW_WAVES, id="pooled_waves-2x4"),
    pytest.param((4, 2), FEW_WAVES, id="pooled_waves-4x2", marks=slow),
    pytest.param((8, 1), FEW_WAVES, id="local-8x1"),
    pytest.param((1, 8), CHUNKS, id="ragged-1x8", marks=slow),
    pytest.param((2, 4), CHUNKS, id="ragged-2x4"),
    pytest.param((4, 2), CHUNKS, id="ragged-4x2", marks=slow),
    pytest.param((1, 8), DenseTransportConfig(), id="dense-1x8", marks=slow),
    pytest.param((2, 4), DenseTransportConfig(), id="dense-2x4"),
    pytest.param((4, 2), DenseTransportConfig(), id="dense-4x2", marks=slow),
]


@pytest.mark.parametrize(("mesh", "transport"), ROOMY)
def test_outputs_and_gradients_equal_one_devices_when_there_is_room(mesh: tuple[int, int], transport: TransportConfig) -> None:
    given = inputs(seed=1, skew=2.0, valid_share=0.8)
    found = compiled(mesh, transport, AMPLE)(given, step=5)
    assert_same(found, reference()(given))
    statistics = total(found.statistics)
    assert statistics.sender_dropped == statistics.receiver_dropped == statistics.dropped_weight_mass == 0
    assert statistics.valid_assignments == int(given.valid.sum()) * A
    assert statistics.skipped_padding == int((~given.valid).sum()) * A
    expected = np.bincount(np.asarray(given.selected)[np.asarray(given.valid)].reshape(-1), minlength=E)
    np.testing.assert_array_equal(statistics.load, expected)


ROOMY_ONCE = [pytest.param((1, 8), FEW_WAVES, id="pooled_waves"), pytest.param((2, 4), CHUNKS, id="ragged")]
ROOMY_ONCE += [pytest.param((2, 4), DenseTransportConfig(), id="dense")]


@pytest.mark.parametrize(("mesh", "transport"), ROOMY_ONCE)
def test_padding_of_nan_reaches_neither_outputs_nor_gradients(mesh: tuple[int, int], transport: TransportConfig) -> None:
    given = inputs(seed=2, skew=1.0, valid_share=0.6)
    valid = given.valid[:, None]
    poisoned = given._replace(x=jnp.where(valid, given.x, jnp.nan), weights=jnp.where(valid, given.weights, jnp.nan))
    run = compiled(mesh, transport, AMPLE)
    found = run(poisoned)
    assert_same(found, run(given))
    padding = ~np.asarray(given.valid)
    for per_token in (found.y, *found.gradients[:2]):
        assert np.all(per_token[padding] == 0)


@pytest.mark.parametrize(("mesh", "transport"), ROOMY_ONCE)
def test_permuted_tokens_give_permuted_outputs_when_there_is_room(mesh: tuple[int, int], transport: TransportConfig) -> None:
    given = inputs(seed=3, skew=2.0, valid_share=0.8)
    order = np.random.default_rng(3).permutation(DEVICES * T)
    permuted = given._replace(**{name: getattr(given, name)[order] for name in ("x", "selected", "weights", "valid")})
    run = compiled(mesh, transport, AMPLE)
    np.testing.assert_array_equal(run(permuted, 1).y, run(given, 2).y[order])


def test_dropless_drops_nothing_even_if_all_tokens_want_the_experts_of_one_device() -> None:
    given = inputs(seed=4)
    given = given._replace(selected=jnp.broadcast_to(jnp.arange(A, dtype=jnp.int32), given.selected.shape))
    found = compiled((2, 4), WAVES, TIGHT, dropless=True)(given)
    assert_same(found, reference()(given))
    statistics = total(found.statistics)
    assert statistics.sender_dropped == statistics.receiver_dropped == 0


# With drops ---------------------------------------------------------------------------------------------------------


@functools.cache
def tight(transport: TransportConfig) -> Compiled:
    return Compiled((2, 4), transport, TIGHT)


def visits(given: Inputs, device: int, step: int) -> list[tuple[int, int, int]]:
    """(token, choice, expert) of a device's valid assignments in the order of a step, tokens numbered over all devices."""
    first = step * 2_654_435_769 % 2**32 % T
    tokens = [device * T + (first + i) % T for i in range(T)]
    selected, valid = np.asarray(given.selected), np.asarray(given.valid)
    return [(token, choice, int(selected[token, choice])) for token in tokens if valid[token] for choice in range(A)]


def simulate_waves(given: Inputs, step: int, devices: int) -> tuple[np.ndarray, np.ndarray]:
    """bool [8·T, A] each: what senders send, and what receivers keep of it, one assignment at a time."""
    here, waves = E // devices, WAVES.waves
    pool_rows, expert_rows = -(-int(TIGHT * T * A) // (devices * waves)), -(-int(TIGHT * T * A) // (here * waves))
    sent, arrived = np.zeros((2, DEVICES * T, A), bool)
    for rack in range(DEVICES // devices):
        pools: dict[tuple[int, int, int, int], tuple[int, int, int]] = {}
        for sender in range(devices):
            ranks = [0] * devices
            for token, choice, expert in visits(given, rack * devices + sender, step):
                rank = ranks[expert // here]
                ranks[expert // here] += 1
                if rank // waves < pool_rows:
                    sent[token, choice] = True
                    pools[expert // here, rank % waves, rank // waves, sender] = token, choice, expert
        for receiver in range(devices):
            for wave in range(waves):
                for expert in range(here):
                    order = [(slot, (expert + step + turn) % devices) for slot in range(pool_rows) for turn in range(devices)]
                    rows = [pools.get((receiver, wave, slot, sender)) for slot, sender in order]
                    for token, choice, _ in [row for row in rows if row and row[2] % here == expert][:expert_rows]:
                        arrived[token, choice] = True
    return sent, arrived


def simulate_ragged(given: Inputs, step: int, devices: int) -> tuple[np.ndarray, np.ndarray]:
    """The same for level filling: senders take turns until the expert's rows are full."""
    here = E // devices
    expert_rows = -(-int(TIGHT * T * A) // here)
    sent, arrived = np.zeros((2, DEVICES * T, A), bool)
    for rack in range(DEVICES // devices):
        queues = [visits(given, rack * devices + sender, step) for sender in range(devices)]
        for expert in range(E):
            waiting = [[(token, choice) for token, choice, wanted in queue if wanted == expert] for queue in queues]
            for queue in waiting:
                for token, choice in queue:
                    sent[token, choice] = True
            order = [(level, (expert + step + turn) % devices) for level in range(T) for turn in range(devices)]
            for token, choice in [waiting[s][level] for level, s in order if level < len(waiting[s])][:expert_rows]:
                arrived[token, choice] = True
    return sent, arrived


SIMULATIONS = [pytest.param(WAVES, simulate_waves, id="pooled_waves"), pytest.param(CHUNKS, simulate_ragged, id="ragged")]
Simulation = Callable[[Inputs, int, int], tuple[np.ndarray, np.ndarray]]


@pytest.mark.parametrize(("transport", "simulate"), SIMULATIONS)
@settings(max_examples=15, deadline=None, derandomize=True)
@given(
    seed=st.integers(0, 2**31),
    skew=st.sampled_from([0.0, 1.0, 4.0]),
    valid_share=st.sampled_from([0.0, 0.5, 1.0]),
    step=st.integers(0, 400_000),
)
def test_any_routing_keeps_what_a_simulation_keeps_and_counts_it(
    transport: TransportConfig, simulate: Simulation, seed: int, skew: float, valid_share: float, step: int
) -> None:
    given = inputs(seed, skew, valid_share)
    sent, arrived = simulate(given, step, 4)
    run = tight(transport)
    np.testing.assert_array_equal(run.kept(given, step), arrived)
    valid = np.broadcast_to(np.asarray(given.valid)[:, None], sent.shape)
    statistics = run(given, step).statistics

    def by_device(counted: np.ndarray) -> np.ndarray:
        return counted.reshape(DEVICES, -1).sum(axis=1)

    np.testing.assert_array_equal(statistics.sender_dropped, by_device(valid & ~sent))
    np.testing.assert_array_equal(statistics.receiver_dropped, by_device(sent & ~arrived))
    np.testing.assert_array_equal(statistics.valid_assignments, by_device(valid))
    np.testing.assert_array_equal(statistics.dropped_weight_mass, by_device(np.where(valid & ~arrived, given.weights, 0)))
    kept = by_device(arrived)
    np.testing.assert_array_equal(kept + statistics.sender_dropped + statistics.receiver_dropped, statistics.valid_assignments)


@pytest.mark.parametrize(("transport", "simulate"), SIMULATIONS)
def test_a_drop_removes_exactly_its_term_from_outputs_and_gradients(transport: TransportConfig, simulate: Simulation) -> None:
    given = inputs(seed=5, skew=1.5, valid_share=0.9)
    _, arrived = simulate(given, 7, 4)
    found = tight(transport)(given, 7)
    expected = reference()(given._replace(weights=jnp.where(arrived, given.weights, 0)))
    assert total(found.statistics).receiver_dropped > 0
    dx, d_weights, *d_experts = expected.gradients
    assert_same(found, expected._replace(gradients=(dx, jnp.where(arrived, d_weights, 0), *d_experts)))


@pytest.mark.parametrize("transport", [WAVES, CHUNKS], ids=name_of)
def test_senders_that_want_the_same_lose_the_same(transport: TransportConfig) -> None:
    """E5: kept counts of an expert differ by at most 1 between the senders of a rack, in each wave."""
    given = inputs(seed=6, skew=1.0)
    given = given._replace(selected=jnp.tile(given.selected[:T], (DEVICES, 1)))
    selected = np.asarray(given.selected)
    for step in range(8):
        kept = tight(transport).kept(given, step)
        assert not kept.all()
        wave = np.zeros_like(selected)
        if isinstance(transport, PooledWavesConfig):
            for device in range(DEVICES):
                ranks = [0] * 4
                for token, choice, expert in visits(given, device, step):
                    wave[token, choice] = ranks[expert // 4] % transport.waves
                    ranks[expert // 4] += 1
        counts = np.zeros((DEVICES, E, 2), int)
        owner = np.broadcast_to(np.arange(DEVICES).repeat(T)[:, None], selected.shape)
        np.add.at(counts, (owner[kept], selected[kept], wave[kept]), 1)
        racks = counts.reshape(2, 4, E, 2)
        assert np.all(racks.max(axis=1) - racks.min(axis=1) <= 1)


def bias(samples: np.ndarray) -> float:
    """Largest |t| over columns of [steps, n] drop rates against the mean of their step: about 3 by chance."""
    apart = samples - samples.mean(axis=1, keepdims=True)
    return float(np.max(np.abs(apart.mean(axis=0)) / (apart.std(axis=0, ddof=1) / len(apart) ** 0.5 + 1e-12)))


def rates(dropped: np.ndarray, selected: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Drop rates by sender within its rack [4], by expert [E], and by place in the sender's tokens [6]."""
    experts = np.array([dropped[selected == expert].mean() for expert in range(E)])
    places = dropped.reshape(DEVICES, 6, T // 6, A).mean(axis=(0, 2, 3))
    return dropped.reshape(2, 4, T, A).mean(axis=(0, 2, 3)), experts, places


@pytest.mark.parametrize("transport", [WAVES, CHUNKS], ids=name_of)
def test_overload_cuts_senders_experts_and_places_alike(transport: TransportConfig) -> None:
    samples = []
    for step in range(60):
        given = inputs(seed=100 + step, skew=0.0)
        samples.append(rates(~tight(transport).kept(given, step), np.asarray(given.selected)))
    by_sender, by_expert, by_place = map(np.stack, zip(*samples, strict=True))
    assert by_sender.mean() > 0.2
    assert max(bias(by_sender), bias(by_expert), bias(by_place)) < 4.5


def test_the_measure_of_bias_finds_a_receiver_that_serves_senders_in_order() -> None:
    by_sender = []
    for step in range(60):
        selected = np.asarray(inputs(seed=100 + step, skew=0.0).selected)
        dropped = np.zeros(selected.shape, bool)
        for rack in (slice(0, 4 * T), slice(4 * T, 8 * T)):
            for expert in range(E):
                token, choice = np.nonzero(selected[rack] == expert)
                dropped[rack][token[int(TIGHT * T * A / 4) :], choice[int(TIGHT * T * A / 4) :]] = True
        by_sender.append(rates(dropped, selected)[0])
    assert bias(np.stack(by_sender)) > 10


@settings(max_examples=60, deadline=None, derandomize=True)
@given(counts=st.lists(st.integers(0, 9), min_size=6, max_size=6), rows=st.integers(0, 60), step=st.integers(0, 10))
def test_levels_are_full_fair_and_never_more_than_wanted(counts: list[int], rows: int, step: int) -> None:
    wanted = np.array(counts, np.int32)
    kept = np.asarray(jax.jit(fill_levels)(jnp.asarray(wanted)[:, None], rows, jnp.int32(step)))[:, 0]
    assert kept.sum() == min(rows, wanted.sum())
    assert np.all(kept <= wanted)
    assert np.all(kept[kept < wanted] >= kept.max() - 1)


# What is compiled ---------------------------------------------------------------------------------------------------

COLLECTIVE = re.compile(r" ([a-z-]+)(?:-start)?\(.*replica_groups=(.*?\}), ")


def test_pooled_waves_send_rows_by_all_to_all_within_racks_and_nothing_else() -> None:
    """Two in the forward pass, two again in its repetition, two in the backward pass; besides them only the sum of expert gradients."""
    text = tight(WAVES).executable.as_text() or ""
    within, between = "mesh['rack'=2,'expert'=4] {'expert'}", "mesh['rack'=2,'expert'=4] {'rack'}"
    assert Counter(COLLECTIVE.findall(text)) == {("all-to-all", within): 6, ("all-reduce", between): 1}


@pytest.mark.parametrize(("platform", "used"), [("cuda", True), ("cpu", False)])
def test_ragged_is_the_real_collective_where_the_backend_has_it(platform: str, used: bool) -> None:
    moe = moe_config(CHUNKS, TIGHT)
    with jax.set_mesh(make_mesh(1, 8)):
        traced = jax.jit(lambda given, step: pass_through(moe, given, step)[0]).trace(inputs(0), jnp.int32(0))
        text = traced.lower(lowering_platforms=(platform,)).as_text()
    assert ("ragged_all_to_all" in text) is used


def forward(mesh: tuple[int, int], transport: TransportConfig, given: Inputs) -> tuple[jax.Array, TransportStatistics]:
    """The outputs alone, with room for all."""
    with jax.set_mesh(make_mesh(*mesh)):
        run = jax.jit(functools.partial(pass_through, moe_config(transport, AMPLE)), compiler_options=FAST)
        done: tuple[jax.Array, TransportStatistics] = run(given, jnp.int32(3))
    return done


@pytest.mark.parametrize("transport", [PooledWavesConfig(waves=1), RaggedConfig(expert_chunks=1)], ids=name_of)
def test_in_one_wave_or_chunk_real_numbers_add_up_in_the_order_of_one_device(transport: TransportConfig) -> None:
    rng = np.random.default_rng(8)
    given = inputs(seed=8)
    given = given._replace(x=jnp.asarray(rng.normal(size=given.x.shape), jnp.float32), w2=given.w2 / 7)
    given = given._replace(weights=jnp.asarray(rng.random(given.weights.shape), jnp.float32))
    np.testing.assert_array_equal(forward((1, 8), transport, given)[0], reference()(given).y)


def test_bfloat16_numbers_rows_exactly_and_stays_near_float32() -> None:
    given = inputs(seed=9, skew=1.0)
    y, statistics = forward((2, 4), WAVES, given._replace(x=given.x.astype(jnp.bfloat16)))
    assert y.dtype == jnp.bfloat16
    assert total(statistics).receiver_dropped == 0
    expected = np.asarray(reference()(given).y)
    np.testing.assert_allclose(np.asarray(y, np.float32), expected, atol=2**-6 * np.abs(expected).max())


# Sizes and refusals -------------------------------------------------------------------------------------------------

HERO = MoEConfig(experts=384, experts_per_token=8, expert_width=3072, capacity_factor=1.15)


def test_sizes_of_the_large_run_are_the_published_ones() -> None:
    waves = PooledWaves.of(HERO, PooledWavesConfig(waves=3), tokens=65_536, devices=64, axis=EXPERT)
    assert (waves.pool_rows, waves.expert_rows) == (3_141, 33_497)
    ragged = Ragged.of(HERO, CHUNKS, tokens=65_536, devices=64, axis=EXPERT)
    assert (ragged.expert_rows, ragged.chunks) == (100_489, 2)


@settings(max_examples=200, deadline=None, derandomize=True)
@given(
    tokens=st.integers(1, 5000),
    devices=st.sampled_from([2, 4, 64]),
    here=st.integers(1, 12),
    chosen=st.integers(1, 8),
    waves=st.integers(1, 5),
    factor=st.sampled_from([0.5, 1.0, 1.15, 1.25, 1000.0]),
)
def test_sizes_hold_the_mean_load_times_the_factor_or_any_load(
    tokens: int, devices: int, here: int, chosen: int, waves: int, factor: float
) -> None:
    experts = devices * here
    moe = MoEConfig(experts=experts, experts_per_token=min(chosen, experts - 1), expert_width=1, capacity_factor=factor)
    made = PooledWaves.of(moe, PooledWavesConfig(waves=waves), tokens=tokens, devices=devices, axis=EXPERT)
    per_token = moe.experts_per_token
    worst_pool = -(-tokens * min(per_token, here) // waves)
    assert made.pool_rows == worst_pool or made.pool_rows * devices * waves >= factor * tokens * per_token * (1 - 1e-9)
    assert made.expert_rows == devices * min(made.pool_rows, tokens) or made.expert_rows * here * waves >= factor * tokens * per_token * (
        1 - 1e-9
    )
    assert made.pool_rows <= worst_pool


def test_experts_that_do_not_spread_evenly_are_refused() -> None:
    with pytest.raises(ConfigError, match="16 experts can't be spread evenly over 5 devices"):
        make_transport(moe_config(WAVES, 1.0), tokens=T, expert_devices=5, axis=EXPERT, dropless=False)


def test_more_experts_than_a_header_can_number_are_refused() -> None:
    moe = MoEConfig(experts=1024, experts_per_token=2, expert_width=1)
    transport = make_transport(moe, tokens=T, expert_devices=2, axis=EXPERT, dropless=False)
    x, selected, weights = jnp.zeros((T, M), jnp.bfloat16), jnp.zeros((T, 2), jnp.int32), jnp.zeros((T, 2))
    with pytest.raises(ConfigError, match="512 experts on a device can't be numbered in bfloat16, which holds integers up to 256"):
        transport(x, selected, weights, jnp.ones(T, bool), experts_of(jnp.zeros(0), jnp.zeros(0)), jnp.int32(0))


# The benchmark ------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_benchmark_measures_every_transport_under_every_load(tmp_path: Path) -> None:
    dispatch.main(["--tokens", "16", "--width", "8", "--rounds", "1", "--json", str(tmp_path / "dispatch.json")])
    rows = json.loads((tmp_path / "dispatch.json").read_text())["rows"]
    assert all(row["ours"] is not None and row["peer"] is not None for row in rows)
    dropped = {(row["measure"], row["peer_name"]): row["ours"] for row in rows if row["unit"] == "%"}
    assert len(dropped) == len(dispatch.LOADS) * (len(dispatch.TRANSPORTS) + 2)
    assert dropped["pooled_waves, 8 devices, one-hot shard load: weight dropped", dispatch.ONE_HOT] > 50
    assert dropped["ragged, emulated, 8 devices, one-hot shard load: weight dropped", dispatch.ONE_HOT] == 0
