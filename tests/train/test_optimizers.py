"""Every optimizer is its paper's, applies the rates that are logged, and resumes to the bit."""

from collections.abc import Callable, Iterator
from functools import lru_cache, partial
from typing import Any
from unittest.mock import patch

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from pydantic import TypeAdapter

from marin_core.errors import ConfigError, MarinError
from marin_core.model.presets import llama_8b, marin_535b_a23b, moe_tiny, preset
from marin_core.model.transformer import SplitTransformer
from marin_core.train.optimizers import muonh
from marin_core.train.optimizers.build import learning_rates, make_optimizer, optimizer_metrics
from marin_core.train.optimizers.config import AdamW, Lion, Muon, MuonH, Optimizer, SkipSpikes, Sophia
from marin_core.train.optimizers.groups import group_of, group_table, is_decayed
from marin_core.train.optimizers.newton_schulz import orthogonalize
from marin_core.train.schedules import Linear, Wsd
from tests.train import optimizer_reference as reference
from tests.train.optimizer_reference import SHAPES, flat, random_tree

STEPS = 20
SCHEDULE = Linear(warmup_steps=2)
quick = partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})

OPTIMIZERS: list[Any] = [
    AdamW(schedule=SCHEDULE, weight_decay=0.3),
    Lion(schedule=SCHEDULE, learning_rate=3e-3, gradient_clip=None),
    Sophia(schedule=SCHEDULE, update_interval=2, gamma=0.5),
    Muon(schedule=SCHEDULE, learning_rate=0.05),
    MuonH(schedule=SCHEDULE, learning_rate=0.2, gate_decay=0.5),
    MuonH(schedule=SCHEDULE, learning_rate=0.2, sphere="per_expert", radius="init", gradient_clip=2.0),
]


@pytest.fixture(scope="module", autouse=True)
def exact_products() -> Iterator[None]:
    """MuonH takes its products in float32, to compare with float64."""
    with patch.object(muonh, "orthogonalize", partial(orthogonalize, dtype=jnp.float32)):
        yield


def hessians_of_three() -> dict[int, reference.Flat]:
    """What `sampled` amounts to at steps 0, 2 and 4: tokens·ĝ²."""
    drawn = [quick(sampled)(jax.random.fold_in(jax.random.key(0), estimate))[0] for estimate in range(3)]
    return {2 * estimate: {path: 7 * g**2 for path, g in flat(gradient).items()} for estimate, gradient in enumerate(drawn)}


def sampled(key: jax.Array) -> tuple[Any, jax.Array]:
    """Stands for a gradient on sampled labels: a function of the key."""
    factor = 1 + jax.random.uniform(key)
    return jax.tree.map(lambda leaf: factor * leaf, random_tree(5)), jnp.float32(7)


Step = Callable[[Any, Any, Any], tuple[Any, Any]]


@lru_cache
def compiled(config: Any) -> tuple[Step, Any]:
    """(parameters, state, gradient) → (parameters, state) after an update, and the state of `random_tree(0)` before the first."""
    optimizer = make_optimizer(config, STEPS)
    extra = {"sampled_gradient": sampled} if isinstance(config, Sophia) else {}

    @quick
    def step(params: Any, state: Any, gradient: Any) -> tuple[Any, Any]:
        updates, state = optimizer.update(gradient, state, params, value=gradient["embedding"][0, 0], **extra)
        return optax.apply_updates(params, updates), state

    return step, quick(optimizer.init)(random_tree(0))


@pytest.mark.parametrize("config", OPTIMIZERS, ids=lambda config: f"{config.name}-{getattr(config, 'sphere', '')}")
def test_an_optimizer_is_its_reference_in_float64(config: Any) -> None:
    params, gradients = random_tree(0), [random_tree(10 + step) for step in range(5)]
    hessians = hessians_of_three() if isinstance(config, Sophia) else None
    step, state = compiled(config)
    found = params
    for gradient in gradients:
        found, state = step(found, state, gradient)
    wanted = reference.run(config, flat(params), [flat(g) for g in gradients], lambda step: SCHEDULE.ratio(step, STEPS), STEPS, hessians)
    for path, value in flat(found).items():
        np.testing.assert_allclose(value, wanted[path], rtol=1e-4, atol=2e-6, err_msg=path)
        assert np.abs(value - flat(params)[path]).max() > 1e-3, f"{path} hardly moved: the comparison shows nothing"


