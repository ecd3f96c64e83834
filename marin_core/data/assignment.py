"""Which shard reads which units: a pure function of lists of units, and stable while a source grows (spec: data §5).

A family is first cut into contiguous runs of units of about equal size. Where it continues an older version, every unit that an older
version knew stays in its shard, units that are new fill the new shards, and a unit that is gone leaves its shard and no other. A unit is
known by its path; its content may change, which changes its shard alone.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from marin_core.data.stages import FilterConfig
from marin_core.data.units import Unit, UnitList, assign_units, shard_index
from marin_core.errors import ConfigError


@dataclass(frozen=True)
class Cut:
    """One version of a family.

    Attributes:
        units: what it reads of its source, in path order.
        shards: how many shards it has, those of older versions included.
    """

    units: tuple[Unit, ...]
    shards: int


def assign(versions: Sequence[Cut]) -> tuple[tuple[Unit, ...], ...]:
    """Units of each shard of the newest version, in path order.

    Args:
        versions: the newest version and all that it continues, oldest first.

    Raises:
        ConfigError: there are more new shards than new units, or new units and no new shard.
    """
    places: dict[str, int] = {}
    shards = 0
    for version in versions:
        new = [unit for unit in version.units if unit.path not in places]
        if shards:
            _refuse_misfit(new, shards, version.shards)
        for index, run in enumerate(assign_units(new, version.shards - shards) if version.shards > shards else ()):
            places.update((unit.path, shards + index) for unit in run)
        shards = version.shards
    runs: list[list[Unit]] = [[] for _ in range(shards)]
    for unit in versions[-1].units:
        runs[places[unit.path]].append(unit)
    return tuple(tuple(run) for run in runs)


def shard_units(config: FilterConfig, sources: Sequence[UnitList], shard: str) -> tuple[Unit, ...]:
    """The units that a shard reads.

    Args:
        sources: units of the source of each version, oldest first and the newest last.

    Raises:
        ConfigError: unknown domain or shard, or numbers of shards that don't fit the units.
    """
    index = shard_index(shard, config.shards)
    return shards_units(config, sources)[index]


def shards_units(config: FilterConfig, sources: Sequence[UnitList]) -> tuple[tuple[Unit, ...], ...]:
    """The units of every shard (see `shard_units`)."""
    cuts = [(cut.domains, cut.shards) for cut in config.older] + [(config.domains, config.shards)]
    return assign([Cut(source.in_domains(domains), shards) for source, (domains, shards) in zip(sources, cuts, strict=True)])


def size_when_new(config: FilterConfig, shard: str) -> int:
    """Number of shards of the version that had a shard first: the M of its file name, so that the name stays while the family grows."""
    counts = [*(cut.shards for cut in config.older), config.shards]
    return next(count for count in counts if int(shard) < count)


def reads_alike(units: Sequence[Unit], others: Sequence[Unit]) -> bool:
    """Whether documents of two shards are made from the same: bytes, places and terms; how a source states its units says nothing."""
    return _read(units) == _read(others)


def _read(units: Sequence[Unit]) -> list[tuple[str, str, str | None, str, str, str]]:
    return [(unit.path, unit.sha256, unit.acquired, unit.license, unit.policy, unit.domain) for unit in units]


def _refuse_misfit(new: Sequence[Unit], before: int, after: int) -> None:
    if new and after == before:
        raise ConfigError(
            f"field 'shards' is {after}, as in the base, but there are {len(new)} new units, such as {new[0].path!r}",
            advice=f"Ask for {before + 1} to {before + len(new)} shards; the new ones take the new units.",
        )
    if after - before > len(new):
        raise ConfigError(
            f"field 'shards' is {after}, {after - before} more than in the base, but there are only {len(new)} units that it doesn't have",
            advice=f"Ask for {before + 1} to {before + len(new)} shards." if new else f"Ask for {before} shards, as in the base.",
        )
