"""Evaluate one checkpoint of a training run."""

from marin_core.data.tokenizer import load_tokenizer
from marin_core.evaluate.evaluate import evaluate
from marin_core.evaluate.results import Baseline
from marin_core.experiment.jobs import EvaluateJob
from marin_core.report import Report
from marin_core.train.inference import load_model
from marin_jobs.held_out import held_out_documents
from marin_jobs.runtime import JobContext


def run(job: JobContext) -> Report:
    config = job.config(EvaluateJob)
    model = load_model(job.local(config.run), step=int(config.checkpoint.removeprefix("step-")))
    return evaluate(
        config.evaluate,
        model,
        load_tokenizer(job.local(config.tokenizer)),
        held_out_documents(job, config.held_out),
        Baseline.load(job.local(config.baseline)),
        job.local(config.tasks),
        job.output,
        job.reporter,
    )
