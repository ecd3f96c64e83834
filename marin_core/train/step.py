"""One training step as a pure, jitted function of state and batch."""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache, partial
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh, NamedSharding, Sharding
from jax.sharding import PartitionSpec as P

from marin_core.data.batch import Batch
from marin_core.model.config import TransformerConfig
from marin_core.model.loss import next_token_loss, sample_next_tokens
from marin_core.model.mesh import RACK, batch_sharding, mesh_size, over_racks, parameter_sharding, spread_tokens, token_axes
from marin_core.model.moe.balance import Balancer, BalancerState, make_balancer
from marin_core.model.moe.layer import LayerStatistics, merge_micro_batches, merge_racks
from marin_core.model.transformer import Params, SplitTransformer
from marin_core.train.config import CpuProducts, TrainConfig
from marin_core.train.norms import layer_norms
from marin_core.train.optimizers.build import learning_rates, make_optimizer, optimizer_metrics
from marin_core.train.optimizers.config import Optimizer, Sophia
from marin_core.train.schedules import BatchStage

StepOutput = dict[str, Any]
"""float32 scalars loss, cross_entropy, gradient_norm, learning_rate/GROUP, loss_tokens (Σ weights), what the optimizer says about itself;
routing statistics [L] and [L, E]; and as `norms` those of `layer_norms`, of parameters as they were before the update."""


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


HOST_MEMORY = "pinned_host"
"""JAX's name of the memory that devices read over the bus."""

TrainStep = Callable[[TrainState, Batch], tuple[TrainState, StepOutput]]


def compiler_options(cpu_products: CpuProducts = "eigen") -> dict[str, str | bool]:
    """Options for XLA on the default backend.

    On a CPU its newer library takes half as long again to compile products, and isn't faster at them. At sums it takes half as long as
    the windows that XLA splits them into without it.
    """
    if jax.default_backend() != "cpu":
        return {}
    options: dict[str, str | bool] = {"xla_cpu_experimental_ynn_fusion_type": "LIBRARY_FUSION_TYPE_REDUCE"}
    if cpu_products == "onednn":
        options |= {"xla_cpu_use_onednn": True, "xla_cpu_experimental_onednn_fusion_type": "LIBRARY_FUSION_TYPE_DOT"}
    return options


def initial_state(config: TrainConfig, mesh: Mesh | None = None) -> TrainState:
    """The state before the first step, on one device or spread over a mesh; a function of the seed alone."""
    abstract = abstract_state(config, mesh)
    placed = jax.tree.map(lambda leaf: leaf.sharding, abstract)
    if mesh is None:
        state = _compiled_new_state(config.model, config.optimizer, config.num_steps, config.seed)
        # Placed like a restored state, so that both run the same compiled step.
        return cast(TrainState, jax.device_put(state, placed))
    with jax.set_mesh(mesh):
        new_state = partial(_new_state, config.model, config.optimizer, config.num_steps, config.seed)
        return cast(TrainState, jax.jit(new_state, out_shardings=placed)())


def abstract_state(config: TrainConfig, mesh: Mesh | None = None) -> TrainState:
    """Shapes, types and shardings of the state; allocates nothing."""
    shapes = jax.eval_shape(lambda: _new_state(config.model, config.optimizer, config.num_steps, config.seed))

    def placed(path: tuple[Any, ...], leaf: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=_state_sharding(mesh, path, leaf, config.offload_optimizer_state))

    return cast(TrainState, jax.tree_util.tree_map_with_path(placed, shapes))


def abstract_batch(config: TrainConfig, mesh: Mesh | None = None, stage: BatchStage | None = None) -> Batch:
    """Shapes, types and shardings of a step's batch, of the first stage if none is given; allocates nothing."""
    stage = stage or config.batches.stages[0]
    shape, sharding = (stage.global_batch_size, stage.sequence_length), batch_sharding(mesh)
    leaves = (jax.ShapeDtypeStruct(shape, dtype, sharding=sharding) for dtype in (jnp.int32, jnp.int32, jnp.float32))
    return Batch(*leaves)  # type: ignore[arg-type]


def _new_state(model: TransformerConfig, optimizer: Optimizer, num_steps: int, seed: int) -> TrainState:
    params = SplitTransformer(model).init(jax.random.key(seed))
    balancer_state = make_balancer(model.moe).init(model.layers, _experts(model))
    return TrainState(params, make_optimizer(optimizer, num_steps).init(params), balancer_state, jnp.int32(0))


