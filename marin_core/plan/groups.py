"""Which devices a collective joins, in every spelling that XLA prints, and which axes of the mesh that crosses."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from math import prod

import numpy as np
import numpy.typing as npt

from marin_core.errors import MarinError

Ids = npt.NDArray[np.int64]

_LISTS = re.compile(r"\{(?:\{\d+(?:,\d+)*\}(?:,\{\d+(?:,\d+)*\})*)?\}")
_FLAT_LIST = re.compile(r"\{\d+(?:,\d+)*\}")
_IOTA = re.compile(r"\[(\d+(?:,\d+)*)\]<=\[(\d+(?:,\d+)*)\](?:T\((\d+(?:,\d+)*)\))?")
_MESH = re.compile(r"mesh\[([^\]]+)\](?:, ?device_ids=\(([^{]*)\))? ?\{([^}]*)\}")
_MESH_AXIS = re.compile(r"'([^']+)'=(\d+)")
_GROUP_AXIS = re.compile(r"'([^']+)'(?::\((\d+)\)(\d+))?")
_DEVICE_IOTA = re.compile(r"\[(\d+(?:,\d+)*)\](?:T\((\d+(?:,\d+)*)\))?")
_PAIR = re.compile(r"\{(\d+),(\d+)\}")
_PAIRS = re.compile(r"\{(?:\{\d+,\d+\}(?:, ?\{\d+,\d+\})*)?\}")


class UnknownFormError(MarinError):
    """A compiled program says something that its reader doesn't know; to guess could hide traffic."""


@dataclass(frozen=True)
class Crossing:
    """How far a collective's traffic goes.

    Attributes:
        axes: mesh axes along which devices that exchange something differ; empty where every device stays alone.
        devices: of the largest group.
        sizes: most places that one group has along each of the mesh's axes, in the mesh's order.
    """

    axes: tuple[str, ...]
    devices: int
    sizes: tuple[int, ...]

    def crosses(self, axis: str) -> bool:
        return axis in self.axes


def group_crossing(text: str, mesh: Mapping[str, int]) -> Crossing:
    """The crossing of `replica_groups=…`.

    Args:
        text: `{{0,1},{2,3}}`, `{}` (all devices), `[2,4]<=[8]`, `[4,2]<=[2,4]T(1,0)` or `mesh['rack'=2,'expert'=4] {'expert'}`.
        mesh: sizes of the axes by name, the outer first; device ids count through it in this order.

    Raises:
        UnknownFormError: it is none of these, or names devices that the mesh doesn't have.
    """
    return _group_crossing(text, tuple(mesh.items()))


def pair_crossing(text: str, mesh: Mapping[str, int]) -> Crossing:
    """The crossing of `source_target_pairs={{0,1},{1,0}}`; each pair is a group of its own.

    Raises:
        UnknownFormError: it has another form, or names devices that the mesh doesn't have.
    """
    return _pair_crossing(text, tuple(mesh.items()))


@lru_cache(maxsize=4096)  # A program of a thousand collectives has a handful of different groups.
def _group_crossing(text: str, mesh: tuple[tuple[str, int], ...]) -> Crossing:
    return _crossing(replica_groups(text, prod(size for _, size in mesh)), mesh)


@lru_cache(maxsize=4096)
def _pair_crossing(text: str, mesh: tuple[tuple[str, int], ...]) -> Crossing:
    if _PAIRS.fullmatch(text) is None:
        raise _unknown("source and target pairs", text)
    return _crossing([np.array([int(source), int(target)]) for source, target in _PAIR.findall(text)], mesh)


def _crossing(groups: Sequence[Ids], mesh: tuple[tuple[str, int], ...]) -> Crossing:
    names, shape = [name for name, _ in mesh], [size for _, size in mesh]
    sizes = np.ones(len(shape), np.int64)
    for group in groups:
        if group.size and (group.min() < 0 or group.max() >= prod(shape)):
            raise UnknownFormError(
                f"A collective joins device {group.max()}, but the mesh has {prod(shape)} devices", advice="Read it with its own mesh."
            )
        places = np.unravel_index(group, shape)
        sizes = np.maximum(sizes, [len(np.unique(place)) for place in places])
    axes = tuple(name for name, size in zip(names, sizes, strict=True) if size > 1)
    return Crossing(axes, max((group.size for group in groups), default=1), tuple(int(size) for size in sizes))


