"""Mix token caches."""

from marin_core.data.mixture import make_mixture
from marin_core.experiment.jobs import MixtureJob
from marin_core.report import Report
from marin_jobs.runtime import JobContext


def run(job: JobContext) -> Report:
    config = job.config(MixtureJob)
    return make_mixture(config.mixture, job.local_parts(config.components), job.output, job.reporter)
