"""The run's own record of every step: one JSON line a step beside the checkpoints, exact to the bit."""

import json
import os
from collections import deque
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TextIO

import numpy as np
import numpy.typing as npt

from marin_core.model.config import MoEConfig

Row = dict[str, Any]
"""`step` (int), numbers by name, and on some rows:

* `load`: wanted assignments [L][E] as lists of int;
* `layers`: what `layer_metrics` says, lists [L];
* `norms`: what `norm_metrics` says, numbers and lists.
"""

NESTED = ("load", "layers", "norms")
"""Keys of a row that hold no number."""

ENDS = 10
"""So many first and last rows say where a run began and ended."""

GRADIENT, PARAMETER, UPDATE = NORMS = "grad/norm/", "params/norm/", "updates/norm/"
"""What the name of a norm begins with; the path of a leaf follows (`spec/training.md` §6)."""

LAYERS, ROUTED_EXPERTS, ROUTER, PER_EXPERT = (GRADIENT + name for name in ("layers", "routed_experts", "router", "experts"))
"""Gradient norms of leaves together: all of a layer [L]; of a mixture of experts its experts [L], its router [L], each expert [L, E].

Balanced loads do not show dead layers and dead experts, their gradients do (trap T6).
"""

PLOTTED_NORMS = (LAYERS, ROUTED_EXPERTS)
"""Norms that are drawn over time."""


def numbers(row: Row) -> Row:
    """A row without its lists."""
    return {name: value for name, value in row.items() if name not in NESTED}


def step_metrics(output: Mapping[str, npt.NDArray[Any]], moe: MoEConfig | None, expert_devices: int = 1) -> dict[str, float]:
    """Numbers of one step from the arrays that it returned: every scalar but norms under its own name, and of a mixture of experts
    those of `routing_metrics`.

    float32 values become the Python float of the same value, so their text restores them exactly; integers stay integers.
    """
    values = {name: np.asarray(value).item() for name, value in output.items() if np.ndim(value) == 0 and not name.startswith(NORMS)}
    return values if moe is None else values | routing_metrics(output, moe, expert_devices)


def routing_metrics(output: Mapping[str, npt.NDArray[Any]], moe: MoEConfig, expert_devices: int = 1) -> dict[str, float]:
    """What routing did in one step; totals are summed in int64 (trap T8).

    Args:
        expert_devices: devices that the experts are spread over in equal runs: each is a pool of rows.

    Returns:
        `load_cv` (standard deviation over mean of an expert's load, averaged over layers), `load_max_violation` (largest load over mean,
        minus 1, of the worst layer), with several devices `pool_load_cv` and `pool_load_max_violation` (the same of a device's experts
        together), `valid_assignments`, `sender_dropped`, `receiver_dropped` and `skipped_padding` (all layers), `drop_fraction`,
        `sender_drop_fraction` and `receiver_drop_fraction` (of all assignments), `dropped_weight_mass` (share of all combine weight that
        was dropped), `routing_entropy` (nats, of the load's distribution over experts, averaged over layers; ln E is perfect balance),
        `bias_min`, `bias_max` (all layers), `bias_range` (widest layer), `margin_min`, `margin_max`, `router_z_loss`, `balance_loss`
        (all layers), `saturated_experts` (experts whose quantile fell outside the histogram, all layers) and `saturated_share` of all.
    """
    load = output["load"].astype(np.int64)
    total = max(int(load.sum()), 1)
    sent, received = _total(output["sender_dropped"]), _total(output["receiver_dropped"])
    mass = moe.combine_scale * total / moe.experts_per_token
    saturated = _total(output.get("saturated_experts", np.int32(0)))
    return {
        **_spread(load, "load"),
        **({} if expert_devices == 1 else _spread(load.reshape(len(load), expert_devices, -1).sum(axis=2), "pool_load")),
        "valid_assignments": _total(output["valid_assignments"]),
        "sender_dropped": sent,
        "receiver_dropped": received,
        "skipped_padding": _total(output["skipped_padding"]),
        "drop_fraction": (sent + received) / total,
        "sender_drop_fraction": sent / total,
        "receiver_drop_fraction": received / total,
        "dropped_weight_mass": float(output["dropped_weight_mass"].astype(np.float64).sum()) / mass,
        "routing_entropy": float(np.mean(_entropy(load))),
        "bias_min": float(np.min(output["bias_min"])),
        "bias_max": float(np.max(output["bias_max"])),
        "bias_range": float(np.max(output["bias_max"] - output["bias_min"])),
        "margin_min": float(np.min(output["margin_min"])),
        "margin_max": float(np.max(output["margin_max"])),
        "router_z_loss": float(np.mean(output["router_z_loss"])),
        "balance_loss": float(np.sum(output["balance_loss"])),
        "saturated_experts": saturated,
        "saturated_share": saturated / load.size,
    }


def layer_metrics(output: Mapping[str, npt.NDArray[Any]]) -> dict[str, list[float]]:
    """What routing did in one step, layer by layer: each a list [L] under the name that the step gave it, and three of the loads."""
    load = output["load"].astype(np.int64)
    mean = np.maximum(load.mean(axis=1), 1e-9)
    stacked = {name: value for name, value in output.items() if np.shape(value) == (len(load),) and not name.startswith(NORMS)}
    derived = {"routing_entropy": _entropy(load), "load_cv": load.std(axis=1) / mean, "load_max_violation": load.max(axis=1) / mean - 1}
    return {name: value.tolist() for name, value in (stacked | derived).items()}


def norm_metrics(output: Mapping[str, npt.NDArray[Any]]) -> dict[str, Any]:
    """Norms among the arrays of a step as numbers and lists, to six digits; those of single experts, of which a large model has thousands,
    to three.
    """
    norms = {name: np.asarray(value) for name, value in output.items() if name.startswith(NORMS)}
    return {name: _rounded(value, 3 if name == PER_EXPERT else 6) for name, value in norms.items()}


