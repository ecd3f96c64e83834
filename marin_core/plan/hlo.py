"""Read every collective of a compiled step from the text of its optimized program, in one pass.

`cost_analysis()` counts the body of a loop once, so the text is read instead: a collective runs as often as the loops around it turn,
by their known trip counts, through fusions, calls, branches and asynchronous wrappers. What the reader doesn't know is an error.
"""

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache

from marin_core.plan.groups import Crossing, UnknownFormError, group_crossing, pair_crossing

KINDS = (
    "all-reduce",
    "all-gather",
    "reduce-scatter",
    "all-to-all",
    "ragged-all-to-all",
    "collective-permute",
    "collective-broadcast",
)

_TEACH = "Teach marin_core.plan.hlo this form."

_SUSPECT = re.compile(r"all-|collective|ragged-|reduce-scatter|cross-replica|(?:send|recv)(?:-|$)")
"""Opcodes that move data between devices begin like this; one that isn't known stops the reader."""

_HEADER = re.compile(r"(ENTRY )?%?([\w.\-~]+) (?:\(.*\) -> .* )?\{")
_TUPLE_COMMENT = re.compile(r"/\*.*?\*/")
_CALLED = re.compile(
    r"\b(calls|to_apply|body|condition|branch_computations|true_computation|false_computation|called_computations|select|scatter)="
    r"(\{[^}]*\}|%?[\w.\-~]+)"
)
_TRIP_COUNT = re.compile(r'"?known_trip_count"?:?=?\{"?n"?:"?(\d+)"?\}')
_GROUPS = re.compile(
    r"replica_groups=(mesh\[[^\]]*\](?:, ?device_ids=\([^{]*?\))? ?\{[^}]*\}|\{\{.*?\}\}|\{[^{}]*\}|\[[^\]]*\]<=\[[^\]]*\](?:T\([^)]*\))?)"
)
_PAIRS = re.compile(r"source_target_pairs=(\{\{.*?\}\}|\{\})")
_PROMOTED = re.compile(r"to_apply=%?[\w.\-~]*promoted")
"""A sum of 16-bit numbers that XLA:CPU computes in 32 bits: accelerators send 16."""

_PARTITIONS = re.compile(r"num_partitions=(\d+)")
_OP_NAME = re.compile(r'op_name="([^"]*)"')
_ARRAY = re.compile(r"([a-z]\w*)\[([\d,<=]*)\]")

_BITS = {"pred": 8, "token": 0, "opaque": 0, "s1": 1, "u1": 1, "s2": 2, "u2": 2, "s4": 4, "u4": 4, "bf16": 16, "c64": 64, "c128": 128}
_SIZED = re.compile(r"[suf](\d+)(?:e\w+)?")


@dataclass(frozen=True)
class Collective:
    """One collective instruction of a program; bytes are those of one device and one execution.

    Attributes:
        kind: one of `KINDS`.
        name: of the instruction.
        element_types: of its arrays, like ("f32",).
        operand_bytes, result_bytes: of all operands and all results.
        crossing: mesh axes that it crosses.
        executions: times a step runs it; 1 for each turn of a loop whose trip count isn't known.
        in_loop: whether a loop turns it.
        known_count: False if a loop around it has no known trip count: `executions` is a lower bound.
        conditional: whether a branch decides if it runs: `executions` is an upper bound.
        source: the operation that it was compiled from, for people.
    """

    kind: str
    name: str
    element_types: tuple[str, ...]
    operand_bytes: int
    result_bytes: int
    crossing: Crossing
    executions: int
    in_loop: bool
    known_count: bool
    conditional: bool
    source: str


@dataclass
class _Reached:
    """How often a step runs a computation, and under what: the fields of `Collective` with these names."""

    executions: int = 0
    in_loop: bool = False
    known_count: bool = True
    conditional: bool = False


@dataclass(frozen=True)
class _Call:
    """An edge of the call graph: `times` None is a loop of unknown length."""

    caller: str
    callee: str
    times: int | None = 1
    loop: bool = False
    conditional: bool = False


@dataclass
class _Program:
    computations: list[str] = field(default_factory=list)
    entry: str = ""
    calls: list[_Call] = field(default_factory=list)
    found: list[tuple[str, Collective]] = field(default_factory=list)


def read_collectives(text: str, mesh: Mapping[str, int]) -> tuple[Collective, ...]:
    """All collectives of a program, in the order of its text.

    Args:
        text: `compiled.as_text()`.
        mesh: sizes of the mesh axes by name, the outer first.

    Raises:
        UnknownFormError: a line can't be understood; the error names it.
    """
    program = _scan(text, mesh)
    reached = _reach(program)
    found = []
    for computation, collective in program.found:
        here = reached.get(computation)
        if here is None:
            raise UnknownFormError(
                f"{collective.kind} {collective.name} is in computation {computation}, which nothing that is known calls",
                advice=_TEACH,
            )
        found.append(replace(collective, **vars(here)))
    return tuple(found)


