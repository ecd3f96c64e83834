"""The units of a raw source: which files it has, under which terms, and which shard reads which of them."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from marin_core.artifact.canonical import canonical_json
from marin_core.data.files import write_json
from marin_core.errors import ConfigError, DataError

UNITS_FILE = "units.json"
UNITS_SCHEMA = "units/1"


@dataclass(frozen=True)
class Unit:
    """One file of a raw source.

    Attributes:
        path: place below the artifact, `units/<domain>/<name>`.
        size: bytes as stored.
        sha256: lower-case hex digest of those bytes.
        acquired: RFC 3339 time at which the bytes were obtained; None for generated sources.
        license: SPDX name or a description.
        policy: TRAINING_ALLOWED, EVAL_ONLY or BLOCKED.
        documents: number of documents where ingestion knows it.
        domain: the part of the source that it belongs to.
        origin: what the source calls it (percent-encoded); None for generated units.
        etag, generation, revision, crc32c: the state of it at its source, where that tells (see `Fetched`).
    """

    path: str
    size: int
    sha256: str
    acquired: str | None
    license: str
    policy: str
    documents: int | None
    domain: str
    origin: str | None = None
    etag: str | None = None
    generation: str | None = None
    revision: str | None = None
    crc32c: str | None = None

    def document(self) -> dict[str, Any]:
        """As `units.json` has it: states that the source doesn't tell are left out."""
        return {key: value for key, value in asdict(self).items() if value is not None or key not in _STATES}


_STATES = ("etag", "generation", "revision", "crc32c")


@dataclass(frozen=True)
class UnitList:
    """Content of `units.json`: the source's name and its units, sorted by path."""

    name: str
    units: tuple[Unit, ...]

    def write(self, folder: Path) -> None:
        """Write `units.json`, sorted by path."""
        ordered = sorted(self.units, key=lambda unit: unit.path.encode())
        write_json(folder / UNITS_FILE, {"schema": UNITS_SCHEMA, "name": self.name, "units": [unit.document() for unit in ordered]})

    def in_domains(self, domains: Sequence[str]) -> tuple[Unit, ...]:
        """The units of some domains (none given: all), in path order.

        Raises:
            ConfigError: if a domain has no unit.
        """
        known = sorted({unit.domain for unit in self.units})
        for domain in domains:
            if domain not in known:
                raise ConfigError(
                    f"field 'domains' names {domain!r}, which source {self.name!r} doesn't have",
                    advice=f"Choose among {', '.join(known) or 'none'}.",
                )
        return tuple(unit for unit in self.units if not domains or unit.domain in domains)


def read_units(folder: Path) -> UnitList:
    """Read and check `units.json`.

    Raises:
        DataError: if it is missing, broken or of another schema.
    """
    path = folder / UNITS_FILE
    try:
        return parse_units(path.read_bytes(), str(path))
    except OSError as error:
        raise _unreadable(str(path), error) from error


def parse_units(content: bytes, where: str) -> UnitList:
    """The units that the bytes of a `units.json` list.

    Raises:
        DataError: naming where they come from, if they are broken or of another schema.
    """
    try:
        parsed = json.loads(content)
        if parsed["schema"] != UNITS_SCHEMA:
            raise ValueError(f"schema {parsed['schema']!r}, expected {UNITS_SCHEMA!r}")
        names = {field.name for field in fields(Unit)}
        units = tuple(Unit(**{name: unit.get(name) for name in names}) for unit in parsed["units"])
        for unit in units:
            if Path(unit.path).is_absolute() or ".." in Path(unit.path).parts:
                raise ValueError(f"unit path {unit.path!r} leaves the artifact")
        return UnitList(str(parsed["name"]), units)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise _unreadable(where, error) from error


def _unreadable(where: str, error: Exception) -> DataError:
    return DataError(f"{where}: not a readable list of units ({error})", advice="Rebuild the raw source artifact.")


def assign_units(units: Sequence[Unit], shards: int) -> tuple[tuple[Unit, ...], ...]:
    """Cut the units into contiguous runs of about equal size; depends on their order and sizes alone.

    A run is closed once the total so far reaches its share; every shard gets at least one unit.

    Raises:
        ConfigError: if there are fewer units than shards.
    """
    if shards > len(units):
        raise ConfigError(
            f"field 'shards' is {shards}, but the source has only {len(units)} units",
            advice=f"Ask for at most {len(units)} shards, or ingest into smaller units.",
        )
    total = sum(unit.size for unit in units)
    runs: list[tuple[Unit, ...]] = []
    start, seen = 0, 0
    for index, unit in enumerate(units):
        seen += unit.size
        open_shards = shards - len(runs) - 1
        left = len(units) - index - 1
        full = seen * shards >= total * (len(runs) + 1)
        if open_shards and (full or left == open_shards):
            runs.append(tuple(units[start : index + 1]))
            start = index + 1
    runs.append(tuple(units[start:]))
    return tuple(runs)


def shard_names(shards: int) -> tuple[str, ...]:
    """Partition keys `00000`, `00001`, … of a family of shards."""
    return tuple(f"{index:05d}" for index in range(shards))


def shard_index(shard: str, shards: int) -> int:
    """Position of a partition key.

    Raises:
        ConfigError: if the family has no such shard.
    """
    if not shard.isascii() or not shard.isdigit() or len(shard) != 5 or int(shard) >= shards:
        raise ConfigError(f"shard {shard!r} is not one of 00000 … {shards - 1:05d}", advice="Use a partition key of the family.")
    return int(shard)


def units_digest_input(units: Sequence[Unit]) -> bytes:
    """What identifies the input of a shard: the digests of its units, in order."""
    return canonical_json([unit.sha256 for unit in units])
