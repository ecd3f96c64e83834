"""Fetch or generate a raw source."""

from marin_core.data.ingest import ingest
from marin_core.data.sources.journal import carry_over_files
from marin_core.experiment.jobs import IngestJob
from marin_core.report import Report
from marin_jobs.runtime import JobContext

carry_over = carry_over_files


def run(job: JobContext) -> Report:
    return ingest(job.config(IngestJob).ingest, job.output, job.reporter)
