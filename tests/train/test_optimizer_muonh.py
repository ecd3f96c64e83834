"""MuonH keeps spheres, whatever the gradient; the same on one device and on a mesh."""

import re
from functools import partial
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from marin_core.model.mesh import make_mesh, parameter_sharding
from marin_core.train.optimizers import hyperball as hyperball_module
from marin_core.train.optimizers import muonh
from marin_core.train.optimizers.build import make_optimizer, optimizer_metrics
from marin_core.train.optimizers.config import MuonH
from marin_core.train.optimizers.groups import path_of
from marin_core.train.optimizers.hyperball import Move, Sphere, hyperball, sphere_axes
from marin_core.train.optimizers.newton_schulz import newton_schulz, orthogonalize
from marin_core.train.schedules import Wsd
from tests.train.optimizer_reference import flat, nested, orthogonal, random_tree

quick = partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})
W_Q = tuple(jax.tree_util.DictKey(name) for name in ("blocks", "attention", "w_q"))
EXPERTS = tuple(jax.tree_util.DictKey(name) for name in ("blocks", "feed_forward", "experts", "w_up"))
OUTPUT = (jax.tree_util.DictKey("output"),)
CONSTANT = Wsd(final_ratio=1.0)
SHAPES = {
    "embedding": (8, 4),
    "output": (4, 8),
    "blocks/attention/w_q": (3, 4, 8),
    "blocks/feed_forward/router/weight": (3, 4, 8),
    "blocks/feed_forward/experts/w_up": (3, 8, 4, 6),
}


SPHERICAL = {path: shape for path, shape in SHAPES.items() if path not in ("embedding", "blocks/feed_forward/router/weight")}


def normal(seed: int, shape: tuple[int, ...]) -> jax.Array:
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape).astype(np.float32))


def by_path(tree: Any) -> dict[str, jax.Array]:
    return {path_of(keys): leaf for keys, leaf in jax.tree_util.tree_leaves_with_path(tree)}


def norms(x: Any, axes: tuple[int, ...]) -> Any:
    return np.sqrt(np.sum(np.asarray(x, np.float64) ** 2, axis=axes))


@quick
def orthogonal_in_float32(x: jax.Array) -> jax.Array:
    return orthogonalize(x, dtype=jnp.float32)


@pytest.mark.parametrize("shape", [(4, 6), (3, 6, 4), (2, 3, 4, 6)], ids=str)
def test_every_matrix_of_a_stack_is_orthogonalised_by_itself(shape: tuple[int, ...]) -> None:
    x = normal(0, shape)
    np.testing.assert_allclose(orthogonal_in_float32(x), orthogonal(np.asarray(x, np.float64)), rtol=2e-4, atol=2e-5)


def test_singular_values_end_near_one_in_bfloat16_too() -> None:
    x = normal(1, (24, 16))
    y = quick(newton_schulz)(x)
    assert y.dtype == jnp.bfloat16
    values = np.linalg.svd(np.asarray(y, np.float64), compute_uv=False)
    assert 0.6 < values.min() <= values.max() < 1.3
    np.testing.assert_allclose(np.asarray(y, np.float64), orthogonal(np.asarray(x, np.float64)), atol=0.06)
    assert not np.any(np.asarray(quick(newton_schulz)(jnp.zeros((24, 16))), np.float32))


@partial(quick, static_argnums=(0, 4))
def move(keys: tuple[Any, ...], p: jax.Array, u: jax.Array, rate: jax.Array, sphere: Sphere) -> Move:
    return hyperball(keys, p, u, rate, sphere)


SPHERES: list[tuple[tuple[Any, ...], tuple[int, ...], Sphere, tuple[int, ...]]] = [
    (OUTPUT, (4, 6), "per_layer", (0, 1)),
    (W_Q, (2, 4, 6), "per_expert", (1, 2)),
    (EXPERTS, (2, 3, 4, 6), "per_layer", (1, 2, 3)),
    (EXPERTS, (2, 3, 4, 6), "per_expert", (2, 3)),
]


