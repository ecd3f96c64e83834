"""The loss against NumPy float64, in blocks and spread over devices, and what it costs in memory and communication."""

import re
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
import pytest

from marin_core.model.loss import LossSums, next_token_loss, sample_next_tokens
from marin_core.model.mesh import make_mesh

Array = npt.NDArray[Any]
QUICK: dict[str, Any] = {"xla_backend_optimization_level": 0}
B, S, D, V = 8, 6, 5, 16


class Inputs(NamedTuple):
    hidden: Array
    head: Array
    tokens: Array
    loss_weight: Array


@pytest.fixture(scope="module")
def inputs() -> Inputs:
    rng = np.random.default_rng(0)
    hidden, head = rng.normal(size=(B, S, D)).astype(np.float32), rng.normal(size=(D, V)).astype(np.float32)
    weight = rng.random((B, S)).astype(np.float32) * (rng.random((B, S)) < 0.8)
    return Inputs(hidden, head, rng.integers(0, V, size=(B, S)).astype(np.int32), weight.astype(np.float32))


def in_float64(inputs: Inputs, cap: float | None) -> tuple[Array, Array, Array]:
    """The sums, and the gradient of the total with respect to hidden and head, where the z-loss weighs 0.1."""
    hidden, head = inputs.hidden[:, :-1].astype(np.float64), inputs.head.astype(np.float64)
    raw = hidden @ head
    logits = raw if cap is None else cap * np.tanh(raw / cap)
    partition = np.log(np.exp(logits).sum(axis=-1))
    target = np.eye(V)[inputs.tokens[:, 1:]]
    weight = inputs.loss_weight[:, :-1].astype(np.float64)
    cross_entropy, z = (weight * (partition - (target * logits).sum(axis=-1))).sum(), (weight * partition**2).sum()
    sums = [cross_entropy + 0.1 * z, cross_entropy, z, weight.sum()]
    share = np.exp(logits - partition[..., None])
    d_logits = weight[..., None] * (share * (1 + 0.2 * partition[..., None]) - target)
    d_raw = d_logits if cap is None else d_logits * (1 - np.tanh(raw / cap) ** 2)
    d_hidden = np.pad(d_raw @ head.T, ((0, 0), (0, 1), (0, 0)))
    return np.asarray(sums), d_hidden, np.einsum("bsd,bsv->dv", hidden, d_raw)


def ours(cap: float | None, block: int | None) -> Any:
    """The same as a jitted function of inputs."""

    def sums_of(hidden: jax.Array, head: jax.Array, rest: Inputs) -> tuple[jax.Array, LossSums]:
        tokens, weight = jnp.asarray(rest.tokens), jnp.asarray(rest.loss_weight)
        sums = next_token_loss(hidden, head, tokens, weight, z_loss=0.1, soft_cap=cap, block_tokens=block)
        return sums.total, sums

    def value_and_gradient(inputs: Inputs) -> tuple[jax.Array, jax.Array, jax.Array]:
        gradient, sums = jax.grad(sums_of, argnums=(0, 1), has_aux=True)(inputs.hidden, inputs.head, inputs)
        return jnp.stack(sums), *gradient

    return jax.jit(value_and_gradient, compiler_options=QUICK)


