"""Make a tokenizer of k-mers or single characters."""

from marin_core.data.kmer import make_kmer_tokenizer
from marin_core.experiment.jobs import KmerTokenizerJob
from marin_core.report import Report
from marin_jobs.runtime import JobContext


def run(job: JobContext) -> Report:
    return make_kmer_tokenizer(job.config(KmerTokenizerJob).tokenizer, job.output, job.reporter)