# It runs once, so time spent on optimising the program is lost: 16 s become 4 on two CPU cores.
_compiled_new_state = jax.jit(_new_state, static_argnums=(0, 1, 2), compiler_options={"xla_backend_optimization_level": 0})


def make_train_step(config: TrainConfig, mesh: Mesh | None = None) -> TrainStep:
    """The jitted function (state, batch) → (next state, output); it takes over the memory of the state it is given.

    With a mesh, call it inside `jax.set_mesh(mesh)`, with a state and a batch that lie as `abstract_state` and `abstract_batch` say.
    """
    return _make_train_step(
        config.model,
        config.optimizer,
        config.num_steps,
        config.micro_batches,
        mesh,
        offload=config.offload_optimizer_state,
        cpu_products=config.cpu_products,
    )


@lru_cache(maxsize=4)  # A run that resumes in the same process doesn't compile again.
def _make_train_step(
    model_config: TransformerConfig,
    optimizer_config: Optimizer,
    num_steps: int,
    micro_batches: int,
    mesh: Mesh | None,
    *,
    offload: bool,
    cpu_products: CpuProducts,
) -> TrainStep:
    model = SplitTransformer(model_config)
    balancer = make_balancer(model_config.moe)
    optimizer = make_optimizer(optimizer_config, num_steps)
    rates = learning_rates(optimizer_config, num_steps)
    learn = partial(_gradient, model, balancer, micro_batches * (1 if mesh is None else mesh.shape[RACK]))

    def train_step(state: TrainState, batch: Batch) -> tuple[TrainState, StepOutput]:
        if offload:
            state = _fetched(state, mesh)
        bias = balancer.bias(state.balancer_state, model_config.layers, _experts(model_config))
        gradient, losses, statistics = _learn_over_racks(
            learn, state.params, bias, batch, state.step, micro_batches, observed=model_config.moe is not None
        )

        def sampled_gradient(key: jax.Array) -> tuple[Params, jax.Array]:
            sampled = partial(_sampled_gradient, model, key)
            found, losses, _ = _learn_over_racks(sampled, state.params, bias, batch, state.step, micro_batches, observed=False)
            return found, losses.loss_tokens

        extra = {"sampled_gradient": sampled_gradient} if isinstance(optimizer_config, Sophia) else {}
        with jax.named_scope("optimizer"):
            updates, optimizer_state = optimizer.update(gradient, state.optimizer_state, state.params, value=losses.loss, **extra)
            params = optax.apply_updates(state.params, updates)
        valid_tokens = jnp.sum(batch.segment_ids >= 0, dtype=jnp.int32)
        observed = () if statistics is None else statistics.observation
        with jax.named_scope("routing"):
            balancer_state, balance = balancer.update(state.balancer_state, observed, valid_tokens)
        with jax.named_scope("norms"):
            norms = {"gradient_norm": optax.tree.norm(gradient), "norms": layer_norms(state.params, gradient, updates)}
        output = {
            **losses._asdict(),
            **norms,
            **{f"learning_rate/{group}": rate for group, rate in rates(state.step).items()},
            **_optimizer_output(state.optimizer_state, optimizer_state),
            **({} if statistics is None else _routing_output(statistics, valid_tokens)),
            **balance,
        }
        return _keep_placed(TrainState(params, optimizer_state, balancer_state, state.step + 1), mesh, offload), _everywhere(output, mesh)

    return jax.jit(train_step, donate_argnums=0, compiler_options=compiler_options(cpu_products))


def compile_train_step(config: TrainConfig, mesh: Mesh | None, stage: BatchStage) -> TrainStep:
    """`make_train_step`, compiled for the batches of a stage before there is any data; it takes no others.

    JAX keeps the program, so that a run which resumes in the same process doesn't compile again.
    """
    lowered = make_train_step(config, mesh).lower(abstract_state(config, mesh), abstract_batch(config, mesh, stage))  # type: ignore[attr-defined]
    with _stored_if_it_can_be(config.cpu_products):
        return cast(TrainStep, lowered.compile())


