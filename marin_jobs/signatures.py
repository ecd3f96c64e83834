"""Make the signatures of one shard of documents."""

from marin_core.data.dedup.signatures import write_signatures
from marin_core.experiment.jobs import SignaturesJob
from marin_core.report import Report
from marin_jobs.runtime import JobContext


def run(job: JobContext) -> Report:
    config = job.config(SignaturesJob)
    return write_signatures(config.find, job.local(config.documents), job.output, job.reporter)
