"""One training step as a pure, jitted function of state and batch."""

from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from marin_core.data.batch import Batch
from marin_core.model.config import TransformerConfig
from marin_core.model.loss import next_token_loss
from marin_core.model.moe.balance import BalancerState, make_balancer
from marin_core.model.moe.layer import LayerStatistics
from marin_core.model.transformer import Params, SplitTransformer
from marin_core.train.config import OptimizerConfig, TrainConfig
from marin_core.train.optimizer import learning_rate_schedule, make_optimizer

StepOutput = dict[str, jax.Array]
"""float32 scalars loss, cross_entropy, gradient_norm, learning_rate, loss_tokens (Σ weights); routing statistics [L] and [L, E]."""


class TrainState(NamedTuple):
    """All that a step changes, and all that a checkpoint holds.

    Attributes:
        params: trained parameters, float32.
        optimizer_state: moments and counts of Optax.
        balancer_state: the pending selection bias; no gradient ever reaches it.
        step: int32, completed updates.
    """

    params: Params
    optimizer_state: Any
    balancer_state: BalancerState
    step: jax.Array


TrainStep = Callable[[TrainState, Batch], tuple[TrainState, StepOutput]]


def compiler_options() -> dict[str, str | int]:
    """Options for XLA on the default backend: its newer CPU dot library takes half as long again to compile and isn't faster here."""
    return {"xla_cpu_experimental_ynn_fusion_type": ""} if jax.default_backend() == "cpu" else {}


def initial_state(config: TrainConfig) -> TrainState:
    """The state before the first step; a function of the seed alone."""
    state = _compiled_new_state(config.model, config.optimizer, config.num_steps, config.seed)
    # Placed like a restored state, so that both run the same compiled step.
    placed: TrainState = jax.device_put(state, _sharding())
    return placed


def abstract_state(config: TrainConfig) -> TrainState:
    """Shapes, types and shardings of the state; allocates nothing."""
    sharding = _sharding()
    shapes = jax.eval_shape(lambda: _new_state(config.model, config.optimizer, config.num_steps, config.seed))

    def placed(leaf: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)  # type: ignore[no-untyped-call]

    state: TrainState = jax.tree.map(placed, shapes)
    return state


def _sharding() -> jax.sharding.Sharding:
    return jax.sharding.SingleDeviceSharding(jax.devices()[0])


def _new_state(model: TransformerConfig, optimizer: OptimizerConfig, num_steps: int, seed: int) -> TrainState:
    params = SplitTransformer(model).init(jax.random.key(seed))
    balancer_state = make_balancer(model.moe).init(model.layers, model.moe.experts)
    return TrainState(params, make_optimizer(optimizer, num_steps).init(params), balancer_state, jnp.int32(0))


# It runs once, so time spent on optimising the program is lost: 16 s become 4 on two CPU cores.
_compiled_new_state = jax.jit(_new_state, static_argnums=(0, 1, 2), compiler_options={"xla_backend_optimization_level": 0})


def make_train_step(config: TrainConfig) -> TrainStep:
    """The jitted function (state, batch) → (next state, output); it takes over the memory of the state it is given."""
    return _make_train_step(config.model, config.optimizer, config.num_steps)


@lru_cache(maxsize=4)  # A run that resumes in the same process doesn't compile again.
def _make_train_step(model_config: TransformerConfig, optimizer_config: OptimizerConfig, num_steps: int) -> TrainStep:
    model = SplitTransformer(model_config)
    balancer = make_balancer(model_config.moe)
    optimizer = make_optimizer(optimizer_config, num_steps)
    schedule = learning_rate_schedule(optimizer_config, num_steps)

    def loss_of(params: Params, bias: jax.Array, batch: Batch) -> tuple[jax.Array, tuple[jax.Array, jax.Array, LayerStatistics]]:
        network = model.bind(params)
        tokens, segment_ids, loss_weight = (jnp.asarray(leaf) for leaf in batch)
        hidden, statistics = network(tokens, segment_ids, bias, balancer)
        sums = next_token_loss(hidden, network.head[...], tokens, loss_weight)
        cross_entropy = sums.cross_entropy / sums.weight
        return cross_entropy + model_config.z_loss * sums.z / sums.weight, (cross_entropy, sums.weight, statistics)

    def train_step(state: TrainState, batch: Batch) -> tuple[TrainState, StepOutput]:
        bias = balancer.bias(state.balancer_state, model_config.layers, model_config.moe.experts)
        (loss, (cross_entropy, weight, statistics)), gradient = jax.value_and_grad(loss_of, has_aux=True)(state.params, bias, batch)
        updates, optimizer_state = optimizer.update(gradient, state.optimizer_state, state.params)
        params = optax.apply_updates(state.params, updates)
        valid_tokens = jnp.sum(batch.segment_ids >= 0, dtype=jnp.int32)
        balancer_state, balance = balancer.update(state.balancer_state, statistics.observation, valid_tokens)
        output = {
            "loss": loss,
            "cross_entropy": cross_entropy,
            "gradient_norm": optax.tree.norm(gradient),
            "learning_rate": schedule(state.step),
            "loss_tokens": weight,
            **_routing_output(statistics),
            **balance,
        }
        return TrainState(params, optimizer_state, balancer_state, state.step + 1), output

    return jax.jit(train_step, donate_argnums=0, compiler_options=compiler_options())


def _routing_output(statistics: LayerStatistics) -> StepOutput:
    names = ("router_z_loss", "margin_min", "margin_max", "bias_min", "bias_max")
    return statistics.transport._asdict() | {name: getattr(statistics, name) for name in names}