@contextmanager
def _stored_if_it_can_be(cpu_products: CpuProducts) -> Iterator[None]:
    """Compile without JAX's cache of programs where XLA can't write them down: it would try in vain, and warn each time."""
    usual = jax.config.jax_persistent_cache_min_compile_time_secs
    if "xla_cpu_use_onednn" in compiler_options(cpu_products):
        jax.config.update("jax_persistent_cache_min_compile_time_secs", math.inf)
    try:
        yield
    finally:
        jax.config.update("jax_persistent_cache_min_compile_time_secs", usual)


def _optimizer_output(before: Any, after: Any) -> StepOutput:
    """What the optimizer says about itself, and `skipped`: 1 where it left this update out (absent where it never would)."""
    output = optimizer_metrics(after)
    if "skipped_steps" in output:
        output["skipped"] = output["skipped_steps"] - optimizer_metrics(before)["skipped_steps"]
    return output


def _state_sharding(mesh: Mesh | None, path: tuple[Any, ...], leaf: Any, offload: bool) -> Sharding:
    """Where a leaf of the state lies between steps; with `offload` moments lie in pinned memory of the host, counts stay."""
    sharding = parameter_sharding(mesh, path, leaf)
    return sharding.with_memory_kind(HOST_MEMORY) if offload and path[0].name == "optimizer_state" and leaf.ndim else sharding


def _fetched(state: TrainState, mesh: Mesh | None) -> TrainState:
    """The state with its moments in the memory of the devices."""
    fetch = partial(jax.tree_util.tree_map_with_path, lambda path, leaf: jax.device_put(leaf, parameter_sharding(mesh, path, leaf)))
    return state._replace(optimizer_state=fetch(state.optimizer_state))


def _keep_placed(state: TrainState, mesh: Mesh | None, offload: bool) -> TrainState:
    """The state, lying as `abstract_state` says: XLA might choose otherwise, and the next step would compile anew."""

    def keep(path: tuple[Any, ...], leaf: jax.Array) -> jax.Array:
        sharding = _state_sharding(mesh, path, leaf, offload)
        if sharding.memory_kind == HOST_MEMORY:
            return cast(jax.Array, jax.device_put(leaf, sharding))
        return leaf if mesh is None else cast(jax.Array, jax.lax.with_sharding_constraint(leaf, sharding))

    return cast(TrainState, jax.tree_util.tree_map_with_path(keep, state))


def _everywhere(output: StepOutput, mesh: Mesh | None) -> StepOutput:
    """The output, whole on every device: each process of several reads all of it."""
    if mesh is None:
        return output
    return cast(StepOutput, jax.tree.map(lambda leaf: jax.lax.with_sharding_constraint(leaf, NamedSharding(mesh, P())), output))


def _experts(model: TransformerConfig) -> int:
    return model.moe.experts if model.moe else 0


class Losses(NamedTuple):
    """float32 scalars: what is minimised, its cross entropy in nats per token, and the tokens it is an average over (Σ weights)."""

    loss: jax.Array
    cross_entropy: jax.Array
    loss_tokens: jax.Array


Learned = tuple[Params, Losses, LayerStatistics | None]
"""Gradient, losses, and routing statistics stacked over layers."""

Learn = Callable[[Params, jax.Array, Batch, jax.Array, jax.Array], Learned]
"""(parameters, selection bias, sequences, step, divisor of the losses) → what those sequences contribute."""


def _learn_over_racks(
    learn: Learn, params: Params, bias: jax.Array, batch: Batch, step: jax.Array, micro_batches: int, *, observed: bool
) -> Learned:
    """Gradient, losses and (where `observed`) statistics of a whole step.

    Every rack works through its own sequences alone; gradients cross racks once, summed in float32, behind the last micro-batch. Left
    to XLA, they would in every layer of every micro-batch.
    """
    racks = mesh_size(RACK)

    def here(params: Params, bias: jax.Array, batch: Batch, step: jax.Array, weight: jax.Array) -> Learned:
        gradient, losses, statistics = _accumulate(learn, params, bias, batch, step, weight, micro_batches)
        if racks > 1:
            with jax.named_scope("gradient"):  # by this name a plan's report knows what may cross racks
                gradient, losses = jax.lax.psum((gradient, losses), RACK)
            statistics = statistics and merge_racks(statistics)
        return gradient, losses, statistics

    everywhere: Any = P()
    seen = LayerStatistics(*[everywhere] * len(LayerStatistics._fields))._replace(observation=P(None, RACK))
    spread = over_racks(here, in_specs=(P(), P(), P(RACK), P(), P()), out_specs=(P(), P(), seen if observed else P()))
    weight = jnp.sum(batch.loss_weight[:, :-1])  # the last token of a sequence predicts nothing
    return spread(params, bias, batch, step, weight)


