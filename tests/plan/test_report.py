"""A plan's report: roofline figures against those of `spec/moe.md` §6, checks that can fail, tables that say what was counted."""

from typing import Any

import pytest

from marin_core.errors import ConfigError
from marin_core.hardware import MeshShape
from marin_core.model.config import RaggedConfig
from marin_core.plan.compiled import CompiledStep, MemoryUse
from marin_core.plan.config import CHECKS, EXPERTS_STAY, FITS_MEMORY, ONLY_SUMS, PlanConfig
from marin_core.plan.hlo import Collective
from marin_core.plan.report import PlanReport, make_report
from marin_core.plan.tables import markdown, plan_tables
from tests.plan.test_traffic import ACROSS, BOTH, WITHIN, collective, hero, with_transport

GRADIENT = "jit(train_step)/transpose(jvp())/dot_general"
GOOD = (
    collective("all-to-all", WITHIN, 309_000_000, executions=3456, in_loop=True),
    collective("all-reduce", ACROSS, 33_470_000_000, source=GRADIENT),
    collective("all-reduce", BOTH, 73_700_000, element_types=("s32",)),
    collective("all-gather", WITHIN, 10**9),
)


def memory(temporary_bytes: int) -> MemoryUse:
    return MemoryUse(
        argument_bytes=51 * 10**9,
        output_bytes=51 * 10**9,
        aliased_bytes=50 * 10**9,
        temporary_bytes=temporary_bytes,
        host_bytes=0,
    )


def report(*collectives: Collective, temporary_bytes: int = 80 * 10**9, config: PlanConfig | None = None) -> PlanReport:
    step = CompiledStep(memory(temporary_bytes), collectives or GOOD, program_bytes=1, lower_seconds=1.0, compile_seconds=1.0)
    return make_report(config or hero(), step)


def failed(found: PlanReport) -> set[str]:
    return {check.name for check in found.checks if not check.passed}


def test_the_large_run_takes_3_9_seconds_of_arithmetic_a_step() -> None:
    bound = report().roofline
    assert bound.model_flops_per_step == pytest.approx(6.9084e18, rel=1e-5)
    assert bound.compute_seconds == pytest.approx(3.925, abs=1e-3)
    assert bound.budget_steps == 390_251
    assert bound.budget_tokens == 18_005_144_633_344


def test_bounds_are_the_longest_and_the_sum() -> None:
    bound = report().roofline
    parts = (bound.compute_seconds + bound.recompute_seconds, bound.hbm_seconds, bound.rack_link_seconds, bound.cross_rack_seconds)
    assert bound.overlapped_step_seconds == max(parts)
    assert bound.serial_step_seconds == pytest.approx(sum(parts))
    assert bound.slowest == "compute"
    assert bound.overlapped_mfu == pytest.approx(3 / 4)  # a third more is computed than counted
    assert bound.serial_days == pytest.approx(390_251 * bound.serial_step_seconds / 86_400)
    assert bound.cross_rack_seconds == pytest.approx((60.85e9 + 2 * 10 / 11 * 73.7e6 / 64) / 50e9, rel=1e-3)


def test_energy_and_cost_need_power_and_price() -> None:
    config = hero()
    priced = config.changed(fleet=config.fleet.changed(price_per_device_hour=10.0))
    bound = report(config=priced).roofline
    hours = bound.overlapped_days * 24 * 704
    assert bound.cost == pytest.approx(hours * 10)
    assert bound.energy_megawatt_hours == pytest.approx(hours * 1667 / 1e6)
    slice_of_tpu = config.changed(fleet=config.fleet.changed(device="tpu_v5p"))
    assert report(config=slice_of_tpu).roofline.energy_megawatt_hours is None
    assert report().roofline.cost is None