# The text ----------------------------------------------------------------------------------------------------------------


def _scan(text: str, mesh: Mapping[str, int]) -> _Program:
    program = _Program()
    computation = ""
    for number, line in _lines(text):
        try:
            if line.endswith("{") and not line.startswith(" "):
                computation = _begin(line, program)
            elif line.startswith("}"):
                computation = ""
            elif computation and line:
                _read_instruction(line, computation, program, mesh)
            elif line.startswith("HloModule"):
                _check_devices(line, mesh)
        except UnknownFormError as error:
            raise UnknownFormError(f"Line {number}: {error.message}\n  {line.strip()[:300]}", advice=error.advice) from None
    if not program.entry:
        raise UnknownFormError("The text has no ENTRY computation", advice="Give the text of a compiled program.")
    return program


def _check_devices(line: str, mesh: Mapping[str, int]) -> None:
    found, expected = _PARTITIONS.search(line), math.prod(mesh.values())
    if found is not None and int(found[1]) != expected:
        raise UnknownFormError(f"a program for {found[1]} devices, read for {expected}", advice="Read it with its own mesh.")


def _begin(line: str, program: _Program) -> str:
    """Name of the computation that a line begins."""
    header = _HEADER.fullmatch(line)
    if header is None:
        raise UnknownFormError("a computation in an unknown form", advice=_TEACH)
    program.computations.append(header[2])
    if header[1]:
        program.entry = header[2]
    return header[2]


def _lines(text: str) -> Iterator[tuple[int, str]]:
    """Numbered lines, one at a time: a list of all of them would double the memory of a text of many megabytes."""
    start, number = 0, 1
    while start < len(text):
        end = text.find("\n", start)
        end = len(text) if end < 0 else end
        yield number, text[start:end]
        start, number = end + 1, number + 1


def _read_instruction(line: str, computation: str, program: _Program, mesh: Mapping[str, int]) -> None:
    name, equals, right = line.partition(" = ")
    result, opcode, rest = _split(right) if equals else ("", "", "")
    if not opcode:
        raise UnknownFormError("an instruction in an unknown form", advice=_TEACH)
    if _SUSPECT.match(opcode) or "replica_groups=" in rest or "source_target_pairs=" in rest:
        collective = _collective(name.strip().removeprefix("ROOT ").removeprefix("%"), result, opcode, rest, mesh)
        if collective is not None:
            program.found.append((computation, collective))
    # Names have a percent sign, or none of a line's has one; what ends an asynchronous call names again what its start has called.
    if ("=%" in rest or "={%" in rest or "%" not in line) and not opcode.endswith(("-done", "-update")):
        program.calls += _calls(computation, opcode, rest)


def _split(right: str) -> tuple[str, str, str]:
    """Result type, opcode, and what follows it, of the right side of an instruction; three empty texts of anything else."""
    end = _closing(right) if right.startswith("(") else right.find(" ")
    opening = right.find("(", end + 1)
    if end < 0 or opening < 0:
        return "", "", ""
    return right[:end], right[end:opening].strip(), right[opening:]


def _closing(text: str) -> int:
    """Position behind the parenthesis that closes the one at the start; -1 where there is none."""
    depth = 0
    for place in re.finditer(r"[()]", text):
        depth += 1 if place[0] == "(" else -1
        if depth == 0:
            return place.end()
    return -1


def _collective(name: str, result: str, opcode: str, rest: str, mesh: Mapping[str, int]) -> Collective | None:
    """The collective of an instruction; None of one that ends an asynchronous one, or that exchanges with the host."""
    if opcode.endswith("-done") and opcode.removesuffix("-done") in KINDS:
        return None
    if opcode.split("-")[0] in ("send", "recv") and "is_host_transfer=true" in rest:
        return None
    kind = opcode.removesuffix("-start")
    if kind not in KINDS:
        raise UnknownFormError(f"{opcode} is no collective that is known", advice=_TEACH)
    crossing = _read_crossing(kind, rest, mesh)
    types, result_bytes = _array_types(_result_type(kind, result) if opcode.endswith("-start") else result)
    if _PROMOTED.search(rest):
        result_bytes //= 2
    return Collective(
        kind=kind,
        name=name,
        element_types=types,
        operand_bytes=_operand_bytes(kind, result_bytes, crossing.devices),
        result_bytes=result_bytes,
        crossing=crossing,
        executions=0,
        in_loop=False,
        known_count=True,
        conditional=False,
        source=source[1] if (source := _OP_NAME.search(rest)) else "",
    )