@pytest.mark.parametrize(("keys", "shape", "sphere", "axes"), SPHERES, ids=str)
def test_a_step_keeps_every_sphere_and_the_bound(
    keys: tuple[Any, ...], shape: tuple[int, ...], sphere: Sphere, axes: tuple[int, ...]
) -> None:
    assert sphere_axes(keys, len(shape), sphere) == axes
    p, u = normal(2, shape), normal(3, shape)
    for rate in (1e-3, 0.1, 0.5, 0.99):
        moved = move(keys, p, u, jnp.float32(rate), sphere)
        assert bool(moved.sound)
        np.testing.assert_allclose(norms(p + moved.update, axes), norms(p, axes), rtol=2e-6)
        length = norms(moved.update, axes)
        assert np.all(length <= norms(p, axes) * np.sqrt(2 - 2 * np.sqrt(1 - rate**2)) * (1 + 1e-5))
        assert np.all(length > 0.5 * rate * norms(p, axes))
        for scale in (1e-6, 1e6):
            np.testing.assert_allclose(move(keys, p, scale * u, jnp.float32(rate), sphere).update, moved.update, rtol=1e-4, atol=1e-6)


def test_the_bound_is_reached_by_the_step_that_turns_most() -> None:
    """η·r is a chord of the turn; p' and p enclose asin η where v is perpendicular to u: √(2 − 2·√(1 − η²))."""
    rate = 0.6
    p = jnp.asarray([[1.0, 0.0]])
    u = jnp.asarray([[rate, (1 - rate**2) ** 0.5]])
    length = norms(move(OUTPUT, p, u, jnp.float32(rate), "per_layer").update, (0, 1))
    assert length == pytest.approx(np.sqrt(2 - 2 * np.sqrt(1 - rate**2)), rel=1e-6)


def test_without_a_direction_nothing_moves() -> None:
    p, u = normal(4, (3, 4, 6)), normal(5, (3, 4, 6)).at[1].set(0.0)
    moved = move(W_Q, p, u, jnp.float32(0.3), "per_layer")
    assert bool(moved.sound)
    assert not np.any(moved.update[1]), "to the bit"
    assert np.all(norms(moved.update, (1, 2))[[0, 2]] > 0.1)


@pytest.mark.parametrize("fault", ["direction", "parameter", "overflow"])
def test_a_step_that_is_not_sound_is_not_taken(fault: str) -> None:
    p, u = normal(4, (2, 4, 6)), normal(5, (2, 4, 6))
    if fault == "direction":
        u = u.at[1, 2, 3].set(jnp.nan)
    elif fault == "parameter":
        p = p.at[0, 0, 0].set(jnp.inf)
    else:
        p = p.at[0, 0, 0].set(1e30)  # its square is beyond float32
    moved = move(W_Q, p, u, jnp.float32(0.3), "per_layer")
    assert not bool(moved.sound)
    assert not np.any(moved.update)


