"""Train a model on a mixture; an interrupted run goes on from its newest committed checkpoint."""

from marin_core.data.loader import MixtureLoader
from marin_core.experiment.jobs import TrainJob
from marin_core.report import Check, Report
from marin_core.train.loop import RoutingResult, TrainResult, train
from marin_core.train.run_record import carry_over_run
from marin_jobs.runtime import JobContext

carry_over = carry_over_run
"""A new attempt begins with the checkpoints and metrics of the one before."""


def run(job: JobContext) -> Report:
    config = job.config(TrainJob)
    loader = MixtureLoader(job.local(config.mixture), job.local_parts(config.components), config.train.global_batch_size)
    result = train(
        config.train,
        loader.batch,
        job.output,
        job.reporter,
        fingerprint=job.spec.fingerprint,
        run_name=config.run_name,
        tracker_dir=job.scratch,
    )
    return report_of(result)


def report_of(result: TrainResult) -> Report:
    """The closing report; of a model without experts it says nothing about routing."""
    return Report(
        metrics={
            "steps": result.steps,
            "tokens": result.tokens,
            "loss_start": result.loss_start,
            "loss_end": result.loss_end,
            **_routing_metrics(result.routing),
            "tokens_per_second": result.tokens_per_second,
        },
        tables={"checkpoints": [{"step": step, "content_digest": digest} for step, digest in result.checkpoint_digests.items()]},
        plots=result.plots,
        checks=_checks(result),
        content_digest=result.content_digest,
        links={"wandb": result.tracker_url} if result.tracker_url else {},
    )


def _routing_metrics(routing: RoutingResult | None) -> dict[str, float]:
    if routing is None:
        return {}
    return {
        "load_cv_start": routing.load_cv_start,
        "load_cv_end": routing.load_cv_end,
        "drop_fraction_end": routing.drop_fraction_end,
    }


def _checks(result: TrainResult) -> list[Check]:
    fell = Check(
        "loss_fell",
        result.loss_end < result.loss_start,
        "mean loss of the last ten steps against the first ten",
        {"loss_start": result.loss_start, "loss_end": result.loss_end},
    )
    if result.routing is None:
        return [fell]
    in_use = Check(
        "experts_in_use",
        result.routing.idle_experts_end == 0,
        "every expert of every layer got tokens of the last batch",
        {"idle_experts": result.routing.idle_experts_end},
    )
    return [in_use, fell]
