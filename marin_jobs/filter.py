"""Filter one shard of a raw source."""

from marin_core.data.filter import filter_shard
from marin_core.experiment.jobs import FilterJob
from marin_core.report import Report
from marin_jobs.runtime import JobContext


def run(job: JobContext) -> Report:
    config = job.config(FilterJob)
    return filter_shard(config.filter, job.local(config.raw), config.shard, job.output, job.reporter)
