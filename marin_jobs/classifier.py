"""Train a classifier on labelled shards of documents."""

from marin_core.data.classifier import train_classifier
from marin_core.experiment.jobs import ClassifierJob
from marin_core.report import Report
from marin_jobs.runtime import JobContext


def run(job: JobContext) -> Report:
    config = job.config(ClassifierJob)
    labels = {label: [job.local(shard) for shard in shards] for label, shards in config.labels.items()}
    return train_classifier(config.classifier, labels, job.output, job.reporter)
