"""What changes over a run by its step: learning rates, the size of a batch, the length of its sequences. Imports no JAX.

A learning-rate schedule gives the share of the peak rate at a zero-based step, so that groups with other peaks follow one schedule. Its
arithmetic is written once for NumPy (float64, for people and tables) and for `jax.numpy` (float32, for the step itself).
"""

import math
from itertools import pairwise
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from marin_core.config import Config
from marin_core.errors import ConfigError


class _Warmup(Config):
    """A linear warm-up, which every schedule of a whole run or stage begins with."""

    warmup_steps: int = Field(default=0, ge=0, description="Steps of linear warm-up; the last of them has the peak rate.")
    start_ratio: float = Field(
        default=0.0,
        ge=0,
        le=1,
        description="Rate over the peak from which the warm-up rises; a stage that continues a run starts where that one ended.",
    )
    final_ratio: float = Field(default=0.05, ge=0, le=1, description="Rate of the last step over the peak.")

    def check(self, num_steps: int) -> None:
        """Raise ValueError where a run of so many steps ends within the warm-up."""
        if self.warmup_steps >= num_steps:
            raise ValueError(f"optimizer.schedule.warmup_steps = {self.warmup_steps} must be below num_steps = {num_steps}")

    def _after_warmup(self, step: Any, ratio: Any, xp: Any) -> Any:
        warm = self.start_ratio + (1 - self.start_ratio) * (step + 1) / max(self.warmup_steps, 1)
        return xp.where(step < self.warmup_steps, warm, ratio)

    def _fall(self, share: Any) -> Any:
        """1 where `share` of the fall is left, `final_ratio` where none is."""
        return self.final_ratio + (1 - self.final_ratio) * share


class Wsd(_Warmup):
    """Warm-up, stable, decay: the peak rate, then a straight line down to the last step."""

    name: Literal["wsd"] = "wsd"
    decay_fraction: float = Field(
        default=0.2, gt=0, le=1, description="Share of all steps that the decay takes, at most what the warm-up leaves."
    )

    def ratio(self, step: Any, num_steps: int, xp: Any = None) -> Any:
        """Share of the peak at a zero-based step (or array of steps) of a run of `num_steps`; `xp` is `jax.numpy` for a traced one."""
        xp = xp or _numpy()
        last = num_steps - 1
        decay = max(min(round(self.decay_fraction * num_steps), last - self.warmup_steps), 1)
        return self._after_warmup(step, self._fall(xp.clip((last - step) / decay, 0.0, 1.0)), xp)


class Linear(_Warmup):
    """Warm-up, then a straight line down to the last step: the large run, with 1 % of warm-up and 5 % at the end (marin #8435)."""

    name: Literal["linear"] = "linear"

    def ratio(self, step: Any, num_steps: int, xp: Any = None) -> Any:
        """Share of the peak at a zero-based step (or array of steps) of a run of `num_steps`; `xp` is `jax.numpy` for a traced one."""
        xp = xp or _numpy()
        return self._after_warmup(step, self._fall(_left(step, self.warmup_steps, num_steps, xp)), xp)


class Cosine(_Warmup):
    """Warm-up, then half a cosine down to the last step (arXiv 1608.03983, without restarts)."""

    name: Literal["cosine"] = "cosine"

    def ratio(self, step: Any, num_steps: int, xp: Any = None) -> Any:
        """Share of the peak at a zero-based step (or array of steps) of a run of `num_steps`; `xp` is `jax.numpy` for a traced one."""
        xp = xp or _numpy()
        share = 0.5 * (1 - xp.cos(math.pi * _left(step, self.warmup_steps, num_steps, xp)))
        return self._after_warmup(step, self._fall(share), xp)


