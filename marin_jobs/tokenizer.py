"""Train a tokenizer on filtered shards."""

from marin_core.data.tokenizer import train_tokenizer
from marin_core.experiment.jobs import TokenizerJob
from marin_core.report import Report
from marin_jobs.runtime import JobContext


def run(job: JobContext) -> Report:
    config = job.config(TokenizerJob)
    return train_tokenizer(config.tokenizer, [job.local(shard) for shard in config.shards], job.output, job.reporter)
