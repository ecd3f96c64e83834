"""Adopt data that already lies somewhere: read it once for its manifest and leave it in its place."""

from marin_core.artifact.adopt import adopted_files
from marin_core.artifact.objects import open_objects
from marin_core.experiment.jobs import AdoptJob
from marin_core.report import Adopted, Report
from marin_jobs.runtime import JobContext


def run(job: JobContext) -> Report:
    config = job.config(AdoptJob)
    files = adopted_files(config.at, config.digest, job.reporter)
    url = open_objects(config.at).url  # a plain path would be taken for one relative to the artifact
    return Report(metrics={"files": len(files), "bytes": sum(file.size for file in files)}, adopted=Adopted(url, files))
