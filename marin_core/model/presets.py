"""Whole models by name. `changes` replace fields of `TransformerConfig`. Sources of the shapes: `spec/moe.md` §1.3."""

from collections.abc import Callable
from functools import partial
from math import log2
from typing import Any

from marin_core.errors import ConfigError
from marin_core.model.config import MoEConfig, PooledWavesConfig, TransformerConfig

MARIN_VOCABULARY = 128_256
"""Token ids of the tokenizer `marin-community/marin-tokenizer`."""
ATTENTION_BLOCK = 256
"""Queries whose scores exist at once in models of thousands of tokens: 3.2 GB in float32 for 16 sequences of 4,096 and 48 heads."""

DENSE: dict[str, Any] = {
    "global_every": 1,
    "half_rope": False,
    "global_rope": True,
    "qk_norm": False,
    "qk_mult": 1.0,
    "xsa": False,
    "head_gate": False,
    "short_conv_kernel": 0,
    "gated_norm_rank": 0,
    "embedding_norm": False,
    "z_loss": 0.0,
}
"""What turns the defaults of `TransformerConfig` into a plain decoder: every feature of the mixture-of-experts family off, all layers
global, rotary positions on all dimensions of all of them."""


def moe_tiny(vocab_size: int = 512, **changes: Any) -> TransformerConfig:
    """The mixture of experts that learns on two CPU cores in about a minute."""
    preset: dict[str, Any] = {
        "vocab_size": vocab_size,
        "d_model": 128,
        "layers": 4,
        "heads": 4,
        "head_dim": 32,
        "local_kv_heads": 2,
        "global_kv_heads": 1,
        "max_sequence_length": 128,
        "window": 64,
        "gated_norm_rank": 16,
        "moe": MoEConfig(experts=16, experts_per_token=2, latent_dim=64, expert_width=64, shared_experts=2, shared_width=64),
    }
    return TransformerConfig(**(preset | changes))


def marin_535b_a23b(**changes: Any) -> TransformerConfig:
    """The large model: 48 blocks of 384 experts (marin #8435, #9277)."""
    return TransformerConfig(**(_large_moe(d_model=6144, layers=48) | changes))


def article_2026(**changes: Any) -> TransformerConfig:
    """The large model as a popular article of 2026 describes it, with the article's transport and capacity written out.

    Today these are also the values of `marin_535b_a23b`, which a test holds them to: as a model the two are the same. The article's
    other figures (18.75 T tokens, racks of 72 GPUs, bfloat16 parameters with float32 masters) describe a run and its fleet, which no
    model configuration knows; `spec/moe.md` §0 sets them beside the sources.
    """
    mixture = _mixture_of_384(3072).changed(capacity_factor=1.15, transport=PooledWavesConfig(waves=3))
    return marin_535b_a23b(**({"moe": mixture} | changes))


def ladder(d_model: int, **changes: Any) -> TransformerConfig:
    """The rung of the scaling ladder with this width: its depth is round(d/(64 + 4·log₂ d − 9)), made even."""
    layers = round(d_model / (64 + 4 * log2(d_model) - 9))
    return TransformerConfig(**(_large_moe(d_model, layers + layers % 2) | changes))


