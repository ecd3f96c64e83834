"""`moe_tiny` trained with every balancer on the same batches: loss, spread of loads and drops over time, side by side.

    python -m benchmarks.balancers --steps 300 --json balancers.json

Data are Python's help topics byte by byte, each sequence from one topic and few topics most of the time, so that tokens of a batch want
the same experts. Everything but the balancer is equal: model, seed, batches, optimizer, capacity. Unlike the worlds of
`benchmarks.balance`, here the router learns and drops have consequences. On one device, where each expert has rows of its own; the mean
of local quantiles is left out, since the quantile of one shard is the exact one.

Runs are short and of one seed. `loss_free` moves a bias by 0.001 a step, so after some hundred steps it is still on its way; and losses
that differ by as little as those of the two quantile balancers, which solve the same problem, say nothing.
"""

import argparse
import tempfile
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from pydoc_data.topics import topics

import matplotlib as mpl
import numpy as np
import numpy.typing as npt
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from rich.console import Console
from rich.table import Table

from benchmarks.report import Machine, Row, installed_versions, parser, publish
from marin_core.data.batch import Batch
from marin_core.model.config import (
    AuxiliaryLossConfig,
    BalancerConfig,
    LossFreeConfig,
    MoEConfig,
    NoBalancerConfig,
    QuantileExactConfig,
    QuantileHistogramConfig,
)
from marin_core.model.presets import moe_tiny
from marin_core.report import SilentReporter
from marin_core.train import metrics
from marin_core.train.checkpoint.config import CheckpointPolicy
from marin_core.train.config import TrackerConfig, TrainConfig
from marin_core.train.loop import train
from marin_core.train.optimizers.config import AdamW
from marin_core.train.schedules import Wsd

BALANCERS: dict[str, BalancerConfig] = {
    "quantile_histogram": QuantileHistogramConfig(),
    "quantile_exact": QuantileExactConfig(),
    "loss_free": LossFreeConfig(),
    "aux_loss": AuxiliaryLossConfig(),
    "none": NoBalancerConfig(),
}
DEFAULT = "quantile_histogram"

SHOWN = {
    "cross_entropy": ("loss", "nats a byte"),
    "load_cv": ("load CV", "of the mean load"),
    "load_max_violation": ("max violation", "of the mean load"),
    "drop_fraction": ("drops", "share of assignments"),
}
"""Column of a row of metrics → its name and unit here."""

SEQUENCES, LENGTH = 16, 128
WINDOW = 10
"""Steps that a figure is the mean of."""

Rows = Mapping[str, Sequence[metrics.Row]]
"""Balancer → its steps."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Train, print the tables, draw the picture and write the rows."""
    options = _options(arguments)
    machine, progress = Machine.now(), Console(stderr=True)
    found: dict[str, Sequence[metrics.Row]] = {}
    for name, balancer in BALANCERS.items():
        progress.print(f"{name}: {options.steps} steps")
        found[name] = trained(balancer, options.steps, options.seed)
    show(found)
    picture = options.picture or (options.json and options.json.with_suffix(".png"))
    if picture is not None:
        draw(found, picture)
        progress.print(f"drawn to {picture}")
    title, versions = f"{DEFAULT} beside the others, the last {WINDOW} steps", installed_versions("jax", "jaxlib", "numpy")
    publish(title, rows(found), machine=machine, versions=versions, json_file=options.json)


