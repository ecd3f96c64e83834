"""Turn filtered shards into one part of a token cache."""

import os

# Parallelism is one process a shard; the library's own threads cost more than they bring. Read when it is first imported.
os.environ.setdefault("RAYON_NUM_THREADS", "1")

from marin_core.data.tokenize import tokenize_shard
from marin_core.experiment.jobs import TokenizeJob
from marin_core.report import Report
from marin_jobs.runtime import JobContext


def run(job: JobContext) -> Report:
    config = job.config(TokenizeJob)
    shards = [job.local(shard) for shard in config.shards]
    return tokenize_shard(config.tokenize, shards, job.local(config.tokenizer), job.output, config.part, job.reporter)
