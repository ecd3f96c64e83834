"""How a job sends what is seen of it: pictures seldom and bounded, one message at a time, and a record of its alerts."""

import io
import json
import logging
import math
import threading
import time
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from marin_assets.metadata import check_results, materialization_metadata
from marin_core.artifact.step import CheckDeclaration
from marin_core.report import Check, Report
from marin_core.train.health.config import HealthConfig
from marin_core.train.health.history import RunHistory
from marin_core.train.health.monitor import Health, read_alerts
from marin_jobs.reporting import JobReporter
from marin_jobs.train import with_alerts
from tests.assets.fabricated import Fabricated, step


class Pipes(logging.Handler):
    """Dagster Pipes as far as a reporter uses it."""

    def __init__(self) -> None:
        super().__init__()
        self.log = logging.Logger("pipes")
        self.log.addHandler(self)
        self.busy = threading.Lock()
        self.sent: list[Any] = []
        self.mixed = 0

    def report_custom_message(self, payload: Any) -> None:
        if not self.busy.acquire(blocking=False):
            self.mixed += 1
            return
        time.sleep(0.001)  # room for another thread, if one may come in
        self.sent.append(payload)
        self.busy.release()

    def emit(self, record: logging.LogRecord) -> None:
        self.report_custom_message((record.levelname, record.getMessage()))


class Job:
    """A reporter whose time a test sets, and what it says."""

    def __init__(self) -> None:
        self.now = 0.0
        self.pipes = Pipes()
        self.log = io.StringIO()
        self.reporter = JobReporter(self.pipes, threading.Event(), self.log, lambda: self.now)  # type: ignore[arg-type]

    @property
    def pictures(self) -> list[Mapping[str, str]]:
        return [each["pictures"] for each in self.pipes.sent if isinstance(each, dict) and each["kind"] == "plots"]


def files(folder: Path, **sizes: int) -> dict[str, Path]:
    for name, size in sizes.items():
        (folder / name).write_bytes(b"p" * size)
    return {name: folder / name for name in sizes}


def test_three_months_of_pictures_fit_into_an_event_log(tmp_path: Path) -> None:
    """At first every minute, never older than a twentieth of the run (and a minute) or an hour."""
    job, loss = Job(), files(tmp_path, loss=1)
    times: list[float] = []
    for minute in range(90 * 24 * 60):
        job.now = 60.0 * minute
        sent = len(job.pipes.sent)
        job.reporter.plots(loss, minute)
        times += [job.now] * (len(job.pipes.sent) - sent)
    assert times[:20] == [60.0 * minute for minute in range(20)]
    for before, after in pairwise(times):
        assert 60 <= after - before <= min(max(60, before / 20), 3600) + 60
    assert len(times) < 2_500
    assert after - before >= 3600


def test_pictures_are_sent_within_bounds_and_the_log_names_the_others(tmp_path: Path) -> None:
    job = Job()
    given = files(tmp_path, large=100_001, a=100_000, b=99_000, c=99_000, d=99_000, e=1_000) | {"gone": tmp_path / "gone"}
    job.reporter.plots(given, 1)
    (sent,) = job.pictures
    assert list(sent) == ["a", "b", "c", "e"]
    assert sum(len(text) for text in sent.values()) < 400_100
    assert len(json.dumps(job.pipes.sent[0])) < 400_500
    assert job.log.getvalue() == "not shown, as they are too large or can't be read: large, d, gone\n"


