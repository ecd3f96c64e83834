"""Counts and FLOPs are exact, and inconsistent configurations are refused."""

import subprocess
import sys
from typing import Any

import jax
import pytest

from marin_core.errors import ConfigError
from marin_core.model.config import MoEConfig, TransformerConfig
from marin_core.model.counts import parameter_count, training_flops_per_token
from marin_core.model.presets import DENSE, PRESETS, article_2026, gemma_2b, ladder, llama_32b, marin_535b_a23b, moe_tiny, preset
from marin_core.model.transformer import SplitTransformer

D768, D1024, D1536, D2048 = (ladder(width) for width in (768, 1024, 1536, 2048))
HERO = marin_535b_a23b()


QK_NORM = {"qk_norm": True, "qk_norm_gain": True}
COUNTS = {
    "moe_tiny": (1_434_176, 565_248),
    "ladder_d768": (1_591_848_448, 60_555_264),
    "ladder_d1024": (3_980_116_480, 162_004_992),
    "ladder_d1536": (11_534_398_464, 481_296_384),
    "ladder_d2048": (27_742_902_528, 1_170_735_104),
    "marin_535b_a23b": (535_477_106_688, 22_762_487_808),
    "article_2026": (535_477_106_688, 22_762_487_808),
    "llama_nano": (8_241_312, 32_768),
    "llama_8b": (8_030_261_248, 6_979_321_856),
    "llama_32b": (32_519_623_680, 31_205_621_760),
    "gemma_2b": (2_614_341_888, 2_024_275_968),
}
"""Total and active parameters; of a dense model, active are all matrices but embedding and head."""


def real_parameters(config: TransformerConfig) -> int:
    """The sum over the shapes of the real parameters, and the selection bias, which is counted but not trained."""
    shapes = jax.eval_shape(SplitTransformer(config).init, jax.random.key(0))
    return int(sum(leaf.size for leaf in jax.tree.leaves(shapes))) + config.layers * (config.moe.experts if config.moe else 0)


def test_every_preset_has_a_published_count() -> None:
    assert COUNTS.keys() == PRESETS.keys()


@pytest.mark.parametrize("name", COUNTS)
def test_formula_and_real_parameters_both_give_the_published_count(name: str) -> None:
    config = preset(name)
    assert parameter_count(config) == COUNTS[name]
    assert real_parameters(config) == COUNTS[name][0]


@pytest.mark.parametrize(
    "config",
    [
        moe_tiny(short_conv_kernel=0, gated_norm_rank=0, head_gate=False, moe=MoEConfig(experts=4, experts_per_token=1, expert_width=32)),
        moe_tiny(post_norms=True, tied_head=True, embedding_norm=False, **QK_NORM),
        moe_tiny(moe=None, feed_forward_width=96),
    ],
)
def test_the_formula_counts_what_each_feature_adds(config: TransformerConfig) -> None:
    assert parameter_count(config).total == real_parameters(config)


def test_learned_qk_norm_adds_its_gains_and_nothing_else() -> None:
    config = llama_32b(**QK_NORM)
    assert parameter_count(config).total == real_parameters(config) == COUNTS["llama_32b"][0] + 16_384


def test_an_unknown_preset_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ConfigError, match="no model preset 'llama_9b'") as refused:
        preset("llama_9b")
    assert "llama_8b" in str(refused.value.advice)


def test_the_article_describes_the_large_model() -> None:
    """One code path, and today not even the values differ; whoever changes the default's transport has to decide here."""
    assert article_2026() == HERO


def test_dense_presets_switch_every_feature_of_the_mixture_family_off() -> None:
    features = {"xsa": False, "head_gate": False, "short_conv_kernel": 0, "gated_norm_rank": 0, "embedding_norm": False, "moe": None}
    for name in ("llama_nano", "llama_8b", "llama_32b", "gemma_2b"):
        config = preset(name)
        assert {field: getattr(config, field) for field in features} == features
        assert config.rope_dims == config.head_dim
        assert config.global_rope
    assert all(all(preset(name).global_layers) for name in ("llama_nano", "llama_8b", "llama_32b"))
    assert gemma_2b().global_layers == (False, True) * 13
    assert DENSE.keys() <= TransformerConfig.model_fields.keys()


