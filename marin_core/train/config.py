"""What a training run is, as values. Imports no JAX."""

from typing import Literal, Self

from pydantic import Field, model_validator

from marin_core.config import OPERATIONAL, Config
from marin_core.model.config import TransformerConfig


class OptimizerConfig(Config):
    """AdamW with a warm-up and one of three schedules. Weight decay acts on matrices only: never on gains, convolution taps, embedding."""

    name: Literal["adamw"] = "adamw"
    learning_rate: float = Field(default=3e-3, gt=0, description="Peak learning rate.")
    b1: float = Field(default=0.9, ge=0, lt=1)
    b2: float = Field(default=0.95, ge=0, lt=1)
    eps: float = Field(default=1e-8, gt=0)
    first_moment_dtype: Literal["float32", "bfloat16"] = Field(default="float32", description="Type in which the first moment is kept.")
    weight_decay: float = Field(default=0.1, ge=0, description="Decoupled decay, multiplied by the learning rate.")
    warmup_steps: int = Field(default=20, ge=0, description="Steps of linear warm-up; the last of them has the peak rate.")
    schedule: Literal["wsd", "cosine", "linear"] = Field(default="wsd", description="wsd: constant, then a linear decay.")
    decay_fraction: float = Field(default=0.2, gt=0, le=1, description="Share of all steps that `wsd` decays over.")
    final_ratio: float = Field(default=0.05, ge=0, le=1, description="Learning rate of the last step over the peak.")
    gradient_clip: float | None = Field(default=1.0, gt=0, description="Largest global gradient norm; None = no clipping.")


class TrackerConfig(Config):
    """Weights & Biases. Without WANDB_API_KEY in the environment `auto` writes an offline run beside the checkpoints."""

    project: str = "marin"
    group: str | None = None
    mode: Literal["auto", "offline", "disabled"] = "auto"


class TrainConfig(Config):
    """One training run: what is trained, on how much, and how often it is saved."""

    model: TransformerConfig
    optimizer: OptimizerConfig = OptimizerConfig()
    num_steps: int = Field(ge=1, description="Optimizer updates.")
    global_batch_size: int = Field(ge=1, description="Sequences a step.")
    sequence_length: int = Field(ge=2, description="Tokens a sequence.")
    micro_batches: int = Field(default=1, ge=1, description="Parts of a step that run one after the other, to save memory.")
    seed: int = Field(default=0, ge=0, lt=2**32, description="Seeds the parameters.")
    checkpoint_every_steps: int = Field(ge=1, description="Interval of the checkpoints that are kept.")
    temporary_checkpoint_every_steps: int | None = Field(
        default=None, ge=1, description="Interval of rolling checkpoints, of which one is kept for resuming.", json_schema_extra=OPERATIONAL
    )
    log_every_steps: int = Field(default=10, ge=1, description="Interval of reported metrics.", json_schema_extra=OPERATIONAL)
    tracker: TrackerConfig = Field(default=TrackerConfig(), json_schema_extra=OPERATIONAL)

    @property
    def checkpoint_steps(self) -> tuple[int, ...]:
        """Steps whose checkpoints are kept: multiples of the interval, and the last one. Checkpoint N holds N completed updates."""
        return tuple(sorted({*range(self.checkpoint_every_steps, self.num_steps + 1, self.checkpoint_every_steps), self.num_steps}))

    @property
    def tokens_per_step(self) -> int:
        return self.global_batch_size * self.sequence_length

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.sequence_length > self.model.max_sequence_length:
            raise ValueError(
                f"sequence_length = {self.sequence_length} exceeds model.max_sequence_length = {self.model.max_sequence_length}"
            )
        if self.global_batch_size % self.micro_batches:
            raise ValueError(f"global_batch_size = {self.global_batch_size} must be a multiple of micro_batches = {self.micro_batches}")
        if self.optimizer.warmup_steps >= self.num_steps:
            raise ValueError(f"optimizer.warmup_steps = {self.optimizer.warmup_steps} must be below num_steps = {self.num_steps}")
        return self