def _gradient(
    model: SplitTransformer,
    balancer: Balancer,
    parts: int,
    params: Params,
    bias: jax.Array,
    batch: Batch,
    step: jax.Array,
    weight: jax.Array,
) -> Learned:
    """What some sequences contribute to a step whose losses are divided by `weight`, the sum over all its sequences.

    Args:
        parts: that each see a part of the step; its balance loss is the mean over them.
    """

    def loss_of(params: Params) -> tuple[jax.Array, tuple[Losses, LayerStatistics | None]]:
        network = model.bind(params)
        tokens, segment_ids, loss_weight = (jnp.asarray(leaf) for leaf in batch)
        hidden, statistics = network(tokens, segment_ids, bias, balancer, step)
        z_loss, soft_cap = model.config.z_loss, model.config.logit_soft_cap
        sums = next_token_loss(hidden, network.head, tokens, loss_weight, z_loss=z_loss, soft_cap=soft_cap)
        loss = sums.total / weight
        if statistics is not None:
            loss += jnp.sum(statistics.balance_loss) / parts
        return loss, (Losses(loss, sums.cross_entropy / weight, sums.weight), statistics)

    gradient, (losses, statistics) = jax.grad(loss_of, has_aux=True)(params)
    return gradient, losses, statistics


def _sampled_gradient(
    model: SplitTransformer, key: jax.Array, params: Params, bias: jax.Array, batch: Batch, step: jax.Array, weight: jax.Array
) -> Learned:
    """Like `_gradient`, of the cross entropy against tokens that the model itself draws: what Sophia estimates the Hessian from."""

    def loss_of(params: Params) -> tuple[jax.Array, Losses]:
        network = model.bind(params)
        tokens, segment_ids, loss_weight = (jnp.asarray(leaf) for leaf in batch)
        hidden, _ = network(tokens, segment_ids, bias, None, step)
        head, soft_cap = network.head, model.config.logit_soft_cap
        drawn = sample_next_tokens(hidden, head, tokens, key, soft_cap=soft_cap)
        sums = next_token_loss(hidden, head, drawn, loss_weight, soft_cap=soft_cap)
        loss = sums.total / weight
        return loss, Losses(loss, loss, sums.weight)

    gradient, losses = jax.grad(loss_of, has_aux=True)(params)
    return gradient, losses, None


def _accumulate(
    learn: Learn, params: Params, bias: jax.Array, batch: Batch, step: jax.Array, weight: jax.Array, micro_batches: int
) -> Learned:
    """A rack's micro-batches one after the other; each device splits its own sequences."""
    if micro_batches == 1:
        return learn(params, bias, batch, step, weight)

    def split(leaf: jax.Array) -> jax.Array:
        """[B, S] → [micro-batch, B/micro_batches, S], where every device keeps its sequences."""
        devices = math.prod(map(mesh_size, token_axes()))
        pieces = jnp.asarray(leaf).reshape(devices, micro_batches, -1, leaf.shape[-1])
        moved: jax.Array = jnp.moveaxis(pieces, 1, 0).reshape(micro_batches, -1, leaf.shape[-1])
        return moved

    def body(sums: tuple[Params, Losses], piece: Batch) -> tuple[tuple[Params, Losses], LayerStatistics | None]:
        gradient, losses, statistics = learn(params, bias, jax.tree.map(spread_tokens, piece), step, weight)
        return jax.tree.map(jnp.add, sums, (gradient, losses)), statistics

    zero = (jax.tree.map(jnp.zeros_like, params), Losses(*[jnp.float32(0)] * 3))
    (gradient, losses), statistics = jax.lax.scan(body, zero, jax.tree.map(split, batch))
    return gradient, losses, statistics and merge_micro_batches(statistics)


def _routing_output(statistics: LayerStatistics, valid_tokens: jax.Array) -> StepOutput:
    names = ("balance_loss", "margin_min", "margin_max", "bias_min", "bias_max")
    output = statistics.transport._asdict() | {name: getattr(statistics, name) for name in names}
    return output | {"router_z_loss": statistics.router_z / jnp.maximum(valid_tokens, 1)}
