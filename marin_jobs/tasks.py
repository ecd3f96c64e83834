"""Make multiple-choice tasks from the held-out documents of filtered shards."""

import json
from collections.abc import Iterator

from marin_core.data.split import documents
from marin_core.evaluate.documents import HeldOutDocument
from marin_core.evaluate.tasks import make_tasks
from marin_core.experiment.jobs import TasksJob
from marin_core.report import Report
from marin_jobs.runtime import JobContext


def run(job: JobContext) -> Report:
    config = job.config(TasksJob)
    return make_tasks(config.tasks, _held_out(job, config), job.output, job.reporter)


def _held_out(job: JobContext, config: TasksJob) -> Iterator[HeldOutDocument]:
    for domain, shards in job.local_parts(config.shards).items():
        for document in documents(shards, "held_out", config.held_out_per_10000):
            title = json.loads(document.metadata).get("title") or ""
            yield HeldOutDocument(document.id, document.text, domain, str(title))
