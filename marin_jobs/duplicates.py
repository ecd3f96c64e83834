"""Look for repeated text in all shards of several families."""

from itertools import zip_longest

from marin_core.data.dedup.corpus import Family, ShardFolders
from marin_core.data.dedup.duplicates import find_duplicates
from marin_core.experiment.jobs import DuplicatesFamily, DuplicatesJob
from marin_core.report import Report
from marin_jobs.runtime import JobContext


def run(job: JobContext) -> Report:
    config = job.config(DuplicatesJob)
    families = [_family(job, family) for family in config.families]
    return find_duplicates(config.duplicates, families, job.output, job.reporter)


def _family(job: JobContext, family: DuplicatesFamily) -> Family:
    shards = tuple(
        ShardFolders(documents.rsplit("/", 1)[-1], job.local(documents), None if signatures is None else job.local(signatures))
        for documents, signatures in zip_longest(family.documents, family.signatures)
    )
    return Family(family.component, shards, family.context)
