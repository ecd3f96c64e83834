"""A plan as an asset: declared without work, built by a real job in a process of its own, shown like every artifact."""

import json

import dagster as dg
import pytest

from marin_core.artifact import ArtifactStep
from marin_core.errors import ConfigError
from marin_core.experiment import AdamW, Wsd, moe_tiny, plan
from marin_core.plan.config import CHECKS, EXPERTS_STAY, FITS_MEMORY
from marin_core.plan.report import PlanReport
from marin_core.train.checkpoint.config import CheckpointPolicy
from marin_core.train.config import TrainConfig
from tests.assets.conftest import LabUnderTest, checks, metadata
from tests.experiment.test_handles import MIX, training

TINY = TrainConfig(
    model=moe_tiny(vocab_size=64, layers=1, d_model=32, heads=2, head_dim=8, gated_norm_rank=4),
    optimizer=AdamW(schedule=Wsd(warmup_steps=1)),
    num_steps=10,
    global_batch_size=8,
    sequence_length=16,
    checkpoints=CheckpointPolicy(permanent_every_steps=10),
)


def tiny_plan(**changes: object) -> ArtifactStep:
    values: dict[str, object] = {"mesh": "2x4", "device": "gb200"}
    return plan("plans/tiny", "v1", TINY, **(values | changes))  # type: ignore[arg-type]


@pytest.mark.slow
def test_a_plan_is_materialized_with_its_report_plots_and_checks(lab: LabUnderTest) -> None:
    step = tiny_plan(price_per_device_hour=2.0)
    result = lab.materialize(step)
    assert result.success
    record = lab.record(step)
    folder = lab.store.payload_path(record)
    assert folder is not None
    report = PlanReport.from_json(json.loads((folder / "plan.json").read_text()))
    assert (report.mesh.devices, report.tokens_per_step) == (8, 128)
    assert record.metrics["peak_memory_bytes_per_device"] == report.memory.peak_bytes > 0
    assert record.metrics["cost"] == report.roofline.cost
    assert {row["kind"] for row in record.tables["collectives"]} >= {"all-to-all", "all-reduce", "all-gather"}
    assert (folder / "plan.md").read_text().startswith("# Plan for 2x4 gb200")
    assert set(record.plots) == {"memory", "traffic", "roofline"}
    assert all((folder / path).read_bytes().startswith(b"\x89PNG") for path in record.plots.values())
    found = checks(result)
    assert set(CHECKS) <= set(found)
    assert {check.name: check.passed for check in report.checks} == {name: found[name].passed for name in CHECKS}
    assert found[FITS_MEMORY].passed
    assert found[EXPERTS_STAY].passed
    shown = metadata(result)
    assert shown["devices"] == 8
    assert isinstance(shown["fits"], list | dg.TableMetadataValue)


def test_a_plan_needs_nothing_upstream_and_follows_the_run_it_plans() -> None:
    run = training(global_batch_size=8)
    step = plan("plans/x", "v1", run, mesh="2x4", device="h200")
    assert step.deps == ()
    assert step.own_identity["config"]["train"] == run.own_identity["config"]["train"]
    assert {check.name for check in step.checks} == set(CHECKS)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"mesh": "eleven"}, "like 11x64"),
        ({"device": "abacus"}, "no device profile 'abacus'"),
        ({"mesh": "3x4"}, "multiple of the 12 devices"),
    ],
)
def test_a_mistake_fails_where_the_plan_is_made(changes: dict[str, str], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        tiny_plan(**changes)


def test_only_a_training_run_can_be_planned() -> None:
    with pytest.raises(ConfigError, match="no training run"):
        plan("plans/x", "v1", MIX, mesh="2x4", device="gb200")
