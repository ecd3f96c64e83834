"""Exactly the rows that are kept travel, and every device knows from one table of counts which those are (`spec/moe.md` §4.3).

Only receivers drop, and they are fair: each expert fills its rows level by level over all senders. What is dropped is known before
anything is sent, so it stays where it is.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import NamedTuple, Self

import jax
import jax.numpy as jnp

from marin_core.model.config import MoEConfig, RaggedConfig
from marin_core.model.moe.dispatch.interface import Experts, TransportStatistics, count
from marin_core.model.moe.dispatch.local import share_rows
from marin_core.model.moe.dispatch.rows import Plan, combine_rows, first_token_of, gather_rows, load_of, rank_by_group, take


class Route(NamedTuple):
    """What `jax.lax.ragged_all_to_all` is told; int32 [N·G] each, peer by peer, G updates for each.

    Attributes:
        input_offset: where the rows for a peer start here.
        send_size: how many they are.
        output_offset: where they start there.
        receive_size: how many come from a peer.
    """

    input_offset: jax.Array
    send_size: jax.Array
    output_offset: jax.Array
    receive_size: jax.Array


class Table(NamedTuple):
    """What all devices agree on; int32 [N, E], sender by expert.

    Attributes:
        start: where the rows of an expert start in the sender's order.
        kept: how many of them are sent; the others are dropped.
        offset: where they start among the rows of their expert.
    """

    start: jax.Array
    kept: jax.Array
    offset: jax.Array


@dataclass(frozen=True)
class Ragged:
    """The transport over an `axis` of N `devices`, each with E/N of the `experts`.

    Attributes:
        expert_rows: R, rows that an expert accepts.
        chunks: local experts are exchanged and run in so many groups, one after the other, and only one group's rows live.
    """

    experts: int
    devices: int
    axis: str
    expert_rows: int
    chunks: int

    @classmethod
    def of(cls, moe: MoEConfig, transport: RaggedConfig, *, tokens: int, devices: int, axis: str) -> Self:
        """Sizes from the capacity factor, but none beyond the largest possible load, nor more chunks than experts."""
        experts_here = moe.experts // devices
        rows = min(share_rows(tokens * moe.experts_per_token, experts_here, moe.capacity_factor), devices * tokens)
        return cls(moe.experts, devices, axis, rows, min(transport.expert_chunks, experts_here))

    def __call__(
        self, x: jax.Array, selected: jax.Array, weights: jax.Array, valid: jax.Array, experts_fn: Experts, step: jax.Array
    ) -> tuple[jax.Array, TransportStatistics]:
        expert, load = load_of(selected, valid, self.experts)
        ranking = rank_by_group(expert, load, first_token_of(step, x.shape[0]))
        table = self._agree(load, step)
        limit = take(table.kept, jax.lax.axis_index(self.axis))
        arrived = (ranking.rank < take(limit, jnp.minimum(expert, self.experts - 1))) & valid[:, None]
        weights = weights.astype(jnp.float32)
        y = jnp.zeros(x.shape, jnp.float32)
        experts_here = self.experts // self.devices
        for first, end in pairwise(chunk * experts_here // self.chunks for chunk in range(self.chunks + 1)):
            local_id = expert % experts_here
            here = arrived & (local_id >= first) & (local_id < end)
            plan = Plan(ranking.order[None], take(here.reshape(-1), ranking.order)[None], ranking.place, here)
            run = partial(_run_some, experts_fn, first) if self.chunks > 1 else experts_fn
            # Ties a chunk to the one before it: left alone, XLA may hold the rows of several at once.
            x, y = jax.lax.optimization_barrier((x, y))
            y += self._pass_through(x, weights, plan, self._routes(table, first, end), run)
        sent = jnp.broadcast_to(valid[:, None], arrived.shape)
        return y.astype(x.dtype), count(load, weights, valid, sent, arrived)

    def _agree(self, load: jax.Array, step: jax.Array) -> Table:
        """The table, from this device's int32 [E] counts."""
        counts = jax.lax.all_gather(load, self.axis)
        kept = fill_levels(counts, self.expert_rows, step)
        return Table(jnp.cumsum(counts, axis=1) - counts, kept, jnp.cumsum(kept, axis=0) - kept)

    def _pass_through(
        self, x: jax.Array, weights: jax.Array, plan: Plan, routes: tuple[Route, Route], run: Callable[[jax.Array], jax.Array]
    ) -> jax.Array:
        """What the experts of a chunk add to y, float32 [T, M]. The plan's rows are all Q assignments, filled where they are sent."""
        there, back = routes
        experts, here, home = there.send_size.size // self.devices, self.expert_rows, plan.row.size

        @jax.checkpoint
        def chunk(x: jax.Array, weights: jax.Array) -> jax.Array:
            received = exchange(gather_rows(x, plan)[0], there, back, experts * here, self.axis)
            results = run(received.reshape(experts, here, -1))
            returned = exchange(results.reshape(experts * here, -1), back, there, home, self.axis)
            return combine_rows(returned[None], weights, plan)

        part: jax.Array = chunk(x, weights)
        return part

    def _routes(self, table: Table, first: int, end: int) -> tuple[Route, Route]:
        """The way to experts `first` to `end` of every device, one update for each peer and expert, and the way back."""
        experts_here = self.experts // self.devices
        me = jax.lax.axis_index(self.axis)
        row = (jnp.arange(self.experts, dtype=jnp.int32) % experts_here - first) * self.expert_rows
        offset = row + table.offset

        def mine(values: jax.Array) -> jax.Array:
            """Of this device as a sender: [N, G] by receiver and its expert."""
            return take(values, me).reshape(self.devices, experts_here)[:, first:end].reshape(-1)

        def ours(values: jax.Array) -> jax.Array:
            """Of this device as a receiver: [N, G] by sender and this device's expert."""
            return take(values.reshape(self.devices, self.devices, experts_here).swapaxes(0, 1), me)[:, first:end].reshape(-1)

        there = Route(mine(table.start), mine(table.kept), mine(offset), ours(table.kept))
        return there, Route(ours(offset), ours(table.kept), ours(table.start), mine(table.kept))


