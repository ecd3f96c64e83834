"""Filter one shard of a raw source."""

from marin_core.artifact.link import work
from marin_core.artifact.record import Record
from marin_core.data.assignment import reads_alike, shard_units
from marin_core.data.filter import filter_shard
from marin_core.data.units import UNITS_FILE, UnitList, parse_units
from marin_core.experiment.jobs import FilterJob
from marin_core.report import Report
from marin_jobs.runtime import JobContext

CUT_FIELDS = ("older", "filter.domains", "filter.shards", "filter.older")
"""Fields of the configuration that say which units a shard reads, and not what becomes of them."""


def run(job: JobContext) -> Report:
    config = job.config(FilterJob)
    return filter_shard(config.filter, job.local(config.raw), config.shard, job.output, job.reporter, _older(job, config))


def is_work_of(job: JobContext, base: Record) -> bool:
    """Whether a shard of the base was made in the same way from the same units, whatever else its source held."""
    config = job.config(FilterJob)
    if work(job.spec.identity, CUT_FIELDS) != work(base.identity, CUT_FIELDS):
        return False
    older = _older(job, config)
    raw = job.record(config.older[-1]).as_input()
    if raw not in base.inputs:  # it was rebuilt since, so its list of units is not what the base read
        return False
    source = _units(job, config.raw)
    cut = config.filter.older[-1]
    before = config.filter.changed(domains=cut.domains, shards=cut.shards, older=config.filter.older[:-1])
    theirs = shard_units(before, older, config.shard)
    return source.name == older[-1].name and reads_alike(shard_units(config.filter, [*older, source], config.shard), theirs)


def _older(job: JobContext, config: FilterJob) -> list[UnitList]:
    return [_units(job, address) for address in config.older]


def _units(job: JobContext, address: str) -> UnitList:
    """Units of a raw source, without downloading the source."""
    return parse_units(job.store.read_payload(job.record(address), UNITS_FILE), f"{address}/{UNITS_FILE}")
