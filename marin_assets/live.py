"""What an asset's page shows of a job that still works: observations with its newest numbers, its pictures, its alerts."""

import base64
import binascii
import re
import time
from collections.abc import Callable, Mapping
from typing import Any

import dagster as dg

from marin_assets.keys import asset_key
from marin_assets.launch import Observation, Standing
from marin_assets.metadata import PLOT_LIMIT_BYTES, picture, scalar
from marin_core.artifact import ArtifactId

OBSERVATION_INTERVAL_SECONDS = 60.0
"""Event logs are never purged, so a run of weeks must not write an observation every second."""

PICTURES_LIMIT_BYTES = 400_000
"""Of all pictures of an observation, which is one row of the event log, as Base64."""

STANDING_INTERVAL_SECONDS = 15.0
"""Between two accounts of how a job stands in a cluster, however often that changes; around a preemption it does several times a second."""

POSITION_INTERVAL_SECONDS = 300.0
"""Between two accounts that differ in the place in the queue alone."""

NUMBERS = {
    "loss": "loss",
    "load_cv": "load_cv",
    "drop_fraction": "drop_fraction",
    "gradient_norm": "gradient_norm",
    "throughput/tokens_per_second": "tokens_per_second",
    "throughput/mfu": "mfu",
}
"""Metrics that are shown of a training → under which name; `metrics.jsonl` and W&B have all. Of a job with none of them, all are."""

_NUMBER = re.compile(r"\d+")
_PNG = b"\x89PNG\r\n\x1a\n"


class LiveObservations:
    """Turns a job's messages into observations of its artifact.

    Numbers and pictures are kept until they are due, and only the newest of them: whoever attaches to a job is told its whole past at once.
    A job that sends pictures is observed with each set of them, so that the newest observation, which the page shows, has them;
    until then with numbers alone. Alerts are shown at once.

    Args:
        log_event: takes the observations.
        clock: seconds that only go forwards.
    """

    def __init__(
        self, artifact: ArtifactId, log_event: Callable[[dg.AssetObservation], None], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._artifact = artifact
        self._log_event = log_event
        self._clock = clock
        self._numbers: Mapping[str, Any] | None = None
        self._pictures: Mapping[str, Any] | None = None
        self._numbers_due = self._pictures_due = clock()
        self._has_pictures = False

    def receive(self, message: Mapping[str, Any]) -> None:
        """Take in a message of the kinds `metrics`, `plots` and `alert`; others say nothing here."""
        if message["kind"] == "metrics":
            self._numbers = message
        elif message["kind"] == "plots":
            self._pictures, self._has_pictures = message, True
        elif message["kind"] == "alert":
            self._observe(_alert(message["alert"], raised=message["raised"]))

    def show(self) -> None:
        """Log an observation of what has come since the last one, if it is time."""
        now = self._clock()
        if self._pictures is not None and now >= self._pictures_due:
            self._pictures_due = now + OBSERVATION_INTERVAL_SECONDS
            pictures, self._pictures = self._pictures, None
            self._observe(_numbers(self._numbers or pictures) | _pictures(pictures["pictures"]))
        elif self._numbers is not None and not self._has_pictures and now >= self._numbers_due:
            self._numbers_due = now + OBSERVATION_INTERVAL_SECONDS
            numbers, self._numbers = self._numbers, None
            self._observe(_numbers(numbers))

    def _observe(self, metadata: Mapping[str, dg.MetadataValue]) -> None:
        key = asset_key(self._artifact.family)
        self._log_event(dg.AssetObservation(asset_key=key, partition=self._artifact.partition, metadata=metadata))


class LiveStanding:
    """Tells how a job stands in a cluster, when that changes: why it waits, at which place, with how many pods.

    Args:
        log: takes a line for the run's log.
        log_event: takes the observations.
        clock: seconds that only go forwards.
    """

    def __init__(
        self,
        artifact: ArtifactId,
        log: Callable[[str], None],
        log_event: Callable[[dg.AssetObservation], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._artifact = artifact
        self._log = log
        self._log_event = log_event
        self._clock = clock
        self._told: tuple[object, ...] | None = None
        self._position: int | None = None
        self._told_at = 0.0

    def see(self, seen: Observation) -> None:
        """Take in a look at the job; one on this machine has nothing to tell."""
        standing = seen.standing
        if standing is None or seen.state.final:
            return
        reason = _NUMBER.sub("", seen.reason)  # a place in the queue, or how much more it needs: they change, and say nothing new
        news = (standing.phase, reason, standing.application_restarts, standing.infrastructure_restarts, standing.stale_since)
        interval = STANDING_INTERVAL_SECONDS if news != self._told else POSITION_INTERVAL_SECONDS
        now = self._clock()
        if (news == self._told and standing.position == self._position) or (self._told is not None and now - self._told_at < interval):
            return
        if news != self._told:
            self._log(_line(seen, standing))
        self._told, self._position, self._told_at = news, standing.position, now
        key = asset_key(self._artifact.family)
        self._log_event(dg.AssetObservation(asset_key=key, partition=self._artifact.partition, metadata=_standing(seen, standing)))


def _line(seen: Observation, standing: Standing) -> str:
    place = "" if standing.position is None else f", place {standing.position}"
    why = f": {seen.reason}" if seen.reason else ""
    stale = "" if standing.stale_since is None else " (as last seen; the cluster doesn't answer)"
    return f"{standing.phase}{place}{why}{stale}"


def _standing(seen: Observation, standing: Standing) -> dict[str, dg.MetadataValue]:
    shown: dict[str, Any] = {"phase": standing.phase, "why": seen.reason or None, "queue_position": standing.position}
    if standing.pods_total:
        shown["pods"] = f"{standing.pods_ready}/{standing.pods_total}"
    if standing.application_restarts or standing.infrastructure_restarts:
        shown |= {"restarts_own": standing.application_restarts, "restarts_infrastructure": standing.infrastructure_restarts}
    found = {name: scalar(value) for name, value in shown.items() if value is not None}
    times = {"since": standing.since, "no_answer_since": standing.stale_since}
    return found | {name: dg.MetadataValue.timestamp(at) for name, at in times.items() if at is not None}


def _numbers(message: Mapping[str, Any]) -> dict[str, dg.MetadataValue]:
    values = message.get("values", {})
    names = {name: shown for name, shown in NUMBERS.items() if name in values} or {name: name for name in values}
    return {"step": scalar(message["step"])} | {shown: scalar(values[name]) for name, shown in names.items()}


def _pictures(encoded: Mapping[str, str]) -> dict[str, dg.MetadataValue]:
    """All pictures as one piece of Markdown, which opens at one click. What is no PNG of bounded size is left out: it comes from a job."""
    shown, room = [], PICTURES_LIMIT_BYTES
    for name, text in encoded.items():
        try:
            png = base64.b64decode(text, validate=True)
        except binascii.Error:
            continue
        if png.startswith(_PNG) and len(png) <= PLOT_LIMIT_BYTES and len(text) <= room:
            room -= len(text)
            shown.append(picture(png, name))
    return {"plots": dg.MetadataValue.md("\n\n".join(shown))} if shown else {}


def _alert(alert: Mapping[str, Any], *, raised: bool) -> dict[str, dg.MetadataValue]:
    shown = {name: scalar(alert[name]) for name in ("route", "message", "cause", "action", "step") if name in alert}
    state = {"alert": scalar(alert["name"]), "state": scalar("raised" if raised else "resolved")}
    return state | shown | {name: scalar(value) for name, value in alert.get("values", {}).items() if name not in shown}
