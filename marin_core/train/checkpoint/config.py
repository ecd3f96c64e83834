"""When a run is saved, for how long what it saved is kept, and how long that may take. Imports no JAX."""

from typing import Literal

from pydantic import Field

from marin_core.config import OPERATIONAL, Config

Kind = Literal["permanent", "temporary"]
"""Permanent checkpoints are kept for good; of temporary ones only the newest, to resume from."""


class CheckpointPolicy(Config):
    """Permanent checkpoints by steps, temporary ones by steps or by time.

    The large run saves permanently every 6,000 steps, temporarily every hour, and keeps temporaries 14 days: a fault costs an hour.
    """

    permanent_every_steps: int = Field(ge=1, description="Interval of the checkpoints that are kept; the last step's always is.")
    temporary_every_steps: int | None = Field(
        default=None, ge=1, description="Interval of rolling checkpoints in steps.", json_schema_extra=OPERATIONAL
    )
    temporary_every_seconds: float | None = Field(
        default=3600.0, gt=0, description="Longest time without a checkpoint; None = any.", json_schema_extra=OPERATIONAL
    )
    temporary_days: float = Field(
        default=14.0,
        gt=0,
        description="Age at which a temporary checkpoint is removed when a run starts; the newest checkpoint never is.",
        json_schema_extra=OPERATIONAL,
    )
    deadline_seconds: float = Field(
        default=1200.0, ge=1, description="Longest that a save may take; beyond it the run stops.", json_schema_extra=OPERATIONAL
    )

    def permanent_steps(self, num_steps: int) -> tuple[int, ...]:
        """Steps of a run whose checkpoints are kept: multiples of the interval, and the last. Checkpoint N holds N completed updates."""
        return tuple(sorted({*range(self.permanent_every_steps, num_steps + 1, self.permanent_every_steps), num_steps}))

    def due(self, step: int, num_steps: int, seconds_since_last: float) -> Kind | None:
        """What to save after `step` completed updates, if anything.

        A clock takes part, and clocks differ: with several processes the lead decides and tells the others.

        Args:
            seconds_since_last: since the last save was started, or since the run was; by a monotonic clock.
        """
        if step == num_steps or step % self.permanent_every_steps == 0:
            return "permanent"
        by_steps = self.temporary_every_steps is not None and step % self.temporary_every_steps == 0
        by_time = self.temporary_every_seconds is not None and seconds_since_last >= self.temporary_every_seconds
        return "temporary" if by_steps or by_time else None