def replica_groups(text: str, devices: int) -> list[Ids]:
    """Device ids of each group.

    Raises:
        UnknownFormError: the text is in none of the known forms.
    """
    if text == "{}":
        return [np.arange(devices)]
    if _FLAT_LIST.fullmatch(text):  # one group without outer braces
        return [np.array(text[1:-1].split(","), np.int64)]
    if _LISTS.fullmatch(text):
        return [np.array(group.split(","), np.int64) for group in text[2:-2].split("},{")]
    if iota := _IOTA.fullmatch(text):
        return list(_iota(text, _numbers(iota[2]), iota[3]).reshape(_shaped(text, _numbers(iota[1]), _numbers(iota[2]))))
    if mesh := _MESH.fullmatch(text):
        return _mesh_groups(text, mesh[1], mesh[2], mesh[3])
    raise _unknown("replica groups", text)


def _mesh_groups(text: str, axes: str, device_ids: str | None, grouped: str) -> list[Ids]:
    """Groups of a mesh whose axes are named, or numbered `axis_0`, …: along the grouped axes, or along parts of them, `'b':(2)4`."""
    sizes = {name: int(size) for name, size in _MESH_AXIS.findall(axes)}
    if ",".join(f"'{name}'={size}" for name, size in sizes.items()) != axes:
        raise _unknown("replica groups", text)
    parts = list(_GROUP_AXIS.finditer(grouped))
    if ",".join(part[0] for part in parts) != grouped or any(part[1] not in sizes for part in parts):
        raise _unknown("replica groups", text)
    # Each axis is split where a part of it begins and ends: (before, part, after).
    shape: list[int] = []
    along: dict[tuple[str, int], int] = {}
    for name, size in sizes.items():
        bounds = sorted({1, size, *(bound for part in parts if part[1] == name and part[2] for bound in _bounds(part))})
        if any(larger % smaller for smaller, larger in pairwise(bounds)):
            raise _unknown("replica groups", text)
        for smaller, larger in pairwise(bounds) if size > 1 else [(1, 1)]:
            along[name, smaller] = len(shape)
            shape.append(larger // smaller)
    chosen: list[int] = []
    for part in parts:
        start, end = _bounds(part) if part[2] else (1, sizes[part[1]])
        chosen += [place for (name, before), place in along.items() if name == part[1] and (start <= before < end or end == 1)]
    rest = [place for place in range(len(shape)) if place not in chosen]
    ids = _device_ids(text, device_ids, prod(sizes.values())).reshape(shape).transpose(rest + chosen)
    return list(ids.reshape(-1, prod(shape[place] for place in chosen)))


def _bounds(part: re.Match[str]) -> tuple[int, int]:
    return int(part[2]), int(part[2]) * int(part[3])


def _device_ids(text: str, listed: str | None, devices: int) -> Ids:
    """Devices in the order of the mesh: counting up, an iota that was transposed, or a list."""
    if listed is None:
        return np.arange(devices)
    if iota := _DEVICE_IOTA.fullmatch(listed):
        return _iota(text, _numbers(iota[1]), iota[2])
    if re.fullmatch(r"\d+(?:,\d+)*", listed) and len(_numbers(listed)) == devices:
        return np.array(_numbers(listed), np.int64)
    raise _unknown("replica groups", text)


def _iota(text: str, shape: list[int], transpose: str | None) -> Ids:
    order = _numbers(transpose) if transpose else list(range(len(shape)))
    if sorted(order) != list(range(len(shape))):
        raise _unknown("replica groups", text)
    return np.arange(prod(shape)).reshape(shape).transpose(order).reshape(-1)


def _shaped(text: str, groups: list[int], source: list[int]) -> tuple[int, int]:
    """Number and size of groups."""
    if len(groups) != 2 or prod(groups) != prod(source):
        raise _unknown("replica groups", text)
    return groups[0], groups[1]


def _numbers(text: str) -> list[int]:
    return [int(number) for number in text.split(",")]


def _unknown(what: str, text: str) -> UnknownFormError:
    return UnknownFormError(f"{what} in an unknown form: {text[:200]!r}", advice="Teach marin_core.plan.groups this form.")
