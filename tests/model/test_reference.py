"""The JAX model against the float64 reference: logits, loss, and the gradient of every parameter by finite differences.

Our side computes in float32, so logits agree to about 1e-5 of their size and a derivative to about 1e-4 of the gradient's.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
import pytest

from marin_core.model.config import MoEConfig, TransformerConfig
from marin_core.model.loss import next_token_loss
from marin_core.model.presets import gemma_2b, llama_32b, llama_nano, marin_535b_a23b
from marin_core.model.transformer import Params, SplitTransformer
from tests.model import reference

Array = npt.NDArray[Any]
SHAPE: dict[str, Any] = {
    "vocab_size": 24,
    "d_model": 16,
    "layers": 2,
    "heads": 4,
    "head_dim": 8,
    "window": 4,
    "max_sequence_length": 11,
    "compute_dtype": "float32",
}
DENSE = SHAPE | {"local_kv_heads": 2, "global_kv_heads": 2, "feed_forward_width": 20}
# Room for all tokens at every expert: what drops is not this reference's subject.
MIXTURE = MoEConfig(experts=6, experts_per_token=2, latent_dim=12, expert_width=10, shared_experts=2, shared_width=5, capacity_factor=3.0)
CONFIGS = {
    "mixture": marin_535b_a23b(**SHAPE, local_kv_heads=2, global_kv_heads=1, gated_norm_rank=3, moe=MIXTURE),
    "another mixture, in blocks": marin_535b_a23b(
        **SHAPE | {"local_kv_heads": 2, "global_kv_heads": 1, "gated_norm_rank": 0, "attention_block": 3, "short_conv_kernel": 2},
        **{"rope_theta": 100.0, "qk_mult": 0.7, "qk_norm_eps": 0.1, "norm_eps": 0.1, "z_loss": 1e-2},
        moe=MIXTURE.changed(latent_dim=None, shared_experts=0, shared_width=0, experts_per_token=3, combine_scale=1.5),
    ),
    "llama": llama_nano(**DENSE),
    "llama with learned QK-norm": llama_32b(**DENSE, qk_norm=True, qk_norm_gain=True, z_loss=1e-2),
    # Caps low enough to bend scores and logits of this size.
    "gemma": gemma_2b(**DENSE | {"attention_soft_cap": 1.5, "logit_soft_cap": 3.0, "attention_block": 4}),
}
RNG = np.random.default_rng(3)
TOKENS = RNG.integers(0, 24, size=(2, 11)).astype(np.int32)
SEGMENTS = np.asarray([[0] * 11, [0] * 4 + [1] * 5 + [-1] * 2], np.int32)
LOSS_WEIGHT = (RNG.random((2, 11)) * (SEGMENTS >= 0)).astype(np.float32)
BIAS = RNG.normal(size=(2, 6)).astype(np.float32)


class Case(NamedTuple):
    """One configuration with random parameters, and what JAX makes of them: logits [B, S, V], loss, and its gradient."""

    config: TransformerConfig
    params: Params
    logits: Array
    loss: float
    gradient: Params


@pytest.fixture(scope="module", params=CONFIGS, ids=str)
def case(request: pytest.FixtureRequest) -> Case:
    config = CONFIGS[request.param]
    model = SplitTransformer(config)
    rng = np.random.default_rng(5)
    shapes = jax.eval_shape(model.init, jax.random.key(0))
    # Large enough for every gate, tap and gain to matter.
    params = jax.tree.map(lambda leaf: (0.4 * rng.normal(size=leaf.shape)).astype(np.float32), shapes)

    def loss_of(params: Params) -> tuple[jax.Array, jax.Array]:
        network = model.bind(params)
        bias = jnp.asarray(BIAS if config.moe else np.zeros((2, 0), np.float32))
        hidden, _ = network(jnp.asarray(TOKENS), jnp.asarray(SEGMENTS), bias)
        tokens, weight = jnp.asarray(TOKENS), jnp.asarray(LOSS_WEIGHT)
        options: dict[str, Any] = {"z_loss": config.z_loss, "soft_cap": config.logit_soft_cap, "block_tokens": 8}
        sums = next_token_loss(hidden, network.head, tokens, weight, **options)
        return sums.total / sums.weight, network.logits(hidden)

    compiled = jax.jit(jax.value_and_grad(loss_of, has_aux=True), compiler_options={"xla_backend_optimization_level": 0})
    (loss, logits), gradient = compiled(params)
    return Case(config, params, np.asarray(logits), float(loss), jax.tree.map(np.asarray, gradient))


def wide(params: Params) -> reference.Weights:
    return jax.tree.map(lambda leaf: leaf.astype(np.float64), params)  # type: ignore[no-any-return]


def reference_loss(config: TransformerConfig, weights: reference.Weights) -> float:
    return reference.loss(config, weights, TOKENS, SEGMENTS, LOSS_WEIGHT, BIAS)


def test_logits_equal_the_reference(case: Case) -> None:
    for row in range(2):
        expected = reference.forward(case.config, wide(case.params), TOKENS[row], SEGMENTS[row], BIAS)
        counted = SEGMENTS[row] >= 0
        np.testing.assert_allclose(case.logits[row][counted], expected[counted], atol=2e-5 * np.abs(expected).max())


def test_the_loss_equals_the_reference(case: Case) -> None:
    assert case.loss == pytest.approx(reference_loss(case.config, wide(case.params)), rel=2e-6)


def test_the_gradient_of_every_parameter_is_that_of_the_reference(case: Case) -> None:
    """Along one random direction in each leaf, against a central difference whose own error is below 1e-8."""
    rng, weights = np.random.default_rng(8), wide(case.params)
    paths = jax.tree_util.tree_flatten_with_path(case.gradient)[0]
    for path, gradient in paths:
        direction = rng.normal(size=gradient.shape)
        direction /= np.sqrt(np.sum(direction**2))
        expected = derivative(lambda w: reference_loss(case.config, w), weights, {path: direction})
        name = jax.tree_util.keystr(path)
        scale = np.sqrt(np.sum(gradient.astype(np.float64) ** 2) / gradient.size)
        assert scale > 1e-6, f"{name} gets no gradient"
        assert np.sum(gradient * direction) == pytest.approx(expected, abs=1e-4 * scale), name


def test_the_gradient_along_directions_through_all_parameters_is_that_of_the_reference(case: Case) -> None:
    rng, weights = np.random.default_rng(9), wide(case.params)
    leaves = jax.tree_util.tree_flatten_with_path(case.gradient)[0]
    size = sum(leaf.size for _, leaf in leaves)
    norm = np.sqrt(sum(np.sum(leaf.astype(np.float64) ** 2) for _, leaf in leaves))
    for _ in range(4):
        directions = {path: rng.normal(size=leaf.shape) / np.sqrt(size) for path, leaf in leaves}
        expected = derivative(lambda w: reference_loss(case.config, w), weights, directions)
        ours = sum(float(np.sum(leaf * directions[path])) for path, leaf in leaves)
        assert ours == pytest.approx(expected, abs=1e-4 * norm / np.sqrt(size))


def derivative(function: Callable[[Any], float], weights: Any, directions: dict[Any, Array], step: float = 1e-5) -> float:
    """Central difference of `function` along some leaves' directions; too short to move a token to another expert."""

    def moved(distance: float) -> Any:
        return jax.tree_util.tree_map_with_path(
            lambda path, leaf: leaf + distance * directions[path] if path in directions else leaf, weights
        )

    return (function(moved(step)) - function(moved(-step))) / (2 * step)