def trained(balancer: BalancerConfig, steps: int, seed: int) -> Sequence[metrics.Row]:
    """A whole run with the loop that every training has; the rows of its steps."""
    config = TrainConfig(
        model=moe_tiny(256, max_sequence_length=LENGTH, moe=tiny_experts().changed(balancer=balancer)),
        optimizer=AdamW(schedule=Wsd(warmup_steps=max(1, steps // 20))),
        num_steps=steps,
        global_batch_size=SEQUENCES,
        sequence_length=LENGTH,
        seed=seed,
        checkpoints=CheckpointPolicy(permanent_every_steps=steps),
        tracker=TrackerConfig(mode="disabled"),
    )
    with tempfile.TemporaryDirectory(prefix="benchmark-balancers-") as folder:
        train(config, topic_batch, Path(folder), SilentReporter(), fingerprint=balancer.name, run_name=balancer.name)
        return [metrics.numbers(row) for row in metrics.read_metrics(Path(folder) / "metrics.jsonl")]


def tiny_experts() -> MoEConfig:
    """The experts of `moe_tiny`."""
    moe = moe_tiny().moe
    assert moe is not None  # noqa: S101  # the preset has them
    return moe


def topic_batch(index: int, host: int, hosts: int) -> Batch:
    """Sequences int32 [B, S] of bytes, each from one help topic; topic number r is drawn with probability ∝ 1/(r + 1)."""
    rng, texts = np.random.default_rng([17, index]), topic_texts()
    share = 1 / np.arange(1, len(texts) + 1)
    chosen = rng.choice(len(texts), size=SEQUENCES, p=share / share.sum())
    tokens = np.stack([texts[topic][(start := rng.integers(len(texts[topic]) - LENGTH)) : start + LENGTH] for topic in chosen])
    tokens = tokens[host * SEQUENCES // hosts : (host + 1) * SEQUENCES // hosts].astype(np.int32)
    return Batch(tokens, np.zeros_like(tokens), np.ones(tokens.shape, np.float32))


@cache
def topic_texts() -> list[npt.NDArray[np.uint8]]:
    """The topics longer than a sequence, as bytes, in the order of their names."""
    encoded = (np.frombuffer(topics[name].encode(), np.uint8) for name in sorted(topics))
    return [text for text in encoded if len(text) > LENGTH + 1]


# What is shown ------------------------------------------------------------------------------------------------------


def moments(steps: int) -> dict[str, slice]:
    """Start, middle and end of a run: its first, middle and last steps."""
    window = min(WINDOW, max(1, steps // 3))
    middle = (steps - window) // 2
    return {"start": slice(0, window), "middle": slice(middle, middle + window), "end": slice(steps - window, steps)}


def mean(steps: Sequence[metrics.Row], name: str, when: slice) -> float:
    return float(np.mean([row[name] for row in steps[when]]))


def show(found: Rows) -> None:
    """One table a figure: balancers below each other, time from left to right."""
    for column, (name, unit) in SHOWN.items():
        table = Table(title=f"{name}, {unit}", title_justify="left")
        table.add_column("balancer")
        for when in ("start", "middle", "end"):
            table.add_column(when, justify="right")
        for balancer, steps in found.items():
            table.add_row(balancer, *(f"{mean(steps, column, when):.4f}" for when in moments(len(steps)).values()))
        Console().print(table)


def rows(found: Rows) -> list[Row]:
    """The default balancer at the end of the run beside each other one."""
    result = []
    for column, (name, unit) in SHOWN.items():
        ends = {balancer: mean(steps, column, moments(len(steps))["end"]) for balancer, steps in found.items()}
        result += [Row(name, ends[DEFAULT], value, balancer, unit) for balancer, value in ends.items() if balancer != DEFAULT]
    return result


def draw(found: Rows, picture: Path) -> None:
    """Write a PNG of three panels over the steps of all balancers: loss, spread of loads, drops."""
    with mpl.rc_context({"font.family": "DejaVu Sans", "axes.grid": True, "grid.alpha": 0.3}):
        figure = Figure(figsize=(13, 3.8), dpi=100, layout="constrained")
        panels = figure.subplots(1, 3)
        for axes, column in zip(panels, ("cross_entropy", "load_cv", "drop_fraction"), strict=True):
            for balancer, steps in found.items():
                axes.plot(*_smoothed(steps, column), label=balancer, linewidth=1.2)
            axes.set_xlabel("step")
            axes.set_ylabel(", ".join(SHOWN[column]))
        panels[1].legend()
        picture.parent.mkdir(parents=True, exist_ok=True)
        FigureCanvasAgg(figure).print_png(str(picture), metadata={"Software": None})  # type: ignore[no-untyped-call]


def _smoothed(steps: Sequence[metrics.Row], column: str) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]:
    """Steps, and means over as many neighbours as leave about 100 of them."""
    width = -(-len(steps) // 100)
    values = np.convolve([row[column] for row in steps], np.ones(width) / width, mode="valid")
    return np.arange(len(values)) + width // 2, values


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    made = parser(__doc__ or "")
    made.add_argument("--steps", type=int, default=300, metavar="N", help="of each run (default 300)")
    made.add_argument("--seed", type=int, default=0, metavar="N", help="of the parameters (default 0)")
    made.add_argument("--picture", type=Path, metavar="FILE", help="draw all runs over time to FILE, a PNG (default: beside --json)")
    return made.parse_args(arguments)


if __name__ == "__main__":
    main()
