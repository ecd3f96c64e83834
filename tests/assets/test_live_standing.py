"""What a run's log and an asset's page say of a job in a cluster's queue; and a job that the cluster starts anew while it is followed."""

import io
import logging
import queue
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from dagster_pipes import PipesContext, PipesDefaultContextLoader, PipesDefaultMessageWriter, PipesMappingParamsLoader
from rich.console import Console

from marin_assets.build import DagsterEvents
from marin_assets.cli import runs
from marin_assets.keys import asset_key
from marin_assets.lab import Lab
from marin_assets.launch import Handle, Observation, Standing, State
from marin_assets.live import POSITION_INTERVAL_SECONDS, STANDING_INTERVAL_SECONDS, LiveStanding
from marin_core.artifact import ArtifactId
from marin_jobs.reporting import JobReporter

RUN = ArtifactId("checkpoints/run", "v1")
QUEUED = Standing("queued", position=3, pods_total=16, since=1_800_000_000.0)


class Page:
    """A log and a page that keep what they are given, at the time that a test sets."""

    def __init__(self) -> None:
        self.now = 0.0
        self.lines: list[str] = []
        self.shown: list[dict[str, object]] = []
        self.standing = LiveStanding(RUN, self.lines.append, self._observe, lambda: self.now)

    def _observe(self, observation: dg.AssetObservation) -> None:
        assert observation.asset_key == asset_key(RUN)
        self.shown.append({name: value.value for name, value in observation.metadata.items()})

    def see(self, now: float, state: State, reason: str, standing: Standing | None) -> None:
        self.now = now
        self.standing.see(Observation(state, reason=reason, standing=standing))


def test_why_a_job_waits_is_told_once() -> None:
    page = Page()
    for second in range(60):
        page.see(second, State.PENDING, "waits for 48 more nvidia.com/gpu in gb200", QUEUED)
    assert page.lines == ["queued, place 3: waits for 48 more nvidia.com/gpu in gb200"]
    assert page.shown == [
        {
            "phase": "queued",
            "why": "waits for 48 more nvidia.com/gpu in gb200",
            "queue_position": 3,
            "pods": "0/16",
            "since": 1_800_000_000.0,
        }
    ]


def test_a_reason_that_flutters_is_told_at_most_so_often() -> None:
    page = Page()
    for second in range(100):
        page.see(second, State.PENDING, f"reason {'x' * second}", Standing("queued"))
    assert len(page.lines) == -(-100 // int(STANDING_INTERVAL_SECONDS))


def test_the_place_in_the_queue_makes_no_log_lines() -> None:
    page = Page()
    for second in range(1000):
        standing = Standing("queued", position=2000 - second)
        page.see(second, State.PENDING, f"number {2000 - second} in the queue of cq-a", standing)
    assert len(page.lines) == 1
    assert len(page.shown) == -(-1000 // int(POSITION_INTERVAL_SECONDS))


def test_an_outage_and_restarts_are_told(tmp_path: Path) -> None:
    page = Page()
    page.see(0, State.RUNNING, "", Standing("running", pods_ready=16, pods_total=16))
    page.see(100, State.RUNNING, "no answer", Standing("running", pods_ready=16, pods_total=16, stale_since=1_800_000_000.0))
    page.see(200, State.PENDING, "after bad luck", Standing("restarting", pods_total=16, infrastructure_restarts=1))
    assert page.lines == ["running", "running: no answer (as last seen; the cluster doesn't answer)", "restarting: after bad luck"]
    assert page.shown[1]["no_answer_since"] == 1_800_000_000.0
    assert (page.shown[2]["restarts_own"], page.shown[2]["restarts_infrastructure"]) == (0, 1)


def test_a_job_on_this_machine_has_nothing_to_tell() -> None:
    page = Page()
    page.see(0, State.RUNNING, "", None)
    page.see(1, State.FAILED, "over", QUEUED)
    assert (page.lines, page.shown) == ([], [])


def test_whoever_waits_at_a_terminal_is_told_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    messages: queue.Queue[Mapping[str, Any] | None] = queue.Queue()
    monkeypatch.setattr(Lab, "listener", messages.put)
    (tmp_path / "job").mkdir()

    @dg.asset(key=asset_key(RUN))
    def watched(context: dg.AssetExecutionContext) -> None:
        with DagsterEvents(context, Lab(prefix=str(tmp_path)), RUN).following(Handle("m-watched", tmp_path / "job")) as following:
            for _ in range(5):
                following.see(Observation(State.PENDING, reason="waits for 48 more [gb200]", standing=QUEUED))

    with dg.instance_for_test(temp_dir=str(tmp_path)) as instance:
        assert dg.materialize([watched], instance=instance).success
    printed = io.StringIO()
    with runs._progress_lines(messages, Console(file=printed, width=200)):  # type: ignore[arg-type]
        pass
    assert printed.getvalue() == "  checkpoints/run@v1: queued, place 3: waits for 48 more [gb200]\n"


def test_a_job_that_is_started_anew_goes_on_speaking(tmp_path: Path) -> None:
    """Dagster warns of every message after "closed", and a cluster resumes jobs for weeks."""
    (tmp_path / "job").mkdir()

    @dg.asset(key=asset_key(RUN))
    def watched(context: dg.AssetExecutionContext) -> None:
        events = DagsterEvents(context, Lab(prefix=str(tmp_path)), RUN)
        with events.following(Handle("m-watched", tmp_path / "job", "gs://lab/.jobs/m-watched")) as following:
            for number in range(3):
                parameters = PipesMappingParamsLoader(following.environment)
                with PipesContext(parameters, PipesDefaultContextLoader(), PipesDefaultMessageWriter()) as pipes:
                    JobReporter(pipes, threading.Event(), io.StringIO()).log(f"round {number}")
                following.pump()

    with dg.instance_for_test(temp_dir=str(tmp_path)) as instance:
        result = dg.materialize([watched], instance=instance)
        lines = [record.event_log_entry for record in instance.get_records_for_run(result.run_id).records]
    said = [line.user_message for line in lines]
    assert [line for line in said if line.startswith("round")] == ["round 0", "round 1", "round 2"]
    assert "following job m-watched; its folder is gs://lab/.jobs/m-watched" in said
    assert [line.user_message for line in lines if line.level == logging.WARNING] == []
