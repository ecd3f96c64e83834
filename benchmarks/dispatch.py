"""How fast tokens reach experts and come back, and what is dropped on the way, under even and uneven loads.

    python -m benchmarks.dispatch --json dispatch.json

Every transport runs forward and backward on virtual CPU devices, and the local one on a single device, beside naive ways of the same
capacity: one-hot products, and locally `ragged_dot`. Virtual devices share the CPU's cores and memory, so times show arithmetic and
copies, not links. `ragged` is emulated by an all-gather there, since XLA:CPU lacks the collective.
"""

import argparse
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec as P
from rich.console import Console

from benchmarks.dispatch_peers import one_hot_dispatch, ragged_dot_dispatch
from benchmarks.report import Machine, Row, installed_versions, parser, publish
from benchmarks.timing import Timing, median, timed
from marin_core.model.config import DenseTransportConfig, MoEConfig, PooledWavesConfig, RaggedConfig, TransportConfig
from marin_core.model.mesh import EXPERT, make_mesh
from marin_core.model.moe.dispatch import Experts, TransportStatistics, expert_capacity, make_transport
from marin_core.model.moe.experts import ExpertWeights, apply_experts

DEVICES = 8
EXPERTS, PER_TOKEN = 16, 2
LOADS = ("uniform", "Zipf", "one-hot shard")
TRANSPORTS: Mapping[str, TransportConfig] = {
    "pooled_waves": PooledWavesConfig(),
    "ragged, emulated": RaggedConfig(),
    "dense": DenseTransportConfig(),
}
ONE_HOT, RAGGED_DOT = "one-hot einsum", "ragged_dot"


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print the table, and write the rows."""
    options = _options(arguments)
    if jax.config.jax_num_cpu_devices != DEVICES:
        jax.config.update("jax_num_cpu_devices", DEVICES)
    machine, progress = Machine.now(), Console(stderr=True)
    rows: list[Row] = []
    for devices in (DEVICES, 1):
        progress.print(f"compiling for {devices} devices")
        ways = compile_ways(options, devices)
        for load in LOADS:
            progress.print(f"{load} load on {devices} devices")
            given = make_inputs(load, options.tokens, options.width)
            rows += load_rows(load, devices, measure(ways, given, options.rounds), DEVICES * options.tokens)
    versions = installed_versions("marin-assets", "jax", "jaxlib", "numpy")
    publish("Expert dispatch, forward and backward", rows, machine=machine, versions=versions, json_file=options.json)


class Inputs(NamedTuple):
    """Tokens of all devices: x [T, M], selected int32 [T, A], weights float32 [T, A]; and the experts."""

    x: jax.Array
    selected: jax.Array
    weights: jax.Array
    experts: ExpertWeights


def make_inputs(load: str, tokens: int, width: int) -> Inputs:
    """Inputs whose experts are wanted evenly, by 1/rank, or of each device's tokens only those of the next device."""
    rng = np.random.default_rng(0)
    total = DEVICES * tokens
    scores = rng.gumbel(size=(total, EXPERTS))
    if load == "Zipf":
        scores -= np.log(np.arange(1, EXPERTS + 1))[rng.permutation(EXPERTS)]
    if load == "one-hot shard":
        next_device = (np.arange(total) // tokens + 1) % DEVICES
        scores[next_device[:, None] != np.arange(EXPERTS) * DEVICES // EXPERTS] = -np.inf
    selected = np.argsort(-scores, axis=1)[:, :PER_TOKEN].astype(np.int32)
    shapes = ((EXPERTS, width, width),) * 3
    experts = ExpertWeights(*(jnp.asarray(rng.normal(size=shape, scale=width**-0.5), jnp.float32) for shape in shapes))
    x, weights = rng.normal(size=(total, width)), rng.random((total, PER_TOKEN)) + 0.5
    return Inputs(jnp.asarray(x, jnp.float32), jnp.asarray(selected), jnp.asarray(weights, jnp.float32), experts)


Way = Callable[[Inputs], tuple[Any, jax.Array]]
"""Gradients of a fixed loss, and the share of combine weight that was dropped."""


def compile_ways(options: argparse.Namespace, devices: int) -> dict[str, Way]:
    """Ours and the peers', by name, compiled for a load that isn't known yet."""
    moe = MoEConfig(experts=EXPERTS, experts_per_token=PER_TOKEN, expert_width=options.width, capacity_factor=options.capacity_factor)
    tokens = DEVICES * options.tokens // devices
    # Between devices no rows are rounded up, as in our pools; on one device as many as in the local transport.
    mean = math.ceil(options.capacity_factor * tokens * PER_TOKEN / EXPERTS)
    one_hot_capacity = mean if devices > 1 else expert_capacity(tokens, EXPERTS, PER_TOKEN, options.capacity_factor)

    def one_hot(given: Inputs) -> tuple[jax.Array, jax.Array]:
        axis = EXPERT if devices > 1 else None
        run = _experts(given.experts)
        return one_hot_dispatch(given.x, given.selected, given.weights, run, experts=EXPERTS, capacity=one_hot_capacity, axis=axis)

    if devices == 1:
        ways = {"local": _ours(moe, tokens, 1), RAGGED_DOT: _ragged_dot, ONE_HOT: one_hot}
    else:
        ours = {name: _ours(moe.model_copy(update={"transport": each}), tokens, devices) for name, each in TRANSPORTS.items()}
        ways = {**ours, ONE_HOT: one_hot}
    sample = make_inputs("uniform", options.tokens, options.width)
    return {name: _compile(way, sample, devices) for name, way in ways.items()}


def _ours(moe: MoEConfig, tokens: int, devices: int) -> Callable[[Inputs], tuple[jax.Array, jax.Array]]:
    transport = make_transport(moe, tokens=tokens, expert_devices=devices, axis=EXPERT, dropless=False)

    def way(given: Inputs) -> tuple[jax.Array, jax.Array]:
        valid = jnp.ones(given.x.shape[0], bool)
        statistics: TransportStatistics
        y, statistics = transport(given.x, given.selected, given.weights, valid, _experts(given.experts), jnp.int32(0))
        return y, statistics.dropped_weight_mass / jnp.sum(given.weights)

    return way


def _ragged_dot(given: Inputs) -> tuple[jax.Array, jax.Array]:
    return ragged_dot_dispatch(given.x, given.selected, given.weights, given.experts, count=EXPERTS)


def _experts(weights: ExpertWeights) -> Experts:
    def run(rows: jax.Array, first: int = 0, /) -> jax.Array:
        return apply_experts(ExpertWeights(*(each[first : first + rows.shape[0]] for each in weights)), rows)

    return run


def _compile(way: Callable[[Inputs], tuple[jax.Array, jax.Array]], sample: Inputs, devices: int) -> Way:
    """Forward and backward of a way on a mesh of so many devices; the dropped share is their mean."""

    def here(given: Inputs) -> tuple[jax.Array, jax.Array]:
        y, dropped = way(given)
        return y, dropped[None]

    spread: Any = here
    if devices > 1:
        spread = jax.shard_map(here, in_specs=P(EXPERT), out_specs=P(EXPERT), check_vma=False)

    def loss(given: Inputs) -> tuple[jax.Array, jax.Array]:
        y, dropped = spread(given)
        return jnp.sum(y**2), jnp.mean(dropped)

    with jax.set_mesh(make_mesh(1, devices)):
        compiled = jax.jit(jax.grad(loss, has_aux=True, allow_int=True)).lower(sample).compile()

    def run(given: Inputs) -> tuple[Any, jax.Array]:
        with jax.set_mesh(make_mesh(1, devices)):
            result: tuple[Any, jax.Array] = jax.block_until_ready(compiled(given))
        return result

    return run


@dataclass
class Measured:
    """Rounds of one way under one load, and the share of combine weight that it dropped."""

    rounds: list[Timing] = field(default_factory=list)
    dropped: float = 0.0


def measure(ways: Mapping[str, Way], given: Inputs, rounds: int) -> dict[str, Measured]:
    """All ways in turn, round after round, so that a busy moment of the machine hits all of them."""
    found = {name: Measured(dropped=float(way(given)[1])) for name, way in ways.items()}
    for _ in range(rounds):
        for name, way in ways.items():
            found[name].rounds.append(timed(partial(way, given))[1])
    return found


def load_rows(load: str, devices: int, found: Mapping[str, Measured], tokens: int) -> list[Row]:
    """Each of ours beside each peer: tokens a second, tokens a CPU-second, and the weight dropped."""
    rows = []
    where = "1 device" if devices == 1 else f"{devices} devices"
    peers = [name for name in (ONE_HOT, RAGGED_DOT) if name in found]
    for name in [name for name in found if name not in peers]:
        ours = median(found[name].rounds)
        for peer in peers:
            theirs = median(found[peer].rounds)
            label = f"{name}, {where}, {load} load"
            dropped, their_dropped = 100 * found[name].dropped, 100 * found[peer].dropped
            rows += [
                Row(f"{label}: speed", tokens / ours.seconds, tokens / theirs.seconds, peer, "tokens/s", "higher"),
                Row(f"{label}: speed by CPU", tokens / ours.cpu_seconds, tokens / theirs.cpu_seconds, peer, "tokens/CPU-s", "higher"),
                Row(f"{label}: weight dropped", dropped, their_dropped, peer, "%"),
            ]
    return rows


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    made = parser(__doc__ or "")
    made.add_argument("--tokens", type=int, default=256, metavar="T", help="tokens of each device (default 256)")
    made.add_argument("--width", type=int, default=128, metavar="M", help="width of rows and of experts (default 128)")
    made.add_argument("--capacity-factor", type=float, default=1.15, metavar="C", help="capacity over mean load (default 1.15)")
    made.add_argument("--rounds", type=int, default=5, metavar="N", help="how often each way is timed under each load (default 5)")
    return made.parse_args(arguments)


if __name__ == "__main__":
    main()
