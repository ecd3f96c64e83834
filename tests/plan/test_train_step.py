"""The real training step, optimizer and balancer included: what crosses racks, on a small mesh and on the fleet of the large run (E11)."""

import pytest

from marin_core.hardware import FleetConfig, MeshShape
from marin_core.model.config import RaggedConfig
from marin_core.model.presets import moe_tiny
from marin_core.plan.build import make_plan
from marin_core.plan.config import EXPERTS_STAY, ONLY_SUMS, PlanConfig
from marin_core.plan.process import plan_run
from marin_core.plan.report import PlanReport
from marin_core.train.checkpoint.config import CheckpointPolicy
from marin_core.train.config import TrainConfig
from marin_core.train.optimizers.config import AdamW
from tests.plan.test_traffic import hero

GIB = 2**30

pytestmark = pytest.mark.slow


def tiny(**changes: object) -> PlanConfig:
    model = moe_tiny(vocab_size=64, layers=2, d_model=32, heads=2, head_dim=8, gated_norm_rank=4)
    values: dict[str, object] = {"model": model, "global_batch_size": 8, "sequence_length": 16}
    train = TrainConfig(optimizer=AdamW(), num_steps=100, checkpoints=CheckpointPolicy(permanent_every_steps=10), **(values | changes))  # type: ignore[arg-type]
    return PlanConfig(train=train, fleet=FleetConfig(mesh=MeshShape.parse("2x4"), device="gb200"))


def passed(report: PlanReport) -> set[str]:
    return {check.name for check in report.checks if check.passed}


@pytest.fixture(scope="module")
def planned() -> tuple[PlanReport, list[str]]:
    said: list[str] = []
    report, _ = make_plan(tiny(), said.append)
    return report, said


def test_experts_stay_in_their_rack_and_only_sums_leave_it(planned: tuple[PlanReport, list[str]]) -> None:
    report, said = planned
    assert {EXPERTS_STAY, ONLY_SUMS} <= passed(report), report.checks
    assert said == ["tracing the step", "compiling the step", "reading the program"]


def test_tokens_travel_in_the_layer_loop_as_often_as_it_turns(planned: tuple[PlanReport, list[str]]) -> None:
    """2 layers × 3 waves, there and back; forward, recomputed and backward. The text has each instruction once."""
    report, _ = planned
    rows = [row for row in report.traffic if row.kind == "all-to-all"]
    assert {(row.axes, row.in_loop, row.purpose) for row in rows} == {("expert", True, "rows")}
    assert all(row.executions == row.instructions * 2 * 3 for row in rows)
    assert sum(row.instructions for row in rows) >= 6


def test_gradients_of_parameters_are_summed_over_racks(planned: tuple[PlanReport, list[str]]) -> None:
    report, _ = planned
    gradients = [row for row in report.traffic if row.purpose == "gradient" and "rack" in row.axes]
    near = report.mesh.devices_per_rack
    assert not any(row.in_loop for row in gradients), "gradients cross racks once, behind the last micro-batch (M2)"
    assert sum(row.operand_bytes for row in gradients) >= 4 * report.model.parameters / near * 0.9
    assert any(row.purpose == "statistics" and "rack" in row.axes for row in report.traffic)


def test_memory_holds_parameters_and_two_moments(planned: tuple[PlanReport, list[str]]) -> None:
    report, _ = planned
    smallest, largest = 3 * 4 * report.model.parameters / report.mesh.devices_per_rack, 3 * 4 * report.model.parameters
    assert smallest < report.memory.argument_bytes < largest
    assert report.memory.aliased_bytes > 0.9 * report.memory.argument_bytes  # the step takes over the memory of its state


def test_ragged_is_planned_with_a_stand_in() -> None:
    config = tiny()
    moe = config.train.model.moe
    assert moe is not None
    model = config.train.model.changed(moe=moe.changed(transport=RaggedConfig()))
    report, _ = make_plan(tiny(model=model), lambda message: None)
    assert EXPERTS_STAY in passed(report)
    assert any("`ragged`" in caveat for caveat in report.caveats)


@pytest.mark.timeout(1800)
def test_the_large_model_stays_under_180_gib_and_keeps_its_promises() -> None:
    """All 48 layers on 704 devices, 11,264 sequences of 4,096 tokens."""
    model = hero().train.model.changed(attention_block=128)
    config = hero(model=model, micro_batches=16, optimizer=AdamW(first_moment_dtype="bfloat16"))
    report, _ = plan_run(config, lambda line: None)
    assert {EXPERTS_STAY, ONLY_SUMS} <= passed(report), report.checks
    assert report.memory.peak_bytes < 180 * GIB
    rows = [row for row in report.traffic if row.kind == "all-to-all"]
    assert report.expert_rows is not None
    sent = sum(row.operand_bytes for row in rows)
    # Waves are recomputed inside blocks that are recomputed: a third more than forward, recomputed and backward.
    assert report.expert_rows.padded_step_bytes < sent < 1.4 * report.expert_rows.padded_step_bytes
