"""Static pools of rows for each device of the rack, sent in waves of which one lives at a time (`spec/moe.md` §4.2).

Every size is known when the step is compiled; what does not fit its pool is dropped by the sender, what does not fit its expert's rows by
the receiver. Two all-to-alls a wave carry everything: which expert a row is for, and whether it got there, ride in header rows.
"""

from dataclasses import dataclass
from typing import NamedTuple, Self

import jax
import jax.numpy as jnp

from marin_core.errors import ConfigError
from marin_core.model.config import MoEConfig, PooledWavesConfig
from marin_core.model.moe.dispatch.interface import Experts, TransportStatistics, count
from marin_core.model.moe.dispatch.local import share_rows
from marin_core.model.moe.dispatch.rows import Plan, Ranking, combine_rows, first_token_of, gather_rows, load_of, rank_by_group, take


class Pools(NamedTuple):
    """Where the assignments of one device go.

    Assignments of a destination are ranked; rank r rides in wave r mod W, in slot r div W. So waves are stripes of tokens, all about equal
    and never the rows of certain experts, and a pool cuts the highest ranks.

    Attributes:
        expert: int32 [T, A], E for padding.
        ranking: by destination.
        wave: int32 [T, A].
        row: int32 [T, A], destination · P + slot; 0 where not sent.
        sent: bool [T, A].
    """

    expert: jax.Array
    ranking: Ranking
    wave: jax.Array
    row: jax.Array
    sent: jax.Array


