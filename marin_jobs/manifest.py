"""List the shards of a family, and put their accounts together."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from marin_core.artifact.record import Record
from marin_core.data.assignment import shards_units
from marin_core.data.manifest import COUNTS_FILE, Shard, parse_counts, write_manifest
from marin_core.data.units import UNITS_FILE, Unit, UnitList, parse_units
from marin_core.experiment.jobs import ManifestJob
from marin_core.report import Report
from marin_jobs.runtime import JobContext

READERS = 16
"""Small files that are read side by side; a bucket takes its time for each."""


def run(job: JobContext) -> Report:
    config = job.config(ManifestJob)
    there = [(key, job.record(f"{config.family}/{key}")) for key in config.shards]
    units = _units(job, config)
    with ThreadPoolExecutor(READERS) as readers:
        shards = list(readers.map(lambda each: _shard(job, config, each[0], each[1], units), there))
    return write_manifest(shards, config.allow_missing_shards, job.output)


def _shard(job: JobContext, config: ManifestJob, key: str, record: Record, units: Sequence[Sequence[Unit]] | None) -> Shard:
    counts = parse_counts(job.store.read_payload(record, COUNTS_FILE), key) if config.counted else None
    return Shard(key, record, counts, None if units is None else units[int(key)])


def _units(job: JobContext, config: ManifestJob) -> tuple[tuple[Unit, ...], ...] | None:
    """Which units each shard was made from; None if the family isn't cut from a raw source."""
    if config.cut is None:
        return None
    return shards_units(config.cut, [_source(job, address) for address in config.sources])


def _source(job: JobContext, address: str) -> UnitList:
    return parse_units(job.store.read_payload(job.record(address), UNITS_FILE), f"{address}/{UNITS_FILE}")