def test_threads_send_one_message_at_a_time(tmp_path: Path) -> None:
    """Alerts come from the thread that looks after the run's health, in the middle of what the loop says."""
    job = Job()
    start = threading.Barrier(4)
    alert = {"name": "loss_jump", "route": "page", "message": "loss is nan", "action": "look"}

    def talk() -> None:
        start.wait()
        for number in range(10):
            job.reporter.log(f"line {number}")
            job.reporter.metrics({"loss": 1.0}, number)
            job.reporter.alert(alert, raised=True)
            job.reporter.progress(10, 10, "steps")

    threads = [threading.Thread(target=talk) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert job.pipes.mixed == 0
    assert len(job.pipes.sent) == 4 * 10 * 5
    lines = {"alert: loss_jump (page): loss is nan; look", "10/10 steps", *(f"line {number}" for number in range(10))}
    assert set(job.log.getvalue().splitlines()) == lines


def test_only_what_wakes_somebody_is_a_warning() -> None:
    job = Job()
    for route, raised in (("page", True), ("announce", True), ("page", False)):
        job.reporter.alert({"name": "rule", "route": route, "message": "seen", "action": "look"}, raised=raised)
    lines = [each for each in job.pipes.sent if isinstance(each, tuple)]
    assert [level for level, _ in lines] == ["WARNING", "INFO", "INFO"]
    assert job.log.getvalue().splitlines() == [text for _, text in lines]
    assert lines[0][1] == "alert: rule (page): seen; look"
    assert lines[2][1] == "over: rule (page): seen"


@pytest.fixture
def alerts(tmp_path: Path) -> list[dict[str, Any]]:
    """Events of a run that was started again, made a loss that isn't finite, and ended."""
    now = [0.0]
    health = Health(tmp_path / "alerts.jsonl", RunHistory(0.0, None, ()), HealthConfig(), clock=lambda: now[0], wall=lambda: now[0])
    health.tell(RunHistory.retried)
    health.add({"step": 4, "loss": 3.0})
    health.check()
    now[0] = 60.0
    health.add({"step": 5, "loss": math.nan})
    health.check()
    now[0] = 90.0
    health.finish()
    return read_alerts(tmp_path / "alerts.jsonl")


def test_a_record_lists_alerts_and_a_page_fails_the_check(alerts: list[dict[str, Any]], fabricated: Fabricated) -> None:
    report = with_alerts(Report(metrics={"steps": 6}, checks=[Check("loss_fell", True, "fell")]), alerts)
    assert report.metrics == {"steps": 6, "alerts_raised": 2}
    shown = [{name: row[name] for name in ("rule", "route", "step", "raised", "resolved")} for row in report.tables["alerts"]]
    start = "1970-01-01T00:0"
    assert shown == [
        {"rule": "task_retried", "route": "announce", "step": 4, "raised": f"{start}0:00+00:00", "resolved": f"{start}1:30+00:00"},
        {"rule": "loss_jump", "route": "page", "step": 5, "raised": f"{start}1:00+00:00", "resolved": f"{start}1:30+00:00"},
    ]

    declared = step("checkpoints/ill", checks=(CheckDeclaration("healthy", "well"),))
    healthy = report.checks[-1]
    values = {"name": healthy.name, "passed": healthy.passed, "description": healthy.description, "values": dict(healthy.values)}
    record = fabricated.build(declared, checks=(values,), tables={"alerts": list(report.tables["alerts"])})
    (check,) = (each for each in check_results(declared, record, (), None) if each.check_name == "healthy")
    assert not check.passed
    assert check.severity == dg.AssetCheckSeverity.WARN
    told = {name: value.value for name, value in check.metadata.items()}
    assert (told["alerts"], told["pages"]) == (2, 1)
    assert "not finite" in str(told["loss_jump"])
    table = materialization_metadata(record, fabricated.store, reused=False)["alerts"]
    assert isinstance(table, dg.TableMetadataValue)
    assert len(table.records) == 2


def test_announcements_leave_a_run_healthy(alerts: list[dict[str, Any]]) -> None:
    announced = [event for event in alerts if event["alert"]["route"] == "announce"]
    assert with_alerts(Report(), announced).checks[-1].passed
    assert with_alerts(Report(), []).metrics == {"alerts_raised": 0}


def test_an_alert_that_lasts_has_no_end(alerts: list[dict[str, Any]]) -> None:
    raised = [event for event in alerts if event["event"] == "raised"]
    assert {row["resolved"] for row in with_alerts(Report(), raised).tables["alerts"]} == {""}
