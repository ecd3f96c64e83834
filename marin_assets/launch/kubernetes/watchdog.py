"""Stops what the cluster would restart in vain. The cluster judges by the first process that fails, and restarts some of that at once and
without end (spec/kubernetes.md §1.5); the launcher judges each round by all its processes. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from marin_core.artifact.ending import endings_of_pods, verdict
from marin_core.artifact.job_folder import Outcome
from marin_core.artifact.record import FailureClass, failure_class
from marin_core.errors import ExitCode

UNCOUNTED_RESTARTS = 5
"""Restarts that count towards no budget, without newly committed progress between them, after which a job is stopped."""


@dataclass(frozen=True)
class Round:
    """How the pods of one restart attempt ended, judged together."""

    restart: int
    code: ExitCode
    reason: str

    @property
    def failure(self) -> FailureClass:
        return failure_class(int(self.code))


def rounds(outcomes: Sequence[Outcome], restarts: int, processes: int) -> list[Round]:
    """The rounds that failed, oldest first, as far as their pods have left word.

    Args:
        restarts: attempts that are over: those below this one.
    """
    found = []
    for restart in sorted({outcome.restart for outcome in outcomes if outcome.restart < restarts}):
        endings = [ending for ending in endings_of_pods([each for each in outcomes if each.restart == restart]) if ending.code]
        if endings:
            code, reason = verdict(endings, processes)
            found.append(Round(restart, code, reason or ""))
    return found


@dataclass
class Watchdog:
    """Follows one job's restarts.

    How far a generation of pods reports to be at first is how far what it went on from had been committed: what the one before it did
    beyond that is lost. So a job that always dies between two checkpoints makes no progress, however much it reports.
    """

    _uncounted: int | None = None
    _reached: float = -1.0

    def objection(
        self, ended: Sequence[Round], uncounted: int, most_of_its_own: int, first_done: Mapping[str, float]
    ) -> tuple[FailureClass, int, str] | None:
        """Why the job must not be restarted any more: class, exit code, and a sentence; None if it may.

        Args:
            ended: see `rounds`.
            uncounted: restarts that counted towards no budget. The first number seen is not held against the job.
            most_of_its_own: restarts that the job's own failures may cost.
            first_done: the first progress that each generation reported.
        """
        last = ended[-1] if ended else None
        if last is not None and last.failure in ("config", "data"):
            return last.failure, int(last.code), last.reason
        bugs = [each for each in ended if each.failure == "bug"]
        if len(bugs) > most_of_its_own:
            return "bug", int(bugs[-1].code), bugs[-1].reason
        reached = max(first_done.values(), default=-1.0)
        if self._uncounted is None or reached > self._reached:
            self._uncounted, self._reached = uncounted, reached
        if uncounted - self._uncounted < UNCOUNTED_RESTARTS:
            return None
        why = f"it was restarted {UNCOUNTED_RESTARTS} times and committed no progress between them"
        if last is None or last.failure == "preempted":
            return "infrastructure", int(ExitCode.TRY_AGAIN), why
        return last.failure, int(last.code), f"{why}; the last time, {last.reason}"