class Reslope(Config):
    """A straight line from where a run stands to its new last step: how a shortened run keeps its final rate (marin #8435)."""

    name: Literal["reslope"] = "reslope"
    start_step: int = Field(ge=0, description="Completed updates at which the line begins.")
    start_ratio: float = Field(ge=0, le=1, description="Rate over the peak there; `at` takes it from the schedule that is left.")
    final_ratio: float = Field(default=0.05, ge=0, le=1, description="Rate of the last step over the peak.")

    @classmethod
    def at(cls, step: int, schedule: "Schedule", num_steps: int, final_ratio: float = 0.05) -> Self:
        """Leave `schedule`, made for `num_steps`, at a step, with the rate that it has there."""
        return cls(start_step=step, start_ratio=float(schedule.ratio(float(step), num_steps)), final_ratio=final_ratio)

    def check(self, num_steps: int) -> None:
        """Raise ValueError where the line would have no length."""
        if self.start_step >= num_steps - 1:
            raise ValueError(f"optimizer.schedule.start_step = {self.start_step} must be below the last step, {num_steps - 1}")

    def ratio(self, step: Any, num_steps: int, xp: Any = None) -> Any:
        """Share of the peak at a zero-based step (or array of steps) of a run of `num_steps`; `xp` is `jax.numpy` for a traced one."""
        xp = xp or _numpy()
        left = _left(step, self.start_step, num_steps, xp)
        return self.final_ratio + (self.start_ratio - self.final_ratio) * left


def _numpy() -> Any:
    import numpy  # configuration loads no array library

    return numpy


def _left(step: Any, first: int, num_steps: int, xp: Any) -> Any:
    """Share of the way from the step `first` to the last one that is still ahead."""
    last = num_steps - 1
    return xp.clip((last - step) / max(last - first, 1), 0.0, 1.0)


Schedule = Annotated[Wsd | Linear | Cosine | Reslope, Field(discriminator="name")]


class BatchStage(Config):
    """Batches from one step on."""

    first_step: int = Field(ge=0, description="Completed updates at which it begins.")
    global_batch_size: int = Field(ge=1, description="Sequences a step.")
    sequence_length: int = Field(ge=1, description="Tokens a sequence.")

    @property
    def tokens_per_step(self) -> int:
        return self.global_batch_size * self.sequence_length


class BatchSchedule(Config):
    """Size and sequence length of the batch of every step, constant within a stage. All counts are exact integers."""

    stages: tuple[BatchStage, ...] = Field(min_length=1)

    @classmethod
    def with_context(cls, tokens_per_step: int, sequence_lengths: dict[int, int]) -> Self:
        """Lengthen the context and keep the tokens of a step: {first step: tokens a sequence}.

        Raises:
            ConfigError: a length doesn't divide `tokens_per_step`.
        """
        stages = []
        for first_step, length in sorted(sequence_lengths.items()):
            if length < 1 or tokens_per_step % length:
                raise ConfigError(
                    f"sequence_lengths has {length} from step {first_step} on, which doesn't divide tokens_per_step = {tokens_per_step}",
                    advice="Choose lengths that divide the tokens of a step; powers of two usually do.",
                )
            stages.append(BatchStage(first_step=first_step, global_batch_size=tokens_per_step // length, sequence_length=length))
        return cls(stages=tuple(stages))

    @model_validator(mode="after")
    def _check(self) -> Self:
        firsts = [stage.first_step for stage in self.stages]
        if firsts[0] != 0 or any(a >= b for a, b in pairwise(firsts)):
            raise ValueError(f"stages begin at steps {firsts}; they must begin at 0 and rise")
        return self

    def stage(self, step: int) -> BatchStage:
        """What a zero-based step is made of."""
        return next(stage for stage in reversed(self.stages) if stage.first_step <= step)

    def sequences_before(self, step: int) -> int:
        """Sequences that the steps before a zero-based step have consumed."""
        return sum(steps * stage.global_batch_size for stage, steps in self.steps_before(step))

    def tokens_before(self, step: int) -> int:
        """Tokens that the steps before a zero-based step have consumed."""
        return sum(steps * stage.tokens_per_step for stage, steps in self.steps_before(step))

    def steps_before(self, step: int) -> list[tuple[BatchStage, int]]:
        """How many steps of each stage come before a zero-based step."""
        ends = [*(stage.first_step for stage in self.stages[1:]), max(step, self.stages[-1].first_step)]
        return [(stage, max(min(step, end) - stage.first_step, 0)) for stage, end in zip(self.stages, ends, strict=True)]
