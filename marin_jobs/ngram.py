"""Fit the n-gram baseline to a mixture's training tokens and score it on the held-out documents."""

import numpy as np

from marin_core.data.cache import TokenCache
from marin_core.evaluate.evaluate import ngram_baseline
from marin_core.experiment.jobs import NgramJob
from marin_core.report import Report
from marin_jobs.held_out import held_out_documents
from marin_jobs.runtime import JobContext


def run(job: JobContext) -> Report:
    config = job.config(NgramJob)
    caches = [TokenCache(parts) for parts in job.local_parts(config.components).values()]
    tokens = np.concatenate([cache.read(0, cache.tokens) for cache in caches])
    info = caches[0].info()
    held_out = held_out_documents(job, config.held_out)
    return ngram_baseline(config.ngram, tokens, info.tokenizer.vocab_size, info.eos_id, held_out, job.output, job.reporter)