def _large_moe(d_model: int, layers: int) -> dict[str, Any]:
    heads = d_model // 128
    return {
        "vocab_size": MARIN_VOCABULARY,
        "d_model": d_model,
        "layers": layers,
        "heads": heads,
        "head_dim": 128,
        "local_kv_heads": max(1, heads // 4),
        "global_kv_heads": max(1, heads // 8),
        "max_sequence_length": 4096,
        "window": 2048,
        "compute_dtype": "bfloat16",
        "attention_block": ATTENTION_BLOCK,
        "moe": _mixture_of_384(d_model // 2),
    }


def _mixture_of_384(width: int) -> MoEConfig:
    """Experts, latent space and shared experts of one width, half the model's; capacity and transport of the launch."""
    return MoEConfig(
        experts=384,
        experts_per_token=8,
        latent_dim=width,
        expert_width=width,
        shared_experts=2,
        shared_width=width,
        capacity_factor=1.15,
        transport=PooledWavesConfig(waves=3),
    )


def llama_nano(**changes: Any) -> TransformerConfig:
    """The smallest dense model: nearly all of it is the embedding and the head of a full vocabulary."""
    shape = _llama(d_model=32, layers=2, heads=2, head_dim=16, kv_heads=2, feed_forward_width=128)
    return TransformerConfig(**(shape | {"rope_theta": 10_000.0, "compute_dtype": "float32"} | changes))


def llama_8b(**changes: Any) -> TransformerConfig:
    """The shape, the vocabulary and the positions of Llama 3 8B (arXiv 2407.21783)."""
    return TransformerConfig(**(_llama(d_model=4096, layers=32, heads=32, head_dim=128, kv_heads=8, feed_forward_width=14_336) | changes))


def llama_32b(**changes: Any) -> TransformerConfig:
    """A dense model of 32 billion parameters, of the widths of Qwen2.5 32B and OLMo 2 32B.

    `qk_norm=True, qk_norm_gain=True` adds the learned norms of queries and keys, 16,384 gains.
    """
    return TransformerConfig(**(_llama(d_model=5120, layers=64, heads=40, head_dim=128, kv_heads=8, feed_forward_width=27_648) | changes))


def _llama(*, kv_heads: int, **shape: int) -> dict[str, Any]:
    return DENSE | {
        "vocab_size": MARIN_VOCABULARY,
        "local_kv_heads": kv_heads,
        "global_kv_heads": kv_heads,
        "max_sequence_length": 8192,
        "window": 8192,  # which no layer has
        "rope_theta": 500_000.0,
        "compute_dtype": "bfloat16",
        "attention_block": ATTENTION_BLOCK,
        **shape,
    }


def gemma_2b(**changes: Any) -> TransformerConfig:
    """The shape and the features of Gemma 2 2B (arXiv 2408.00118).

    The original stores a gain g as g − 1 and turns split halves of a head instead of interleaved pairs: the same functions, but
    importing its weights means adding 1 to gains and reordering columns (`spec/moe.md` T9). Its initialisation is not published; ours is
    that of all models here.
    """
    preset: dict[str, Any] = DENSE | {
        "vocab_size": 256_000,
        "d_model": 2304,
        "layers": 26,
        "heads": 8,
        "head_dim": 256,
        "local_kv_heads": 4,
        "global_kv_heads": 4,
        "max_sequence_length": 8192,
        "window": 4096,
        "global_every": 2,
        "global_last": False,
        "attention_soft_cap": 50.0,
        "logit_soft_cap": 30.0,
        "attention_block": ATTENTION_BLOCK,
        "post_norms": True,
        "embedding_scale": True,
        "tied_head": True,
        "norm_eps": 1e-6,
        "compute_dtype": "bfloat16",
        "activation": "gelu",
        "feed_forward_width": 9216,
    }
    return TransformerConfig(**(preset | changes))


PRESETS: dict[str, Callable[..., TransformerConfig]] = {
    "moe_tiny": moe_tiny,
    **{f"ladder_d{width}": partial(ladder, width) for width in (768, 1024, 1536, 2048)},
    "marin_535b_a23b": marin_535b_a23b,
    "article_2026": article_2026,
    "llama_nano": llama_nano,
    "llama_8b": llama_8b,
    "llama_32b": llama_32b,
    "gemma_2b": gemma_2b,
}


def preset(name: str) -> TransformerConfig:
    """A model by its name.

    Raises:
        ConfigError: there is none of this name.
    """
    if name not in PRESETS:
        raise ConfigError(f"There is no model preset {name!r}", advice=f"Choose one of {', '.join(sorted(PRESETS))}.")
    return PRESETS[name]()
