"""How many parameters and FLOPs a configuration has, in closed form and exact (`spec/moe.md` §1.2 and §1.4)."""

from typing import NamedTuple

from marin_core.model.config import MoEConfig, TransformerConfig


class ParameterCount(NamedTuple):
    """Exact numbers of parameters; `active` is Marin's: matrices that a token multiplies with, without embedding, head, gates and norms."""

    total: int
    active: int


def parameter_count(config: TransformerConfig) -> ParameterCount:
    """Count parameters in closed form; the selection bias (E a layer) is counted although it is not trained (marin #9277)."""
    c, d = config, config.d_model
    heads, kv, taps = c.heads * c.head_dim, c.kv_heads * c.head_dim, c.short_conv_kernel
    norm = d + 2 * d * c.gated_norm_rank
    attention = 2 * d * heads + 2 * d * kv
    all_of_it, used = _mixture(c, c.moe) if c.moe else (_feed_forward(c), _feed_forward(c))
    layer = attention + all_of_it + taps * kv + 2 * taps * d + 2 * norm
    layer += d * c.heads if c.head_gate else 0
    layer += 2 * c.head_dim if c.qk_norm_gain else 0
    layer += 2 * d if c.post_norms else 0
    outside = c.vocab_size * d * (1 if c.tied_head else 2) + norm * (2 if c.embedding_norm else 1)
    return ParameterCount(c.layers * layer + outside, c.layers * (attention + used))


def _feed_forward(config: TransformerConfig) -> int:
    return 3 * config.d_model * (config.feed_forward_width or 0)


def _mixture(config: TransformerConfig, moe: MoEConfig) -> tuple[int, int]:
    """All parameters of a mixture layer, and those that a token multiplies with."""
    d, m = config.d_model, config.expert_dim
    router = d * moe.experts
    expert = 3 * m * moe.expert_width
    latent = 2 * d * m if moe.latent_dim is not None else 0
    latent_gain = m if moe.latent_dim is not None else 0
    shared = moe.shared_experts * 3 * d * moe.shared_width
    total = router + moe.experts + moe.experts * expert + latent + latent_gain + shared
    return total, router + moe.experts_per_token * expert + latent + shared


def training_flops_per_token(
    config: TransformerConfig, *, sequence_length: int | None = None, n_global: int | None = None, with_head: bool = True
) -> int:
    """Model FLOPs of forward and backward for one token: three times the forward pass.

    Args:
        sequence_length: span of global layers in tokens; None = `max_sequence_length`.
        n_global: number of global layers; None = what the model has (Marin's published d2048 figure counts one less, `spec/moe.md` §1.4).
        with_head: count the output projection, as the numerator of model FLOPs utilisation does.
    """
    c, d = config, config.d_model
    span = sequence_length or c.max_sequence_length
    global_layers = sum(c.global_layers) if n_global is None else n_global
    heads = c.heads * c.head_dim

    def attention(kv_heads: int, seen: int) -> int:
        return 2 * d * (heads + 2 * kv_heads * c.head_dim) + 2 * d * heads + 4 * seen * heads + 3 * seen * c.heads

    feed_forward = 2 * (_mixture(c, c.moe)[1] if c.moe else _feed_forward(c))
    forward = c.layers * feed_forward
    forward += global_layers * attention(c.global_kv_heads, span)
    forward += (c.layers - global_layers) * attention(c.local_kv_heads, min(span, c.window))
    forward += 2 * d * c.vocab_size if with_head else 0
    return 3 * forward
