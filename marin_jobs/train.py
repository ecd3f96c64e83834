"""Train a model on a mixture; an interrupted run goes on from its newest committed checkpoint."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from marin_core.data.loader import MixtureLoader
from marin_core.experiment.jobs import TrainJob
from marin_core.report import Check, Report, Scalar
from marin_core.train.health.monitor import read_alerts
from marin_core.train.loop import RoutingResult, TrainResult, train
from marin_core.train.run_record import carry_over_run
from marin_jobs.provenance import source_commit
from marin_jobs.runtime import JobContext

GANG = True
"""Several processes may train one run together."""

carry_over = carry_over_run
"""A new attempt begins with the checkpoints and metrics of the one before."""

MIRRORED = True
"""In a store that is no file system the output is kept there while it grows, so that an attempt on another machine can begin with it."""

ALERT_ROWS = 500
"""Newest alerts that a record lists; `alerts.jsonl` has all."""


def run(job: JobContext) -> Report:
    config = job.config(TrainJob)
    loader = MixtureLoader(
        job.local(config.mixture), job.local_parts(config.components), config.train.batches.stages, config.train.num_steps
    )
    result = train(
        config.train,
        loader.batch,
        job.output,
        job.reporter,
        fingerprint=job.spec.fingerprint,
        run_name=config.run_name,
        source_commit=source_commit(),
        mirror=job.mirror,
        tracker_dir=job.scratch,
        phase_borders=tuple(loader.order.first_steps[1:]),
        retried=(job.output / "run.json").exists(),
        earlier_run=None if config.earlier_run is None else job.local(config.earlier_run),
    )
    if result is None:
        return Report()
    report = with_alerts(report_of(result), read_alerts(job.output / "alerts.jsonl"))
    return replace(report, tables={**report.tables, "data": loader.order.composition(config.train.num_steps)})


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


def with_alerts(report: Report, events: Sequence[Mapping[str, Any]]) -> Report:
    """The report of a run with the alerts of all its attempts: events of `alerts.jsonl`, oldest first."""
    rows = _alert_rows(events)
    pages = {str(row["rule"]): str(row["message"]) for row in rows if row["route"] == "page"}
    healthy = Check(
        "healthy",
        not pages,
        "no alert was raised that wakes somebody; messages are the newest of each rule",
        {"alerts": len(rows), "pages": sum(row["route"] == "page" for row in rows), **pages},
    )
    return replace(
        report,
        metrics={**report.metrics, "alerts_raised": len(rows)},
        tables={**report.tables, "alerts": rows[-ALERT_ROWS:]},
        checks=[*report.checks, healthy],
    )


def _alert_rows(events: Sequence[Mapping[str, Any]]) -> list[dict[str, Scalar]]:
    """A row an alert, in the order in which they were raised; `resolved` is empty while one lasts."""
    rows: list[dict[str, Scalar]] = []
    lasting: dict[str, dict[str, Scalar]] = {}
    for event in events:
        alert, at = event["alert"], datetime.fromtimestamp(event["time"], UTC).isoformat(timespec="seconds")
        if event["event"] == "raised":
            about = {"rule": alert["name"], "route": alert["route"], "message": alert["message"], "step": alert["step"]}
            rows.append({**about, "raised": at, "resolved": ""})
            lasting[alert["name"]] = rows[-1]
        elif alert["name"] in lasting:
            lasting.pop(alert["name"])["resolved"] = at
    return rows
