"""What is remembered of a run to judge its health: two hours of its rows in bounded memory, and what happened to it."""

import math
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from marin_core.train.health.config import HISTORY_SECONDS
from marin_core.train.metrics import PER_EXPERT, ROUTED_EXPERTS, Row, numbers

RESOLUTION_SECONDS = 5.0
"""Rows of the same five seconds are one sample: an hour is 720 of them, however fast the steps are."""

Verdict = Literal["on_track", "off_track", "refused"]


@dataclass(frozen=True)
class Sample:
    """Rows of five seconds and one data phase.

    Attributes:
        at: seconds, of the first of the rows.
        step: of the newest row.
        count, mean, squares, floor: number, mean, Σ (loss − mean)² and minimum of finite losses, in nats.
        finite: whether all losses were.
        newest: numbers of the newest row.
    """

    at: float
    step: int
    count: int
    mean: float
    squares: float
    floor: float
    finite: bool
    newest: Row

    @classmethod
    def of(cls, row: Row, at: float) -> "Sample":
        loss = float(row["loss"])
        if math.isfinite(loss):
            return cls(at, row["step"], 1, loss, 0.0, loss, True, numbers(row))
        return cls(at, row["step"], 0, 0.0, 0.0, math.inf, False, numbers(row))

    def followed_by(self, other: "Sample") -> "Sample":
        """Both as one; moments by Chan, Golub and LeVeque's update, which doesn't cancel."""
        count, mean, squares = merge_moments((self, other))
        floor, finite = min(self.floor, other.floor), self.finite and other.finite
        return replace(other, at=self.at, count=count, mean=mean, squares=squares, floor=floor, finite=finite)

    def number(self, name: str) -> float | None:
        """A finite number of the newest row; None where it has none."""
        value = self.newest.get(name)
        return float(value) if value is not None and math.isfinite(value) else None


def merge_moments(samples: Sequence[Sample]) -> tuple[int, float, float]:
    """Count, mean and sum of squared deviations of all losses of several samples; mean 0 where there is none."""
    count, mean, squares = 0, 0.0, 0.0
    for sample in samples:
        total = count + sample.count
        if total > count:
            apart = sample.mean - mean
            squares += sample.squares + apart * apart * count * sample.count / total
            mean += apart * sample.count / total
            count = total
    return count, mean, squares


