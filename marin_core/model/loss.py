"""Next-token cross entropy with z-loss, over blocks of tokens so that no full [T, V] array of logits ever exists.

The gradient of a block's logits follows from its softmax, so it is taken in the forward pass, while the logits are there: the backward
pass only scales what was found. Nothing is computed twice.
"""

from functools import partial
from typing import NamedTuple, cast

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

from marin_core.model.mesh import AXES, EXPERT, mesh_size, over_shards
from marin_core.model.transformer import project_to_vocabulary

BLOCK_ELEMENTS = 4 * 1024 * 1024
"""Logits of a block (16 MiB in float32), unless a block of a quarter of the head is larger: less would be mostly reading the head."""


class LossSums(NamedTuple):
    """Weighted sums over tokens, float32 scalars.

    Attributes:
        total: cross_entropy + z_loss · z, the only one that has a gradient.
        cross_entropy: Σ w · cross entropy, nats.
        z: Σ w · logsumexp².
        weight: Σ w.
    """

    total: jax.Array
    cross_entropy: jax.Array
    z: jax.Array
    weight: jax.Array


class _Options(NamedTuple):
    z_loss: float
    soft_cap: float | None
    block: int
    head_is_spread: bool


@jax.named_scope("loss")
def next_token_loss(
    hidden: jax.Array,
    head: jax.Array,
    tokens: jax.Array,
    loss_weight: jax.Array,
    *,
    z_loss: float = 0.0,
    soft_cap: float | None = None,
    block_tokens: int | None = None,
) -> LossSums:
    """Score the prediction of tokens[:, s + 1] at position s.

    On a mesh every device sums over its own tokens with the whole head, which is gathered once, in the type of activations; its gradient
    is reduced once, in float32, behind the last block. Left to XLA, the sum over devices would happen in every block.

    Args:
        hidden: [B, S, D].
        head: float32 [D, V].
        tokens: int32 [B, S].
        loss_weight: float32 [B, S], data without a gradient; the last position has no next token and counts 0 whatever its weight.
        z_loss: weight of logsumexp² in the total.
        soft_cap: of the logits.
        block_tokens: tokens of a device whose logits exist at once; None: from `BLOCK_ELEMENTS`.
    """
    width, vocabulary = head.shape
    head_is_spread = mesh_size(EXPERT) > 1 and vocabulary % mesh_size(EXPERT) == 0
    options = _Options(z_loss, soft_cap, block_tokens or max(BLOCK_ELEMENTS // vocabulary, width // 4, 1), head_is_spread)

    def here(hidden: jax.Array, head: jax.Array, tokens: jax.Array, loss_weight: jax.Array) -> LossSums:
        targets = jnp.roll(tokens, -1, axis=1).reshape(-1)
        weight = loss_weight.at[:, -1].set(0.0).reshape(-1)
        sums: LossSums = _sums(hidden.reshape(-1, width), head, targets, weight, options)
        return cast(LossSums, jax.tree.map(lambda leaf: leaf[None], sums))

    head_spec = P(None, EXPERT) if head_is_spread else P()
    spread = over_shards(here, in_specs=(P(AXES), head_spec, P(AXES), P(AXES)), out_specs=P(AXES))
    return cast(LossSums, jax.tree.map(jnp.sum, spread(hidden, head, tokens, loss_weight)))


def sample_next_tokens(
    hidden: jax.Array, head: jax.Array, tokens: jax.Array, key: jax.Array, *, soft_cap: float | None = None, block_tokens: int | None = None
) -> jax.Array:
    """Tokens as the model itself would have them: position s + 1 is drawn from the prediction at s. Has no gradient.

    What is drawn is a function of the key and the sequence alone, whatever devices it lies on; equal sequences draw alike.

    Args:
        hidden: [B, S, D].
        head: float32 [D, V].
        tokens: int32 [B, S], that the states were computed from.
        key: PRNG key.
        soft_cap: of the logits.
        block_tokens: tokens of a device whose logits exist at once; None: from `BLOCK_ELEMENTS`.

    Returns:
        int32 [B, S], the first of each sequence meaningless, as the target of no position.
    """
    vocabulary = head.shape[1]
    block = block_tokens or max(BLOCK_ELEMENTS // vocabulary, 1)

    def here(hidden: jax.Array, head: jax.Array, tokens: jax.Array, key: jax.Array) -> jax.Array:
        def draw(inputs: tuple[jax.Array, jax.Array]) -> jax.Array:
            row, token_key = inputs
            logits = project_to_vocabulary(row, head.astype(row.dtype), soft_cap)
            return jnp.argmax(logits + jax.random.gumbel(token_key, (vocabulary,)), axis=-1).astype(jnp.int32)

        factors = jnp.arange(1, 2 * tokens.shape[1], 2, dtype=jnp.uint32) * jnp.uint32(2654435761)
        seeds = jnp.sum(tokens.astype(jnp.uint32) * factors, axis=1, dtype=jnp.uint32)
        keys = jax.vmap(lambda seed: jax.random.split(jax.random.fold_in(key, seed), tokens.shape[1]))(seeds)
        drawn = jax.lax.map(draw, (hidden.reshape(-1, hidden.shape[-1]), keys.reshape(-1)), batch_size=block)
        return jnp.roll(drawn.reshape(tokens.shape), 1, axis=1)

    spread = over_shards(here, in_specs=(P(AXES), P(), P(AXES), P()), out_specs=P(AXES))
    return spread(*jax.lax.stop_gradient((hidden, head)), tokens, key)


@partial(jax.custom_vjp, nondiff_argnums=(4,))
def _sums(rows: jax.Array, head: jax.Array, targets: jax.Array, weight: jax.Array, options: _Options) -> LossSums:
    """Sums over rows [T, D], targets int32 [T], weight float32 [T]; the head is this device's part of the vocabulary where it is spread."""
    head = _whole(head, rows, options)

    def body(sums: LossSums, block: tuple[jax.Array, jax.Array, jax.Array]) -> tuple[LossSums, None]:
        return jax.tree.map(jnp.add, sums, _block(*block, head, options)[0]), None

    sums, _ = jax.lax.scan(body, _nothing(), _blocks(rows, targets, weight, options.block))
    return sums


def _sums_forward(
    rows: jax.Array, head: jax.Array, targets: jax.Array, weight: jax.Array, options: _Options
) -> tuple[LossSums, tuple[jax.Array, jax.Array]]:
    whole = _whole(head, rows, options)

    def body(
        carry: tuple[LossSums, jax.Array], block: tuple[jax.Array, jax.Array, jax.Array]
    ) -> tuple[tuple[LossSums, jax.Array], jax.Array]:
        sums, d_head = carry
        found, d_logits = _block(*block, whole, options)
        d_head += jnp.einsum("td,tv->dv", block[0], d_logits, preferred_element_type=jnp.float32)
        d_rows = jnp.einsum("tv,dv->td", d_logits, whole)
        return (jax.tree.map(jnp.add, sums, found), d_head), d_rows

    start = (_nothing(), jnp.zeros(whole.shape, jnp.float32))
    (sums, d_head), d_rows = jax.lax.scan(body, start, _blocks(rows, targets, weight, options.block))
    if options.head_is_spread:  # before it is scaled: the total is summed over devices, so its gradient is the same on all
        d_head = jax.lax.psum_scatter(d_head, EXPERT, scatter_dimension=1, tiled=True)
    return sums, (d_rows.reshape(-1, rows.shape[1])[: rows.shape[0]], d_head)


def _sums_backward(options: _Options, found: tuple[jax.Array, jax.Array], d_sums: LossSums) -> tuple[jax.Array, jax.Array, None, None]:
    d_rows, d_head = found
    return (d_sums.total * d_rows).astype(d_rows.dtype), d_sums.total * d_head, None, None


_sums.defvjp(_sums_forward, _sums_backward)


def _whole(head: jax.Array, rows: jax.Array, options: _Options) -> jax.Array:
    """The head [D, V] of all devices in the type of rows."""
    head = head.astype(rows.dtype)
    return jax.lax.all_gather(head, EXPERT, axis=1, tiled=True) if options.head_is_spread else head


def _nothing() -> LossSums:
    zero = jnp.float32(0)
    return LossSums(zero, zero, zero, zero)


def _blocks(rows: jax.Array, targets: jax.Array, weight: jax.Array, block: int) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Arguments [T, …] as [blocks, block, …], filled up with rows of weight 0."""
    count = rows.shape[0]
    block = min(block, count)
    blocks = -(-count // block)
    padding = blocks * block - count
    padded = (jnp.pad(rows, ((0, padding), (0, 0))), jnp.pad(targets, (0, padding)), jnp.pad(weight, (0, padding)))
    shaped: tuple[jax.Array, jax.Array, jax.Array] = jax.tree.map(lambda leaf: leaf.reshape(blocks, block, *leaf.shape[1:]), padded)
    return shaped


def _block(rows: jax.Array, targets: jax.Array, weight: jax.Array, head: jax.Array, options: _Options) -> tuple[LossSums, jax.Array]:
    """Sums over one block, and the gradient of their total with respect to rows · head: [T, V] in the type of rows."""
    logits = project_to_vocabulary(rows, head, options.soft_cap)
    top = jnp.max(logits, axis=-1, keepdims=True)
    exponents = jnp.exp(logits - top)
    total = jnp.sum(exponents, axis=-1, keepdims=True)
    partition = (top + jnp.log(total))[:, 0]
    # A comparison instead of a gather: it fuses with what follows.
    is_target = targets[:, None] == jnp.arange(head.shape[1], dtype=targets.dtype)
    target_logit = jnp.sum(jnp.where(is_target, logits, 0.0), axis=-1)
    cross_entropy, z = jnp.sum(weight * (partition - target_logit)), jnp.sum(weight * partition**2)
    scale = weight * (1 + 2 * options.z_loss * partition)
    d_logits = exponents * (scale[:, None] / total) - jnp.where(is_target, weight[:, None], 0.0)
    if options.soft_cap is not None:
        d_logits *= 1 - (logits / options.soft_cap) ** 2
    sums = LossSums(cross_entropy + options.z_loss * z, cross_entropy, z, jnp.sum(weight))
    return sums, d_logits.astype(rows.dtype)
