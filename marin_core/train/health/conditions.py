"""When something is wrong with a run: one pure function a condition, named like its rule, over its history and the thresholds."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import Any

import numpy as np

from marin_core.train.health.config import BASELINE_SECONDS, HISTORY_SECONDS, HealthConfig
from marin_core.train.health.history import RunHistory, Sample

Value = float | int | str


@dataclass(frozen=True)
class Finding:
    """That a condition holds now: one sentence, and the numbers in it by name.

    Attributes:
        immediate: it is no condition that could last, but something that happened: don't wait.
    """

    message: str
    values: Mapping[str, Value]
    immediate: bool = False


Condition = Callable[[RunHistory, float, HealthConfig], Finding | None]


def progress_stalled(history: RunHistory, now: float, thresholds: HealthConfig) -> Finding | None:
    starting = history.last_step_at is None
    since = history.started_at if history.last_step_at is None else history.last_step_at
    limit = thresholds.startup_seconds if starting else thresholds.stalled_seconds
    return _above("seconds without a step", now - since, limit)


def loss_spike(history: RunHistory, now: float, thresholds: HealthConfig) -> Finding | None:
    """Whether all losses since some time in the last hour lie above the band of the 55 minutes before that time.

    Were the band always taken from the newest hour, a spike would widen it by itself: once 2.6 % of the band's rows are high, six
    standard deviations exceed any step, and no spike could last for `pending_seconds`.
    """
    samples = history.same_phase(now, HISTORY_SECONDS, 0)
    if not samples:
        return None
    at, counts, means, squares, floors = np.array([(s.at, s.count, s.mean, s.squares, s.floor) for s in samples]).T
    ages = np.arange(thresholds.floor_seconds, BASELINE_SECONDS, 60)
    ends = np.searchsorted(at, now - ages, side="right")
    begins = np.searchsorted(at, now - ages - BASELINE_SECONDS, side="right")
    # Sums of deviations from one of the means, so that nothing cancels.
    apart = means - means[0]
    sums = np.cumsum([counts, counts * apart, squares + counts * apart**2], axis=1)
    sums = np.concatenate([np.zeros((3, 1)), sums], axis=1)
    count, first, second = sums[:, ends] - sums[:, begins]
    mean = first / np.maximum(count, 1)
    deviation = np.sqrt(np.maximum(second / np.maximum(count, 1) - mean**2, 0))
    limit = means[0] + mean + thresholds.loss_spike_sigmas * deviation
    floor = np.append(np.minimum.accumulate(floors[::-1])[::-1], math.inf)[ends]
    (high,) = np.nonzero((count >= thresholds.fewest_samples) & (floor > limit) & np.isfinite(floor))
    if not high.size:
        return None
    numbers = {"floor": floor, "mean": means[0] + mean, "deviation": deviation, "limit": limit, "seconds": ages}
    values: dict[str, Value] = {name: float(number[high[0]]) for name, number in numbers.items()}
    message = "no loss of the last {seconds:.0f} seconds was below {floor:.4g}; before, it was {mean:.4g} ± {deviation:.2g}"
    return Finding(message.format(**values), values)


def loss_jump(history: RunHistory, now: float, thresholds: HealthConfig) -> Finding | None:
    bad = [sample.step for sample in history.recent(now, thresholds.fresh_seconds) if not sample.finite]
    if bad:
        return Finding(f"the loss of step {bad[-1]} is not finite", {"step": bad[-1]}, immediate=True)
    floor, lowest = _recent_floor(history, now, thresholds), history.lowest_floor(now, thresholds.floor_seconds)
    if floor is None or floor <= lowest + thresholds.loss_jump_nats:
        return None
    return Finding(f"the loss is at least {floor:.4g}; it has been {lowest:.4g}", {"floor": floor, "lowest": lowest})


def _recent_floor(history: RunHistory, now: float, thresholds: HealthConfig) -> float | None:
    """Smallest loss of the last minutes, None where there is no finite one."""
    floor = min((sample.floor for sample in history.same_phase(now, thresholds.floor_seconds, 0)), default=math.inf)
    return floor if math.isfinite(floor) else None


def grad_norm_high(history: RunHistory, now: float, thresholds: HealthConfig) -> Finding | None:
    return _above("gradient norm", _newest(history, "gradient_norm"), thresholds.gradient_norm)


def grad_norm_rising(history: RunHistory, now: float, thresholds: HealthConfig) -> Finding | None:
    width = thresholds.fresh_seconds
    before = _numbers(history.same_phase(now, 3600, 3600 - width), "gradient_norm")
    recent = _numbers(history.same_phase(now, width, 0), "gradient_norm")
    if min(len(before), len(recent)) < thresholds.fewest_samples or median(recent) <= thresholds.gradient_norm_rise * median(before):
        return None
    values = {"before": median(before), "recent": median(recent)}
    return Finding(f"the median gradient norm went from {values['before']:.3g} to {values['recent']:.3g} within the hour", values)


def steps_skipped(history: RunHistory, now: float, thresholds: HealthConfig) -> Finding | None:
    counts = _numbers(history.recent(now, thresholds.fresh_seconds), "skipped_steps")
    skipped = int(counts[-1] - counts[0]) if counts else 0
    if skipped < thresholds.skipped_steps:
        return None
    return Finding(f"{skipped} updates were skipped in the last minutes", {"skipped": skipped})


def telemetry_gone(history: RunHistory, now: float, thresholds: HealthConfig) -> Finding | None:
    return None if history.tasks_running is False else _silence(history, now, thresholds)


def run_down(history: RunHistory, now: float, thresholds: HealthConfig) -> Finding | None:
    return _silence(history, now, thresholds) if history.tasks_running is False else None


def _silence(history: RunHistory, now: float, thresholds: HealthConfig) -> Finding | None:
    seen = history.last_seen_at
    if seen is None and history.tasks_running is not False:
        return None  # It is starting: `progress_stalled` waits for the first step.
    return _above("seconds without a sign of life", now - (history.started_at if seen is None else seen), thresholds.silent_seconds)


def token_drops(history: RunHistory, now: float, thresholds: HealthConfig) -> Finding | None:
    return _above("share of dropped assignments", _newest(history, "drop_fraction"), thresholds.drop_fraction)


def router_entropy(history: RunHistory, now: float, thresholds: HealthConfig) -> Finding | None:
    if history.experts is None:
        return None
    return _below("routing entropy in nats", _newest(history, "routing_entropy"), thresholds.router_entropy(history.experts))


def router_bias(history: RunHistory, now: float, thresholds: HealthConfig) -> Finding | None:
    ends = [abs(bias) for name in ("bias_min", "bias_max") if (bias := _newest(history, name)) is not None]
    return _above("largest selection bias", max(ends, default=None), thresholds.router_bias)


def throughput_low(history: RunHistory, now: float, thresholds: HealthConfig) -> Finding | None:
    return _mostly_below(history, now, thresholds, "throughput/tokens_per_second", thresholds.tokens_per_second, "tokens a second")


def mfu_low(history: RunHistory, now: float, thresholds: HealthConfig) -> Finding | None:
    return _mostly_below(history, now, thresholds, "throughput/mfu", thresholds.mfu, "model FLOPs utilisation")


def eval_regressed(history: RunHistory, now: float, thresholds: HealthConfig) -> Finding | None:
    scores = history.evaluations
    against_two = scores[-3] if len(scores) >= 3 else math.inf
    against_last = scores[-2] * (1 + thresholds.eval_regression) if len(scores) >= 2 else math.inf
    if not scores or scores[-1] <= min(against_two, against_last):
        return None
    before = ", ".join(f"{score:.4g}" for score in list(scores)[:-1])
    return Finding(f"the newest evaluation is {scores[-1]:.4g}; before it {before}", {"newest": scores[-1], "last": scores[-2]})


def state_stale(history: RunHistory, now: float, thresholds: HealthConfig) -> Finding | None:
    age = None if history.scheduler_seen_at is None else now - history.scheduler_seen_at
    return _above("seconds since the scheduler's last word", age, thresholds.scheduler_stale_seconds)


def task_retried(history: RunHistory, now: float, thresholds: HealthConfig) -> Finding | None:
    if history.retried_at is None or history.first_step_at is None:
        return None
    # Restoring may take longer than the news would last.
    age = now - max(history.retried_at, history.first_step_at)
    if age >= thresholds.retry_seconds:
        return None
    return Finding("the run was started again", {"seconds_since_start": now - history.retried_at}, immediate=True)


def off_track(history: RunHistory, now: float, thresholds: HealthConfig) -> Finding | None:
    return Finding("an evaluation lies outside the forecast's band", {}) if history.verdict == "off_track" else None


def dead_expert_layer(history: RunHistory, now: float, thresholds: HealthConfig) -> Finding | None:
    norms = history.layer_gradients or ()
    dead = dead_entries(norms, thresholds.dead_ratio)
    if not dead:
        return None
    share = min(norms) / median(norms) if median(norms) > 0 else 0.0
    message = f"routed experts of layers {_some(dead)} get hardly any gradient: {share:.2g} of the median layer's at the least"
    return Finding(message, {"layers": len(dead), "first": dead[0], "smallest_ratio": share})


def dead_experts(history: RunHistory, now: float, thresholds: HealthConfig) -> Finding | None:
    rows = list(history.expert_gradients)[-thresholds.dead_norm_rows :]
    if len(rows) < thresholds.dead_norm_rows:
        return None
    dead = sorted(set.intersection(*(_dead_in(row, thresholds.dead_ratio) for row in rows)))
    if not dead:
        return None
    loaded = sum(history.load[layer][expert] > 0 for layer, expert in dead) if history.load else 0
    message = f"{len(dead)} experts get hardly any gradient, {loaded} of them although they get tokens; (layer, expert): {_some(dead)}"
    return Finding(message, {"experts": len(dead), "with_tokens": loaded, "first_layer": dead[0][0], "first_expert": dead[0][1]})


def _dead_in(norms: Any, ratio: float) -> set[tuple[int, int]]:
    return {(layer, expert) for layer, row in enumerate(norms) for expert in dead_entries(row, ratio)}


def dead_entries(norms: Any, ratio: float) -> list[int]:
    """Indices of gradient norms that are 0 or below `ratio` of their median."""
    if not norms:
        return []
    limit = ratio * median(norms)
    return [index for index, norm in enumerate(norms) if norm == 0 or norm < limit]


def sphere_drift(history: RunHistory, now: float, thresholds: HealthConfig) -> Finding | None:
    return _above("relative drift of a sphere's norm", _newest(history, "sphere_norm_drift"), thresholds.sphere_drift)


def saturated_experts(history: RunHistory, now: float, thresholds: HealthConfig) -> Finding | None:
    settled = history.newest is not None and history.newest.step >= thresholds.saturated_after_steps
    return _above("share of saturated experts", _newest(history, "saturated_share"), thresholds.saturated_share) if settled else None


def host_rss_growth(history: RunHistory, now: float, thresholds: HealthConfig) -> Finding | None:
    floors = list(history.rss_floors)[-thresholds.rss_checkpoints :]
    rising = all(before < after for before, after in pairwise(floors))
    if len(floors) < thresholds.rss_checkpoints or not rising or floors[-1] <= (1 + thresholds.rss_growth) * floors[0]:
        return None
    message = f"the least host memory between checkpoints rose from {floors[0] / 1e9:.3g} GB to {floors[-1] / 1e9:.3g} GB"
    return Finding(message, {"first_bytes": floors[0], "last_bytes": floors[-1]})


def _newest(history: RunHistory, name: str) -> float | None:
    return None if history.newest is None else history.newest.number(name)


def _numbers(samples: list[Sample], name: str) -> list[float]:
    return [number for sample in samples if (number := sample.number(name)) is not None]


def _above(what: str, value: float | None, limit: float | None) -> Finding | None:
    if value is None or limit is None or value <= limit:
        return None
    return Finding(f"{what}: {value:.4g}, at most {limit:.4g} is healthy", {"value": value, "limit": limit})


def _below(what: str, value: float | None, limit: float | None) -> Finding | None:
    if value is None or limit is None or value >= limit:
        return None
    return Finding(f"{what}: {value:.5g}, at least {limit:.5g} is healthy", {"value": value, "limit": limit})


def _mostly_below(history: RunHistory, now: float, thresholds: HealthConfig, name: str, limit: float | None, what: str) -> Finding | None:
    """Whether more than half of the samples are below a limit. A mean would let one fast step hide many slow ones."""
    found = _numbers(history.recent(now, thresholds.fresh_seconds), name)
    if limit is None or len(found) < thresholds.fewest_samples:
        return None
    low = sum(value < limit for value in found)
    if 2 * low <= len(found):
        return None
    message = f"{what}: {low} of {len(found)} samples are below {limit:.4g}, their median is {median(found):.4g}"
    return Finding(message, {"low": low, "samples": len(found), "limit": limit, "median": median(found)})


def _some(things: list[Any]) -> str:
    shown = ", ".join(str(thing) for thing in things[:8])
    return shown if len(things) <= 8 else f"{shown}, … ({len(things)} in all)"