@dataclass
class RunHistory:
    """One attempt of a run: two hours of samples, and events. All times are seconds of one clock that only goes forwards.

    Attributes:
        started_at: when the attempt began.
        experts: routed experts of a layer; None of a dense model.
        phase_borders: first steps of the data phases behind the first; losses are only compared within a phase.
        first_step_at, last_step_at: when the first and the newest row came.
        last_seen_at: newest sign of life of any kind.
        tasks_running: the scheduler's word; None if nobody asked it.
        scheduler_seen_at: when it last had one; None if nobody asks.
        retried_at: when the newest retry began.
        ended: the run has ended on purpose.
        evaluations: newest scores of the run's evaluation, smaller is better.
        verdict: of the forecast.
        expert_gradients, layer_gradients: gradient norms of single experts [L][E] and of routed experts [L], newest last.
        load: newest wanted assignments [L][E].
        rss_floors: least host memory between checkpoints, in bytes, newest last.
    """

    started_at: float
    experts: int | None = None
    phase_borders: tuple[int, ...] = ()
    samples: deque[Sample] = field(default_factory=deque)
    first_step_at: float | None = None
    last_step_at: float | None = None
    last_seen_at: float | None = None
    tasks_running: bool | None = None
    scheduler_seen_at: float | None = None
    retried_at: float | None = None
    ended: bool = False
    evaluations: deque[float] = field(default_factory=lambda: deque(maxlen=3))
    verdict: Verdict | None = None
    expert_gradients: deque[Sequence[Sequence[float]]] = field(default_factory=lambda: deque(maxlen=16))
    layer_gradients: Sequence[float] | None = None
    load: Sequence[Sequence[int]] | None = None
    rss_floors: deque[float] = field(default_factory=lambda: deque(maxlen=16))
    _phase: int = 0
    _old_floor: float = math.inf
    _rss: float = math.inf
    _checkpoints: int = 0

    def add(self, row: Row, at: float) -> None:
        """Take in the row of a step. Bounded work and memory, whatever came before."""
        self.first_step_at = at if self.first_step_at is None else self.first_step_at
        self.last_step_at = self.last_seen_at = at
        phase = sum(row["step"] >= border for border in self.phase_borders)
        if phase != self._phase or not self.samples:
            self._phase, self._old_floor = phase, math.inf
        self._add_sample(Sample.of(row, at))
        self._rss = min(self._rss, row.get("memory/host_rss_bytes", math.inf))
        if "norms" in row:
            self._add_norms(row["norms"])
        self.load = row.get("load", self.load)

    def _add_sample(self, sample: Sample) -> None:
        last = self.samples[-1] if self.samples else None
        together = last is not None and int(last.at / RESOLUTION_SECONDS) == int(sample.at / RESOLUTION_SECONDS)
        if last is not None and together and self._phase_of(last) == self._phase:
            self.samples[-1] = last.followed_by(sample)
        else:
            self.samples.append(sample)
        while self.samples[0].at < sample.at - HISTORY_SECONDS:
            old = self.samples.popleft()
            if self._phase_of(old) == self._phase:
                self._old_floor = min(self._old_floor, old.floor)

    def _add_norms(self, norms: Mapping[str, Sequence[float]]) -> None:
        if PER_EXPERT in norms:
            self.expert_gradients.append(norms[PER_EXPERT])  # type: ignore[arg-type]  # the only one that is [L, E]
        self.layer_gradients = norms.get(ROUTED_EXPERTS, self.layer_gradients)

    def checkpoint_saved(self) -> None:
        """Close an interval of host memory. The first is left out: in it the process still grows to its size."""
        self._checkpoints += 1
        if self._checkpoints > 1 and math.isfinite(self._rss):
            self.rss_floors.append(self._rss)
        self._rss = math.inf

    def evaluated(self, score: float) -> None:
        """Take in the score of an evaluation; smaller is better."""
        self.evaluations.append(score)

    def retried(self, at: float) -> None:
        """This attempt follows one that failed, or its processes were started again."""
        self.retried_at = at

    def scheduler_said(self, at: float, *, running: bool) -> None:
        """Whether the run's tasks are running."""
        self.scheduler_seen_at, self.tasks_running = at, running

    def seen(self, at: float) -> None:
        """Any sign of life that is no step."""
        self.last_seen_at = at

    @property
    def starting(self) -> bool:
        """Whether the attempt has not made a step yet."""
        return self.last_step_at is None

    @property
    def newest(self) -> Sample | None:
        return self.samples[-1] if self.samples else None

    def recent(self, now: float, seconds: float) -> list[Sample]:
        """Samples of the last `seconds`, oldest first."""
        return list(self._between(now - seconds, math.inf))

    def same_phase(self, now: float, oldest_seconds: float, newest_seconds: float) -> list[Sample]:
        """Samples of the newest row's data phase, as old as said."""
        within = self._between(now - oldest_seconds, now - newest_seconds)
        return [sample for sample in within if self._phase_of(sample) == self._phase]

    def lowest_floor(self, now: float, newest_seconds: float) -> float:
        """Smallest loss of this attempt and data phase that is older than said; infinite where there is none."""
        return min([self._old_floor, *(sample.floor for sample in self.same_phase(now, math.inf, newest_seconds))])

    def _between(self, begin: float, end: float) -> Iterator[Sample]:
        """Samples with begin < at ≤ end."""
        return (sample for sample in self.samples if begin < sample.at <= end)

    def _phase_of(self, sample: Sample) -> int:
        return sum(sample.step >= border for border in self.phase_borders)
