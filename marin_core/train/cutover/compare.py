"""Go or no-go: a fork against its control, step by step on the same batches."""

import math
from collections.abc import Mapping
from pathlib import Path
from statistics import fmean, median

import numpy as np
import numpy.typing as npt
from pydantic import Field

from marin_core.config import Config
from marin_core.errors import ConfigError, DataError
from marin_core.train.metrics import Row, numbers, stream_metrics

MISSING_SHOWN = 20
"""Missing steps that a comparison lists."""


class Thresholds(Config):
    """What a fork may cost and still be taken; written into the plan, before anybody has seen a loss."""

    loss_nats: float = Field(
        default=0.005,
        ge=0,
        description="Largest mean Δloss that the interval may reach to, in nats; a tenth of the large run's tokens is worth 0.0052 (§8).",
    )
    drop_fraction: float = Field(default=0.005, ge=0, le=1, description="Largest rise of the share of dropped assignments, of each kind.")
    throughput_ratio: float = Field(default=0.98, gt=0, description="Smallest ratio of tokens a second, and of MFU.")
    memory_ratio: float = Field(default=1.05, gt=0, description="Largest ratio of the memory peaks.")
    sphere_norm_drift: float = Field(default=1e-3, gt=0, description="Largest relative drift of a norm that the optimizer keeps constant.")


class PairedLoss(Config):
    """Δloss = fork − control over the steps that both have, in nats per token; positive is worse.

    Losses of two runs drift apart slowly, so one step's difference says much about the next: the standard error is that of a mean of
    correlated values (Newey and West 1987, Bartlett weights over `lag` ≈ 1.3 √pairs steps, Lazarus et al. 2018), and the critical value is
    that of a variance estimated with so many lags (Kiefer and Vogelsang 2005). `sd` / √pairs would be too small.

    Attributes:
        mean, sd: of the differences.
        standard_error: of the mean.
        low, high: 95 % confidence interval of the mean.
        first: at the first step, whose loss is that of equal parameters: not zero only if the forward pass changed.
    """

    pairs: int
    mean: float
    sd: float
    standard_error: float
    low: float
    high: float
    lag: int
    first: float


class Measures(Config):
    """One side over the compared steps; None where its rows don't say.

    Attributes:
        loss: mean.
        sender_drop_fraction, receiver_drop_fraction: mean shares of all assignments.
        tokens_per_second: median over whole iterations, everything included.
        mfu: median, of the compute alone.
        memory_bytes: peak, of the fullest device where the backend counts, else of the process.
        sphere_norm_drift: largest.
    """

    loss: float | None
    sender_drop_fraction: float | None
    receiver_drop_fraction: float | None
    tokens_per_second: float | None
    mfu: float | None
    memory_bytes: float | None
    sphere_norm_drift: float | None


class Criterion(Config):
    """One condition. `passed` is None where neither side measures it; what one side alone measures has failed.

    Attributes:
        name: what is judged.
        value: what was found.
        limit: what was allowed.
    """

    name: str
    value: float | None
    limit: float
    passed: bool | None


class Comparison(Config):
    """A fork against its control.

    Attributes:
        first_step: of the fork.
        steps: that were to be compared.
        missing: the first of them that one side or both don't have.
        non_finite: steps at which a loss isn't finite; they are in no statistic.
        shares_past: whether the rows before the first step are equal; None where one side has no such row.
        loss: None with fewer than two pairs.
        go: every criterion that could be judged has passed.
    """

    first_step: int
    steps: int
    missing: tuple[int, ...]
    non_finite: tuple[int, ...]
    shares_past: bool | None
    loss: PairedLoss | None
    control: Measures
    child: Measures
    criteria: tuple[Criterion, ...]
    go: bool


def compare(control: Path, child: Path, *, first_step: int, steps: int, thresholds: Thresholds) -> Comparison:
    """Compare two metrics files from a fork on.

    Raises:
        ConfigError: one of them has no row of the first step.
        DataError: their pasts differ, or they trained on other batches.
    """
    ours, theirs = (read_window(path, first_step, steps) for path in (control, child))
    for path, rows in ((control, ours), (child, theirs)):
        if first_step not in rows:
            has = f"only those of {min(rows)} to {max(rows)}" if rows else "none around it"
            raise ConfigError(
                f"{path} has no row of step {first_step}, {has}", advice="Compare two runs from a step that both have reached."
            )
    shares_past = _shares_past(control, child, ours, theirs, first_step)
    wanted = range(first_step, first_step + steps)
    common = [step for step in wanted if step in ours and step in theirs]
    _require_equal_batches(control, child, [(ours[step], theirs[step]) for step in common])
    non_finite = tuple(step for step in common if not math.isfinite(ours[step]["loss"]) or not math.isfinite(theirs[step]["loss"]))
    finite = [step for step in common if step not in non_finite]
    loss = _paired_loss(np.array([theirs[step]["loss"] - ours[step]["loss"] for step in finite], np.float64)) if len(finite) > 1 else None
    memory = _memory_name(ours[first_step], theirs[first_step])
    before, after = (_measures([rows[step] for step in common], memory) for rows in (ours, theirs))
    missing = [step for step in wanted if step not in common]
    criteria = (
        _at_most("missing steps", float(len(missing)), 0.0),
        _at_most("steps with a loss that isn't finite", float(len(non_finite)), 0.0),
        _at_most("mean Δloss, upper end of its interval", None if loss is None else loss.high, thresholds.loss_nats, required=True),
        *_judged(before, after, thresholds),
    )
    return Comparison(
        first_step=first_step,
        steps=steps,
        missing=tuple(missing[:MISSING_SHOWN]),
        non_finite=non_finite[:MISSING_SHOWN],
        shares_past=shares_past,
        loss=loss,
        control=before,
        child=after,
        criteria=criteria,
        go=all(each.passed is not False for each in criteria),
    )


