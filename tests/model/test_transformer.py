"""The whole model: what can see what, what each feature does, how it starts."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
import pytest
from flax import nnx

from marin_core.model import presets
from marin_core.model.config import MoEConfig, TransformerConfig
from marin_core.model.initializers import matrix
from marin_core.model.moe.layer import LayerStatistics
from marin_core.model.presets import marin_535b_a23b, moe_tiny
from marin_core.model.transformer import Params, SplitTransformer

Array = npt.NDArray[Any]
# Room for all tokens at every expert, so that nothing drops without the second program that dropless evaluation compiles.
MOE = MoEConfig(experts=4, experts_per_token=2, latent_dim=8, expert_width=8, shared_experts=1, shared_width=8, capacity_factor=4.0)
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
Forward = Callable[[Params, Array, Array], tuple[jax.Array, Any]]


def make_forward(config: TransformerConfig, *, dropless: bool = False) -> Forward:
    model = SplitTransformer(config)

    def forward(params: Params, tokens: Array, segments: Array) -> tuple[jax.Array, LayerStatistics | None]:
        network = model.bind(params)
        hidden, statistics = network(
            jnp.asarray(tokens), jnp.asarray(segments), jnp.asarray(BIAS), dropless=dropless, keep_router_logits=True
        )
        return network.logits(hidden), statistics

    return jax.jit(forward, compiler_options=QUICK_COMPILE)


@functools.cache
def shapes_of(config: TransformerConfig) -> Params:
    shapes: Params = jax.eval_shape(SplitTransformer(config).init, jax.random.key(0))
    return shapes


def fresh(config: TransformerConfig) -> Params:
    """Random parameters of the right shapes, large enough for every gate and tap to act."""
    rng, shapes = np.random.default_rng(1), shapes_of(config)
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


PLAIN: dict[str, Any] = presets.DENSE | {"global_every": 4, "moe": None, "feed_forward_width": 8}
DENSE = CONFIG.changed(**PLAIN)
FEATURES: list[dict[str, Any]] = [
    {"qk_norm": True},
    {"qk_norm": True, "qk_mult": 1.3},
    {"qk_norm": True, "qk_norm_gain": True},
    {"half_rope": True},
    {"global_rope": False},
    {"rope_theta": 100.0},
    {"global_every": 1},
    {"global_last": False},
    {"xsa": True},
    {"head_gate": True},
    {"attention_soft_cap": 1.0},
    {"short_conv_kernel": 4},
    {"gated_norm_rank": 4},
    {"post_norms": True},
    {"embedding_norm": True},
    {"embedding_scale": True},
    {"tied_head": True},
    {"logit_soft_cap": 1.0},
    {"activation": "gelu"},
    {"compute_dtype": "bfloat16"},
]
SHAPE_FIELDS = {"vocab_size", "d_model", "layers", "heads", "head_dim", "local_kv_heads", "global_kv_heads", "window", "feed_forward_width"}
OTHER_FIELDS = {
    "moe",
    "norm_eps",
    "qk_norm_eps",
    "attention_block",
    "recompute",
    "scan_layers",
    "init_scale",
    "z_loss",
    "max_sequence_length",
}
"""The mixture, whose own fields test_reference.py varies, as it does the constants; and what changes no logits: the same attention in
parts, how parameters start, the loss, a limit."""


def test_every_field_of_the_configuration_is_tested_as_what_it_is() -> None:
    features = {name for change in FEATURES for name in change}
    assert not features & (SHAPE_FIELDS | OTHER_FIELDS)
    assert features | SHAPE_FIELDS | OTHER_FIELDS == TransformerConfig.model_fields.keys()


@pytest.fixture(scope="module")
def dense() -> jax.Array:
    return make_forward(DENSE)(parameters_like_those_of_config(DENSE), TOKENS, SEGMENTS)[0]


@pytest.mark.parametrize("change", FEATURES, ids=repr)
def test_each_feature_changes_the_output(dense: jax.Array, change: dict[str, Any]) -> None:
    config = DENSE.changed(**change)
    base = dense
    if "qk_norm" in change and len(change) > 1:
        normed = DENSE.changed(qk_norm=True)
        base, _ = make_forward(normed)(parameters_like_those_of_config(normed), TOKENS, SEGMENTS)
    ours, statistics = make_forward(config)(parameters_like_those_of_config(config), TOKENS, SEGMENTS)
    assert statistics is None
    assert ours.shape == base.shape
    assert ours.dtype == jnp.float32
    assert np.all(np.isfinite(np.asarray(ours)))
    assert float(jnp.max(jnp.abs(ours - base))) > 1e-4


@pytest.mark.slow
def test_what_is_recomputed_and_how_layers_run_changes_nothing_but_rounding(params: Params) -> None:
    def gradient_of(**changes: Any) -> Params:
        model = SplitTransformer(CONFIG.changed(**changes))

        def loss(params: Params) -> jax.Array:
            hidden, _ = model.bind(params)(jnp.asarray(TOKENS), jnp.asarray(SEGMENTS), jnp.asarray(BIAS))
            return jnp.sum(hidden**2)

        found: Params = jax.jit(jax.grad(loss), compiler_options=QUICK_COMPILE)(params)
        return found

    expected = gradient_of(recompute="nothing")
    for changes in ({"recompute": "block"}, {"recompute": "all_but_projections"}, {"scan_layers": False}):
        found = gradient_of(**changes)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4 * float(jnp.max(jnp.abs(a)))), expected, found)


def test_forced_balance_sends_every_expert_the_mean(params: Params) -> None:
    _, statistics = make_forward(CONFIG.changed(moe=MOE.changed(forced_balance=True)))(params, TOKENS, SEGMENTS)
    assert statistics is not None
    np.testing.assert_array_equal(statistics.transport.load, 12)


def test_bfloat16_differs_by_its_rounding_only(dense: jax.Array) -> None:
    config = DENSE.changed(compute_dtype="bfloat16")
    rounded, _ = make_forward(config)(parameters_like_those_of_config(config), TOKENS, SEGMENTS)
    assert float(jnp.sqrt(jnp.mean((rounded - dense) ** 2)) / jnp.std(dense)) < 0.05


def parameters_like_those_of_config(config: TransformerConfig) -> Params:
    """Parameters of `config` that equal those of CONFIG where both have them in the same shape."""
    kept = fresh(config)
    _copy_matching(fresh(CONFIG), kept)
    return kept


def _copy_matching(source: Params, target: Params) -> None:
    """Give `target` the leaves of `source` that both have in the same shape."""
    for name, value in target.items():
        if isinstance(value, dict):
            _copy_matching(source.get(name, {}), value)
        elif name in source and source[name].shape == value.shape:
            target[name] = source[name]


def test_capacity_below_the_load_drops_and_dropless_does_not() -> None:
    plain = presets.DENSE | {"global_every": 4, "moe": MOE.changed(capacity_factor=0.5)}
    tight = CONFIG.changed(**plain)
    params = parameters_like_those_of_config(tight)
    _, dropping = make_forward(tight)(params, TOKENS, SEGMENTS)
    _, dropless = make_forward(tight, dropless=True)(params, TOKENS, SEGMENTS)
    assert np.all(np.asarray(dropping.transport.receiver_dropped) > 0)
    np.testing.assert_array_equal(dropless.transport.receiver_dropped, 0)


def test_matrices_start_as_truncated_normals_of_the_documented_spread() -> None:
    sigma = CONFIG.init_std
    leaf = matrix(nnx.Rngs(0), (512, 512), sigma)[...]
    assert float(jnp.std(leaf)) == pytest.approx(0.986578 * sigma, rel=0.005)
    assert float(jnp.max(jnp.abs(leaf))) <= 3 * sigma


def test_the_large_model_starts_with_the_published_norms() -> None:
    """√N·σ·0.986578 of every matrix and √N of every gain over the stack of 48 layers, on the shapes of the real parameters."""
    config = marin_535b_a23b()
    shapes = jax.eval_shape(SplitTransformer(config).init, jax.random.key(0))
    blocks = shapes["blocks"]

    def start(leaf: jax.ShapeDtypeStruct) -> float:
        return float(leaf.size**0.5 * config.init_std * 0.986578)

    assert config.init_std == pytest.approx(0.0063789, rel=1e-5)
    for name, expected in {"w_q": 267.9, "w_o": 267.9, "w_k": 133.9, "w_v": 133.9}.items():
        assert start(blocks["attention"][name]) == pytest.approx(expected, abs=0.06), name
    mixture = blocks["feed_forward"]
    for name in ("w_gate", "w_up", "w_down"):
        assert start(mixture["experts"][name]) == pytest.approx(2624.7, abs=0.06)
        # Published for each of the two shared experts, which lie side by side here.
        assert start(mixture["shared"][name]) == pytest.approx(2**0.5 * 189.4, abs=0.08)
    for name in ("latent_down", "latent_up"):
        assert start(mixture[name]) == pytest.approx(189.4, abs=0.06)
    assert start(mixture["router"]["weight"]) == pytest.approx(67.0, abs=0.06)
    assert start(blocks["attention_norm"]["w_up"]) == pytest.approx(38.7, abs=0.06)
    assert start(shapes["final_norm"]["w_down"]) == pytest.approx(5.58, abs=0.006)
    assert start(shapes["output"]) == pytest.approx(176.7, abs=0.06)
    assert blocks["attention_norm"]["norm"]["gain"].size ** 0.5 == pytest.approx(543.1, abs=0.06)
    assert mixture["latent_norm"]["gain"].size ** 0.5 == pytest.approx(384.0, abs=0.06)
    # A convolution starts as one tap of 1 a channel.
    assert (blocks["attention"]["key_taps"].size / config.short_conv_kernel) ** 0.5 == pytest.approx(271.5, abs=0.06)


def test_a_real_model_starts_as_the_formulas_say() -> None:
    moe = MoEConfig(experts=4, experts_per_token=2, expert_width=32)
    config = CONFIG.changed(d_model=64, gated_norm_rank=0, post_norms=True, qk_norm_gain=True, moe=moe)
    params = jax.jit(SplitTransformer(config).init, compiler_options=QUICK_COMPILE)(jax.random.key(0))
    experts = np.asarray(params["blocks"]["feed_forward"]["experts"]["w_gate"])
    assert len({expert.tobytes() for expert in experts.reshape(-1, *experts.shape[2:])}) == config.layers * moe.experts
    for path, leaf in jax.tree_util.tree_flatten_with_path(params)[0]:
        name, norm = path[-1].key, float(jnp.linalg.norm(leaf))
        if name == "head_gate":
            assert norm == 0
        elif name == "gain":
            np.testing.assert_array_equal(leaf, 1)
        elif name.endswith("taps"):
            np.testing.assert_array_equal(leaf[:, 0], 1)
            np.testing.assert_array_equal(leaf[:, 1:], 0)
        else:
            assert norm == pytest.approx(leaf.size**0.5 * config.init_std * 0.986578, rel=4 / (2 * leaf.size) ** 0.5), path