def test_a_rack_larger_than_its_fabric_is_as_slow_as_the_network() -> None:
    config = hero()
    nodes = config.changed(fleet=config.fleet.changed(device="h100"))
    found = report(config=nodes)
    assert found.roofline.rack_link_seconds == pytest.approx(found.roofline.rack_link_bytes / 50e9)
    assert any("more than the 8 devices" in caveat for caveat in found.caveats)


def test_a_step_that_keeps_its_promises_passes_all_checks() -> None:
    found = report()
    assert [check.name for check in found.checks] == list(CHECKS)
    assert failed(found) == set()


def test_memory_is_what_is_kept_at_once_against_the_planned_device() -> None:
    found = report(temporary_bytes=135 * 10**9)
    assert found.memory.peak_bytes == 187 * 10**9
    assert failed(found) == {FITS_MEMORY}
    assert {fit.device: fit.fits for fit in report().fits} == {
        "gb200": True,
        "h100": False,
        "h200": True,
        "tpu_v5e": False,
        "tpu_v5p": False,
        "tpu_v6e": False,
    }


@pytest.mark.parametrize(
    ("leaving", "checks"),
    [
        (collective("all-to-all", BOTH, 64), {EXPERTS_STAY, ONLY_SUMS}),
        (collective("ragged-all-to-all", ACROSS, 64), {EXPERTS_STAY, ONLY_SUMS}),
        (collective("collective-permute", ACROSS, 64), {EXPERTS_STAY, ONLY_SUMS}),
        (collective("all-gather", BOTH, 64), {ONLY_SUMS}),
        (collective("all-reduce", ACROSS, 10**9), {ONLY_SUMS}),
        (collective("all-reduce", ACROSS, 4), set()),
    ],
)
def test_what_must_not_cross_racks_fails_a_check_that_names_it(leaving: Collective, checks: set[str]) -> None:
    found = report(*GOOD, leaving)
    assert failed(found) == checks
    for check in found.checks:
        if check.name in checks:
            assert leaving.kind in check.description
            assert leaving.source in check.description


def test_what_crosses_racks_in_a_loop_is_named() -> None:
    looped = collective("all-reduce", ACROSS, 10**9, source=f"{GRADIENT}_in_a_layer", in_loop=True, executions=48)
    assert any(f"{GRADIENT}_in_a_layer" in caveat for caveat in report(*GOOD, looped).caveats)
    assert not any("In a loop" in caveat for caveat in report().caveats)


def test_uncertain_counts_are_said() -> None:
    guessed = collective("all-to-all", WITHIN, known_count=False, conditional=True)
    found = report(*GOOD, guessed)
    assert any("no known trip count" in caveat for caveat in found.caveats)
    assert any("branch" in caveat for caveat in found.caveats)
    assert "≥ ≤" in markdown(found)


def test_ragged_is_said_to_be_arithmetic() -> None:
    found = report(config=hero(model=with_transport(RaggedConfig())))
    assert any("`ragged`" in caveat for caveat in found.caveats)
    assert not any("`ragged`" in caveat for caveat in report().caveats)


def test_a_report_survives_json_and_its_page_has_every_table() -> None:
    found = report()
    assert PlanReport.from_json(found.model_dump(mode="json")) == found
    page = markdown(found)
    assert all(f"## {table.title}" in page for table in plan_tables(found))
    assert "535,477,106,688" in page
    assert all(caveat in page for caveat in found.caveats)
    assert all(len(row) == len(table.columns) for table in plan_tables(found) for row in table.rows)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"train": {"global_batch_size": 700}}, "must be a multiple of the 704 devices"),
        ({"mesh": "11x60", "train": {"global_batch_size": 660}}, "experts = 384 must be a multiple of the 60 devices"),
    ],
)
def test_what_does_not_spread_evenly_is_refused(changes: dict[str, Any], says: str) -> None:
    config = hero()
    fleet = config.fleet.changed(mesh=MeshShape.parse(changes.get("mesh", "11x64")))
    with pytest.raises(ConfigError, match=says):
        PlanConfig(train=config.train.changed(**changes["train"]), fleet=fleet)
