"""Find text of evaluations in one shard of documents."""

from marin_core.data.decontaminate.contamination import find_contamination
from marin_core.data.decontaminate.index import ContaminationIndex
from marin_core.experiment.jobs import ContaminationJob
from marin_core.report import Report
from marin_jobs.runtime import JobContext


def run(job: JobContext) -> Report:
    config = job.config(ContaminationJob)
    index = ContaminationIndex(job.local(config.index))
    index.refuse_stale({name: job.record(address).content_digest for name, address in config.evals.items()})
    return find_contamination(index, job.local(config.documents), job.output, job.reporter)