@pytest.mark.parametrize("cap", [None, 2.0])
@pytest.mark.parametrize("block", [None, 7, 1])
def test_sums_and_gradients_are_those_of_float64_whatever_the_block(inputs: Inputs, cap: float | None, block: int | None) -> None:
    for found, expected in zip(ours(cap, block)(inputs), in_float64(inputs, cap), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("racks", [1, 2])
def test_devices_that_hold_some_sequences_each_find_the_same(inputs: Inputs, racks: int) -> None:
    with jax.set_mesh(make_mesh(racks, 4)):
        found = ours(2.0, 4)(inputs)
    for one, expected in zip(found, in_float64(inputs, 2.0), strict=True):
        np.testing.assert_allclose(one, expected, rtol=1e-5, atol=1e-5)


def test_a_head_that_does_not_divide_among_devices_is_used_whole(inputs: Inputs) -> None:
    odd = inputs._replace(head=inputs.head[:, : V - 1], tokens=inputs.tokens % (V - 1))
    alone = ours(None, 4)(odd)
    with jax.set_mesh(make_mesh(2, 4)):
        spread = ours(None, 4)(odd)
    for one, expected in zip(spread, alone, strict=True):
        np.testing.assert_allclose(one, expected, rtol=1e-5, atol=1e-5)


def test_the_head_travels_once_and_nothing_in_the_loop_over_blocks(inputs: Inputs) -> None:
    with jax.set_mesh(make_mesh(2, 4)):
        text = str(ours(None, 2).lower(inputs).compile().as_text())
    bodies = set(re.findall(r"body=%?([\w.-]+)", text))
    assert bodies
    collective = re.compile(r"(?:all-\w+|reduce-scatter|collective-\w+)(?:-start)?\(")
    places = [name for name, lines in computations(text).items() for line in lines if collective.search(line)]
    assert places
    assert not bodies & set(places)


def computations(text: str) -> dict[str, list[str]]:
    """Name → lines of each computation of an HLO module."""
    found: dict[str, list[str]] = {}
    lines: list[str] = []
    for line in text.splitlines():
        opened = re.match(r"(?:ENTRY )?%?([\w.-]+) \(.*\{$", line)
        if opened:
            lines = found.setdefault(opened[1], [])
        lines.append(line)
    return found


def test_no_more_logits_exist_than_a_block_has() -> None:
    tokens, vocabulary, block = 2048, 512, 64
    hidden = jax.ShapeDtypeStruct((4, tokens // 4, 4), jnp.bfloat16)
    head = jax.ShapeDtypeStruct((4, vocabulary), jnp.float32)

    def loss(hidden: jax.Array, head: jax.Array) -> jax.Array:
        zeros = jnp.zeros((4, tokens // 4), jnp.int32)
        return next_token_loss(hidden, head, zeros, zeros.astype(jnp.float32), block_tokens=block).total

    compiled = jax.jit(jax.grad(loss, argnums=(0, 1)), compiler_options=QUICK).lower(hidden, head).compile()
    sizes = [
        np.prod([int(n) for n in shape.split(",")]) for shape in re.findall(r"(?:f32|bf16|pred|s32)\[([\d,]+)\]", str(compiled.as_text()))
    ]
    assert max(sizes) == block * vocabulary


@pytest.mark.parametrize(("width", "vocabulary", "block"), [(32, 128_256, 32), (256, 8192, 512), (6144, 128_256, 1536)])
def test_a_block_is_large_enough_to_be_worth_reading_the_head(width: int, vocabulary: int, block: int) -> None:
    """16 MiB of logits, or a quarter of the head."""
    hidden = jax.ShapeDtypeStruct((1, 4 * block, width), jnp.bfloat16)
    head = jax.ShapeDtypeStruct((width, vocabulary), jnp.float32)
    tokens = jax.ShapeDtypeStruct((1, 4 * block), jnp.int32)
    weight = jax.ShapeDtypeStruct((1, 4 * block), jnp.float32)
    assert f"f32[{block},{vocabulary}]" in str(jax.make_jaxpr(next_token_loss)(hidden, head, tokens, weight))


def test_sampled_tokens_follow_the_models_own_predictions() -> None:
    """4,096 equal predictions at different places: shares within four standard deviations, and nothing depends on mesh or block."""
    rng = np.random.default_rng(3)
    row, head = rng.normal(size=D).astype(np.float32), rng.normal(size=(D, V)).astype(np.float32)
    hidden = np.broadcast_to(row, (64, 64, D))
    tokens = rng.integers(0, V, size=(64, 64)).astype(np.int32)

    def draw(block: int | None) -> Array:
        sampled = jax.jit(partial(sample_next_tokens, block_tokens=block), compiler_options=QUICK)(hidden, head, tokens, jax.random.key(5))
        return np.asarray(sampled)

    drawn = draw(None)
    shares = np.exp(row @ head) / np.exp(row @ head).sum()
    found = np.bincount(drawn[:, 1:].ravel(), minlength=V)
    deviation = np.sqrt(64 * 63 * shares * (1 - shares))
    assert np.all(np.abs(found - 64 * 63 * shares) < 4 * deviation)
    np.testing.assert_array_equal(draw(7), drawn)
    with jax.set_mesh(make_mesh(2, 4)):
        np.testing.assert_array_equal(draw(None), drawn)