def _read_crossing(kind: str, rest: str, mesh: Mapping[str, int]) -> Crossing:
    if kind == "collective-permute":
        pairs = _PAIRS.search(rest)
        if pairs is None:
            raise UnknownFormError("a collective-permute without pairs that can be read", advice=_TEACH)
        return pair_crossing(pairs[1], mesh)
    if kind in ("all-reduce", "all-gather", "reduce-scatter") and "channel_id=" in rest and "use_global_device_ids=true" not in rest:
        raise UnknownFormError("groups of replicas, each with all its partitions", advice=_TEACH)
    groups = _GROUPS.search(rest)
    if groups is not None:
        return group_crossing(groups[1], mesh)
    if "replica_groups=" in rest:
        raise UnknownFormError("replica groups in an unknown form", advice="Teach marin_core.plan.groups this form.")
    return group_crossing("{}", mesh)  # no groups: all devices


def _result_type(kind: str, result: str) -> str:
    """What a `-start` brings: mostly a tuple of operands, results and contexts; an all-reduce-start may have the results' type alone."""
    if kind == "all-reduce" and not result.startswith("(("):
        return result
    parts = _tuple_parts(result)
    if len(parts) < 2:
        raise UnknownFormError(f"{kind}-start of type {result[:100]!r}", advice=_TEACH)
    return parts[1]


def _tuple_parts(text: str) -> list[str]:
    """Elements of a tuple type `(f32[8], (f32[4], f32[4]), u32[])`; [] of another type."""
    if not text.startswith("("):
        return []
    parts, depth, start = [], 0, 1
    for place in re.finditer(r"[()\[\]{},]", text):
        if place[0] in "([{":
            depth += 1
        elif place[0] in ")]}":
            depth -= 1
        if (place[0] == "," and depth == 1) or depth == 0:
            parts.append(text[start : place.start()].strip())
            start = place.end()
        if depth == 0:
            break
    return parts


@lru_cache(maxsize=4096)
def _array_types(text: str) -> tuple[tuple[str, ...], int]:
    """Element types and bytes of a type; of tuples, of all their arrays."""
    bits = 0
    types: dict[str, None] = {}
    for name, shape in _ARRAY.findall(_TUPLE_COMMENT.sub("", text)):
        sized = _SIZED.fullmatch(name)
        if name not in _BITS and sized is None:
            raise UnknownFormError(f"element type {name!r}", advice=_TEACH)
        count = 1
        for size in shape.replace("<=", "").split(","):
            count *= int(size) if size else 1
        bits += count * (_BITS[name] if sized is None else int(sized[1]))
        types[name] = None
    return tuple(types), -(-bits // 8)


def _operand_bytes(kind: str, result_bytes: int, group: int) -> int:
    """Bytes that go in, from those that come out: operands are printed without their types."""
    if kind == "all-gather":
        return result_bytes // group
    return result_bytes * group if kind == "reduce-scatter" else result_bytes


# The call graph ----------------------------------------------------------------------------------------------------------


def _calls(caller: str, opcode: str, rest: str) -> Iterator[_Call]:
    for attribute, names in _CALLED.findall(rest):
        for name in names.strip("{}").split(","):
            callee = name.strip().removeprefix("%")
            if not callee:
                continue
            if attribute in ("body", "condition") and opcode == "while":
                trips = _TRIP_COUNT.search(rest)
                times = None if trips is None else int(trips[1]) + (attribute == "condition")
                yield _Call(caller, callee, times, loop=True)
            else:
                branch = attribute in ("branch_computations", "true_computation", "false_computation")
                yield _Call(caller, callee, conditional=branch)


def _reach(program: _Program) -> dict[str, _Reached]:
    """How often each computation runs; a program's text has whatever is called before what calls it."""
    known = set(program.computations)
    by_caller: dict[str, list[_Call]] = {}
    for call in program.calls:
        if call.callee in known:  # attributes such as `select=` have other values too
            by_caller.setdefault(call.caller, []).append(call)
    reached = {program.entry: _Reached(executions=1)}
    place = {name: index for index, name in enumerate(program.computations)}
    for caller in reversed(program.computations):
        here = reached.get(caller)
        if here is None:
            continue
        for call in by_caller.get(caller, ()):
            if place[call.callee] >= place[caller]:
                raise UnknownFormError(
                    f"{caller} calls {call.callee}, which comes after it", advice="Give the text as XLA prints it: callees first."
                )
            there = reached.setdefault(call.callee, _Reached())
            there.executions += here.executions * (1 if call.times is None else call.times)
            there.in_loop |= here.in_loop or call.loop
            there.known_count &= here.known_count and call.times is not None
            there.conditional |= here.conditional or call.conditional
    return reached
