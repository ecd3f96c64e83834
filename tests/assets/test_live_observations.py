"""What the page of an asset shows while its job works: seldom enough, small enough, and nothing that a job could smuggle in."""

import base64
import io
import logging
import math
import threading
from pathlib import Path
from typing import Any

import dagster as dg
from dagster_pipes import PipesContext, PipesDefaultContextLoader, PipesDefaultMessageWriter, PipesMappingParamsLoader

from marin_assets.build import DagsterEvents
from marin_assets.keys import asset_key
from marin_assets.lab import Lab
from marin_assets.launch import Handle
from marin_assets.live import LiveObservations
from marin_core.artifact import ArtifactId
from marin_jobs.reporting import JobReporter

RUN = ArtifactId("checkpoints/watched", "v1")
ROW = {"loss": 3.5, "load_cv": 0.2, "gradient_norm": 0.4, "throughput/tokens_per_second": 1e4, "throughput/mfu": 0.2, "bias_max": 1.0}
ALERT = {"name": "loss_jump", "route": "page", "message": "loss is nan", "cause": "data", "action": "look", "step": 7, "since": 1.0}


def png(size: int = 200, mark: int = 0) -> bytes:
    """As many bytes that begin as a PNG does."""
    return b"\x89PNG\r\n\x1a\n" + bytes([mark]) * (size - 8)


def plots(step: int, **pictures: bytes) -> dict[str, Any]:
    return {"kind": "plots", "step": step, "pictures": {name: base64.b64encode(each).decode() for name, each in pictures.items()}}


def metrics(step: int, **values: float) -> dict[str, Any]:
    return {"kind": "metrics", "step": step, "values": ROW | values}


class Page:
    """The observations of one build, at times that a test sets."""

    def __init__(self) -> None:
        self.now = 0.0
        self.shown: list[dict[str, Any]] = []
        self.live = LiveObservations(RUN, self._take, clock=lambda: self.now)

    def _take(self, observation: dg.AssetObservation) -> None:
        assert observation.asset_key == asset_key(RUN)
        self.shown.append({name: entry.value for name, entry in observation.metadata.items()})

    def at(self, now: float, *messages: dict[str, Any]) -> list[dict[str, Any]]:
        """What is shown of some messages that arrive at a time."""
        self.now, before = now, len(self.shown)
        for message in messages:
            self.live.receive(message)
        self.live.show()
        return self.shown[before:]


def test_pictures_and_the_newest_numbers_are_one_observation() -> None:
    (shown,) = Page().at(0, metrics(10, loss=9.0), metrics(20), plots(20, loss=png(), expert_load=png(mark=1)))
    markdown = shown.pop("plots")
    assert shown == {"step": 20, "loss": 3.5, "load_cv": 0.2, "gradient_norm": 0.4, "tokens_per_second": 1e4, "mfu": 0.2}
    pictures = markdown.split("\n\n")
    assert [each.partition("(")[0] for each in pictures] == ["![loss]", "![expert_load]"]
    assert base64.b64decode(pictures[1].removesuffix(")").partition("base64,")[2]) == png(mark=1)


def test_numbers_alone_are_shown_once_a_minute_until_there_are_pictures() -> None:
    page = Page()
    assert [second for second in range(121) if page.at(second, metrics(second))] == [0, 60, 120]
    assert "plots" in page.at(122, plots(122, loss=png()))[0]
    assert page.at(300, metrics(300)) == []


def test_pictures_are_shown_at_most_once_a_minute_and_the_newest_win() -> None:
    page = Page()
    assert page.at(0, plots(1, loss=png()))[0]["step"] == 1
    assert page.at(1, plots(2, loss=png())) == []
    assert page.at(59, plots(3, loss=png())) == []
    (later,) = page.at(60)
    assert later["step"] == 3
    assert page.at(1000) == []


def test_whoever_attaches_to_a_job_sees_its_newest_pictures_only() -> None:
    past = [message for step in range(50) for message in (metrics(step), plots(step, loss=png()))]
    (shown,) = Page().at(0, *past)
    assert shown["step"] == 49


def test_only_small_pngs_are_shown_and_names_are_no_markup() -> None:
    evil = plots(1, **{"a](x) <img src=y onerror=z>": png(), "text": b"<svg/>", "large": png(100_001)})
    evil["pictures"]["broken"] = "no base64!"
    (shown,) = Page().at(0, evil)
    name, _, data = shown["plots"].partition("](data:image/png;base64,")
    assert not set(name.removeprefix("![")) & set("[]()<>=")
    assert base64.b64decode(data.removesuffix(")"), validate=True) == png()
    (bounded,) = Page().at(0, plots(1, **{f"p{number}": png(90_000) for number in range(9)}))
    assert len(bounded["plots"]) < 400_000
    (nothing,) = Page().at(0, plots(1, text=b"<svg/>"))
    assert "plots" not in nothing


def test_a_number_that_is_not_finite_is_shown_as_text() -> None:
    """GraphQL's Float has none, and would answer nothing about the whole asset."""
    (shown,) = Page().at(0, metrics(1, loss=math.nan, load_cv=math.inf))
    assert (shown["loss"], shown["load_cv"]) == ("nan", "inf")


def test_alerts_are_shown_at_once() -> None:
    page = Page()
    page.at(0, metrics(1), plots(1, loss=png()))
    raised, resolved = page.at(1, *({"kind": "alert", "raised": raised, "alert": ALERT} for raised in (True, False)))
    assert raised == {
        "alert": "loss_jump",
        "state": "raised",
        **{name: ALERT[name] for name in ("route", "message", "cause", "action", "step")},
    }
    assert resolved["state"] == "resolved"


def test_news_of_a_real_channel_become_observations_and_log_lines(tmp_path: Path) -> None:
    """From a job's reporter through Dagster Pipes into the event log, with half a message of a full disk in between."""
    picture = tmp_path / "loss.png"
    picture.write_bytes(png())
    folder = tmp_path / "job"
    folder.mkdir()

    @dg.asset(key=asset_key(RUN))
    def watched(context: dg.AssetExecutionContext) -> None:
        events = DagsterEvents(context, Lab(prefix=str(tmp_path)), RUN)
        with events.following(Handle("m-watched", folder)) as following:
            parameters = PipesMappingParamsLoader(following.environment)
            with PipesContext(parameters, PipesDefaultContextLoader(), PipesDefaultMessageWriter()) as pipes:
                reporter = JobReporter(pipes, threading.Event(), io.StringIO())
                reporter.metrics(ROW, 9)
                with (folder / "messages").open("a") as messages:
                    messages.write('{"method": "report_cus\n')
                reporter.plots({"loss": picture}, 10)
                reporter.alert(ALERT, raised=True)
            following.pump()

    with dg.instance_for_test(temp_dir=str(tmp_path)) as instance:
        result = dg.materialize([watched], instance=instance)
        assert result.success
        found = instance.fetch_observations(asset_key(RUN), limit=10).records
        lines = [record.event_log_entry for record in instance.get_records_for_run(result.run_id).records]
    observations = [record.asset_observation for record in found]
    shown, alert = ({name: entry.value for name, entry in each.metadata.items()} for each in observations if each is not None)
    assert (alert["alert"], alert["state"], alert["action"]) == ("loss_jump", "raised", "look")
    assert (shown["step"], shown["loss"]) == (9, 3.5)
    assert str(shown["plots"]).startswith("![loss](data:image/png;base64,")
    warnings = [line.user_message for line in lines if line.level == logging.WARNING]
    assert [line for line in warnings if "loss_jump" in line] == ["alert: loss_jump (page): loss is nan; look"]
