"""Wall-clock and CPU time of a piece of work. On a machine that others use too, the CPU time says more."""

import os
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Timing:
    """What a piece of work took: wall-clock, and CPU time of this process and of the children that it waited for."""

    seconds: float
    cpu_seconds: float

    def per(self, count: int) -> "Timing":
        """The share of one of so many."""
        return Timing(self.seconds / count, self.cpu_seconds / count)


def timed[T](work: Callable[[], T]) -> tuple[T, Timing]:
    """Do the work once; what it returns, and what it took."""
    seconds, cpu_seconds = time.perf_counter(), _cpu_seconds()
    result = work()
    return result, Timing(time.perf_counter() - seconds, _cpu_seconds() - cpu_seconds)


def median(timings: Sequence[Timing]) -> Timing:
    """The medians of both times, each for itself."""
    return Timing(statistics.median(each.seconds for each in timings), statistics.median(each.cpu_seconds for each in timings))


def peak_mebibytes() -> float:
    """The most memory that this process ever held. Not ru_maxrss, in which a child begins with what its parent had."""
    status = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in status if line.startswith("VmHWM")) / 1024


def _cpu_seconds() -> float:
    children = os.times()
    return time.process_time() + children.children_user + children.children_system
