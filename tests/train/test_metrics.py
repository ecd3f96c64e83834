"""Metrics are exact, survive torn lines and resumes, and take no more memory for a long run than for a short one."""

import json
import tracemalloc
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marin_core.model.config import MoEConfig
from marin_core.model.presets import marin_535b_a23b
from marin_core.train.metrics import (
    LAYERS,
    PER_EXPERT,
    MetricsFile,
    Row,
    RowSample,
    Thinned,
    layer_metrics,
    norm_metrics,
    read_metrics,
    step_metrics,
)
from marin_core.train.schedules import BatchSchedule
from marin_core.train.throughput import (
    StepTimer,
    StepTimes,
    memory_values,
    mfu,
    peak_flops_per_second,
    step_work,
    throughput_values,
    total_values,
)

MOE = MoEConfig(experts=4, experts_per_token=2, expert_width=8)


def output(load: list[list[int]]) -> dict[str, Any]:
    """Arrays of a step, as they come from the device."""
    layers = len(load)
    counts = {name: np.full(layers, 0, np.int32) for name in ("sender_dropped", "receiver_dropped", "skipped_padding")}
    floats = {name: np.zeros(layers, np.float32) for name in ("dropped_weight_mass", "margin_min", "margin_max", "router_z_loss")}
    scalars = {"loss": np.float32(2.1), "cross_entropy": np.float32(2.0), "gradient_norm": np.float32(0.3), "loss_tokens": np.float32(7)}
    rest = {
        "load": np.asarray(load, np.int32),
        "valid_assignments": np.asarray(load, np.int32).sum(axis=1, dtype=np.int32),
        "bias_min": np.linspace(-1, -2, layers, dtype=np.float32),
        "bias_max": np.linspace(1, 3, layers, dtype=np.float32),
        "balance_loss": np.full(layers, 0.25, np.float32),
        "saturated_experts": np.asarray([1] + [0] * (layers - 1), np.int32),
    }
    return (
        scalars
        | {"learning_rate/muonh": np.float32(1e-3), "skipped_steps": np.int32(2), "params/norm/output": np.float32(9)}
        | counts
        | floats
        | rest
    )


def row(step: int, **more: Any) -> Row:
    return {"step": step, "loss": 3.0 - step / 1000, "cross_entropy": 2.9, "gradient_norm": 0.5, **more}


def test_every_scalar_is_written_under_its_name_and_exactly() -> None:
    values = step_metrics(output([[2, 2, 2, 2], [4, 4, 0, 0]]), MOE)
    assert np.float32(values["loss"]) == np.float32(2.1)
    assert (values["skipped_steps"], values["learning_rate/muonh"]) == (2, float(np.float32(1e-3)))
    assert isinstance(values["skipped_steps"], int)
    assert json.loads(json.dumps(values)) == values
    assert "params/norm/output" not in values, "norms are no numbers of every row"
    assert step_metrics({"loss": np.float32(1.5)}, None) == {"loss": 1.5}  # type: ignore[dict-item]


def test_loads_drops_and_ranges_are_those_of_the_layers() -> None:
    arrays = output([[2, 2, 2, 2], [4, 4, 0, 0]]) | {LAYERS: np.asarray([1.0, 2.0], np.float32)}
    arrays["sender_dropped"] = np.asarray([1, 0], np.int32)
    arrays["receiver_dropped"] = np.asarray([1, 2], np.int32)
    values = step_metrics(arrays, MOE, expert_devices=2)
    assert (values["sender_dropped"], values["receiver_dropped"], values["valid_assignments"]) == (1, 3, 16)
    assert (values["drop_fraction"], values["sender_drop_fraction"], values["receiver_drop_fraction"]) == (4 / 16, 1 / 16, 3 / 16)
    assert (values["load_cv"], values["load_max_violation"]) == (0.5, 1.0)
    assert (values["pool_load_cv"], values["pool_load_max_violation"]) == (0.5, 1.0)
    assert (values["bias_min"], values["bias_max"], values["bias_range"]) == (-2, 3, 5)
    assert values["routing_entropy"] == pytest.approx((np.log(4) + np.log(2)) / 2)
    assert (values["saturated_experts"], values["saturated_share"]) == (1, 1 / 8)
    layers = layer_metrics(arrays)
    assert layers["receiver_dropped"] == [1, 2]
    assert layers["load_cv"] == [0, 1]
    assert layers["bias_max"] == [1, 3]
    assert "loss" not in layers
    assert "load" not in layers
    assert LAYERS not in layers
    assert norm_metrics(arrays) == {LAYERS: [1.0, 2.0], "params/norm/output": 9.0}


