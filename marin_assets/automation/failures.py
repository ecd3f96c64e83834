"""Failure records: what failed, why, and what to do about it, each in a file of its own that is written once. Needs no Dagster.

They lie at `.failures/NAME/VERSION[/PARTITION]/ATTEMPT.json` below the store's prefix, so that they outlive Dagster's event log and can be
read without it. An attempt that stalled has `ATTEMPT.stalled.json`, and later, when somebody has closed it, its end as well.
"""

from collections.abc import Iterable
from datetime import datetime
from typing import Literal

from pydantic import BaseModel, ConfigDict

from marin_assets.builder import ADVICE
from marin_core.artifact import ArtifactId, Attempt, Store
from marin_core.artifact.canonical import canonical_json
from marin_core.artifact.record import FailureClass
from marin_core.redaction import redact

FOLDER = ".failures"
ADVICE_MARK = "\n  What to do: "
"""Between message and advice in the text of a `MarinError`."""

STALLED_ADVICE = "See whether its machine still lives, then materialize again: the attempt is taken over, and goes on from what is durable."


class FailureRecord(BaseModel):
    """One attempt that failed, or stalled.

    Attributes:
        artifact: `name@version[/partition]`.
        failure: class of its exit code; "stalled" if it is open and gives no sign of life.
        host: machine that it was started on.
        log: address of its log, on that machine if it has no scheme.
        at: when the attempt ended, or when it was found to be stalled.
    """

    model_config = ConfigDict(frozen=True, extra="ignore")

    schema_version: Literal[1] = 1
    artifact: str
    attempt: int
    failure: FailureClass | Literal["stalled"]
    exit_code: int | None = None
    message: str
    advice: str
    host: str = ""
    log: str | None = None
    dagster_run_id: str | None = None
    at: str


def failure_path(artifact: ArtifactId, attempt: int, *, stalled: bool = False) -> str:
    """Where a failure record lies, relative to the store's prefix."""
    return f"{FOLDER}/{artifact.path}/{attempt:05d}{'.stalled' if stalled else ''}.json"


def failure_of(artifact: ArtifactId, attempt: Attempt) -> FailureRecord | None:
    """What an attempt's end says; None if it is open or succeeded. Nothing else enters, so that writing it twice makes no difference."""
    end = attempt.end
    if end is None or end.state == "succeeded":
        return None
    failure = end.failure or "infrastructure"
    message, _, advice = (end.error or end.state).partition(ADVICE_MARK)
    return FailureRecord(
        artifact=str(artifact),
        attempt=attempt.number,
        failure=failure,
        exit_code=end.exit_code,
        message=message,
        advice=advice or ADVICE[failure],
        host=attempt.claim.host,
        log=end.log,
        dagster_run_id=attempt.claim.dagster_run_id,
        at=end.ended_at,
    )


def stall_of(artifact: ArtifactId, attempt: Attempt, silent_seconds: float, now: datetime) -> FailureRecord:
    """An open attempt that gave no sign of life for so long."""
    return FailureRecord(
        artifact=str(artifact),
        attempt=attempt.number,
        failure="stalled",
        message=f"no sign of life from {attempt.claim.host or 'its builder'} for {silent_seconds:.0f} s, and nobody has taken over",
        advice=STALLED_ADVICE,
        host=attempt.claim.host,
        dagster_run_id=attempt.claim.dagster_run_id,
        at=now.isoformat(),
    )


def write_failure(store: Store, artifact: ArtifactId, failure: FailureRecord) -> bool:
    """Keep a failure record; False if there is one already, which stays."""
    document = redact(canonical_json(failure.model_dump(mode="json")).decode()).encode()
    return store.objects.create(failure_path(artifact, failure.attempt, stalled=failure.failure == "stalled"), document)


def record_failures(store: Store, failed: Iterable[tuple[ArtifactId, int | None]]) -> list[FailureRecord]:
    """Record what became of attempts; those that are new.

    Args:
        failed: artifacts, each with the number of its attempt; None means the newest, if it failed and nothing was committed since.
    """
    new = []
    for artifact, number in failed:
        attempts = [attempt for attempt in store.attempts(artifact) if number in (None, attempt.number)]
        failure = failure_of(artifact, attempts[-1]) if attempts else None
        if failure is not None and write_failure(store, artifact, failure):
            new.append(failure)
    return new
