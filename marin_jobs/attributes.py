"""Measure one shard of documents."""

from marin_core.data.attributes.measure import measure_shard
from marin_core.experiment.jobs import AttributesJob
from marin_core.report import Report
from marin_jobs.runtime import JobContext


def run(job: JobContext) -> Report:
    config = job.config(AttributesJob)
    resources = {name: job.local(address) for name, address in config.resources.items()}
    return measure_shard(config.attributes, job.local(config.documents), resources, job.output, job.reporter)
