"""Next-token cross entropy with z-loss, over blocks of tokens so that no full [T, V] float32 array outlives the forward pass."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from marin_core.model.transformer import project_to_vocabulary

BLOCK_ELEMENTS = 4 * 1024 * 1024
"""Largest block of logits that exists at once (16 MiB in float32)."""


class LossSums(NamedTuple):
    """Weighted sums over tokens, float32 scalars: Σ w·cross entropy (nats), Σ w·logsumexp², Σ w."""

    cross_entropy: jax.Array
    z: jax.Array
    weight: jax.Array


def next_token_loss(
    hidden: jax.Array, head: jax.Array, tokens: jax.Array, loss_weight: jax.Array, *, block_elements: int = BLOCK_ELEMENTS
) -> LossSums:
    """Score the prediction of tokens[:, s + 1] at position s.

    Args:
        hidden: [B, S, D].
        head: float32 [D, V].
        tokens: int32 [B, S].
        loss_weight: float32 [B, S]; the last position has no next token and counts 0 whatever its weight.
        block_elements: logits that may exist at once; more than that runs in blocks, recomputed in the backward pass.
    """
    targets = jnp.roll(tokens, -1, axis=1).reshape(-1)
    weight = loss_weight.at[:, -1].set(0.0).reshape(-1)
    flat = hidden.reshape(-1, hidden.shape[-1])
    count, vocabulary = flat.shape[0], head.shape[1]
    block = max(1, block_elements // vocabulary)
    if block >= count:
        return _block_loss(flat, head, targets, weight)
    blocks = -(-count // block)
    padding = blocks * block - count
    padded = (jnp.pad(flat, ((0, padding), (0, 0))), jnp.pad(targets, (0, padding)), jnp.pad(weight, (0, padding)))
    inputs = jax.tree.map(lambda leaf: leaf.reshape(blocks, block, *leaf.shape[1:]), padded)

    def body(sums: LossSums, block_inputs: tuple[jax.Array, jax.Array, jax.Array]) -> tuple[LossSums, None]:
        rows, block_targets, block_weight = block_inputs
        return jax.tree.map(jnp.add, sums, _block_loss(rows, head, block_targets, block_weight)), None

    zero = jnp.float32(0)
    sums, _ = jax.lax.scan(jax.checkpoint(body), LossSums(zero, zero, zero), inputs)
    return sums


def _block_loss(rows: jax.Array, head: jax.Array, targets: jax.Array, weight: jax.Array) -> LossSums:
    """Sums over one block: rows [T, D], targets int32 [T], weight float32 [T]."""
    logits = project_to_vocabulary(rows, head)
    partition = jax.nn.logsumexp(logits, axis=-1)
    # A comparison instead of a gather: its gradient is no scatter.
    is_target = targets[:, None] == jnp.arange(head.shape[1], dtype=targets.dtype)
    target_logit = jnp.sum(jnp.where(is_target, logits, 0.0), axis=-1)
    return LossSums(jnp.sum(weight * (partition - target_logit)), jnp.sum(weight * partition**2), jnp.sum(weight))
