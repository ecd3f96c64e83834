"""Which artifacts to ask for: decided by what is in the store, and by what became of the runs asked for before. Needs no Dagster.

What is due is asked for until it is there: a run that was lost, preempted or canceled is followed by another, after a pause that is
doubled each time up to a day (marin #1909: evaluations that fell due during a preemption were skipped). Only what a person must mend,
and what a person took back, is left alone.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Protocol

from marin_assets.automation.scan import LOOKED_AT, Turn
from marin_core.artifact import ArtifactGraph, ArtifactId, ArtifactStep, Attempt, Store
from marin_core.artifact.record import FailureClass
from marin_core.errors import DataError

REQUESTS = 25
"""Runs that one tick asks for."""

UNFINISHED = 100
"""Runs asked for that may be under way or queued at once: a thousand shards don't fill the queue in front of what people ask for."""

FIRST_PAUSE = timedelta(minutes=10)
LONGEST_PAUSE = timedelta(days=1)
REASONS_SHOWN = 3

NEEDS_A_PERSON: AbstractSet[FailureClass] = frozenset({"config", "data", "bug"})
"""Exit codes 64, 65 and 70: it would fail again."""


@dataclass(frozen=True)
class Ended:
    """Runs that were asked for, of one artifact that isn't there all the same: how many, and when the newest ended."""

    runs: int
    at: datetime

    @property
    def pause_until(self) -> datetime:
        pause: timedelta = min(FIRST_PAUSE * 2.0 ** min(self.runs - 1, 20), LONGEST_PAUSE)
        return self.at + pause


class Past(Protocol):
    """What became of what was asked for before."""

    def unfinished(self) -> Collection[ArtifactId]:
        """Artifacts of runs asked for that are queued or under way."""

    def ended(self, artifacts: Collection[ArtifactId]) -> Mapping[ArtifactId, Ended]:
        """Those artifacts of which runs asked for have ended."""

    def running(self, runs: Collection[str]) -> Collection[str]:
        """Which of some runs, whoever asked for them, are queued or under way."""


@dataclass(frozen=True)
class Request:
    """One run for one artifact.

    Attributes:
        number: which request it is of this artifact, from 1.
    """

    artifact: ArtifactId
    number: int

    @property
    def key(self) -> str:
        """The same for the same request, so that it is made once however often a tick is evaluated."""
        return f"{self.artifact} {self.number}"


@dataclass
class Waiting:
    """Why artifacts are not asked for: how many for each reason, and one of them."""

    counts: dict[str, int] = field(default_factory=dict)
    examples: dict[str, str] = field(default_factory=dict)

    def add(self, reason: str, example: object) -> None:
        self.counts[reason] = self.counts.get(reason, 0) + 1
        self.examples.setdefault(reason, str(example))

    def __str__(self) -> str:
        shown = sorted(self.counts, key=lambda reason: -self.counts[reason])[:REASONS_SHOWN]
        return "; ".join(f"{self.counts[reason]:,} {reason} ({self.examples[reason]})" for reason in shown)


@dataclass(frozen=True)
class Decision:
    """What one tick decides.

    Attributes:
        requests: in partition order.
        waiting: what isn't there and isn't asked for, of what was looked at.
        cursor: where the next tick begins.
    """

    requests: tuple[Request, ...]
    waiting: Waiting
    cursor: str


def decide(graph: ArtifactGraph, families: Sequence[ArtifactStep], store: Store, past: Past, cursor: str | None, now: datetime) -> Decision:
    """Members of families that are missing, can be built, and aren't being built: at most `REQUESTS`, the rest at the next tick.

    Args:
        cursor: of the decision before; None at the first.
        now: with a time zone.
    """
    waiting = Waiting()
    turn = Turn.of(store, [artifact for step in families for artifact in step.ids()], cursor)
    asked = set(past.unfinished())
    candidates = []
    for artifact in _buildable(graph, store, turn.artifacts, waiting):
        if artifact in asked:
            waiting.add("asked for and not yet built", artifact)
        else:
            candidates.append(artifact)
    room = min(REQUESTS, UNFINISHED - len(asked))
    if candidates and room <= 0:
        waiting.add(f"due, until fewer than {UNFINISHED} of the runs asked for are under way", candidates[0])
        return Decision((), waiting, str(candidates[0]))
    due = _due(store, past, candidates[:LOOKED_AT], now, waiting)
    left = [*(request.artifact for request in due[room:]), *candidates[LOOKED_AT:]]
    return Decision(tuple(due[:room]), waiting, str(left[0]) if left else turn.following)


