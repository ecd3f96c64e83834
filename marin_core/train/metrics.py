"""The run's own record of every step: one JSON line a step beside the checkpoints, exact to the bit."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from marin_core.model.config import MoEConfig

Row = dict[str, Any]
"""`step` (int), numbers by name, and on some rows `load`: wanted assignments [L][E] as lists of int."""


def step_metrics(output: Mapping[str, npt.NDArray[Any]], moe: MoEConfig | None) -> dict[str, float]:
    """Numbers of one step from the arrays that it returned: loss, cross_entropy, gradient_norm, learning_rate, loss_tokens, and of a
    mixture of experts those of `routing_metrics`.

    float32 values become the Python float of the same value, so their text restores them exactly.
    """
    values = {name: float(output[name]) for name in ("loss", "cross_entropy", "gradient_norm", "learning_rate", "loss_tokens")}
    return values if moe is None else values | routing_metrics(output, moe)


def routing_metrics(output: Mapping[str, npt.NDArray[Any]], moe: MoEConfig) -> dict[str, float]:
    """What routing did in one step; totals are summed in int64 (trap T8).

    Returns:
        `load_cv` (standard deviation over mean of an expert's load, averaged over layers), `load_max_violation` (largest load over mean,
        minus 1, of the worst layer), `drop_fraction` (of all assignments), `dropped_weight_mass` (share of all combine weight that was
        dropped), `routing_entropy` (nats, of the load's distribution over experts, averaged over layers; ln E is perfect balance),
        `bias_range` (widest layer), `margin_min`, `margin_max`, `router_z_loss`, `balance_loss` (all layers), `saturated_experts`
        (experts whose quantile fell outside the histogram, all layers).
    """
    load = output["load"].astype(np.int64)
    wanted = load.sum(axis=1)
    mean = np.maximum(load.mean(axis=1), 1e-9)
    share = load / np.maximum(wanted[:, None], 1)
    entropy = -np.sum(np.where(share > 0, share * np.log(np.where(share > 0, share, 1.0)), 0.0), axis=1)
    total = max(int(wanted.sum()), 1)
    dropped = int(output["sender_dropped"].astype(np.int64).sum() + output["receiver_dropped"].astype(np.int64).sum())
    mass = moe.combine_scale * total / moe.experts_per_token
    return {
        "load_cv": float(np.mean(load.std(axis=1) / mean)),
        "load_max_violation": float(np.max(load.max(axis=1) / mean - 1)),
        "drop_fraction": dropped / total,
        "dropped_weight_mass": float(output["dropped_weight_mass"].astype(np.float64).sum()) / mass,
        "routing_entropy": float(np.mean(entropy)),
        "bias_range": float(np.max(output["bias_max"] - output["bias_min"])),
        "margin_min": float(np.min(output["margin_min"])),
        "margin_max": float(np.max(output["margin_max"])),
        "router_z_loss": float(np.mean(output["router_z_loss"])),
        "balance_loss": float(np.sum(output["balance_loss"])),
        "saturated_experts": float(np.sum(output.get("saturated_experts", np.int32(0)))),
    }


class MetricsFile:
    """`metrics.jsonl`: row i is step i. Opening it for a run that resumes at step N drops all rows from N on, and a torn last line."""

    def __init__(self, path: Path, resume_step: int) -> None:
        kept = [row for row in read_metrics(path) if row["step"] < resume_step]
        self.rows: list[Row] = kept
        scratch = path.with_suffix(".jsonl.new")
        with scratch.open("w", encoding="utf-8") as file:
            file.writelines(_line(row) for row in kept)
            file.flush()
            os.fsync(file.fileno())
        scratch.replace(path)
        self._file = path.open("a", encoding="utf-8")

    def append(self, row: Row) -> None:
        """Write one row; it survives the death of this process."""
        self.rows.append(row)
        self._file.write(_line(row))
        self._file.flush()

    def sync(self) -> None:
        """Make all rows survive the death of this machine; called before a checkpoint that comes after them."""
        os.fsync(self._file.fileno())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._file.close()


def _line(row: Row) -> str:
    return json.dumps(row) + "\n"


def read_metrics(path: Path) -> list[Row]:
    """All whole rows of a metrics file in order of steps; what follows the first torn line is left out. [] where there is no file."""
    if not path.exists():
        return []
    rows: list[Row] = []
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            rows.append(json.loads(line))
        except json.JSONDecodeError:
            break
    return rows