@pytest.mark.parametrize("factor", [2.5, 0.4])
def test_a_norm_that_is_counted_wrongly_collapses_nothing(factor: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """The failure of marin #8073: the norm after the step is over-counted, and the parameter would shrink by that factor."""
    right, calls = hyperball_module.sphere_norm, [1.0, 1.0, factor, 1.0]

    def wrong(*arguments: Any) -> jax.Array:
        return calls.pop(0) * right(*arguments)

    monkeypatch.setattr(hyperball_module, "sphere_norm", wrong)
    moved = hyperball(OUTPUT, normal(6, (4, 6)), normal(7, (4, 6)), jnp.float32(0.1), "per_layer")
    assert not calls
    assert not bool(moved.sound)
    assert not np.any(moved.update)


@pytest.mark.parametrize("radius", ["current", pytest.param("init", marks=pytest.mark.slow)])
def test_spheres_stay_over_many_steps_and_their_drift_is_measured(radius: Any) -> None:
    config = MuonH(learning_rate=0.3, schedule=CONSTANT, radius=radius)
    optimizer, params = make_optimizer(config, 100), random_tree(0, SPHERICAL)

    def body(carry: tuple[Any, Any], step: jax.Array) -> tuple[tuple[Any, Any], jax.Array]:
        params, state = carry
        gradient = jax.tree.map(lambda leaf: jnp.cos((1 + 0.7 * step) * jnp.arange(leaf.size)).reshape(leaf.shape), params)
        updates, state = optimizer.update(gradient, state, params)
        return (optax.apply_updates(params, updates), state), optimizer_metrics(state)["sphere_norm_drift"]

    (after, state), drifts = quick(lambda params: jax.lax.scan(body, (params, optimizer.init(params)), jnp.arange(64.0)))(params)
    for path, axes in {"output": (0, 1), "blocks/attention/w_q": (1, 2), "blocks/feed_forward/experts/w_up": (1, 2, 3)}.items():
        begun, ended = norms(flat(params)[path], axes), norms(flat(after)[path], axes)
        np.testing.assert_allclose(ended, begun, rtol=1e-5 if radius == "current" else 5e-7)
        assert np.abs(flat(after)[path] - flat(params)[path]).max() > 0.5
    assert int(optimizer_metrics(state)["skipped_leaves"]) == 0
    assert 0 < float(drifts[-1]) < (1e-5 if radius == "current" else 5e-7)


@pytest.fixture(scope="module")
def step() -> Any:
    """A jitted update of `random_tree(0, SHAPES)` with decaying gates, its parameters and its first state."""
    optimizer = make_optimizer(MuonH(learning_rate=0.13, schedule=CONSTANT, gate_decay=0.02), 390_251)
    params = random_tree(0, SHAPES)
    return quick(optimizer.update), params, quick(optimizer.init)(params)


def test_what_is_far_from_its_first_norm_shows_as_drift(step: Any) -> None:
    update, params, state = step
    grown = params | {"output": 1.01 * params["output"]}
    _, after = update(params, state, grown)
    assert float(optimizer_metrics(after)["sphere_norm_drift"]) == pytest.approx(0.01, rel=1e-3)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("path", list(SHAPES))
def test_a_gradient_that_is_not_finite_leaves_out_its_parameter_alone(step: Any, path: str, bad: float) -> None:
    update, params, state = step
    gradient = random_tree(1, SHAPES)
    _, state = update(gradient, state, params)
    broken = nested({name: leaf.at[(0,) * leaf.ndim].set(bad) if name == path else leaf for name, leaf in by_path(gradient).items()})
    updates, after = update(broken, state, params)
    sound, _ = update(gradient, state, params)
    for name, leaf in flat(updates).items():
        np.testing.assert_array_equal(leaf, np.zeros_like(leaf) if name == path else flat(sound)[name])
    for name, leaf in flat(after).items():
        assert np.all(np.isfinite(leaf)), name
        if name.endswith(path) and "radius" not in name:
            np.testing.assert_array_equal(leaf, flat(state)[name], err_msg=name)
    assert int(optimizer_metrics(after)["skipped_leaves"]) == 1
    resumed, _ = update(gradient, after, params)
    assert np.any(flat(resumed)[path]), "it moves again with the next sound gradient"


@pytest.mark.parametrize(("count", "decay"), [(0, 0.02), (54_000, 0.017233), (58_014, 0.017027), (390_251, 0.0), (500_000, 0.0)])
def test_gates_decay_by_adams_own_count(step: Any, count: int, decay: float) -> None:
    """λ at steps whose figures are published; with no gradient, all that moves is decay."""
    update, params, state = step
    aged = jax.tree_util.tree_map_with_path(
        lambda keys, leaf: jnp.int32(count) if jax.tree_util.keystr(keys).endswith(".count") else leaf, state
    )
    updates, _ = update(jax.tree.map(jnp.zeros_like, params), aged, params)
    rate = 0.13 * 3 / 13
    gate = flat(updates)["blocks/feed_forward/router/weight"]
    np.testing.assert_allclose(gate, -rate * decay * flat(params)["blocks/feed_forward/router/weight"], rtol=4e-5, atol=1e-9)
    assert not np.any(flat(updates)["embedding"])


def placed(mesh: Any, tree: Any) -> Any:
    return jax.tree_util.tree_map_with_path(lambda keys, leaf: parameter_sharding(mesh, keys, leaf), tree)


CONFIGS = {"per_layer": MuonH(radius="init", gate_decay=0.1), "per_expert": MuonH(sphere="per_expert")}


@pytest.mark.parametrize("sphere", ["per_layer", pytest.param("per_expert", marks=pytest.mark.slow)])
def test_a_mesh_makes_the_updates_of_one_device(sphere: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """2×4 devices: sums of squares over spread parameters count everything once; state lies like its parameters."""
    monkeypatch.setattr(muonh, "orthogonalize", partial(orthogonalize, dtype=jnp.float32))
    optimizer = make_optimizer(CONFIGS[sphere].changed(learning_rate=0.2, schedule=CONSTANT), 10)
    params, gradients = random_tree(0, SHAPES), [random_tree(1, SHAPES), random_tree(2, SHAPES)]

    def two_steps(params: Any, gradients: list[Any]) -> tuple[Any, Any]:
        state = optimizer.init(params)
        for gradient in gradients:
            updates, state = optimizer.update(gradient, state, params)
            params = optax.apply_updates(params, updates)
        return params, state

    single = quick(two_steps)(params, gradients)
    mesh = make_mesh(2, 4)
    places = (placed(mesh, params), placed(mesh, jax.eval_shape(optimizer.init, params)))
    with jax.set_mesh(mesh):
        spread = jax.device_put((params, gradients), (places[0], [places[0]] * 2))
        many = quick(two_steps, out_shardings=places)(*spread)
    for name, value in flat(many).items():
        np.testing.assert_allclose(value, flat(single)[name], rtol=2e-4, atol=3e-6, err_msg=name)
    lies = {name: cast(NamedSharding, leaf.sharding).spec for name, leaf in by_path(many).items()}
    experts = "blocks/feed_forward/experts/w_up"
    momentum = next(name for name in lies if "/momentum/" in name and name.endswith(experts))
    radius = next(name for name in lies if "/radius/" in name and name.endswith(experts))
    assert lies[momentum] == lies[f"0/{experts}"] == P(None, "expert")
    assert lies[radius] == (P(None, "expert") if sphere == "per_expert" else P())


@pytest.mark.parametrize(
    ("shape", "lies", "moves"),
    [
        ((2, 8, 4, 6), P(None, "expert"), set()),
        ((3, 8, 4), P(None, "expert"), {"all-to-all"}),
        ((3, 4, 8), P(None, None, "expert"), {"all-to-all"}),
    ],
    ids=["experts", "tall matrices", "wide matrices"],
)
def test_matrices_are_gathered_by_none_but_the_device_that_works_on_them(shape: tuple[int, ...], lies: P, moves: set[str]) -> None:
    """Experts are orthogonalised where they lie; three layers of other matrices are dealt out to four devices. Racks exchange nothing."""
    mesh = make_mesh(2, 4)
    place = NamedSharding(mesh, lies)
    with jax.set_mesh(mesh):
        abstract = jax.ShapeDtypeStruct(shape, jnp.float32, sharding=place)
        text = quick(lambda x: orthogonalize(x, lies), out_shardings=place).lower(abstract).compile().as_text() or ""
    found = {name for name in ("all-gather", "all-to-all", "collective-permute", "all-reduce") if f" {name}(" in text}
    assert found == moves
    assert set(re.findall(r"replica_groups=mesh\[[^]]*\] (\S+),", text)) == ({"{'expert'}"} if moves else set())
