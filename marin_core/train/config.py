"""What a training run is, as values. Imports no JAX."""

from typing import Literal, Self

from pydantic import Field, model_validator

from marin_core.config import OPERATIONAL, Config
from marin_core.model.config import TransformerConfig
from marin_core.train.checkpoint.config import CheckpointPolicy
from marin_core.train.health.config import HealthConfig
from marin_core.train.optimizers.config import AdamW, Optimizer
from marin_core.train.schedules import BatchSchedule, BatchStage

CpuProducts = Literal["eigen", "onednn"]
"""Libraries that multiply matrices on a CPU."""


class TrackerConfig(Config):
    """Weights & Biases. Without WANDB_API_KEY in the environment `auto` writes an offline run beside the checkpoints."""

    project: str = "marin"
    group: str | None = None
    mode: Literal["auto", "offline", "disabled"] = "auto"


class MeshConfig(Config):
    """Devices that train together: racks are data-parallel replicas, experts are spread over the devices of a rack.

    The same run may go on with another mesh: sums are then rounded in another order, and what a capacity drops is decided by other devices.
    """

    racks: int = Field(default=1, ge=1)
    devices_per_rack: int = Field(ge=1)

    @property
    def devices(self) -> int:
        return self.racks * self.devices_per_rack


class StartFrom(Config):
    """The checkpoint of another run that this one begins with: a stage of training after another, or a fork.

    Step, data order and schedules begin anew. The model's features may differ as long as its parameters have the same shapes: a longer
    context, another rotation of positions.
    """

    step: int = Field(ge=1, description="Completed updates of the other run.")
    optimizer: Literal["fresh", "kept"] = Field(
        default="fresh", description="Whether moments and their counts are made anew, or taken over (from an optimizer of the same kind)."
    )


class Fork(Config):
    """The checkpoint of another run that this one goes on from, as if it were that run: a change in mid-run (`spec/training.md` §11).

    Parameters, moments, balancer and step are taken over whole, and with the step the schedules and the order of the data: without a
    change this run would be that one, bit for bit. Metrics before the fork and batches that were left out are taken over too.
    """

    step: int = Field(ge=1, description="Completed updates of the other run; the first step here has this number.")


class RollBack(Config):
    """Go back to the checkpoint before a spike and leave out the batches that led into it."""

    after_skipped_steps: int = Field(default=3, ge=1, description="So many updates in a row that `skip_spikes` left out are a spike.")
    at_most: int = Field(default=3, ge=1, description="Times that a run may go back; after that it stops.")


