"""The whole model in NumPy float64, one sequence at a time, written from `spec/moe.md` §1 and not from the JAX code.

It is as slow and as plain as it can be: no batching, no caching, a Python loop over positions and heads.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from marin_core.model.config import MoEConfig, TransformerConfig

Array = npt.NDArray[Any]
Weights = dict[str, Any]


def sigmoid(x: Array) -> Array:
    return np.asarray(1 / (1 + np.exp(-x)))


def silu(x: Array) -> Array:
    return x * sigmoid(x)


def gelu(x: Array) -> Array:
    """The tanh form that Gemma uses."""
    return np.asarray(0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))))


def soft_cap(x: Array, cap: float | None) -> Array:
    return x if cap is None else np.asarray(cap * np.tanh(x / cap))


def rms(x: Array, eps: float) -> Array:
    return np.asarray(x / np.sqrt(np.mean(x**2, axis=-1, keepdims=True) + eps))


def full_width_norm(config: TransformerConfig, w: Weights, x: Array) -> Array:
    """RMSNorm, then x·sigmoid(silu(x·W_down)·W_up)."""
    y = rms(x, config.norm_eps) * w["norm"]["gain"]
    return np.asarray(y * sigmoid(silu(y @ w["w_down"]) @ w["w_up"]) if config.gated_norm_rank else y)


def convolution(x: Array, taps: Array, segments: Array) -> Array:
    """y[s] = Σ_j taps[j]·x[s − j] over the tokens of the same segment."""
    y = np.zeros_like(x)
    for s in range(len(x)):
        for lag in range(min(len(taps), s + 1)):
            if segments[s - lag] == segments[s]:
                y[s] += taps[lag] * x[s - lag]
    return y


def turned(config: TransformerConfig, vector: Array, position: int) -> Array:
    """Rotary positions on interleaved pairs of the first `rope_dims` dimensions of one head [K]."""
    vector = vector.copy()
    for pair in range(config.rope_dims // 2):
        angle = position * config.rope_theta ** (-2 * pair / config.rope_dims)
        first, second = vector[2 * pair], vector[2 * pair + 1]
        vector[2 * pair] = first * np.cos(angle) - second * np.sin(angle)
        vector[2 * pair + 1] = first * np.sin(angle) + second * np.cos(angle)
    return vector


def attention(config: TransformerConfig, w: Weights, x: Array, segments: Array, *, is_global: bool) -> Array:
    """x [S, D] → [S, D], head by head and query by query."""
    c, length = config, len(x)
    q, k, v = (x @ w[name] for name in ("w_q", "w_k", "w_v"))
    if c.short_conv_kernel:
        k = convolution(k, w["key_taps"], segments)
    q, k, v = q.reshape(length, c.heads, -1), k.reshape(length, c.kv_heads, -1), v.reshape(length, c.kv_heads, -1)
    if c.qk_norm:
        q, k = rms(q, c.qk_norm_eps), rms(k, c.qk_norm_eps)
        if c.qk_norm_gain:
            q, k = q * w["query_norm"]["gain"], k * w["key_norm"]["gain"]
        q = c.qk_mult * q
    if not is_global or c.global_rope:
        q = np.stack([[turned(c, head, s) for head in q[s]] for s in range(length)])
        k = np.stack([[turned(c, head, s) for head in k[s]] for s in range(length)])
    sharing = c.heads // (c.global_kv_heads if is_global else c.local_kv_heads)
    y = np.zeros((length, c.heads, c.head_dim))
    for s in range(length):
        seen = [t for t in range(s + 1) if segments[t] == segments[s] and (is_global or s - t < c.window)]
        for h in range(c.heads):
            scores = soft_cap(k[seen, h // sharing] @ q[s, h] / np.sqrt(c.head_dim), c.attention_soft_cap)
            share = np.exp(scores - scores.max())
            y[s, h] = share / share.sum() @ v[seen, h // sharing]
            if c.xsa:
                own = v[s, h // sharing]
                y[s, h] -= own * (y[s, h] @ own) / (own @ own + 1e-6)
    if c.head_gate:
        y *= 2 * sigmoid(x @ w["head_gate"])[:, :, None]
    return np.asarray(y.reshape(length, -1) @ w["w_o"])


def feed_forward(config: TransformerConfig, w: Weights, x: Array) -> Array:
    """down(act(gate(x)) · up(x)); a shared expert too, whose weights lie side by side."""
    activation = gelu if config.activation == "gelu" else silu
    return np.asarray((activation(x @ w["w_gate"]) * (x @ w["w_up"])) @ w["w_down"])


def mixture(config: TransformerConfig, moe: MoEConfig, w: Weights, x: Array, bias: Array, segments: Array) -> Array:
    """Routed experts in latent space, token by token, and shared experts; padding is routed nowhere."""
    logits = x @ w["router"]["weight"]
    rows = rms(x @ w["latent_down"], config.norm_eps) * w["latent_norm"]["gain"] if moe.latent_dim else x
    y = np.zeros_like(rows)
    for s in range(len(x)):
        if segments[s] < 0:
            continue
        chosen = np.argsort(-(logits[s] + bias))[: moe.experts_per_token]
        weights = sigmoid(logits[s, chosen])
        weights *= moe.combine_scale / weights.sum()
        for weight, e in zip(weights, chosen, strict=True):
            gate, up, down = (w["experts"][name][e] for name in ("w_gate", "w_up", "w_down"))
            y[s] += weight * (silu(rows[s] @ gate) * (rows[s] @ up)) @ down
    if moe.latent_dim:
        y = y @ w["latent_up"]
    return y + feed_forward(config, w["shared"], x) if moe.shared_experts else y


def block(config: TransformerConfig, w: Weights, x: Array, bias: Array, segments: Array, *, is_global: bool) -> Array:
    """x [S, D] → [S, D]."""

    def finished(branch: str, y: Array) -> Array:
        if config.short_conv_kernel:
            y = convolution(y, w[f"{branch}_taps"], segments)
        return rms(y, config.norm_eps) * w[f"{branch}_post_norm"]["gain"] if config.post_norms else y

    normed = full_width_norm(config, w["attention_norm"], x)
    x = x + finished("attention", attention(config, w["attention"], normed, segments, is_global=is_global))
    normed = full_width_norm(config, w["feed_forward_norm"], x)
    if config.moe is None:
        y = feed_forward(config, w["feed_forward"], normed)
    else:
        y = mixture(config, config.moe, w["feed_forward"], normed, bias, segments)
    return x + finished("feed_forward", y)


def forward(config: TransformerConfig, weights: Weights, tokens: Array, segments: Array, bias: Array) -> Array:
    """Logits [S, V] of one sequence; bias [L, E] of a mixture."""
    x = weights["embedding"][tokens]
    if config.embedding_scale:
        x = x * np.sqrt(config.d_model)
    if config.embedding_norm:
        x = full_width_norm(config, weights["embedding_norm"], x)
    for layer, is_global in enumerate(config.global_layers):
        x = block(config, _layer(weights["blocks"], layer), x, bias[layer], segments, is_global=is_global)
    x = full_width_norm(config, weights["final_norm"], x)
    return soft_cap(x @ (weights["embedding"].T if config.tied_head else weights["output"]), config.logit_soft_cap)


def loss(config: TransformerConfig, weights: Weights, tokens: Array, segments: Array, loss_weight: Array, bias: Array) -> float:
    """Weighted mean over [B, S] of the cross entropy of the next token plus z_loss · logsumexp²."""
    total = counted = 0.0
    for row in range(len(tokens)):
        logits = forward(config, weights, tokens[row], segments[row], bias)
        for s in range(tokens.shape[1] - 1):
            partition = np.log(np.sum(np.exp(logits[s])))
            cross_entropy = partition - logits[s, tokens[row, s + 1]]
            total += loss_weight[row, s] * (cross_entropy + config.z_loss * partition**2)
            counted += loss_weight[row, s]
    return float(total / counted)


def _layer(stacked: Weights, layer: int) -> Weights:
    return {name: _layer(leaf, layer) if isinstance(leaf, dict) else leaf[layer] for name, leaf in stacked.items()}
