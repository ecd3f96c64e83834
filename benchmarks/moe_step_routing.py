"""What routing takes of a step: router, balancer and dispatch of all layers in a program of their own, forward and backward.

Experts return the rows they are given, so that none of their products is in it. Loops over layers and recomputes as the model does.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from marin_core.model.config import MoEConfig, TransformerConfig
from marin_core.model.mesh import EXPERT
from marin_core.model.moe.balance import make_balancer
from marin_core.model.moe.dispatch import make_transport
from marin_core.model.moe.router import Router
from marin_core.train.step import compiler_options


def make_routing(config: TransformerConfig, moe: MoEConfig, tokens: int, row_width: int) -> Callable[[], None]:
    """The program, compiled, as a call that returns when it is done.

    Args:
        config, moe: the model's.
        tokens: T of a step.
        row_width: of the rows that are sent to experts and back. 1: bookkeeping alone; the model's own: what is moved as well.
    """
    balancer = make_balancer(moe)
    transport = make_transport(moe, tokens=tokens, expert_devices=1, axis=EXPERT, dropless=False)
    graphdef, _ = nnx.split(Router(moe, config.d_model, config.init_std, nnx.Rngs(0)))
    valid = jnp.ones(tokens, bool)

    def layer(weights: Any, x: jax.Array, bias: jax.Array) -> tuple[jax.Array, Any]:
        routing = nnx.merge(graphdef, weights)(x, bias)
        y, statistics = transport(x[:, :row_width], routing.selected, routing.weights, valid, _unchanged, jnp.int32(0))
        observation = balancer.observe(jax.lax.stop_gradient(routing), valid, bias)
        loss = jnp.sum(y**2) + balancer.loss(routing, valid)
        return loss, (statistics, jax.tree.map(lambda leaf: leaf[None], observation))

    body = layer if config.recompute == "nothing" else jax.checkpoint(layer, prevent_cse=False)

    def loss_of(weights: Any, x: jax.Array, bias: jax.Array) -> tuple[jax.Array, Any]:
        def add(total: jax.Array, inputs: tuple[Any, jax.Array]) -> tuple[jax.Array, Any]:
            loss, seen = body(inputs[0], x, inputs[1])
            return total + loss, seen

        return jax.lax.scan(add, jnp.float32(0), (weights, bias))

    def program(weights: Any, x: jax.Array, state: Any) -> Any:
        bias = balancer.bias(state, config.layers, moe.experts)
        (loss, (statistics, observed)), gradient = jax.value_and_grad(loss_of, argnums=(0, 1), has_aux=True)(weights, x, bias)
        return loss, gradient, statistics, balancer.update(state, observed, jnp.int32(tokens))

    routers = [nnx.split(Router(moe, config.d_model, config.init_std, nnx.Rngs(seed)))[1] for seed in range(config.layers)]
    given = (
        jax.tree.map(lambda *leaves: jnp.stack(leaves), *routers),
        jax.random.normal(jax.random.key(0), (tokens, config.d_model)),
        balancer.init(config.layers, moe.experts),
    )
    compiled = jax.jit(program, compiler_options=compiler_options()).lower(*given).compile()

    def run() -> None:
        jax.block_until_ready(compiled(*given))

    run()
    return run


def _unchanged(rows: jax.Array, first: int = 0, /) -> jax.Array:
    return rows
