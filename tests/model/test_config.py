"""Counts and FLOPs are exact, and inconsistent configurations are refused."""

import subprocess
import sys
from typing import Any

import jax
import pytest

from marin_core.errors import ConfigError
from marin_core.model.config import MoEConfig, TransformerConfig, moe_tiny, parameter_count, training_flops_per_token
from marin_core.model.transformer import SplitTransformer


def ladder(d_model: int, layers: int, heads: int, local_kv: int, global_kv: int, width: int) -> TransformerConfig:
    moe = MoEConfig(experts=384, experts_per_token=8, latent_dim=width, expert_width=width, shared_experts=2, shared_width=width)
    return TransformerConfig(
        vocab_size=128_256,
        d_model=d_model,
        layers=layers,
        heads=heads,
        head_dim=128,
        local_kv_heads=local_kv,
        global_kv_heads=global_kv,
        max_sequence_length=4096,
        window=2048,
        moe=moe,
    )


D768 = ladder(768, 8, 6, 1, 1, 384)
D1024 = ladder(1024, 12, 8, 2, 1, 512)
D1536 = ladder(1536, 16, 12, 3, 1, 768)
D2048 = ladder(2048, 22, 16, 4, 2, 1024)
HERO = ladder(6144, 48, 48, 12, 6, 3072)


@pytest.mark.parametrize(
    ("config", "total", "active"),
    [
        (moe_tiny(), 1_434_176, 565_248),
        (D768, 1_591_848_448, 60_555_264),
        (D1024, 3_980_116_480, 162_004_992),
        (D1536, 11_534_398_464, 481_296_384),
        (D2048, 27_742_902_528, 1_170_735_104),
        (HERO, 535_477_106_688, 22_762_487_808),
    ],
)
def test_parameter_formula_gives_the_published_counts(config: TransformerConfig, total: int, active: int) -> None:
    assert parameter_count(config) == (total, active)


@pytest.mark.parametrize(
    "config",
    [
        moe_tiny(),
        moe_tiny(short_conv_kernel=0, gated_norm_rank=0, head_gate=False, moe=MoEConfig(experts=4, experts_per_token=1, expert_width=32)),
        HERO,
    ],
)
def test_parameter_formula_equals_the_sum_over_real_parameters(config: TransformerConfig) -> None:
    shapes = jax.eval_shape(SplitTransformer(config).init, jax.random.key(0))
    selection_bias = config.layers * config.moe.experts
    assert sum(leaf.size for leaf in jax.tree.leaves(shapes)) + selection_bias == parameter_count(config).total


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
