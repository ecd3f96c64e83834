"""How a run begins: with fresh parameters, with what another run has learnt, or as a fork of one."""

from pathlib import Path
from typing import cast

import jax
from jax.sharding import Mesh

from marin_core.distributed import BARRIER_SECONDS, barrier, is_lead
from marin_core.errors import ConfigError
from marin_core.train.checkpoint.store import CheckpointStore, flatten
from marin_core.train.config import TrainConfig
from marin_core.train.cutover.point import inherit
from marin_core.train.step import TrainState, abstract_state, initial_state

MODEL = ("params/", "balancer_state/")
"""Paths of what every stage takes over."""

MOMENTS = "optimizer_state/inner/"
"""Path of what is taken over with `optimizer="kept"`; the step that schedules follow begins anew."""


def first_state(config: TrainConfig, mesh: Mesh | None, earlier_run: Path | None) -> TrainState:
    """The state before the first step.

    Raises:
        ConfigError: the earlier run has no such checkpoint, or its parameters (of a fork, any of its state) have other shapes.
        InfrastructureError: the checkpoint is damaged.
    """
    start = config.start_from
    if config.fork is not None:
        return CheckpointStore(_given(earlier_run)).restore(config.fork.step, abstract_state(config, mesh))
    if start is None:
        return initial_state(config, mesh)
    earlier_run = _given(earlier_run)
    wanted = MODEL if start.optimizer == "fresh" else (*MODEL, MOMENTS)
    fresh = initial_state(config, mesh)
    for path, leaf in flatten(fresh).items():
        if path.startswith(wanted):
            leaf.delete()  # never two states at once
    taken = CheckpointStore(earlier_run).restore_partial(start.step, abstract_state(config, mesh), lambda path: path.startswith(wanted))
    return cast(TrainState, jax.tree.map(lambda new, old: old if isinstance(old, jax.Array) else new, fresh, taken))


def inherit_history(config: TrainConfig, earlier_run: Path | None, run_dir: Path) -> None:
    """Begin a fork's directory with what came before it; all processes call this, and runs that are no forks do nothing.

    Raises:
        ConfigError: the earlier run has no such checkpoint.
        DataError: the checkpoint and the earlier run's metrics disagree.
    """
    if config.fork is None:
        return
    if is_lead():
        inherit(run_dir, _given(earlier_run), config.fork.step)
    barrier("inherit", BARRIER_SECONDS)


def _given(earlier_run: Path | None) -> Path:
    if earlier_run is None:
        raise ConfigError("The run begins with another's checkpoint, and none was given", advice="Pass that run as `earlier_run`.")
    return earlier_run
