"""Next-token cross entropy with z-loss, over blocks of tokens so that no full [T, V] float32 array ever exists."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

from marin_core.model.mesh import AXES, EXPERT, mesh_size, over_shards
from marin_core.model.transformer import project_to_vocabulary

BLOCK_ELEMENTS = 4 * 1024 * 1024
"""Logits that exist at once (16 MiB in float32), or a quarter of the head's size where that is more: a block reads the head and adds to
its gradient, so it needs enough tokens to be worth that."""


class LossSums(NamedTuple):
    """Weighted sums over tokens, float32 scalars: Σ w·cross entropy (nats), Σ w·logsumexp², Σ w."""

    cross_entropy: jax.Array
    z: jax.Array
    weight: jax.Array


def next_token_loss(
    hidden: jax.Array,
    head: jax.Array,
    tokens: jax.Array,
    loss_weight: jax.Array,
    *,
    soft_cap: float | None = None,
    block_tokens: int | None = None,
) -> LossSums:
    """Score the prediction of tokens[:, s + 1] at position s.

    On a mesh every device sums over its own tokens with the whole head, which is gathered once; its gradient is reduced once, behind
    the last block. Left to XLA, the sum over devices would happen in every block.

    Args:
        hidden: [B, S, D].
        head: float32 [D, V].
        tokens: int32 [B, S].
        loss_weight: float32 [B, S]; the last position has no next token and counts 0 whatever its weight.
        soft_cap: of the logits.
        block_tokens: tokens of a device whose logits exist at once, recomputed in the backward pass; None: from `BLOCK_ELEMENTS`.
    """
    width, vocabulary = head.shape
    block = block_tokens or max(BLOCK_ELEMENTS // vocabulary, width // 4, 1)
    head_is_spread = vocabulary % mesh_size(EXPERT) == 0

    def here(hidden: jax.Array, head: jax.Array, tokens: jax.Array, loss_weight: jax.Array) -> LossSums:
        if head_is_spread and mesh_size(EXPERT) > 1:
            head = jax.lax.all_gather(head, EXPERT, axis=1, tiled=True)
        targets = jnp.roll(tokens, -1, axis=1).reshape(-1)
        weight = loss_weight.at[:, -1].set(0.0).reshape(-1)
        sums = _sums(hidden.reshape(-1, width), head, targets, weight, soft_cap, block)
        return LossSums(*(leaf[None] for leaf in sums))

    head_spec = P(None, EXPERT) if head_is_spread else P()
    spread = over_shards(here, in_specs=(P(AXES), head_spec, P(AXES), P(AXES)), out_specs=P(AXES))
    return LossSums(*(jnp.sum(leaf) for leaf in spread(hidden, head, tokens, loss_weight)))


def _sums(rows: jax.Array, head: jax.Array, targets: jax.Array, weight: jax.Array, soft_cap: float | None, block: int) -> LossSums:
    """Sums over rows [T, D], targets int32 [T], weight float32 [T]; `block` tokens at a time."""
    count = rows.shape[0]
    if block >= count:
        return _block_sums(rows, head, targets, weight, soft_cap)
    blocks = -(-count // block)
    padding = blocks * block - count
    padded = (jnp.pad(rows, ((0, padding), (0, 0))), jnp.pad(targets, (0, padding)), jnp.pad(weight, (0, padding)))
    inputs = jax.tree.map(lambda leaf: leaf.reshape(blocks, block, *leaf.shape[1:]), padded)

    def body(sums: LossSums, block_inputs: tuple[jax.Array, jax.Array, jax.Array]) -> tuple[LossSums, None]:
        block_rows, block_targets, block_weight = block_inputs
        return jax.tree.map(jnp.add, sums, _block_sums(block_rows, head, block_targets, block_weight, soft_cap)), None

    zero = jnp.float32(0)
    sums, _ = jax.lax.scan(jax.checkpoint(body, prevent_cse=False), LossSums(zero, zero, zero), inputs)
    return sums


def _block_sums(rows: jax.Array, head: jax.Array, targets: jax.Array, weight: jax.Array, soft_cap: float | None) -> LossSums:
    """Sums over one block: rows [T, D], targets int32 [T], weight float32 [T]."""
    logits = project_to_vocabulary(rows, head, soft_cap)
    partition = jax.nn.logsumexp(logits, axis=-1)
    # A comparison instead of a gather: its gradient is no scatter.
    is_target = targets[:, None] == jnp.arange(head.shape[1], dtype=targets.dtype)
    target_logit = jnp.sum(jnp.where(is_target, logits, 0.0), axis=-1)
    return LossSums(jnp.sum(weight * (partition - target_logit)), jnp.sum(weight * partition**2), jnp.sum(weight))