def stored(state: Any) -> dict[str, np.ndarray[Any, Any]]:
    """What a checkpoint keeps: arrays by path."""
    leaves = jax.tree_util.tree_leaves_with_path(state)
    arrays = {jax.tree_util.keystr(keys, simple=True, separator="/"): np.asarray(leaf) for keys, leaf in leaves}
    assert len(arrays) == len(leaves), "two leaves share a path"
    return arrays


RESUMED = [OPTIMIZERS[0].changed(skip_spikes=SkipSpikes(window=4)), *OPTIMIZERS[2:5]]


@pytest.mark.parametrize("config", RESUMED, ids=lambda config: config.name)
def test_a_resumed_optimizer_makes_the_same_bits(config: Any) -> None:
    """Everything that decides an update is in the state, under a path of its own, and comes back through an abstract tree."""
    params, gradients = random_tree(0), [random_tree(10 + step) for step in range(4)]
    step, initial = compiled(config)

    def go(params: Any, state: Any, part: list[Any]) -> tuple[Any, Any]:
        for gradient in part:
            params, state = step(params, state, gradient)
        return params, state

    whole = go(params, initial, gradients)
    params, state = go(params, initial, gradients[:2])
    kept = stored(state)
    abstract, structure = jax.tree_util.tree_flatten_with_path(jax.eval_shape(make_optimizer(config, STEPS).init, params))
    arrays = [kept[jax.tree_util.keystr(keys, simple=True, separator="/")] for keys, _ in abstract]
    for array, (_, leaf) in zip(arrays, abstract, strict=True):
        assert (array.shape, array.dtype) == (leaf.shape, leaf.dtype)
    resumed = go(params, jax.tree.unflatten(structure, [jnp.asarray(array) for array in arrays]), gradients[2:])
    for mine, other in zip(jax.tree.leaves(whole), jax.tree.leaves(resumed), strict=True):
        np.testing.assert_array_equal(mine, other)


def test_the_applied_rate_is_the_logged_one_even_behind_a_skipped_step() -> None:
    config = AdamW(learning_rate=0.1, schedule=Wsd(warmup_steps=2), gradient_clip=None, weight_decay=0.0, b1=0.0, b2=0.0)
    config = config.changed(skip_spikes=SkipSpikes(window=4))
    optimizer, rates = make_optimizer(config, 10), learning_rates(config, 10)
    params = {"output": jnp.ones((2, 2))}
    state, update = optimizer.init(params), quick(optimizer.update)
    for step in range(10):
        loss = jnp.float32(jnp.nan if step == 4 else 3.0)
        updates, state = update({"output": jnp.full((2, 2), 3.0)}, state, params, value=loss)
        wanted = 0.0 if step == 4 else -rates(jnp.int32(step))["adamw"]
        np.testing.assert_allclose(updates["output"], wanted, rtol=1e-5)
    assert {name: int(value) for name, value in optimizer_metrics(state).items()} == {"skipped_steps": 1}


def test_the_global_norm_is_clipped_over_all_parameters() -> None:
    config = AdamW(learning_rate=1.0, schedule=Wsd(final_ratio=1.0), b1=0.0, b2=0.0, eps=1e6, weight_decay=0.0, gradient_clip=1.0)
    params = {"output": jnp.zeros((1, 1)), "embedding": jnp.zeros((1, 1))}
    optimizer = make_optimizer(config, 10)
    updates, _ = optimizer.update({"output": jnp.full((1, 1), 3.0), "embedding": jnp.full((1, 1), 4.0)}, optimizer.init(params), params)
    np.testing.assert_allclose([float(updates["output"][0, 0]), float(updates["embedding"][0, 0])], [-0.6e-6, -0.8e-6], rtol=1e-5)


MODELS = {name: preset(name) for name in ("moe_tiny", "marin_535b_a23b", "gemma_2b", "llama_32b")}
MODELS["llama_8b with gains"] = llama_8b(qk_norm=True, qk_norm_gain=True)


@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
def test_every_parameter_of_every_family_has_a_group(model: Any) -> None:
    shapes = jax.eval_shape(SplitTransformer(model).init, jax.random.key(0))
    for config in (AdamW(), Lion(), Sophia(), Muon(), MuonH()):
        assert {row.group for row in group_table(config, shapes)} <= set(learning_rates(config, 10)(jnp.int32(0)))


