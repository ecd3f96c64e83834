"""Rows of tokens: who goes where, and gathers whose gradients are gathers.

A scatter in a backward pass would serialise (trap T2), and XLA makes one of every gather's. But a plan of which tokens fill which rows also
says in which rows each token lies, so the gradient can gather as well.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp


class Plan(NamedTuple):
    """Which assignments fill which rows, in G groups of C rows; assignment a is choice a mod A of token a div A.

    Both directions are kept, each the inverse of the other where rows are filled and assignments kept.

    Attributes:
        assignment: int32 [G, C], the assignment in each row.
        filled: bool [G, C].
        row: int32 [T, A], the row of each assignment, of all G·C.
        kept: bool [T, A].
    """

    assignment: jax.Array
    filled: jax.Array
    row: jax.Array
    kept: jax.Array

    def reversed(self) -> "Plan":
        """The plan of the way back, where rows are the tokens and tokens the rows; only of plans with A = 1."""
        tokens, rows = self.row.size, self.assignment.size
        return Plan(
            self.row.reshape(1, tokens), self.kept.reshape(1, tokens), self.assignment.reshape(rows, 1), self.filled.reshape(rows, 1)
        )


class Ranking(NamedTuple):
    """Assignments in order of their group, and each one's place in its group.

    Attributes:
        order: int32 [Q], assignments, Q = T·A, group by group; those without a group last.
        place: int32 [T, A], where each assignment stands in `order`.
        rank: int32 [T, A], where it stands in its group.
        start: int32 [G], where each group starts in `order`.
        members: int32 [G], how many each has.
    """

    order: jax.Array
    place: jax.Array
    rank: jax.Array
    start: jax.Array
    members: jax.Array

    def at(self, position: jax.Array) -> jax.Array:
        """The assignments at positions of `order`; a position past the end gives any."""
        return take(self.order, jnp.minimum(position, self.order.size - 1))


def rank_by_group(group: jax.Array, members: jax.Array, first_token: jax.Array | None = None) -> Ranking:
    """Rank assignments within their group, by token and then choice.

    A stable sort: counting along a one-hot [T·A, G] would take G times the memory.

    Args:
        group: int32 [T, A] below G; G for an assignment that goes nowhere.
        members: int32 [G], assignments of each group.
        first_token: int32 scalar below T, the token that is ranked first; those before it come after the last. None: the first.
    """
    shape, size = group.shape, group.size
    index = jnp.arange(size, dtype=jnp.int32)
    flat, turned = group.reshape(size), index
    if first_token is not None:
        shift = first_token * shape[1]
        flat, turned = jnp.roll(flat, -shift), jnp.roll(index, -shift)
    # Only the group is a key: the sort is stable, and what it carries along is the assignment.
    _, order = jax.lax.sort((flat, turned), num_keys=1, is_stable=True)
    place = jnp.zeros(size, jnp.int32).at[order].set(index, unique_indices=True).reshape(shape)
    start = jnp.cumsum(members) - members
    rank = place - take(start, jnp.minimum(group, members.size - 1))
    return Ranking(order, place, rank, start, members)


def load_of(selected: jax.Array, valid: jax.Array, experts: int) -> tuple[jax.Array, jax.Array]:
    """The expert of each assignment, int32 [T, A], E for padding; and int32 [E], assignments of each expert."""
    expert = jnp.where(valid[:, None], selected, experts).astype(jnp.int32)
    return expert, jnp.bincount(expert.reshape(-1), length=experts).astype(jnp.int32)


def first_token_of(step: jax.Array, tokens: int) -> jax.Array:
    """The token that is ranked first at a step, so that no position in a batch is always the one that is cut.

    Multiples of 2³²/φ modulo 2³², and then modulo T, visit positions far from those of the last steps.
    """
    return ((step.astype(jnp.uint32) * jnp.uint32(2_654_435_769)) % jnp.uint32(tokens)).astype(jnp.int32)


def take(x: jax.Array, index: jax.Array) -> jax.Array:
    """x[index] along the first axis, for indices that are known to be inside."""
    return x.at[index].get(mode="promise_in_bounds")


def take_where(x: jax.Array, index: jax.Array, mask: jax.Array) -> jax.Array:
    """x[index] along the first axis where `mask` is true, 0 elsewhere.

    Not a `where` around a gather: its zeros have the size of the rows, and a scan keeps them alive as a constant of its loop.
    """
    return x.at[jnp.where(mask, index, x.shape[0])].get(mode="fill", fill_value=0, wrap_negative_indices=False)


@jax.custom_vjp
def gather_rows(x: jax.Array, plan: Plan) -> jax.Array:
    """Rows [G, C, M] of tokens x [T, M]; unfilled rows are 0."""
    return take_where(x, plan.assignment // plan.row.shape[1], plan.filled)


def _gather_rows_forward(x: jax.Array, plan: Plan) -> tuple[jax.Array, Plan]:
    return gather_rows(x, plan), plan


def _gather_rows_backward(plan: Plan, d_rows: jax.Array) -> tuple[jax.Array, None]:
    return _sum_choices(d_rows, plan).astype(d_rows.dtype), None


gather_rows.defvjp(_gather_rows_forward, _gather_rows_backward)


@jax.custom_vjp
def combine_rows(rows: jax.Array, weights: jax.Array, plan: Plan) -> jax.Array:
    """float32 [T, M] = Σ over a token's kept assignments of weight · row; rows [G, C, M], weights float32 [T, A]."""
    return _sum_choices(rows, plan, weights)


def _combine_rows_forward(rows: jax.Array, weights: jax.Array, plan: Plan) -> tuple[jax.Array, tuple[jax.Array, jax.Array, Plan]]:
    return combine_rows(rows, weights, plan), (rows, weights, plan)


def _combine_rows_backward(saved: tuple[jax.Array, jax.Array, Plan], dy: jax.Array) -> tuple[jax.Array, jax.Array, None]:
    rows, weights, plan = saved
    per_token = plan.row.shape[1]
    # Padding may have any weight, and anything times 0 is not 0.
    row_weight = take_where(weights.reshape(-1), plan.assignment, plan.filled)
    d_rows = (row_weight[..., None] * take_where(dy, plan.assignment // per_token, plan.filled)).astype(rows.dtype)
    d_weights = jnp.stack([jnp.sum(_choice(rows, plan, choice) * dy, axis=1) for choice in range(per_token)], axis=1)
    return d_rows, d_weights, None


combine_rows.defvjp(_combine_rows_forward, _combine_rows_backward)


def _sum_choices(rows: jax.Array, plan: Plan, weights: jax.Array | None = None) -> jax.Array:
    """float32 [T, M], the weighted sum over a token's kept rows.

    Choice by choice: XLA:CPU would write [T, A, M] in float32, 6.4 GB a layer and device at the size of a large run.
    """
    total = jnp.zeros((plan.row.shape[0], rows.shape[-1]), jnp.float32)
    for choice in range(plan.row.shape[1]):
        row = _choice(rows, plan, choice)
        total += row if weights is None else jnp.where(plan.kept[:, choice], weights[:, choice], 0)[:, None] * row
    return total


def _choice(rows: jax.Array, plan: Plan, choice: int) -> jax.Array:
    """float32 [T, M], each token's row of one choice; 0 where it was dropped."""
    return take_where(rows.reshape(-1, rows.shape[-1]), plan.row[:, choice], plan.kept[:, choice]).astype(jnp.float32)
