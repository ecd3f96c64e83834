"""Index the examples of evaluations."""

from marin_core.data.decontaminate.index import EvalSource, build_index
from marin_core.experiment.jobs import ContaminationIndexJob
from marin_core.report import Report
from marin_jobs.runtime import JobContext


def run(job: JobContext) -> Report:
    config = job.config(ContaminationIndexJob)
    evals = {name: EvalSource(job.local(address), job.record(address).content_digest) for name, address in config.evals.items()}
    return build_index(config.index, evals, job.output, job.reporter)
