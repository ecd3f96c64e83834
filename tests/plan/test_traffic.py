"""What collectives send, and what for, against figures worked out by hand and those of `spec/moe.md` §4.2 and §5."""

from typing import Any

import pytest

from marin_core.hardware import FleetConfig, MeshShape
from marin_core.model.config import PooledWavesConfig, RaggedConfig, TransformerConfig
from marin_core.model.presets import preset
from marin_core.plan.config import PlanConfig
from marin_core.plan.groups import Crossing
from marin_core.plan.hlo import Collective
from marin_core.plan.traffic import expert_rows, purpose, sent_bytes, summarise
from marin_core.train.checkpoint.config import CheckpointPolicy
from marin_core.train.config import TrainConfig
from marin_core.train.optimizers.config import AdamW

FLEET = {"rack": 11, "expert": 64}
WITHIN = Crossing(("expert",), 64, (1, 64))
ACROSS = Crossing(("rack",), 11, (11, 1))
BOTH = Crossing(("rack", "expert"), 704, (11, 64))
NOWHERE = Crossing((), 1, (1, 1))


def collective(kind: str, crossing: Crossing, operand_bytes: int = 704_000, **changes: Any) -> Collective:
    values: dict[str, Any] = {
        "kind": kind,
        "name": "x",
        "element_types": ("f32",),
        "operand_bytes": operand_bytes,
        "result_bytes": operand_bytes,
        "crossing": crossing,
        "executions": 1,
        "in_loop": False,
        "known_count": True,
        "conditional": False,
        "source": "jit(step)/dot_general",
    }
    return Collective(**(values | changes))


def hero(**changes: Any) -> PlanConfig:
    train: dict[str, Any] = {
        "model": preset("marin_535b_a23b"),
        "optimizer": AdamW(),
        "num_steps": 390_251,
        "global_batch_size": 11_264,
        "sequence_length": 4096,
        "checkpoints": CheckpointPolicy(permanent_every_steps=1000),
    }
    fleet = FleetConfig(mesh=MeshShape.parse("11x64"), device="gb200")
    return PlanConfig(train=TrainConfig(**(train | changes)), fleet=fleet)


def with_transport(transport: PooledWavesConfig | RaggedConfig) -> TransformerConfig:
    model = preset("marin_535b_a23b")
    assert model.moe is not None
    return model.changed(moe=model.moe.changed(transport=transport))


@pytest.mark.parametrize(
    ("kind", "crossing", "within", "across"),
    [
        ("all-reduce", WITHIN, 2 * 63 / 64 * 704_000, 0),
        ("all-reduce", ACROSS, 0, 2 * 10 / 11 * 704_000),
        ("all-reduce", BOTH, 2 * 63 / 64 * 704_000, 2 * 10 / 11 * 11_000),
        ("reduce-scatter", WITHIN, 63 / 64 * 704_000, 0),
        ("all-gather", BOTH, 63 / 64 * 704_000, 10 / 11 * 11_000),
        ("all-to-all", WITHIN, 63 / 64 * 704_000, 0),
        ("all-to-all", BOTH, 63_000, 640_000),
        ("ragged-all-to-all", ACROSS, 0, 640_000),
        ("collective-permute", Crossing(("expert",), 2, (1, 2)), 704_000, 0),
        ("collective-permute", Crossing(("rack",), 2, (2, 1)), 0, 704_000),
        ("collective-broadcast", NOWHERE, 0, 0),
        ("all-reduce", NOWHERE, 0, 0),
    ],
)
def test_bytes_that_a_device_sends(kind: str, crossing: Crossing, within: float, across: float) -> None:
    assert sent_bytes(collective(kind, crossing), FLEET) == pytest.approx((within, across))


@pytest.mark.parametrize(("gradient", "sent"), [(33.47e9, 60.8e9), (16.735e9, 30.4e9)])
def test_a_gradient_shard_takes_the_published_bytes_across_racks(gradient: float, sent: float) -> None:
    assert sent_bytes(collective("all-reduce", ACROSS, round(gradient)), FLEET)[1] == pytest.approx(sent, rel=1e-3)


@pytest.mark.parametrize(
    ("found", "why"),
    [
        (collective("all-to-all", WITHIN), "rows"),
        (collective("collective-permute", ACROSS, 4), "rows"),
        (collective("all-to-all", WITHIN, source="jit(step)/sharding_constraint"), "layout"),
        (collective("all-gather", BOTH, 4), "gather"),
        (collective("all-reduce", ACROSS, 10**9, source="jit(step)/transpose(jvp())/dot_general"), "gradient"),
        (collective("reduce-scatter", WITHIN, 8, source="jit(step)/transpose(jvp())/dot_general"), "gradient"),
        (collective("all-reduce", ACROSS, 10**9, source="jit(step)/shard_map/gradient/psum"), "gradient"),
        (collective("all-reduce", ACROSS, 10**9, source="jit(step)/shard_map/psum"), "sum"),
        (collective("all-reduce", ACROSS, 10**9, source="jit(step)/while/body/shard_map/psum", in_loop=True), "sum"),
        (collective("all-reduce", BOTH, 10**9, element_types=("s32",), source="jit(step)/transpose(jvp())/x"), "statistics"),
        (collective("all-reduce", BOTH, 4), "statistics"),
        (collective("all-reduce", BOTH, 10**9), "sum"),
    ],
)
def test_what_a_collective_is_for(found: Collective, why: str) -> None:
    assert purpose(found) == why


def test_traffic_adds_up_over_instructions_and_executions() -> None:
    members = [collective("all-to-all", WITHIN, 640, executions=3, in_loop=True), collective("all-to-all", WITHIN, 6400, in_loop=True)]
    first, second = summarise([*members, collective("all-to-all", WITHIN, 64)], FLEET)
    assert (first.in_loop, first.instructions, first.executions, first.operand_bytes) == (True, 2, 4, 8320)
    assert first.rack_link_bytes == 8320 * 63 // 64
    assert (second.in_loop, second.operand_bytes) == (False, 64)


def test_expert_rows_of_the_large_run_are_those_of_the_specification() -> None:
    rows = expert_rows(hero())
    assert rows is not None
    assert (rows.rows, rows.row_bytes) == (524_288, 6144)
    assert rows.forward_bytes == pytest.approx(6.44e9, rel=1e-3)
    assert rows.padded_forward_bytes == 2 * 3 * 64 * 3141 * 6144  # three waves of 3,141 rows for each of 64 devices, there and back
    assert rows.padded_forward_bytes == pytest.approx(7.41e9, rel=2e-3)
    assert rows.step_bytes == pytest.approx(928e9, rel=1e-3)


def test_micro_batches_send_the_same_rows_in_more_parts() -> None:
    whole, parts = expert_rows(hero()), expert_rows(hero(micro_batches=4))
    assert whole is not None
    assert parts is not None
    assert parts.step_bytes == whole.step_bytes
    assert parts.padded_step_bytes == pytest.approx(whole.padded_step_bytes, rel=1e-3)


def test_ragged_rows_are_counted_without_waves() -> None:
    rows = expert_rows(hero(model=with_transport(RaggedConfig())))
    assert rows is not None
    assert rows.step_bytes == pytest.approx(928e9, rel=1e-3)


def test_without_devices_to_exchange_with_there_are_no_rows() -> None:
    config = hero()
    alone = config.changed(fleet=config.fleet.changed(mesh=MeshShape.parse("11x1")))
    assert expert_rows(alone) is None
