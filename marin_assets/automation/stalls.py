"""The watch over attempts: those that are open and give no sign of life, and failures that nobody has recorded. Needs no Dagster.

As for a lease, no two clocks are compared: an attempt is watched from tick to tick, and has stalled once its sign of life stayed the same
for longer than its lease by the watcher's clock, over several looks. A computer that slept has slept for both.
"""

import hashlib
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Self

from pydantic import BaseModel, ConfigDict, ValidationError

from marin_assets.automation.failures import FailureRecord, failure_of, failure_path, stall_of, write_failure
from marin_assets.automation.requests import NEEDS_A_PERSON, Waiting, newest_attempts
from marin_assets.automation.scan import LOOKED_AT, Turn
from marin_core.artifact import ArtifactId, Attempt, Store
from marin_core.errors import DataError

LOOKS = 3
"""At which the sign of life must have been the same, besides the first."""

WATCHED = 200
"""Attempts that are watched at a time; others are found when these have ended."""

BEAT_DIGITS = 16


class _Document(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")


class Watched(_Document):
    """An open attempt: its last sign of life, since when it is known, and how often it was seen again."""

    artifact: str
    number: int
    beat: str
    since: datetime
    looks: int = 0


class Watch(_Document):
    """What is carried from tick to tick.

    Attributes:
        begin: where the next search for open attempts begins.
    """

    begin: str = ""
    watched: tuple[Watched, ...] = ()

    @classmethod
    def of_cursor(cls, cursor: str | None) -> Self:
        """A cursor that isn't readable any more is a new beginning: the watch only takes longer."""
        try:
            return cls.model_validate_json(cursor) if cursor else cls()
        except ValidationError:
            return cls()


def watch(
    store: Store, members: Sequence[ArtifactId], before: Watch, lease_seconds: float, now: datetime
) -> tuple[Watch, list[FailureRecord]]:
    """One look: record what has stalled, and look for further open attempts.

    Args:
        members: every artifact that experiments declare.
        now: with a time zone.

    Returns:
        What to carry to the next look, and the failures that are new.
    """
    watched, new = [], []
    for each in before.watched:
        artifact = ArtifactId.parse(each.artifact)
        attempt = _open_attempt(store, artifact, each.number)
        if attempt is None:
            continue
        seen = _seen(store, artifact, each, now)
        silent_seconds = (now - seen.since).total_seconds()
        if silent_seconds <= lease_seconds or seen.looks < LOOKS:
            watched.append(seen)
        elif write_failure(store, artifact, failure := stall_of(artifact, attempt, silent_seconds, now)):
            new.append(failure)
    begin, newest = _unbuilt(store, members, before.begin)
    new += _record_missed(store, newest)
    known = {(each.artifact, each.number) for each in watched}
    for artifact, attempt in _without_record(
        store, {each: attempt for each, attempt in newest.items() if attempt.end is None}, stalled=True
    ):
        if len(watched) < WATCHED and (str(artifact), attempt.number) not in known:
            watched.append(Watched(artifact=str(artifact), number=attempt.number, beat=_beat(store, artifact, attempt.number), since=now))
    return Watch(begin=begin, watched=tuple(watched)), new


def _seen(store: Store, artifact: ArtifactId, each: Watched, now: datetime) -> Watched:
    beat = _beat(store, artifact, each.number)
    if beat != each.beat:
        return each.model_copy(update={"beat": beat, "since": now, "looks": 0})
    return each.model_copy(update={"looks": each.looks + 1})


def _beat(store: Store, artifact: ArtifactId, number: int) -> str:
    return hashlib.sha256(store.last_beat(artifact, number) or b"").hexdigest()[:BEAT_DIGITS]


def _open_attempt(store: Store, artifact: ArtifactId, number: int) -> Attempt | None:
    """The attempt, if it is still open."""
    try:
        attempts = store.attempts(artifact)
    except DataError:
        return None
    return next((attempt for attempt in attempts if attempt.number == number and attempt.end is None), None)


def _unbuilt(store: Store, members: Sequence[ArtifactId], begin: str) -> tuple[str, dict[ArtifactId, Attempt]]:
    """Where the next search begins, and the newest attempts of artifacts that aren't there."""
    turn = Turn.of(store, members, begin)
    damaged = set()
    there = store.committed(turn.artifacts, lambda artifact, error: damaged.add(artifact))
    attempted = store.attempted(artifact for artifact in turn.artifacts if artifact not in there and artifact not in damaged)
    tried = [artifact for artifact in turn.artifacts if artifact in attempted]
    newest = newest_attempts(store, tried[:LOOKED_AT], Waiting())
    begin = str(tried[LOOKED_AT]) if len(tried) > LOOKED_AT else turn.following
    return begin, {artifact: attempt for artifact, attempt in newest.items() if attempt is not None}


def _record_missed(store: Store, newest: Mapping[ArtifactId, Attempt]) -> list[FailureRecord]:
    """Record failures of runs that Dagster's sensor has not seen; those that a builder may be about to try again are left to it."""
    final = {artifact: attempt for artifact, attempt in newest.items() if attempt.end and attempt.end.failure in NEEDS_A_PERSON}
    failures = [(artifact, failure_of(artifact, attempt)) for artifact, attempt in _without_record(store, final)]
    return [failure for artifact, failure in failures if failure is not None and write_failure(store, artifact, failure)]


def _without_record(store: Store, attempts: Mapping[ArtifactId, Attempt], *, stalled: bool = False) -> list[tuple[ArtifactId, Attempt]]:
    paths = {artifact: failure_path(artifact, attempt.number, stalled=stalled) for artifact, attempt in attempts.items()}
    found = store.objects.read_many(list(paths.values()))
    return [(artifact, attempt) for artifact, attempt in attempts.items() if paths[artifact] not in found]
