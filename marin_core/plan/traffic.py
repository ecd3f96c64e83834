"""What a step's collectives send over which links, and what for."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

from marin_core.config import Config
from marin_core.model.config import PooledWavesConfig
from marin_core.plan.config import PlanConfig
from marin_core.plan.hlo import Collective

RACK, EXPERT = "rack", "expert"

SMALL_BYTES = 1_000_000
"""A sum of no more than this holds statistics: the loads of all experts of 48 layers are 74 kB."""

SUMS = ("all-reduce", "reduce-scatter")

EXPERT_KINDS = ("all-to-all", "ragged-all-to-all", "collective-permute", "collective-broadcast")
"""Kinds that carry rows of tokens to experts; none of them may leave its rack."""

GRADIENT_SCOPE = "gradient"
"""Name of the scope in which `marin_core.train.step` sums gradients over racks."""

Purpose = Literal["gradient", "statistics", "sum", "gather", "rows", "layout"]


class Traffic(Config):
    """Collectives of one kind, across the same axes, in or out of loops; bytes are those of one device and one step.

    Attributes:
        axes: mesh axes that they cross, joined by `+`; "none" where devices stay alone.
        purpose: see the function `purpose`.
        in_loop: whether a loop turns them.
        instructions: in the program's text.
        executions: in a step.
        operand_bytes: that go into them.
        rack_link_bytes: that the device sends within its rack, by the algorithm of `sent_bytes`.
        cross_rack_bytes: that it sends to other racks.
        lower_bound: whether a loop around one of them has no known trip count.
        upper_bound: whether a branch decides if one of them runs.
        source: the operation that the largest of them was compiled from.
    """

    kind: str
    axes: str
    purpose: Purpose
    in_loop: bool
    instructions: int
    executions: int
    operand_bytes: int
    rack_link_bytes: int
    cross_rack_bytes: int
    lower_bound: bool
    upper_bound: bool
    source: str


def sent_bytes(collective: Collective, mesh: Mapping[str, int]) -> tuple[float, float]:
    """Bytes that a device sends in one execution: within its rack, and to other racks.

    Rings, and in two levels where a group has several devices in each of several racks: with N devices in each of R racks, a sum of B bytes
    is scattered in the rack, summed across racks by those that hold the same piece, and gathered: 2·(N−1)/N·B and 2·(R−1)/R·B/N.
    """
    sizes = dict(zip(mesh, collective.crossing.sizes, strict=True))
    racks = sizes[RACK]
    near = max(collective.crossing.devices // racks, 1)
    whole = max(collective.operand_bytes, collective.result_bytes)
    within, across = (near - 1) / near * whole, (racks - 1) / racks * whole / near
    match collective.kind:
        case "all-reduce":
            return 2 * within, 2 * across
        case "all-gather" | "reduce-scatter":
            return within, across
        case "all-to-all" | "ragged-all-to-all":
            return within / racks, (racks - 1) / racks * whole
        case _:  # each device sends all it has to one other
            leaves = collective.crossing.crosses(RACK)
            return (0.0, float(whole)) if leaves else (float(whole) if near > 1 else 0.0, 0.0)


def purpose(collective: Collective) -> Purpose:
    """What a collective is for.

    Returns:
        "rows" for kinds that carry tokens to experts, "layout" where they lay an array out otherwise, as an optimizer does that works on
        whole matrices; "gather" for gathers. Of sums: "gradient" of floats in the backward pass, or in the scope in which a step sums its
        gradients over racks; "statistics" of integers, and of few bytes; "sum" of whatever else.
    """
    if collective.kind in EXPERT_KINDS:
        return "layout" if collective.source.endswith("/sharding_constraint") else "rows"  # JAX's name of `with_sharding_constraint`
    if collective.kind not in SUMS:
        return "gather"
    if not any(name.startswith(("f", "bf")) for name in collective.element_types):
        return "statistics"
    if "transpose(" in collective.source or f"{GRADIENT_SCOPE}/psum" in collective.source:  # JAX's name of a backward pass, and ours
        return "gradient"
    return "statistics" if collective.operand_bytes <= SMALL_BYTES else "sum"


def summarise(collectives: Iterable[Collective], mesh: Mapping[str, int]) -> tuple[Traffic, ...]:
    """Traffic by kind, axes, purpose and loop; the most bytes first."""
    groups: dict[tuple[str, str, Purpose, bool], list[Collective]] = {}
    for collective in collectives:
        key = (collective.kind, "+".join(collective.crossing.axes) or "none", purpose(collective), collective.in_loop)
        groups.setdefault(key, []).append(collective)
    rows = []
    for (kind, axes, why, in_loop), members in groups.items():
        sent = [(each.executions * within, each.executions * across) for each in members for within, across in [sent_bytes(each, mesh)]]
        largest = max(members, key=lambda each: each.operand_bytes * each.executions)
        rows.append(
            Traffic(
                kind=kind,
                axes=axes,
                purpose=why,
                in_loop=in_loop,
                instructions=len(members),
                executions=sum(each.executions for each in members),
                operand_bytes=sum(each.operand_bytes * each.executions for each in members),
                rack_link_bytes=round(sum(within for within, _ in sent)),
                cross_rack_bytes=round(sum(across for _, across in sent)),
                lower_bound=not all(each.known_count for each in members),
                upper_bound=any(each.conditional for each in members),
                source=largest.source,
            )
        )
    return tuple(sorted(rows, key=lambda row: (-row.rack_link_bytes - row.cross_rack_bytes, row.kind, row.axes)))


class ExpertRows(Config):
    """Bytes of rows that one device sends to experts and gets back, by arithmetic (`spec/moe.md` §4.2).

    Attributes:
        rows: token-to-expert assignments of one device in one step and layer.
        row_bytes: of one row.
        forward_bytes: of one layer, there and back: what `ragged` sends where nothing is dropped.
        padded_forward_bytes: the same with the padding of static pools.
        step_bytes, padded_step_bytes: of all layers, forward, again when the backward pass recomputes, and backward.
    """

    rows: int
    row_bytes: int
    forward_bytes: int
    padded_forward_bytes: int
    step_bytes: int
    padded_step_bytes: int


PASSES = 3
"""Forward, recomputed forward, backward."""


def expert_rows(config: PlanConfig) -> ExpertRows | None:
    """The arithmetic of a plan's expert rows; None where experts don't lie on several devices."""
    model, near = config.train.model, config.fleet.mesh.devices_per_rack
    if model.moe is None or near == 1:
        return None
    micro_batches = config.train.micro_batches
    tokens = config.train.tokens_per_step // (config.fleet.mesh.devices * micro_batches)
    rows = tokens * model.moe.experts_per_token
    waves = model.moe.transport.waves if isinstance(model.moe.transport, PooledWavesConfig) else 1
    pool = -(-round(model.moe.capacity_factor * rows * 1_000_000) // (near * waves * 1_000_000))
    width = model.expert_dim * (2 if model.compute_dtype == "bfloat16" else 4)
    forward, padded = 2 * rows * micro_batches * width, 2 * pool * near * waves * micro_batches * width
    return ExpertRows(
        rows=rows * micro_batches,
        row_bytes=width,
        forward_bytes=forward,
        padded_forward_bytes=padded,
        step_bytes=forward * model.layers * PASSES,
        padded_step_bytes=padded * model.layers * PASSES,
    )


def across_racks(traffic: Sequence[Traffic]) -> list[Traffic]:
    """What leaves a rack."""
    return [row for row in traffic if RACK in row.axes.split("+")]
