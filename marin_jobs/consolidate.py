"""Decide on one shard of documents by what is known about them."""

from marin_core.data.attributes.files import attribute_file
from marin_core.data.consolidate import consolidate_shard
from marin_core.experiment.jobs import ConsolidateJob
from marin_core.report import Report
from marin_jobs.runtime import JobContext


def run(job: JobContext) -> Report:
    config = job.config(ConsolidateJob)
    attributes = [attribute_file(job.local(each.address, each.below)) for each in config.attributes]
    return consolidate_shard(config.consolidate, job.local(config.documents), attributes, job.output, job.reporter)
