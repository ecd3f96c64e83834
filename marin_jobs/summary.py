"""Put the metrics of several artifacts side by side."""

from marin_core.evaluate.summary import write_summary
from marin_core.experiment.jobs import SummaryJob
from marin_core.report import Report
from marin_jobs.runtime import JobContext


def run(job: JobContext) -> Report:
    return write_summary(job.inputs.values(), job.config(SummaryJob).metrics, job.output)