def read_window(path: Path, first_step: int, steps: int) -> dict[int, Row]:
    """Step → row without its lists, of the compared steps and the one before them."""
    if not path.exists():
        raise ConfigError(f"{path} doesn't exist", advice="Give a metrics.jsonl, the directory of a run, or the artifact of one.")
    found: dict[int, Row] = {}
    for row in stream_metrics(path):
        if row["step"] >= first_step + steps:
            break
        if row["step"] >= first_step - 1:
            found[row["step"]] = numbers(row)
    return found


def _shares_past(control: Path, child: Path, ours: Mapping[int, Row], theirs: Mapping[int, Row], first_step: int) -> bool | None:
    last = first_step - 1
    if last not in ours or last not in theirs:
        return None
    if ours[last]["loss"] != theirs[last]["loss"]:
        raise DataError(
            f"At step {last}, before the fork, the loss of {control} is {ours[last]['loss']} and that of {child} {theirs[last]['loss']}",
            advice="Compare a fork with the run that it was forked from, from the step of the fork on.",
        )
    return True


def _require_equal_batches(control: Path, child: Path, pairs: list[tuple[Row, Row]]) -> None:
    for ours, theirs in pairs:
        if ours.get("batch") != theirs.get("batch"):
            raise DataError(
                f"At step {ours['step']} {control} trained on batch {ours.get('batch')} and {child} on batch {theirs.get('batch')}",
                advice="Only steps on the same batches can be paired; compare up to the step before a roll-back, with fewer steps.",
            )


def _paired_loss(difference: npt.NDArray[np.float64]) -> PairedLoss:
    """Statistics of the differences [n] (see `PairedLoss`), in float64."""
    count = len(difference)
    lag = min(math.ceil(1.3 * math.sqrt(count)), count)
    mean = float(difference.mean())
    around = difference - mean
    covariances = [float(around[shift:] @ around[: count - shift]) / count for shift in range(lag)]
    variance = covariances[0] + 2 * sum((1 - shift / lag) * each for shift, each in enumerate(covariances) if shift)
    error = math.sqrt(max(variance, 0.0) / count)
    margin = _critical_value(lag / count) * error
    return PairedLoss(
        pairs=count,
        mean=mean,
        sd=float(difference.std(ddof=1)),
        standard_error=error,
        low=mean - margin,
        high=mean + margin,
        lag=lag,
        first=float(difference[0]),
    )


def _critical_value(share: float) -> float:
    """Of a two-sided 95 % interval, where Bartlett weights reach over this share of the sample (Kiefer and Vogelsang 2005, table 1)."""
    return 1.96 + 2.9694 * share + 0.4160 * share**2 - 0.5324 * share**3


def _memory_name(ours: Row, theirs: Row) -> str:
    device = "memory/device_peak_bytes"
    return device if device in ours or device in theirs else "memory/host_rss_bytes"


def _measures(rows: list[Row], memory: str) -> Measures:
    def values(name: str) -> list[float]:
        return [float(row[name]) for row in rows if name in row and math.isfinite(row[name])]

    rates = [
        row["throughput/tokens_per_second"] * row["throughput/duration"] / row["throughput/iteration_time"]
        for row in rows
        if row.get("throughput/iteration_time") and "throughput/duration" in row
    ]
    return Measures(
        loss=fmean(found) if (found := values("loss")) else None,
        sender_drop_fraction=fmean(found) if (found := values("sender_drop_fraction")) else None,
        receiver_drop_fraction=fmean(found) if (found := values("receiver_drop_fraction")) else None,
        tokens_per_second=median(rates) if rates else None,
        mfu=median(found) if (found := values("throughput/mfu")) else None,
        memory_bytes=max(values(memory), default=None),
        sphere_norm_drift=max(values("sphere_norm_drift"), default=None),
    )


def _judged(control: Measures, child: Measures, limits: Thresholds) -> tuple[Criterion, ...]:
    return (
        _rise("rise of sender drops", control.sender_drop_fraction, child.sender_drop_fraction, limits.drop_fraction),
        _rise("rise of receiver drops", control.receiver_drop_fraction, child.receiver_drop_fraction, limits.drop_fraction),
        _ratio("tokens a second, ratio", control.tokens_per_second, child.tokens_per_second, limits.throughput_ratio, least=True),
        _ratio("MFU, ratio", control.mfu, child.mfu, limits.throughput_ratio, least=True),
        _ratio("memory peak, ratio", control.memory_bytes, child.memory_bytes, limits.memory_ratio, least=False),
        _at_most("sphere norm drift", child.sphere_norm_drift, limits.sphere_norm_drift, required=control.sphere_norm_drift is not None),
    )


def _at_most(name: str, value: float | None, limit: float, *, required: bool = False) -> Criterion:
    passed = value <= limit if value is not None else False if required else None
    return Criterion(name=name, value=value, limit=limit, passed=passed)


def _rise(name: str, control: float | None, child: float | None, limit: float) -> Criterion:
    both = control is not None and child is not None
    return _at_most(name, child - control if both else None, limit, required=(control is None) != (child is None))  # type: ignore[operator]


def _ratio(name: str, control: float | None, child: float | None, limit: float, *, least: bool) -> Criterion:
    if control is None or child is None or control == 0:
        return Criterion(name=name, value=None, limit=limit, passed=None if control is None and child is None else False)
    value = child / control
    return Criterion(name=name, value=value, limit=limit, passed=value >= limit if least else value <= limit)
