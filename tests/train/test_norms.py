"""Norms are those of float64, on one device and on eight, and show what loads can't: layers and experts without gradient."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from marin_core.model.mesh import make_mesh, parameter_sharding
from marin_core.train.metrics import LAYERS, PER_EXPERT, ROUTED_EXPERTS, ROUTER, norm_metrics
from marin_core.train.norms import layer_norms

LAYER_COUNT, EXPERTS, WIDTH = 3, 8, 16
Tree = dict[str, Any]


def tree(seed: int, scale: float = 1.0) -> Tree:
    """Leaves as a model has them: alone, stacked over layers, and stacked over layers and experts."""
    rng = np.random.default_rng(seed)

    def normal(*shape: int) -> np.ndarray:
        return (scale * rng.normal(size=shape)).astype(np.float32)

    feed_forward = {
        "experts": {name: normal(LAYER_COUNT, EXPERTS, WIDTH, 4) for name in ("w_gate", "w_up", "w_down")},
        "router": {"weight": normal(LAYER_COUNT, WIDTH, EXPERTS)},
    }
    blocks = {"attention": {"w_q": normal(LAYER_COUNT, WIDTH, WIDTH)}, "norm": {"gain": normal(LAYER_COUNT, WIDTH)}}
    return {"embedding": normal(32, WIDTH), "output": normal(WIDTH, 32), "blocks": blocks | {"feed_forward": feed_forward}}


def norm64(leaf: np.ndarray, kept: int) -> np.ndarray:
    wide = np.asarray(leaf, np.float64).reshape(*leaf.shape[:kept], -1)
    return np.sqrt(np.sum(wide * wide, axis=-1))


@pytest.fixture(scope="module")
def single() -> dict[str, np.ndarray]:
    norms: dict[str, np.ndarray] = jax.device_get(jax.jit(layer_norms)(tree(0), tree(1, 1e-3), tree(2, 1e-5)))
    return norms


def test_norms_are_those_of_float64(single: dict[str, np.ndarray]) -> None:
    for prefix, leaves in (("params", tree(0)), ("grad", tree(1, 1e-3)), ("updates", tree(2, 1e-5))):
        for path, leaf in jax.tree_util.tree_flatten_with_path(leaves)[0]:
            name = jax.tree_util.keystr(path, simple=True, separator="/")
            found = single[f"{prefix}/norm/{name}"]
            assert found.dtype == np.float32
            np.testing.assert_allclose(found, norm64(leaf, 1 if "blocks" in name else 0), rtol=1e-6, err_msg=name)
    gradient = tree(1, 1e-3)["blocks"]
    experts = np.sum([norm64(leaf, 2) ** 2 for leaf in gradient["feed_forward"]["experts"].values()], axis=0)
    np.testing.assert_allclose(single[PER_EXPERT], np.sqrt(experts), rtol=1e-6)
    np.testing.assert_allclose(single[ROUTED_EXPERTS], np.sqrt(experts.sum(axis=1)), rtol=1e-6)
    np.testing.assert_allclose(single[ROUTER], norm64(gradient["feed_forward"]["router"]["weight"], 1), rtol=1e-6)
    everything = np.sum([norm64(leaf, 1) ** 2 for leaf in jax.tree.leaves(gradient)], axis=0)
    np.testing.assert_allclose(single[LAYERS], np.sqrt(everything), rtol=1e-6)


def test_norms_on_a_mesh_are_those_of_one_device(single: dict[str, np.ndarray]) -> None:
    mesh = make_mesh(2, 4)

    def place(path: Any, leaf: np.ndarray) -> Any:
        return jax.device_put(leaf, parameter_sharding(mesh, path, leaf))

    placed = [jax.tree_util.tree_map_with_path(place, leaves) for leaves in (tree(0), tree(1, 1e-3), tree(2, 1e-5))]
    assert len(placed[0]["blocks"]["feed_forward"]["experts"]["w_up"].sharding.device_set) == 8
    with jax.set_mesh(mesh):
        spread = jax.device_get(jax.jit(layer_norms)(*placed))
    assert spread.keys() == single.keys()
    for name, norm in spread.items():
        np.testing.assert_allclose(norm, single[name], rtol=1e-6, err_msg=name)


def test_bfloat16_leaves_are_summed_in_float32() -> None:
    """4,096 equal squares: a bfloat16 sum would stop growing at 256 of them."""
    leaf = {"embedding": jnp.full((64, 64), 1.0, jnp.bfloat16)}
    assert float(jax.jit(layer_norms)(leaf, leaf, leaf)["grad/norm/embedding"]) == 64.0


def test_a_dense_model_has_no_experts() -> None:
    leaves = {"blocks": {"attention": {"w_q": np.ones((2, 4, 4), np.float32)}}}
    norms = layer_norms(leaves, leaves, leaves)
    assert not {PER_EXPERT, ROUTED_EXPERTS, ROUTER} & set(norms)
    assert norms[LAYERS].tolist() == [4.0, 4.0]


def test_rows_hold_norms_as_short_numbers() -> None:
    experts = np.asarray([[0.1234567, 0.0], [12345.6, np.nan]], np.float32)
    row = norm_metrics({"loss": np.ones((), np.float32), "grad/norm/a": np.asarray(0.1234567891, np.float32), PER_EXPERT: experts})
    assert sorted(row) == ["grad/norm/a", PER_EXPERT]
    assert row["grad/norm/a"] == 0.123457
    assert row[PER_EXPERT][0] == [0.123, 0.0]
    assert row[PER_EXPERT][1][0] == 12300.0
    assert np.isnan(row[PER_EXPERT][1][1])
