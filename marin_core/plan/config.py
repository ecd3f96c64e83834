"""What a plan is made of, as values. Imports no JAX."""

from typing import Self

from pydantic import Field, model_validator

from marin_core.config import Config
from marin_core.hardware import FleetConfig
from marin_core.train.config import TrainConfig

FITS_MEMORY = "fits_memory"
EXPERTS_STAY = "no_expert_collective_crosses_racks"
ONLY_SUMS = "only_gradients_and_statistics_cross_racks"
CHECKS = {
    FITS_MEMORY: "What a step keeps on a device at once fits its memory.",
    EXPERTS_STAY: "No all-to-all, permutation or broadcast leaves its rack.",
    ONLY_SUMS: "Nothing crosses racks but sums of gradients and of statistics.",
}
"""Names of a plan's checks, and what they claim."""


class PlanConfig(Config):
    """A training run on a fleet, to be compiled where the fleet isn't."""

    train: TrainConfig
    fleet: FleetConfig
    total_tokens: int | None = Field(default=None, ge=1, description="Token budget; None = all steps of the run.")

    @property
    def budget_tokens(self) -> int:
        return self.total_tokens or self.train.num_steps * self.train.tokens_per_step

    @model_validator(mode="after")
    def _check(self) -> Self:
        sequences, devices = self.train.global_batch_size, self.fleet.mesh.devices
        if sequences % devices:
            raise ValueError(f"global_batch_size = {sequences} must be a multiple of the {devices} devices of mesh {self.fleet.mesh}")
        moe = self.train.model.moe
        if moe is not None and moe.experts % self.fleet.mesh.devices_per_rack:
            raise ValueError(f"experts = {moe.experts} must be a multiple of the {self.fleet.mesh.devices_per_rack} devices of a rack")
        return self