def test_totals_beyond_32_bits_are_exact() -> None:
    """The large run has 17,716,740,096 assignments a step (trap T8)."""
    per_layer, layers = 369_098_752, 48
    arrays = output([[per_layer // 4] * 4] * layers)
    arrays["sender_dropped"] = np.full(layers, per_layer // 2, np.int32)
    values = step_metrics(arrays, MOE)
    assert values["valid_assignments"] == per_layer * layers
    assert values["sender_dropped"] == per_layer // 2 * layers
    assert values["drop_fraction"] == 0.5


def test_a_resumed_file_has_the_rows_before_the_step_and_no_torn_line(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    with MetricsFile(path, 0) as metrics:
        for step in range(25):
            metrics.append(row(step))
    whole = path.read_bytes()
    path.write_bytes(whole + b'{"step": 25, "lo')
    with MetricsFile(path, 20) as metrics:
        assert path.read_bytes() == b"".join(line + b"\n" for line in whole.splitlines()[:20])
        assert metrics.count == 20
        for step in range(20, 25):
            metrics.append(row(step))
        assert read_metrics(path) == [row(step) for step in range(25)]
        assert list(metrics.last) == [row(step) for step in range(15, 25)]
        assert metrics.first == [row(step) for step in range(10)]
        assert metrics.first_mean("loss") == pytest.approx(3.0 - 0.0045)
        assert metrics.last_mean("loss") == pytest.approx(3.0 - 0.0195)
    assert path.read_bytes() == whole


def test_a_run_that_goes_back_has_the_rows_of_its_second_try(tmp_path: Path) -> None:
    with MetricsFile(tmp_path / "metrics.jsonl", 0) as metrics:
        for step in range(30):
            metrics.append(row(step))
        metrics.rewind(12)
        assert (metrics.count, metrics.last[-1], metrics.sample.numbers[-1]) == (12, row(11), row(11))
        metrics.append(row(12, second=True))
    assert read_metrics(metrics.path) == [*(row(step) for step in range(12)), row(12, second=True)]


@pytest.mark.parametrize("damage", [b'{"step": 3, "loss"\n', b"\x00" * 40 + b"\n", b"\xff\xfe\n"])
def test_nothing_behind_a_damaged_line_is_read(tmp_path: Path, damage: bytes) -> None:
    path = tmp_path / "metrics.jsonl"
    lines = [json.dumps(row(step)).encode() + b"\n" for step in range(6)]
    path.write_bytes(b"".join(lines[:3]) + damage + b"".join(lines[3:]))
    assert [found["step"] for found in read_metrics(path)] == [0, 1, 2]
    with MetricsFile(path, 6) as metrics:
        assert metrics.count == 3
    assert path.read_bytes() == b"".join(lines[:3])


def test_a_stale_writer_cannot_reach_the_file_of_the_next_attempt(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    with MetricsFile(path, 0) as zombie, MetricsFile(path, 0) as metrics:
        metrics.append(row(0))
        zombie.append(row(7))
    assert [found["step"] for found in read_metrics(path)] == [0]


@settings(max_examples=60, deadline=None)
@given(count=st.integers(0, 400), most=st.integers(1, 20))
def test_thinning_is_even_bounded_and_changes_nothing_the_second_time(count: int, most: int) -> None:
    once, again = Thinned(most), Thinned(most)
    for step in range(count):
        once.add({"step": step})
    for kept in once.rows:
        again.add(kept)
    steps = [kept["step"] for kept in once.rows]
    assert again.rows == once.rows
    assert len(steps) <= most + 1
    assert steps[-1:] == ([count - 1] if count else [])
    assert len({after - before for before, after in pairwise(steps[:-1])}) <= 1
    assert count > most or len(steps) == count


def test_a_sample_of_a_sample_is_the_sample() -> None:
    sample, again = RowSample(), RowSample()
    for step in range(5_000):
        lists = {"norms": {LAYERS: [1.0, step], PER_EXPERT: [[0.0] * 4] * 2}, "load": [[step, 1]]} if step % 10 == 0 else {}
        sample.add(row(step, **lists))
    for kept in sample.rows:
        again.add(kept)
    assert again.rows == sample.rows
    assert sample.numbers[-1] == row(4_999)
    assert sample.norms[-1] == {"step": 4_990, "norms": {LAYERS: [1.0, 4_990]}}
    assert sample.load == {"step": 4_990, "load": [[4_990, 1]]}


def test_memory_does_not_grow_with_the_run(tmp_path: Path) -> None:
    def lists(step: int) -> Row:
        return {"load": [[step] * 64] * 4, "norms": {LAYERS: [float(step)] * 4, PER_EXPERT: [[float(step)] * 64] * 4}}

    with MetricsFile(tmp_path / "metrics.jsonl", 0) as metrics:
        tracemalloc.start()
        sizes = []
        for step in range(5_501):
            metrics.append(row(step, number=step + 0.5, **(lists(step) if step % 10 == 0 else {})))
            if step in (2_000, 5_500):
                sizes.append(tracemalloc.get_traced_memory()[0])
        tracemalloc.stop()
    assert sizes[1] < 1.1 * sizes[0]
    assert sizes[1] < 2_000_000
    with MetricsFile(tmp_path / "metrics.jsonl", 5_501) as resumed:
        assert (resumed.count, resumed.sample.rows) == (5_501, metrics.sample.rows)


class Clock:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_time_is_counted_once_and_in_the_innermost_span() -> None:
    clock = Clock()
    timer = StepTimer(clock)
    with timer.span("input"):
        clock.now += 1
    with timer.span("compute"):
        clock.now += 2
        with timer.span("gc"):
            clock.now += 4
        clock.now += 8
    clock.now += 16
    assert timer.lap() == StepTimes(iteration=31, compute=10, input=1, checkpoint=0, hooks=0, gc=4)
    with timer.span("checkpoint"):
        clock.now += 1
    with timer.span("checkpoint"):
        clock.now += 2
    assert timer.lap() == StepTimes(iteration=3, compute=0, input=0, checkpoint=3, hooks=0, gc=0)


def test_the_large_run_has_its_published_utilisation() -> None:
    """6.9084e18 FLOPs a step, 14.67 s, 704 GB200: 26.76 % (spec/training.md §12)."""
    work = step_work(marin_535b_a23b(), 11_264, 4_096, 704, "NVIDIA GB200")
    assert work.flops == pytest.approx(6.9084e18, rel=1e-4)
    assert work.peak == 2.5e15
    assert mfu(work.flops, 14.67, work.devices, work.peak) == pytest.approx(0.2676, abs=5e-5)
    timer = StepTimer(clock := Clock())
    with timer.span("compute"):
        clock.now += 14.67
    with timer.span("checkpoint"):
        clock.now += 0.86
    values = throughput_values(timer.lap(), work)
    assert values["throughput/mfu"] == pytest.approx(0.2676, abs=5e-5)
    assert values["throughput/tokens_per_second"] == pytest.approx(3.145e6, rel=1e-3)
    assert values["throughput/iteration_time"] == pytest.approx(15.53)
    assert values["throughput/checkpoint_time"] == pytest.approx(0.86)


def test_totals_are_those_of_the_batches_that_there_were() -> None:
    model, tokens_per_step = marin_535b_a23b(), 46_137_344
    work = [step_work(model, 11_264, 4_096, 704, "cpu"), step_work(model, 5_632, 8_192, 704, "cpu")]
    batches = BatchSchedule.with_context(tokens_per_step, {0: 4_096, 3: 8_192})
    assert total_values(model, batches, 1) == {"throughput/total_tokens": tokens_per_step, "throughput/total_gflops": work[0].flops / 1e9}
    later = total_values(model, batches, 5)
    assert later["throughput/total_tokens"] == 5 * tokens_per_step
    assert later["throughput/total_gflops"] == (3 * work[0].flops + 2 * work[1].flops) / 1e9
    assert work[0].flops != work[1].flops


def test_an_unknown_device_has_no_utilisation() -> None:
    assert peak_flops_per_second("cpu") is None
    assert peak_flops_per_second("NVIDIA H100 PCIe") is None
    work = step_work(marin_535b_a23b(), 8, 4_096, 1, "cpu")
    assert "throughput/mfu" not in throughput_values(StepTimer().lap(), work)


def test_host_memory_is_this_process() -> None:
    assert 10e6 < memory_values()["memory/host_rss_bytes"] < 1e12