def _rounded(values: npt.NDArray[Any], digits: int) -> Any:
    if values.ndim == 0:
        return float(f"{float(values):.{digits}g}")
    return [_rounded(value, digits) for value in values]


def _total(counts: npt.NDArray[Any] | np.int32) -> int:
    return int(np.sum(counts, dtype=np.int64))


def _entropy(load: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    """Of each layer's loads [L, E], in nats."""
    share = load / np.maximum(load.sum(axis=1, keepdims=True), 1)
    entropy: npt.NDArray[np.float64] = -np.sum(np.where(share > 0, share * np.log(np.where(share > 0, share, 1.0)), 0.0), axis=1)
    return entropy


def _spread(load: npt.NDArray[np.int64], name: str) -> dict[str, float]:
    mean = np.maximum(load.mean(axis=1), 1e-9)
    return {f"{name}_cv": float(np.mean(load.std(axis=1) / mean)), f"{name}_max_violation": float(np.max(load.max(axis=1) / mean - 1))}


class Thinned:
    """Rows spread evenly over all that were added, and the newest: never more than `most` + 1 of them.

    When there are too many, every second one goes. What is kept depends on nothing but the rows, and thinning it again changes nothing.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._stride = 1
        self._added = 0
        self._kept: list[Row] = []
        self._newest: Row | None = None

    def add(self, row: Row) -> None:
        if self._newest is not None:
            if self._added % self._stride == 0:
                self._kept.append(self._newest)
            self._added += 1
            if len(self._kept) > self._most:
                self._kept = self._kept[::2]
                self._stride *= 2
        self._newest = row

    @property
    def rows(self) -> list[Row]:
        return self._kept if self._newest is None else [*self._kept, self._newest]


class RowSample:
    """What plots need of a run of any length, in bounded memory: thinned numbers, thinned norms of layers, and the newest loads."""

    def __init__(self) -> None:
        self._numbers = Thinned(1_000)
        self._norms = Thinned(200)
        self._load: Row | None = None

    def add(self, row: Row) -> None:
        if "loss" in row:
            self._numbers.add(numbers(row))
        if "norms" in row:
            self._norms.add({"step": row["step"], "norms": {name: row["norms"][name] for name in PLOTTED_NORMS if name in row["norms"]}})
        if "load" in row:
            self._load = {"step": row["step"], "load": row["load"]}

    @property
    def numbers(self) -> list[Row]:
        """At most 1,001 rows without lists."""
        return self._numbers.rows

    @property
    def norms(self) -> list[Row]:
        """At most 201 rows of `step` and `norms`."""
        return self._norms.rows

    @property
    def load(self) -> Row | None:
        """`step` and `load` of the newest row that has loads."""
        return self._load

    @property
    def rows(self) -> list[Row]:
        """All of it as rows; a sample of them is this sample."""
        return [*self.numbers, *self.norms, *([] if self._load is None else [self._load])]


class MetricsFile:
    """`metrics.jsonl`: row i is step i. Opening it for a run that resumes at step N drops all rows from N on, and a torn last line.

    Memory does not grow with the number of rows.

    Attributes:
        count: rows in the file.
        first: the first ten, without lists.
        last: the last ten.
        sample: of all, for plots.
    """

    def __init__(self, path: Path, resume_step: int) -> None:
        self.path = path
        self._file = self._begin(resume_step)

    def _begin(self, step: int) -> TextIO:
        """Keep the rows before a step, and open the file behind them."""
        self.count = 0
        self.first: list[Row] = []
        self.last: deque[Row] = deque(maxlen=ENDS)
        self.sample = RowSample()
        # Written anew: a process that still appends to the old file can't reach this one.
        scratch = self.path.with_suffix(".jsonl.new")
        with scratch.open("w", encoding="utf-8") as file:
            for row in stream_metrics(self.path):
                if row["step"] < step:
                    file.write(_line(row))
                    self._keep(row)
            file.flush()
            os.fsync(file.fileno())
        scratch.replace(self.path)
        return self.path.open("a", encoding="utf-8")

    def rewind(self, step: int) -> None:
        """Drop the rows from a step on: the run goes back to it."""
        self._file.close()
        self._file = self._begin(step)

    def append(self, row: Row) -> None:
        """Write one row; it survives the death of this process."""
        self._keep(row)
        self._file.write(_line(row))
        self._file.flush()

    def sync(self) -> None:
        """Make all rows survive the death of this machine; called before a checkpoint that comes after them."""
        os.fsync(self._file.fileno())

    def first_mean(self, name: str) -> float:
        """Mean of a number over the first ten rows."""
        return float(np.mean([row[name] for row in self.first]))

    def last_mean(self, name: str) -> float:
        """Mean of a number over the last ten rows."""
        return float(np.mean([row[name] for row in self.last]))

    def _keep(self, row: Row) -> None:
        self.count += 1
        if len(self.first) < ENDS:
            self.first.append(numbers(row))
        self.last.append(row)
        self.sample.add(row)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._file.close()


def _line(row: Row) -> str:
    return json.dumps(row) + "\n"


def stream_metrics(path: Path) -> Iterator[Row]:
    """Whole rows of a metrics file in order of steps, one at a time; what follows the first torn line is left out."""
    if not path.exists():
        return
    with path.open(encoding="utf-8", errors="replace", newline="\n") as file:
        for line in file:
            try:
                yield json.loads(line)
            except json.JSONDecodeError:
                return


def read_metrics(path: Path) -> list[Row]:
    """All of `stream_metrics` at once; [] where there is no file."""
    return list(stream_metrics(path))