class TrainConfig(Config):
    """One training run: what is trained, on how much, and how often it is saved."""

    model: TransformerConfig
    optimizer: Optimizer = AdamW()
    num_steps: int = Field(ge=1, description="Optimizer updates.")
    global_batch_size: int = Field(ge=1, description="Sequences a step.")
    sequence_length: int = Field(ge=2, description="Tokens a sequence.")
    batch_schedule: BatchSchedule | None = Field(default=None, description="Batches that change over the run; None = all are alike.")
    micro_batches: int = Field(default=1, ge=1, description="Parts of a step that run one after the other, to save memory.")
    start_from: StartFrom | None = Field(default=None, description="Where the first state comes from; None = the seed.")
    fork: Fork | None = Field(default=None, description="Where another run is left to try a change; None = this run is its own.")
    seed: int = Field(default=0, ge=0, lt=2**32, description="Seeds the parameters.")
    checkpoints: CheckpointPolicy
    roll_back: RollBack | None = Field(default=None, description="What to do about a spike that lasts; None = train on.")
    mesh: MeshConfig | None = Field(default=None, description="Devices; None = one.", json_schema_extra=OPERATIONAL)
    offload_optimizer_state: bool = Field(
        default=False, description="Moments lie in the host's memory between steps.", json_schema_extra=OPERATIONAL
    )
    cpu_products: CpuProducts = Field(
        default="eigen",
        description="Who multiplies matrices on a CPU: Eigen, or oneDNN, with which a mixture's step takes a fifth to a quarter less time,"
        " and which rounds otherwise. Ignored on other hardware. XLA can't keep a program that calls oneDNN, so every start compiles it"
        " anew.",
        json_schema_extra=OPERATIONAL,
    )
    health: HealthConfig = Field(default=HealthConfig(), json_schema_extra=OPERATIONAL)
    log_every_steps: int = Field(default=10, ge=1, description="Interval of reported metrics.", json_schema_extra=OPERATIONAL)
    plot_every_seconds: float = Field(default=60.0, gt=0, description="Interval of new plots.", json_schema_extra=OPERATIONAL)
    prefetch_steps: int = Field(default=4, ge=1, description="Batches that are read ahead.", json_schema_extra=OPERATIONAL)
    gc_every_steps: int = Field(
        default=100,
        ge=1,
        description="Interval of garbage collection, at one step in all processes.",
        json_schema_extra=OPERATIONAL,
    )
    tracker: TrackerConfig = Field(default=TrackerConfig(), json_schema_extra=OPERATIONAL)

    @property
    def checkpoint_steps(self) -> tuple[int, ...]:
        """Steps whose checkpoints are kept: multiples of the interval, and the last one. Checkpoint N holds N completed updates.

        A fork has none of the steps before it, nor its first: those are the other run's.
        """
        first = 0 if self.fork is None else self.fork.step
        return tuple(step for step in self.checkpoints.permanent_steps(self.num_steps) if step > first)

    @property
    def batches(self) -> BatchSchedule:
        """Size and sequence length of every step's batch."""
        whole = BatchStage(first_step=0, global_batch_size=self.global_batch_size, sequence_length=self.sequence_length)
        return self.batch_schedule or BatchSchedule(stages=(whole,))

    @property
    def tokens_per_step(self) -> int:
        """Tokens of the first step."""
        return self.batches.stages[0].tokens_per_step

    @model_validator(mode="after")
    def _check(self) -> Self:
        for stage in self.batches.stages:
            if stage.sequence_length > self.model.max_sequence_length:
                raise ValueError(
                    f"sequence_length = {stage.sequence_length} exceeds model.max_sequence_length = {self.model.max_sequence_length}"
                )
            if stage.global_batch_size % self.micro_batches:
                raise ValueError(
                    f"global_batch_size = {stage.global_batch_size} must be a multiple of micro_batches = {self.micro_batches}"
                )
            if self.mesh is not None and stage.global_batch_size % (self.mesh.devices * self.micro_batches):
                raise ValueError(
                    f"global_batch_size = {stage.global_batch_size} must be a multiple of the mesh's {self.mesh.devices} devices"
                    f" · {self.micro_batches} micro-batches"
                )
        first = self.batches.stages[0]
        if (first.global_batch_size, first.sequence_length) != (self.global_batch_size, self.sequence_length):
            raise ValueError(
                f"batch_schedule begins with {first.global_batch_size} sequences of {first.sequence_length} tokens, the run with"
                f" global_batch_size = {self.global_batch_size} of sequence_length = {self.sequence_length}"
            )
        if self.batches.stages[-1].first_step >= self.num_steps:
            raise ValueError(f"batch_schedule has a stage from step {self.batches.stages[-1].first_step} on, num_steps is {self.num_steps}")
        if self.fork is not None and self.start_from is not None:
            raise ValueError("fork goes on with a run and start_from begins a new one with its model; give one of them")
        if self.fork is not None and self.fork.step >= self.num_steps:
            raise ValueError(f"fork.step = {self.fork.step} must be below num_steps = {self.num_steps}")
        if self.roll_back is not None and len(self.batches.stages) > 1:
            raise ValueError("roll_back leaves out batches, which is only possible where all batches are alike: leave out batch_schedule")
        if self.roll_back is not None and self.optimizer.skip_spikes is None:
            raise ValueError("roll_back needs optimizer.skip_spikes, which tells what a spike is")
        self.optimizer.schedule.check(self.num_steps)
        return self
