"""Mix token caches as a commit of a published mix weighs them."""

from dataclasses import replace

from marin_core.data.mixture import make_mixture
from marin_core.experiment.jobs import PublishedMixtureJob
from marin_core.mix.pinned import as_published, phases_of
from marin_core.mix.read import read_mix
from marin_core.report import Report
from marin_jobs.runtime import JobContext


def run(job: JobContext) -> Report:
    config = job.config(PublishedMixtureJob)
    commit = read_mix(config.mixture.mix, config.mixture.commit)
    job.reporter.log(f"commit {commit.seq} of {commit.hour}: {commit.message}")
    parts = job.local_parts(config.components)
    report = make_mixture(config.mixture.weighed(phases_of(commit)), parts, job.output, job.reporter)
    keys = {name: [job.record(address).partition or "" for address in addresses] for name, addresses in config.components.items()}
    check = as_published(commit, {name: dict(zip(keys[name], folders, strict=True)) for name, folders in parts.items()})
    return replace(report, checks=[*report.checks, check], metrics={**report.metrics, "commit": commit.id, "commit_hour": commit.hour})