def test_the_groups_of_the_large_run_have_its_sizes() -> None:
    shapes = jax.eval_shape(SplitTransformer(marin_535b_a23b()).init, jax.random.key(0))
    sizes = dict.fromkeys(("muonh", "adamh", "adam"), 0)
    for row in group_table(MuonH(), shapes):
        sizes[row.group] += int(np.prod(row.shape, dtype=np.int64))
    selection_bias = 48 * 384  # counted as a parameter, but the balancer sets it
    assert sizes == {"muonh": 533_770_272_768, "adamh": 788_004_864, "adam": 918_829_056 - selection_bias}


def test_weight_decay_acts_on_matrices_only_and_of_muonh_on_gates_only() -> None:
    shapes = jax.eval_shape(SplitTransformer(moe_tiny()).init, jax.random.key(0))
    table = {row.path: row for row in group_table(AdamW(), shapes)}
    assert table["blocks/feed_forward/router/weight"] == ("blocks/feed_forward/router/weight", (4, 128, 16), "adamw", True)
    kept = [path for path, row in table.items() if not row.decayed]
    assert "embedding" in kept
    assert all(path.endswith(("gain", "taps", "embedding")) for path in kept)
    gates = [row.path for row in group_table(MuonH(gate_decay=0.02), shapes) if row.decayed]
    assert gates == ["blocks/attention/head_gate", "blocks/feed_forward/router/weight"]
    assert not any(row.decayed for row in group_table(MuonH(), shapes) + group_table(AdamW(weight_decay=0.0), shapes))


@pytest.mark.parametrize("config", [AdamW(), MuonH()], ids=lambda config: config.name)
def test_an_unknown_parameter_is_an_error(config: Any) -> None:
    with pytest.raises(MarinError, match=r"No optimizer group for parameter 'blocks/surprise'"):
        group_table(config, {"blocks": {"surprise": jnp.ones((2, 2, 2))}})
    with pytest.raises(MarinError, match=r"No optimizer group for parameter 'w_q'"):
        make_optimizer(config, 10).init({"w_q": jnp.ones((2, 2))}) if config.name == "muonh" else is_decayed(config, path("w_q"))
    with pytest.raises(MarinError, match=r"No optimizer group"):
        group_of(config, path("attention"))


def path(name: str) -> tuple[Any, ...]:
    return (jax.tree_util.DictKey(name),)


def test_sophia_says_what_it_needs() -> None:
    params = {"output": jnp.ones((2, 2))}
    optimizer = make_optimizer(Sophia(), 10)
    with pytest.raises(ConfigError, match="sampled labels, and this step gives none"):
        optimizer.update(params, optimizer.init(params), params)


def test_the_rule_of_sigmas_needs_a_loss() -> None:
    params = {"output": jnp.ones((2, 2))}
    optimizer = make_optimizer(AdamW(skip_spikes=SkipSpikes()), 10)
    with pytest.raises(ConfigError, match="skip_spikes judges a step by its loss"):
        optimizer.update(params, optimizer.init(params), params)


def test_first_moments_have_the_type_that_is_asked_for() -> None:
    for config in (AdamW, Lion, Sophia, Muon, MuonH):
        state = jax.eval_shape(make_optimizer(config(first_moment_dtype="bfloat16"), 10).init, random_tree(0))
        types = {jax.tree_util.keystr(keys): leaf.dtype for keys, leaf in jax.tree_util.tree_leaves_with_path(state)}
        first = [dtype for name, dtype in types.items() if ".mu" in name or ".momentum" in name]
        assert len(first) == len(SHAPES)
        assert set(first) == {jnp.dtype("bfloat16")}
        assert all(dtype != jnp.bfloat16 for name, dtype in types.items() if ".nu" in name)


def test_an_optimizer_survives_its_json_and_can_be_a_static_argument() -> None:
    any_optimizer: TypeAdapter[Optimizer] = TypeAdapter(Optimizer)
    for config in OPTIMIZERS:
        assert any_optimizer.validate_json(any_optimizer.dump_json(config)) == config
        hash(config)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: MuonH(learning_rate=1.0), "learning_rate"),
        (lambda: MuonH(sphere="per_head"), "per_expert"),  # type: ignore[arg-type]
        (lambda: SkipSpikes(window=2), "window"),
        (lambda: AdamW(b1=1.0), "b1"),
        (lambda: AdamW(momentum=0.9), "unknown field 'momentum'"),  # type: ignore[call-arg]
    ],
)
def test_an_optimizer_that_cannot_be_is_refused(make: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make()