@dataclass(frozen=True)
class PooledWaves:
    """The transport over an `axis` of N `devices`, each with E/N of the `experts`.

    Attributes:
        waves: W.
        rotate: start the ranking at another token each step.
        pool_rows: P, rows that a device may send to another, or to itself, in a wave.
        expert_rows: R, rows that an expert accepts in a wave.
    """

    experts: int
    devices: int
    axis: str
    waves: int
    rotate: bool
    pool_rows: int
    expert_rows: int

    @classmethod
    def of(cls, moe: MoEConfig, transport: PooledWavesConfig, *, tokens: int, devices: int, axis: str) -> Self:
        """Sizes from the capacity factor, of both sender and receiver, but none beyond the largest possible load.

        Raises:
            ConfigError: a row of one device could not be addressed by an int32.
        """
        experts_here, waves = moe.experts // devices, transport.waves
        assignments = tokens * moe.experts_per_token
        most_sent = -(-tokens * min(moe.experts_per_token, experts_here) // waves)
        pool_rows = min(share_rows(assignments, devices * waves, moe.capacity_factor), most_sent)
        expert_rows = min(share_rows(assignments, experts_here * waves, moe.capacity_factor), devices * min(pool_rows, tokens))
        if moe.experts * pool_rows >= 2**31:
            raise ConfigError(
                f"{moe.experts} experts with pools of {pool_rows} rows can't be numbered in 32 bits", advice="Raise the number of waves."
            )
        return cls(moe.experts, devices, axis, waves, transport.rotate, pool_rows, expert_rows)

    def __call__(
        self, x: jax.Array, selected: jax.Array, weights: jax.Array, valid: jax.Array, experts_fn: Experts, step: jax.Array
    ) -> tuple[jax.Array, TransportStatistics]:
        self._check_header(x.dtype)
        expert, load = load_of(selected, valid, self.experts)
        pools = self._assign(expert, load, step)
        weights = weights.astype(jnp.float32)

        @jax.checkpoint
        def wave(x: jax.Array, weights: jax.Array, number: jax.Array) -> tuple[jax.Array, jax.Array]:
            plan, local_id = self._plan(pools, number)
            received, their_id = self._exchange(gather_rows(x, plan), local_id)
            compact = self._compact(their_id, step)
            results = experts_fn(gather_rows(received.reshape(-1, x.shape[1]), compact))
            expanded = gather_rows(results.reshape(-1, x.shape[1]), compact.reversed())
            shape = plan.assignment.shape
            returned, arrived = self._exchange(expanded.reshape(*shape, -1), compact.kept.reshape(shape).astype(jnp.int32))
            return combine_rows(returned, weights, plan), arrived > 0

        def body(y: jax.Array, number: jax.Array) -> tuple[jax.Array, jax.Array]:
            part, arrived = wave(x, weights, number)
            return y + part, arrived

        # A scan, not an unrolled loop: only one wave's buffers can exist, and collectives are compiled once.
        y, arrived = jax.lax.scan(body, jnp.zeros(x.shape, jnp.float32), jnp.arange(self.waves, dtype=jnp.int32))
        arrived = pools.sent & take(arrived.reshape(-1), pools.wave * (self.devices * self.pool_rows) + pools.row)
        return y.astype(x.dtype), count(load, weights, valid, pools.sent, arrived)

    def _assign(self, expert: jax.Array, load: jax.Array, step: jax.Array) -> Pools:
        """Give each assignment, int32 [T, A] experts, its wave and slot; load int32 [E]."""
        experts_here = self.experts // self.devices
        destination = expert // experts_here  # N for padding, as its expert is E
        first = first_token_of(step, expert.shape[0]) if self.rotate else None
        ranking = rank_by_group(destination, jnp.sum(load.reshape(self.devices, experts_here), axis=1), first)
        slot, wave = ranking.rank // self.waves, ranking.rank % self.waves
        sent = (slot < self.pool_rows) & (destination < self.devices)
        zero = jnp.zeros_like(slot)
        return Pools(expert, ranking, jnp.where(sent, wave, zero), jnp.where(sent, destination * self.pool_rows + slot, zero), sent)

    def _plan(self, pools: Pools, number: jax.Array) -> tuple[Plan, jax.Array]:
        """The rows of wave `number`, [N, P]; and for each the expert's number on its device + 1, int32 [N, P], 0 = empty."""
        rank = jnp.arange(self.pool_rows, dtype=jnp.int32) * self.waves + number
        filled = rank < pools.ranking.members[:, None]
        assignment = jnp.where(filled, pools.ranking.at(pools.ranking.start[:, None] + rank), 0)
        local_id = take(pools.expert.reshape(-1), assignment) % (self.experts // self.devices)
        kept = pools.sent & (pools.wave == number)
        plan = Plan(assignment, filled, pools.row, kept)
        return plan, jnp.where(filled, local_id + 1, 0)

    def _exchange(self, rows: jax.Array, header: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Swap rows [N, P, M] and int32 [N, P] small numbers about them between devices, in one collective."""
        devices, pool_rows, width = rows.shape
        header_rows = -(-pool_rows // width)
        padded = jnp.pad(header, ((0, 0), (0, header_rows * width - pool_rows)))
        payload = jnp.concatenate([padded.reshape(devices, header_rows, width).astype(rows.dtype), rows], axis=1)
        received = jax.lax.all_to_all(payload, self.axis, split_axis=0, concat_axis=0, tiled=True)
        numbers = jax.lax.stop_gradient(received[:, :header_rows]).reshape(devices, -1)[:, :pool_rows]
        return received[:, header_rows:], numbers.astype(jnp.int32)

    def _compact(self, their_id: jax.Array, step: jax.Array) -> Plan:
        """Rows [E/N, R] for what arrived, given int32 [N, P] of `_plan` from each sender.

        Visits a slot of every sender before the next slot, so that no sender is cut first; the sender that is visited first differs
        between experts and steps, as in `ragged.fill_levels`.
        """
        experts_here, cells = self.experts // self.devices, self.devices * self.pool_rows
        expert = their_id - 1
        slot = jnp.arange(self.pool_rows, dtype=jnp.int32)
        turn = (jnp.arange(self.devices, dtype=jnp.int32)[:, None] - expert - step % self.devices) % self.devices
        key = jnp.where(expert >= 0, expert * cells + slot * self.devices + turn, experts_here * cells)
        index = jnp.arange(cells, dtype=jnp.int32)
        keys, order = jax.lax.sort((key.reshape(-1), index), num_keys=1)
        start = jnp.searchsorted(keys, jnp.arange(experts_here + 1, dtype=jnp.int32) * cells, method="compare_all").astype(jnp.int32)
        place = jnp.zeros(cells, jnp.int32).at[order].set(index, unique_indices=True).reshape(their_id.shape)
        rank = place - take(start, jnp.maximum(expert, 0))
        kept = (expert >= 0) & (rank < self.expert_rows)
        position = jnp.arange(self.expert_rows, dtype=jnp.int32) + start[:-1, None]
        filled = position < start[1:, None]
        return Plan(
            assignment=jnp.where(filled, take(order, jnp.minimum(position, cells - 1)), 0),
            filled=filled,
            row=jnp.where(kept, expert * self.expert_rows + rank, 0).reshape(cells, 1),
            kept=kept.reshape(cells, 1),
        )

    def _check_header(self, dtype: jnp.dtype) -> None:
        """Numbers ride in rows of the activations' type, which must hold them exactly: bfloat16 does up to 256."""
        largest, exact = self.experts // self.devices, 2 ** (int(jnp.finfo(dtype).nmant) + 1)  # type: ignore[no-untyped-call]
        if largest > exact:
            raise ConfigError(
                f"{largest} experts on a device can't be numbered in {dtype}, which holds integers up to {exact}",
                advice="Spread the experts over more devices, compute in float32, or choose another transport.",
            )