def _buildable(graph: ArtifactGraph, store: Store, artifacts: Sequence[ArtifactId], waiting: Waiting) -> list[ArtifactId]:
    """Those that aren't there, and whose inputs are."""
    damaged = set()

    def on_damage(artifact: ArtifactId, error: DataError) -> None:
        damaged.add(artifact)
        waiting.add("whose record is damaged", error.message)

    there = store.committed(artifacts, on_damage)
    missing = [artifact for artifact in artifacts if artifact not in there and artifact not in damaged]
    own = {artifact: _own_reads(graph[artifact], artifact) for artifact in missing}
    shared = {step.id: _shared_reads(step) for step in {graph[artifact] for artifact in missing}}
    wanted = {read for reads in (*own.values(), *shared.values()) for read in reads}
    inputs = (there & wanted) | store.committed(wanted.difference(artifacts), on_damage)
    lacking = {family: next((read for read in reads if read not in inputs), None) for family, reads in shared.items()}
    buildable = []
    for artifact in missing:
        absent = lacking[artifact.family] or next((read for read in own[artifact] if read not in inputs), None)
        if absent is None:
            buildable.append(artifact)
        else:
            waiting.add("without an input", f"{artifact} waits for {absent}")
    return buildable


def _own_reads(step: ArtifactStep, artifact: ArtifactId) -> list[ArtifactId]:
    """What a member reads of families that are cut alike."""
    return [read for dep in _needed(step) if dep.partitions == step.partitions for read in step.reads(dep, artifact.partition)]


def _shared_reads(step: ArtifactStep) -> list[ArtifactId]:
    """What every member of a family reads."""
    return [read for dep in _needed(step) if dep.partitions != step.partitions for read in step.reads(dep, None)]


def _needed(step: ArtifactStep) -> list[ArtifactStep]:
    """What must be there first: not a base, without which a member is built as well, and nothing where it is pinned."""
    return [] if step.pin is not None else [dep for dep in step.deps if dep is not step.base]


def _due(store: Store, past: Past, artifacts: Sequence[ArtifactId], now: datetime, waiting: Waiting) -> list[Request]:
    """Requests for those whose history says nothing against one."""
    newest = newest_attempts(store, artifacts, waiting)
    followed = past.running({run for attempt in newest.values() if attempt and not attempt.end and (run := attempt.claim.dagster_run_id)})
    ended = past.ended(artifacts)
    due = []
    for artifact, attempt in newest.items():
        before = ended.get(artifact)
        if attempt is not None and attempt.end is None and attempt.claim.dagster_run_id in followed:
            waiting.add("being built", artifact)
        elif attempt is not None and attempt.end is not None and attempt.end.failure in NEEDS_A_PERSON:
            waiting.add("failed in a way that a person must mend", f"{artifact}, attempt {attempt.number}: {attempt.end.failure}")
        elif attempt is not None and attempt.state == "succeeded" and store.is_withdrawn(artifact, attempt.number):
            waiting.add("built once and taken back", artifact)
        elif before is not None and now < before.pause_until:
            waiting.add("ended without a commit, to be asked for again", f"{artifact} at {before.pause_until:%Y-%m-%d %H:%M} UTC")
        else:
            due.append(Request(artifact, 1 if before is None else before.runs + 1))
    return due


def newest_attempts(store: Store, artifacts: Iterable[ArtifactId], waiting: Waiting) -> dict[ArtifactId, Attempt | None]:
    """The newest attempt of each artifact, None before the first; one whose history is damaged is left out, and waits."""
    artifacts = list(artifacts)
    attempted = store.attempted(artifacts)
    newest: dict[ArtifactId, Attempt | None] = {}
    for artifact in artifacts:
        try:
            newest[artifact] = store.attempts(artifact)[-1] if artifact in attempted else None
        except DataError as error:
            waiting.add("whose history is damaged", error.message)
    return newest
