"""The whole model: what can see what, what each feature does, how it starts."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
import pytest
from flax import nnx

from marin_core.model.config import MoEConfig, TransformerConfig, moe_tiny
from marin_core.model.initializers import matrix
from marin_core.model.loss import next_token_loss
from marin_core.model.moe.layer import LayerStatistics
from marin_core.model.transformer import Params, SplitTransformer

Array = npt.NDArray[Any]
MOE = MoEConfig(experts=4, experts_per_token=2, latent_dim=8, expert_width=8, shared_experts=1, shared_width=8)
SHAPE: dict[str, Any] = {
    "d_model": 16,
    "layers": 2,
    "heads": 2,
    "head_dim": 8,
    "local_kv_heads": 2,
    "global_kv_heads": 1,
    "window": 4,
    "max_sequence_length": 12,
    "gated_norm_rank": 4,
    "moe": MOE,
}
CONFIG = moe_tiny(32, **SHAPE)
TOKENS = np.random.default_rng(0).integers(0, 32, size=(2, 12)).astype(np.int32)
SEGMENTS = np.asarray([[0] * 12, [0] * 5 + [1] * 7], np.int32)
BIAS = np.zeros((2, 4), np.float32)
QUICK_COMPILE: dict[str, Any] = {"xla_backend_optimization_level": 0}
Forward = Callable[[Params, Array, Array], tuple[jax.Array, LayerStatistics]]


def make_forward(config: TransformerConfig, *, dropless: bool = True) -> Forward:
    model = SplitTransformer(config)

    def forward(params: Params, tokens: Array, segments: Array) -> tuple[jax.Array, LayerStatistics]:
        network = model.bind(params)
        hidden, statistics = network(
            jnp.asarray(tokens), jnp.asarray(segments), jnp.asarray(BIAS), dropless=dropless, keep_router_logits=True
        )
        return network.logits(hidden), statistics

    return jax.jit(forward, compiler_options=QUICK_COMPILE)


def fresh(config: TransformerConfig) -> Params:
    """Random parameters of the right shapes, large enough for every gate and tap to act."""
    rng = np.random.default_rng(1)
    shapes = jax.eval_shape(SplitTransformer(config).init, jax.random.key(0))
    return jax.tree.map(lambda leaf: 0.4 * rng.normal(size=leaf.shape).astype(np.float32), shapes)  # type: ignore[no-any-return]


@pytest.fixture(scope="module")
def forward() -> Forward:
    return make_forward(CONFIG)


@pytest.fixture(scope="module")
def params() -> Params:
    return fresh(CONFIG)


def test_a_later_token_never_changes_earlier_logits(forward: Forward, params: Params) -> None:
    before, _ = forward(params, TOKENS, SEGMENTS)
    for place in (3, 7, 11):
        changed = TOKENS.copy()
        changed[:, place] = (changed[:, place] + 1) % 32
        after, _ = forward(params, changed, SEGMENTS)
        np.testing.assert_array_equal(after[:, :place], before[:, :place])
        assert np.any(np.asarray(after[:, place]) != np.asarray(before[:, place]))


def test_segments_are_isolated(forward: Forward, params: Params) -> None:
    before, _ = forward(params, TOKENS, SEGMENTS)
    changed = TOKENS.copy()
    changed[1, :5] = (changed[1, :5] + 1) % 32
    after, _ = forward(params, changed, SEGMENTS)
    np.testing.assert_array_equal(after[1, 5:], before[1, 5:])
    np.testing.assert_array_equal(after[0], before[0])


def test_padding_changes_nothing_and_is_not_counted(forward: Forward, params: Params) -> None:
    segments = SEGMENTS.copy()
    segments[1, 9:] = -1
    before, statistics = forward(params, TOKENS, segments)
    changed = TOKENS.copy()
    changed[1, 9:] = 0
    after, _ = forward(params, changed, segments)
    np.testing.assert_array_equal(after[1, :9], before[1, :9])
    np.testing.assert_array_equal(statistics.transport.valid_assignments, 21 * 2)
    np.testing.assert_array_equal(statistics.transport.load.sum(axis=1), 21 * 2)


def test_statistics_are_stacked_over_layers(forward: Forward, params: Params) -> None:
    _, statistics = forward(params, TOKENS, SEGMENTS)
    assert statistics.transport.load.shape == (2, 4)
    assert statistics.router_logits is not None
    assert statistics.router_logits.shape == (2, 24, 4)
    assert statistics.margin_max.shape == (2,)
    assert statistics.observation == ()


FEATURES: list[dict[str, Any]] = [
    {"qk_norm": False},
    {"xsa": False},
    {"head_gate": False},
    {"short_conv_kernel": 0},
    {"gated_norm_rank": 0},
    {"global_rope": True},
    {"global_every": 1},
    {"moe": MOE.changed(latent_dim=None, expert_width=4)},
    {"moe": MOE.changed(shared_experts=0, shared_width=0)},
]


@pytest.mark.parametrize("change", FEATURES, ids=lambda change: next(iter(change)))
def test_each_feature_changes_the_output(forward: Forward, params: Params, change: dict[str, Any]) -> None:
    config = CONFIG.changed(**change)
    kept = fresh(config) if _shapes(config) != _shapes(CONFIG) else params
    _copy_matching(params, kept)
    ours, _ = make_forward(config)(kept, TOKENS, SEGMENTS)
    theirs, _ = forward(params, TOKENS, SEGMENTS)
    assert ours.shape == theirs.shape
    assert np.all(np.isfinite(np.asarray(ours)))
    assert float(jnp.max(jnp.abs(ours - theirs))) > 1e-4


def _shapes(config: TransformerConfig) -> Any:
    return jax.tree.map(lambda leaf: leaf.shape, jax.eval_shape(SplitTransformer(config).init, jax.random.key(0)))


def _copy_matching(source: Params, target: Params) -> None:
    """Give `target` the leaves of `source` that both have in the same shape."""
    for name, value in target.items():
        if isinstance(value, dict):
            _copy_matching(source.get(name, {}), value)
        elif name in source and source[name].shape == value.shape:
            target[name] = source[name]


def test_capacity_below_the_load_drops_and_dropless_does_not(params: Params) -> None:
    tight = CONFIG.changed(moe=MOE.changed(capacity_factor=0.5))
    _, dropping = make_forward(tight, dropless=False)(params, TOKENS, SEGMENTS)
    _, dropless = make_forward(tight)(params, TOKENS, SEGMENTS)
    assert np.all(np.asarray(dropping.transport.receiver_dropped) > 0)
    np.testing.assert_array_equal(dropless.transport.receiver_dropped, 0)


def test_matrices_start_as_truncated_normals_of_the_documented_spread() -> None:
    sigma = CONFIG.init_std
    leaf = matrix(nnx.Rngs(0), (512, 512), sigma)[...]
    assert float(jnp.std(leaf)) == pytest.approx(0.986578 * sigma, rel=0.005)
    assert float(jnp.max(jnp.abs(leaf))) <= 3 * sigma
    params = jax.jit(SplitTransformer(CONFIG).init, compiler_options=QUICK_COMPILE)(jax.random.key(0))
    experts = np.asarray(params["blocks"]["moe"]["experts"]["w_gate"])
    assert len({expert.tobytes() for expert in experts.reshape(-1, *experts.shape[2:])}) == CONFIG.layers * MOE.experts
    np.testing.assert_array_equal(params["blocks"]["attention"]["head_gate"], 0)


def test_loss_is_the_float64_reference_and_blocks_do_not_change_it() -> None:
    rng = np.random.default_rng(0)
    hidden, head = rng.normal(size=(2, 7, 5)).astype(np.float32), rng.normal(size=(5, 11)).astype(np.float32)
    tokens = rng.integers(0, 11, size=(2, 7)).astype(np.int32)
    weight = rng.random((2, 7)).astype(np.float32)
    logits = hidden.astype(np.float64) @ head.astype(np.float64)
    partition = np.log(np.exp(logits).sum(axis=-1))[:, :-1]
    target = np.take_along_axis(logits[:, :-1], tokens[:, 1:, None], axis=-1)[..., 0]
    counted = weight[:, :-1].astype(np.float64)
    expected = [(counted * (partition - target)).sum(), (counted * partition**2).sum(), counted.sum()]

    def loss(hidden: jax.Array, elements: int) -> jax.Array:
        return jnp.stack(next_token_loss(hidden, jnp.asarray(head), jnp.asarray(tokens), jnp.asarray(weight), block_elements=elements))

    whole, pieces = loss(jnp.asarray(hidden), 10_000), loss(jnp.asarray(hidden), 44)
    np.testing.assert_allclose(whole, expected, rtol=1e-5)
    np.testing.assert_allclose(pieces, expected, rtol=1e-5)
    gradients = [jax.grad(lambda h, n=n: loss(h, n)[0])(jnp.asarray(hidden)) for n in (10_000, 44)]
    np.testing.assert_allclose(gradients[0], gradients[1], atol=1e-6)
