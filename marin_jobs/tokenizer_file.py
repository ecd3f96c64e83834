"""Adopt a tokenizer that a raw source holds."""

from marin_core.data.tokenizer_file import adopt_tokenizer
from marin_core.experiment.jobs import TokenizerFileJob
from marin_core.report import Report
from marin_jobs.runtime import JobContext


def run(job: JobContext) -> Report:
    config = job.config(TokenizerFileJob)
    return adopt_tokenizer(config.tokenizer, job.local(config.raw), job.output, job.reporter)
