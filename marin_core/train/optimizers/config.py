"""What an optimizer is, as values. Imports no JAX. Formulas and sources: docs/explanation/optimizers.md."""

from typing import Annotated, Literal

from pydantic import Field

from marin_core.config import Config
from marin_core.train.schedules import Schedule, Wsd

MomentType = Literal["float32", "bfloat16"]


class SkipSpikes(Config):
    """Leave out an update whose loss or gradient norm is above mean + sigmas·sd of the steps before it.

    Every finite loss and norm enters the window, also of a step that is left out: otherwise a lasting rise, as at a border between data
    phases, would end training. Nothing is left out for its size before the window is half full.
    """

    sigmas: float = Field(default=6.0, gt=0)
    window: int = Field(default=128, ge=4, description="Steps that mean and standard deviation are taken over.")
    non_finite: bool = Field(default=True, description="Leave out an update whose loss or gradient norm isn't finite, from step 0 on.")


class _Settings(Config):
    """What all optimizers share."""

    schedule: Schedule = Field(default=Wsd(warmup_steps=20), description="Of all learning rates.")
    gradient_clip: float | None = Field(default=1.0, gt=0, description="Largest global gradient norm; None = no clipping.")
    skip_spikes: SkipSpikes | None = Field(default=None, description="Leave out updates of unlikely size; None = never.")
    first_moment_dtype: MomentType = Field(default="float32", description="Type in which momenta and first moments are kept.")


class AdamW(_Settings):
    """Adam with decoupled weight decay (arXiv 1711.05101)."""

    name: Literal["adamw"] = "adamw"
    learning_rate: float = Field(default=3e-3, gt=0, description="Peak.")
    b1: float = Field(default=0.9, ge=0, lt=1)
    b2: float = Field(default=0.95, ge=0, lt=1)
    eps: float = Field(default=1e-8, gt=0)
    weight_decay: float = Field(default=0.1, ge=0, description="Of matrices, multiplied by the learning rate.")


class Lion(_Settings):
    """The sign of an interpolated momentum (arXiv 2302.06675): wants about a tenth of AdamW's rate and ten times its decay."""

    name: Literal["lion"] = "lion"
    learning_rate: float = Field(default=3e-4, gt=0, description="Peak.")
    b1: float = Field(default=0.9, ge=0, lt=1)
    b2: float = Field(default=0.99, ge=0, lt=1)
    weight_decay: float = Field(default=1.0, ge=0, description="Of matrices, multiplied by the learning rate.")


class Sophia(_Settings):
    """Momentum over a clipped estimate of the Hessian's diagonal, that of Gauss, Newton and Bartlett (Sophia-G, arXiv 2305.14342).

    Every `update_interval` steps the estimate needs a second gradient, of the loss on labels sampled from the model.
    """

    name: Literal["sophia"] = "sophia"
    learning_rate: float = Field(default=1e-3, gt=0, description="Peak.")
    b1: float = Field(default=0.96, ge=0, lt=1)
    b2: float = Field(default=0.99, ge=0, lt=1, description="Weight of the old estimate in the new one.")
    eps: float = Field(default=1e-12, gt=0)
    gamma: float = Field(default=0.05, gt=0, description="Factor on the estimate; below it more of the steps are clipped to a sign.")
    update_interval: int = Field(default=10, ge=1, description="Steps between estimates.")
    weight_decay: float = Field(default=0.2, ge=0, description="Of matrices, multiplied by the learning rate.")


class Muon(_Settings):
    """Orthogonalised momentum on matrices, AdamW on everything else (arXiv 2502.16982)."""

    name: Literal["muon"] = "muon"
    learning_rate: float = Field(default=3e-3, gt=0, description="Peak, of matrices.")
    adam_learning_rate: float | None = Field(default=None, gt=0, description="Peak, of everything else; None = `learning_rate`.")
    momentum: float = Field(default=0.95, ge=0, lt=1)
    update_rms: float = Field(default=0.2, gt=0, description="Root mean square of a matrix's update over the rate; 0.2 is about AdamW's.")
    b1: float = Field(default=0.9, ge=0, lt=1)
    b2: float = Field(default=0.95, ge=0, lt=1)
    eps: float = Field(default=1e-8, gt=0)
    weight_decay: float = Field(default=0.1, ge=0, description="Of matrices, multiplied by the learning rate.")


class MuonH(_Settings):
    """The large run's optimizer: matrices move on spheres, in the direction of Muon, and the head in that of Adam (marin #8435).

    Everything else takes plain Adam. There is no weight decay where a sphere holds the norm; the two gates may have one.
    """

    name: Literal["muonh"] = "muonh"
    learning_rate: float = Field(default=1e-2, gt=0, lt=1, description="Peak of matrices and head: the step over the radius of the sphere.")
    adam_learning_rate: float | None = Field(default=None, gt=0, description="Peak of everything else; None = 3/13 of `learning_rate`.")
    momentum: float = Field(default=0.95, ge=0, lt=1)
    b1: float = Field(default=0.9062, ge=0, lt=1)
    b2: float = Field(default=0.95, ge=0, lt=1)
    eps: float = Field(default=1e-15, gt=0, description="Of Adam; `laws.hero` gives 1e-15 to 6e-15.")
    gate_decay: float = Field(
        default=0.0, ge=0, description="Decay of head-gate and router weights at the first update, multiplied by Adam's rate; falls to 0."
    )
    sphere: Literal["per_layer", "per_expert"] = Field(
        default="per_layer", description="Experts of a layer share a sphere, as in the large run, or each has its own (marin #8621)."
    )
    radius: Literal["current", "init"] = Field(
        default="current", description="A sphere has the norm that its weights have, or had at the start, which no rounding changes."
    )
    gradient_clip: float | None = Field(default=None, gt=0, description="Largest global gradient norm; None = no clipping.")


Optimizer = Annotated[AdamW | Lion | Sophia | Muon | MuonH, Field(discriminator="name")]
