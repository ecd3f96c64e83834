"""How the processes of a gang ended, and what became of the gang: one verdict by the gravest cause, on a machine as on a cluster."""

import signal
from collections.abc import Sequence
from dataclasses import dataclass

from marin_core.artifact.job_folder import Outcome
from marin_core.errors import ExitCode

_GRAVITY = (ExitCode.BAD_CONFIG, ExitCode.BAD_DATA, ExitCode.BUG, ExitCode.TRY_AGAIN, ExitCode.PREEMPTED)
"""What must be repaired before what may pass: trying again can't help where one process has bad data (spec/kubernetes.md §1.5)."""

_OWN_SIGNALS = (-signal.SIGTERM, -signal.SIGABRT)
"""Asked to end; and how JAX ends a process whose peers have fallen silent."""


@dataclass(frozen=True)
class Ending:
    """How a process of a gang ended.

    Attributes:
        code: exit code; negative: ended by that signal.
        message: what it left to say; None = nothing.
        peer_lost: it says itself that it only missed another process.
        look: number of the look that found it ended; what one look finds is in no order.
        put_down: the keeper killed it, after the grace.
    """

    process: int
    code: int
    message: str | None
    peer_lost: bool
    look: int
    put_down: bool = False

    @property
    def failure(self) -> ExitCode:
        """Its class: of a process that was killed, infrastructure; of an unknown code, a bug."""
        if self.code == -signal.SIGTERM:  # it hadn't begun
            return ExitCode.PREEMPTED
        if self.code < 0:
            return ExitCode.TRY_AGAIN
        return ExitCode(self.code) if self.code in set(ExitCode) else ExitCode.BUG

    @property
    def reason(self) -> str:
        if self.message is not None:
            return self.message
        if self.put_down:
            return "it didn't end when it was asked to, and was killed"
        if self.code == -signal.SIGTERM:
            return "it was asked to stop before it had begun"
        return f"it was killed by {signal.Signals(-self.code).name}" if self.code < 0 else f"it ended with code {self.code} without a word"

    def line(self, processes: int) -> str:
        """One line for people that says whose end it is."""
        return f"process {self.process} of {processes}: {self.reason}"


def verdict(endings: Sequence[Ending], processes: int | None = None) -> tuple[ExitCode, str | None]:
    """What became of a gang, by the gravest of its causes, and the words of who was the cause.

    When one process is lost, the others fail too: in a collective, for want of an answer, or by our own hand. What only follows is no
    cause. Without any cause of their own the processes lost touch with each other, which is infrastructure.

    Args:
        endings: the lead's success, or at least one failure.
        processes: how many there are; None = as many as endings.
    """
    if any(ending.process == 0 and ending.code == 0 for ending in endings):  # the lead's last act is the commit
        return ExitCode.DONE, None
    failed = [ending for ending in endings if ending.code]
    causes = [ending for ending in failed if not _follows(ending, failed)]
    worst = min(causes or failed, key=lambda ending: (_GRAVITY.index(ending.failure), ending.look))
    code = worst.failure if causes else ExitCode.TRY_AGAIN
    return code, worst.line(processes or len(endings))


def endings_of_pods(outcomes: Sequence[Outcome]) -> list[Ending]:
    """How the processes of the newest round of pods ended, each by its newest word; in no order, as the clocks of two nodes never are.

    A suspended job comes back in the same restart attempt: its pods' last words were that they had saved, which any newer word outweighs.
    """
    newest = max((outcome.restart for outcome in outcomes), default=0)
    last = {each.process: each for each in sorted(outcomes, key=lambda each: each.generation) if each.restart == newest}
    return [Ending(process, each.exit_code, each.message, each.peer_lost, look=1) for process, each in sorted(last.items())]


def _follows(ending: Ending, failed: Sequence[Ending]) -> bool:
    """Whether the end of a process only follows from that of another."""
    if ending.peer_lost or ending.put_down:
        return True
    if ending.failure in (ExitCode.BAD_CONFIG, ExitCode.BAD_DATA):  # nobody says this for want of another process
        return False
    first = min(each.look for each in failed)
    if ending.look > first:
        return ending.code < 0 or ending.failure in (ExitCode.BUG, ExitCode.PREEMPTED)  # the others have been told to stop by then
    killed_too = any(each.look == first and each.code < 0 and each.code not in _OWN_SIGNALS for each in failed)
    return ending.failure == ExitCode.BUG and killed_too