@pytest.mark.parametrize(
    ("config", "n_global", "forward"),
    [
        (D768, None, 184_393_728),
        (D1024, None, 449_003_520),
        (D1536, None, 1_209_434_112),
        (D2048, 5, 2_786_623_488),
        (D2048, None, 2_801_401_856),
        (HERO, None, 48_336_076_800),
    ],
)
def test_flops_are_the_published_constants(config: TransformerConfig, n_global: int | None, forward: int) -> None:
    assert training_flops_per_token(config, n_global=n_global, with_head=False) == 3 * forward


@pytest.mark.parametrize(
    ("config", "n_global", "batch_size", "step_flops"),
    [
        (D768, None, 1024, 2.320210052775936e15),
        (D1024, None, 2048, 1.129954355970048e16),
        (D1536, None, 6144, 9.130921800656486e16),
        (D2048, 5, 11_264, 3.857022193930076e17),
        (HERO, None, 11_264, 6.690294608796058e18),
    ],
)
def test_flops_of_a_step_are_the_published_constants(
    config: TransformerConfig, n_global: int | None, batch_size: int, step_flops: float
) -> None:
    assert float(training_flops_per_token(config, n_global=n_global, with_head=False) * batch_size * 4096) == step_flops


def test_flops_with_the_head_are_the_numerator_of_utilisation() -> None:
    assert training_flops_per_token(HERO) * 11_264 * 4096 == pytest.approx(6.9084e18, rel=1e-5)


def test_dense_flops_are_six_a_parameter_and_attention() -> None:
    config = preset("llama_8b")
    scores = 3 * config.layers * (4 * 8192 * 4096 + 3 * 8192 * 32)
    head = 4096 * 128_256
    assert training_flops_per_token(config) == 6 * (COUNTS["llama_8b"][1] + head) + scores


def test_a_shorter_sequence_shortens_both_spans() -> None:
    long, short = (training_flops_per_token(gemma_2b(), sequence_length=length) for length in (8192, 2048))
    heads = 8 * 256
    assert long - short == 3 * (4 * heads + 3 * 8) * (13 * (8192 - 2048) + 13 * (4096 - 2048))


def test_every_fourth_and_the_last_layer_are_global() -> None:
    assert D2048.global_layers == tuple(layer in (3, 7, 11, 15, 19, 21) for layer in range(22))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"heads": 3}, "heads = 3 must be a multiple of local_kv_heads = 2"),
        ({"local_kv_heads": 1, "global_kv_heads": 2}, "global_kv_heads = 2 must not exceed local_kv_heads = 1"),
        ({"head_dim": 6}, "head_dim = 6 must be a multiple of 4"),
        ({"window": 0}, "window"),
        ({"no_such_field": 1}, "no_such_field"),
        ({"feed_forward_width": 8}, "either moe or feed_forward_width, not both"),
        ({"moe": None}, "either moe or feed_forward_width, not neither"),
        ({"activation": "gelu"}, "activation = 'gelu' is for dense blocks"),
        ({"qk_norm": False, "qk_norm_gain": True}, "qk_norm_gain needs qk_norm"),
        ({"moe": {"experts": 2, "experts_per_token": 2, "expert_width": 8}}, "experts_per_token = 2 must be below experts = 2"),
        ({"moe": {"experts": 4, "experts_per_token": 2, "expert_width": 8, "shared_experts": 1}}, "must both be 0 or both positive"),
        ({"moe": {"experts": 4, "experts_per_token": 2, "expert_width": 8, "balancer": {"name": "guess"}}}, "balancer"),
    ],
)
def test_inconsistent_values_are_refused_by_name(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        moe_tiny(**changes)


def test_a_configuration_survives_json() -> None:
    config = moe_tiny(vocab_size=1000)
    assert TransformerConfig.from_json(config.model_dump(mode="json")) == config


def test_configuration_modules_load_no_array_library() -> None:
    code = "import sys, marin_core.model.config, marin_core.train.config; print([m for m in ('jax', 'flax', 'numpy') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
