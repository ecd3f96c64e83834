"""A run that can't be is refused when it is written down."""

from typing import Any

import pytest

from marin_core.artifact.canonical import identity_value
from marin_core.errors import ConfigError
from marin_core.train.checkpoint.config import CheckpointPolicy
from marin_core.train.config import MeshConfig, RollBack
from marin_core.train.optimizers.config import AdamW
from marin_core.train.schedules import BatchSchedule, BatchStage, Wsd
from tests.train.tiny_run import tiny_config


def stages(*triples: tuple[int, int, int]) -> BatchSchedule:
    return BatchSchedule(stages=tuple(BatchStage(first_step=a, global_batch_size=b, sequence_length=c) for a, b, c in triples))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"sequence_length": 4096}, "sequence_length = 4096 exceeds model.max_sequence_length"),
        ({"micro_batches": 3}, "global_batch_size = 8 must be a multiple of micro_batches = 3"),
        ({"mesh": MeshConfig(racks=2, devices_per_rack=3)}, "must be a multiple of the mesh's 6 devices"),
        ({"optimizer": AdamW(schedule=Wsd(warmup_steps=12))}, "warmup_steps = 12 must be below num_steps = 12"),
        ({"roll_back": RollBack()}, "roll_back needs optimizer.skip_spikes"),
        ({"batch_schedule": stages((0, 4, 64), (4, 8, 64))}, "batch_schedule begins with 4 sequences of 64 tokens"),
        ({"batch_schedule": stages((0, 8, 64), (12, 16, 64))}, "batch_schedule has a stage from step 12 on, num_steps is 12"),
        ({"batch_schedule": stages((0, 8, 64), (4, 7, 64)), "micro_batches": 2}, "global_batch_size = 7 must be a multiple"),
    ],
)
def test_a_run_that_cannot_be_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        tiny_config(**changes)


@pytest.mark.parametrize(("num_steps", "interval", "kept"), [(10, 4, (4, 8, 10)), (8, 4, (4, 8)), (8, 100, (8,))])
def test_checkpoint_steps_include_the_last(num_steps: int, interval: int, kept: tuple[int, ...]) -> None:
    assert tiny_config(num_steps=num_steps, checkpoints=CheckpointPolicy(permanent_every_steps=interval)).checkpoint_steps == kept


def test_where_a_run_trains_and_how_it_reports_is_no_part_of_its_identity() -> None:
    plain = tiny_config()
    moved = tiny_config(mesh=MeshConfig(racks=2, devices_per_rack=2), log_every_steps=1, prefetch_steps=1, gc_every_steps=7)
    assert identity_value(plain) == identity_value(moved)
    assert identity_value(plain) != identity_value(tiny_config(seed=1))