def _run_some(experts_fn: Experts, first: int, rows: jax.Array) -> jax.Array:
    return experts_fn(rows, first)


def fill_levels(counts: jax.Array, rows: int, step: jax.Array) -> jax.Array:
    """How many assignments each expert accepts from each sender: senders are cut to one level, whatever their place.

    The level of expert e is the largest t with Σ_s min(n_se, t) ≤ R. As Σ_s min(n_s, t) is the least, over k, of the k smallest counts and
    (N − k)·t, it is also the largest ⌊(R − Σ k smallest) / (N − k)⌋. Senders above it share the rest, one each, from sender e + step on.

    Args:
        counts: int32 [N, E], wanted.
        rows: R.
        step: int32 scalar.

    Returns:
        int32 [N, E], at most `counts`, with sums over senders of min(R, wanted).
    """
    senders, experts = counts.shape
    smallest = jnp.cumsum(jnp.sort(counts, axis=0), axis=0)
    left = rows - jnp.concatenate([jnp.zeros((1, experts), jnp.int32), smallest[:-1]])
    level = jnp.max(left // jnp.arange(senders, 0, -1, dtype=jnp.int32)[:, None], axis=0)
    level = jnp.where(smallest[-1] <= rows, jnp.max(counts), level)
    kept = jnp.minimum(counts, level)
    above = counts > level
    index = jnp.arange(senders, dtype=jnp.int32)[:, None]
    first = (jnp.arange(experts, dtype=jnp.int32) + step) % senders
    in_turn = jnp.take_along_axis(above, (index + first) % senders, axis=0)
    served = in_turn & (jnp.cumsum(in_turn, axis=0, dtype=jnp.int32) <= rows - jnp.sum(kept, axis=0))
    return kept + jnp.take_along_axis(served, (index - first) % senders, axis=0)


@partial(jax.custom_vjp, nondiff_argnums=(3, 4))
def exchange(operand: jax.Array, there: Route, back: Route, rows: int, axis: str) -> jax.Array:
    """Rows [Q, M] of all devices to where they belong, [rows, M]; rows that nothing reaches are 0. The gradient takes the way back."""
    moved: jax.Array = jax.lax.platform_dependent(
        operand,
        there,
        cpu=lambda operand, route: _emulate(operand, route, rows, axis),  # XLA:CPU can't compile the real one (trap T3)
        default=lambda operand, route: jax.lax.ragged_all_to_all(
            operand, jnp.zeros((rows, operand.shape[1]), operand.dtype), *route, axis_name=axis
        ),
    )
    return moved


def _exchange_forward(
    operand: jax.Array, there: Route, back: Route, rows: int, axis: str
) -> tuple[jax.Array, tuple[jax.Array, Route, Route]]:
    return exchange(operand, there, back, rows, axis), (operand, there, back)


def _exchange_backward(rows: int, axis: str, saved: tuple[jax.Array, Route, Route], d_rows: jax.Array) -> tuple[jax.Array, None, None]:
    operand, there, back = saved
    return exchange(d_rows, back, there, operand.shape[0], axis), None, None


exchange.defvjp(_exchange_forward, _exchange_backward)


def _emulate(operand: jax.Array, route: Route, rows: int, axis: str) -> jax.Array:
    """`ragged_all_to_all` by the same offsets: gather everybody's rows and offsets, and take what is addressed to this device."""
    operands, starts, sizes, targets = (
        jax.lax.all_gather(each, axis) for each in (operand, route.input_offset, route.send_size, route.output_offset)
    )
    devices = operands.shape[0]
    starts, sizes, targets = (
        take(each.reshape(devices, devices, -1).swapaxes(0, 1), jax.lax.axis_index(axis)).reshape(-1) for each in (starts, sizes, targets)
    )
    order = jnp.argsort(jnp.where(sizes > 0, targets, rows))
    row = jnp.arange(rows, dtype=jnp.int32)
    nearest = jnp.searchsorted(jnp.where(sizes > 0, targets, rows)[order], row, side="right") - 1
    update = take(order, jnp.maximum(nearest, 0))
    inside = row - take(targets, update)
    filled = (nearest >= 0) & (inside >= 0) & (inside < take(sizes, update))
    sender = update // (sizes.size // devices)
    source = jnp.where(filled, sender * operand.shape[0] + take(starts, update) + inside, 0)
    return jnp.where(filled[:, None], take(operands.reshape(-1, operand.shape[1]), source), 0)
