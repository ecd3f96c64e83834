"""The steps of a run as sequences of its data: how many come before a step, and which steps begin a mixture block."""

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate, pairwise
from math import gcd
from typing import NamedTuple, Protocol

from marin_core.errors import ConfigError


class Stage(Protocol):
    """Batches that are alike, from one step on; `marin_core.train.schedules.BatchStage` is one."""

    @property
    def first_step(self) -> int: ...
    @property
    def global_batch_size(self) -> int: ...
    @property
    def sequence_length(self) -> int: ...


class PlainStage(NamedTuple):
    """A `Stage` without anything else: sequences of a step over all hosts, tokens of a sequence, first step."""

    global_batch_size: int
    sequence_length: int
    first_step: int = 0


class RunSteps:
    """The steps of a run, whose batches may change between stages.

    Attributes:
        firsts: first step of each stage.

    Raises:
        ConfigError: stages that don't begin at 0 and rise, or empty batches.
    """

    def __init__(self, stages: Sequence[Stage]) -> None:
        self.stages = tuple(stages)
        self.firsts = [stage.first_step for stage in stages]
        if not stages or self.firsts[0] != 0 or any(a >= b for a, b in pairwise(self.firsts)):
            raise ConfigError(
                f"stages of batches begin at steps {self.firsts}", advice="Begin the first at 0 and each after the one before."
            )
        for stage in stages:
            for name, value in (("global_batch_size", stage.global_batch_size), ("sequence_length", stage.sequence_length)):
                if value < 1:
                    raise ConfigError(f"field {name!r} is {value} from step {stage.first_step} on", advice="Give at least 1.")
        steps = [after - before for before, after in pairwise(self.firsts)]
        self._sequences = list(accumulate((n * s.global_batch_size for n, s in zip(steps, stages, strict=False)), initial=0))
        self._tokens = list(
            accumulate((n * s.global_batch_size * s.sequence_length for n, s in zip(steps, stages, strict=False)), initial=0)
        )

    def stage(self, step: int) -> Stage:
        """What a step is made of."""
        if step < 0:
            raise ConfigError(f"step is {step}", advice="Steps count from 0.")
        return self.stages[self._index(step)]

    def sequences_before(self, step: int) -> int:
        """Sequences of all steps before `step`."""
        index = self._index(step)
        return self._sequences[index] + (step - self.firsts[index]) * self.stages[index].global_batch_size

    def tokens_before(self, step: int) -> int:
        """Tokens of all steps before `step`."""
        index = self._index(step)
        stage = self.stages[index]
        return self._tokens[index] + (step - self.firsts[index]) * stage.global_batch_size * stage.sequence_length

    def steps_within(self, tokens: int) -> int:
        """The most steps that have at most so many tokens."""
        index = bisect_right(self._tokens, tokens) - 1
        stage = self.stages[index]
        return self.firsts[index] + (tokens - self._tokens[index]) // (stage.global_batch_size * stage.sequence_length)

    def lengths(self) -> list[tuple[int, int]]:
        """First step and sequence length of each run of stages that have one length."""
        lengths = [(stage.first_step, stage.sequence_length) for stage in self.stages]
        return [lengths[0], *(after for before, after in pairwise(lengths) if after[1] != before[1])]

    def block_start(self, block_sequences: int, step: int) -> int | None:
        """The latest step that begins a mixture block of M sequences, is at most `step` and not 0; else the earliest after it.

        With one batch size B this is max(m, ⌊step/m⌋·m), m = M/gcd(M, B) (`spec/training.md` §5.2). None if no step begins a block.
        """
        found: int | None = None
        for index, stage in enumerate(self.stages):
            # F + k·B ≡ 0 (mod M), for the k-th step of a stage with F sequences before it, has a solution where gcd(M, B) divides F.
            common = gcd(stage.global_batch_size, block_sequences)
            before, uneven = divmod(self._sequences[index], common)
            if uneven:
                continue
            stride = block_sequences // common
            first = stage.first_step + -before * pow(stage.global_batch_size // common, -1, stride) % stride
            first = first or stride
            last = step if index + 1 == len(self.stages) else min(step, self.firsts[index + 1] - 1)
            if first <= last:
                found = first + (last - first) // stride * stride
            elif found is None and (index + 1 == len(self.stages) or first < self.firsts[index + 1]):
                return first
        return found

    def _index(self, step: int) -> int:
        return bisect_right(self.firsts, step) - 1
