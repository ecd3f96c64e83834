"""Where the time of a step goes, and how much of the hardware it uses."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Literal, NamedTuple

import jax
import psutil

from marin_core.hardware import device_profile
from marin_core.model.config import TransformerConfig
from marin_core.model.counts import training_flops_per_token
from marin_core.train.schedules import BatchSchedule

Span = Literal["compute", "input", "checkpoint", "hooks", "gc"]

DEVICE_KINDS = {
    "NVIDIA GB200": "gb200",
    "NVIDIA H100 80GB HBM3": "h100",
    "NVIDIA H200": "h200",
    "TPU v5 lite": "tpu_v5e",
    "TPU v5e": "tpu_v5e",
    "TPU v5": "tpu_v5p",
    "TPU v5p": "tpu_v5p",
    "TPU v6 lite": "tpu_v6e",
    "TPU v6e": "tpu_v6e",
}
"""JAX's name of a device → its profile in `marin_core.hardware`. Names in full: an H100 on PCIe is another device."""


class StepTimes(NamedTuple):
    """Seconds of one iteration: `iteration` in all, the rest by what they went to; what is in no span is the difference."""

    iteration: float
    compute: float
    input: float
    checkpoint: float
    hooks: float
    gc: float


class StepTimer:
    """Adds up the seconds of an iteration by what they went to.

    An iteration lasts from one `lap` to the next. The row of a step is written before its checkpoint and its hooks, so their time is
    in the next row. Time in an inner span is not counted in the outer one.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._began = clock()
        self._since = self._began
        self._open: list[Span] = []
        self._seconds: dict[Span, float] = {}

    @contextmanager
    def span(self, name: Span) -> Iterator[None]:
        """Count the time inside as spent on `name`."""
        self._charge()
        self._open.append(name)
        try:
            yield
        finally:
            self._charge()
            self._open.pop()

    def lap(self) -> StepTimes:
        """The iteration that ends now; open spans go on into the next."""
        now = self._charge()
        times = StepTimes(now - self._began, **{name: self._seconds.get(name, 0.0) for name in _SPANS})
        self._began, self._seconds = now, {}
        return times

    def _charge(self) -> float:
        """Give the time since the last change to the innermost open span."""
        now = self._clock()
        if self._open:
            self._seconds[self._open[-1]] = self._seconds.get(self._open[-1], 0.0) + now - self._since
        self._since = now
        return now


_SPANS: tuple[Span, ...] = ("compute", "input", "checkpoint", "hooks", "gc")


class StepWork(NamedTuple):
    """What one step does, and on what.

    Attributes:
        tokens: of the global batch.
        flops: model FLOPs of forward and backward with head (`spec/moe.md` §1.4), without what is computed again.
        devices: that share the step.
        peak: bfloat16 FLOP/s of one device; None where it isn't known.
    """

    tokens: int
    flops: int
    devices: int
    peak: float | None


def step_work(model: TransformerConfig, global_batch_size: int, sequence_length: int, devices: int, device_kind: str) -> StepWork:
    """The work of a step of a model on devices of JAX's `device_kind`."""
    tokens = global_batch_size * sequence_length
    flops = training_flops_per_token(model, sequence_length=sequence_length) * tokens
    return StepWork(tokens, flops, devices, peak_flops_per_second(device_kind))


def peak_flops_per_second(device_kind: str) -> float | None:
    """Published dense bfloat16 peak of a device, by JAX's name of it; None if it isn't known, as of any CPU."""
    name = DEVICE_KINDS.get(device_kind)
    return None if name is None else device_profile(name).peak_flops_per_second


def mfu(flops_per_step: float, seconds: float, devices: int, peak: float) -> float:
    """Model FLOPs utilisation as a share of 1: FLOPs of a step over what `devices` of `peak` FLOP/s can do in its seconds."""
    return flops_per_step / (seconds * devices * peak)


def throughput_values(times: StepTimes, work: StepWork) -> dict[str, float]:
    """`throughput/*` of a row (`spec/training.md` §6); all times in seconds.

    `duration` is the compute span. Tokens a second and MFU are taken over it, as the published figures are (§12); whoever compares two
    runs takes `iteration_time`, which has everything in it. MFU is absent where the device's peak isn't known.
    """
    seconds = max(times.compute, 1e-9)
    values = {
        "tokens_per_second": work.tokens / seconds,
        "duration": times.compute,
        "loading_time": times.input,
        "hook_time": times.hooks,
        "checkpoint_time": times.checkpoint,
        "gc_time": times.gc,
        "iteration_time": times.iteration,
    }
    if work.peak is not None:
        values["mfu"] = mfu(work.flops, seconds, work.devices, work.peak)
    return {f"throughput/{name}": value for name, value in values.items()}


def total_values(model: TransformerConfig, batches: BatchSchedule, steps: int) -> dict[str, float]:
    """`throughput/total_*` of a row: tokens and model GFLOPs of the first `steps` steps, of whatever batches they were."""
    tokens = [(count * stage.tokens_per_step, stage.sequence_length) for stage, count in batches.steps_before(steps)]
    flops = sum(count * training_flops_per_token(model, sequence_length=length) for count, length in tokens)
    return {"throughput/total_tokens": sum(count for count, _ in tokens), "throughput/total_gflops": flops / 1e9}


def memory_values() -> dict[str, int]:
    """`memory/*` of a row in bytes: of this process on the host, and of its fullest device where the backend counts."""
    values = {"memory/host_rss_bytes": psutil.Process().memory_info().rss}
    counted = [stats for device in jax.local_devices() if (stats := device.memory_stats())]
    for name, key in (("device_bytes", "bytes_in_use"), ("device_peak_bytes", "peak_bytes_in_use")):
        found = [stats[key] for stats in counted if key in stats]
        if found:
            values[f"memory/{name}"] = max(found)
    return values
