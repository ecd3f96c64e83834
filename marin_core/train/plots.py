"""Pictures of a run, drawn from its metrics file alone: the same rows give the same bytes."""

from collections.abc import Sequence
from pathlib import Path

import matplotlib as mpl
import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from marin_core.train.metrics import Row

MAX_POINTS = 2_000
"""Longest curve that is drawn; longer ones are thinned evenly, which keeps files under 60 kB."""


def draw_plots(rows: Sequence[Row], directory: Path) -> dict[str, Path]:
    """Write loss.png, and of a mixture of experts expert_load.png and load_cv.png; returns name → file."""
    directory.mkdir(parents=True, exist_ok=True)
    thinned = rows[:: -(-len(rows) // MAX_POINTS) or 1]
    with mpl.rc_context({"font.family": "DejaVu Sans", "axes.grid": True, "grid.alpha": 0.3}):
        plots = {"loss": _save(_curve(thinned, ("loss", "cross_entropy"), "nats per token"), directory / "loss.png")}
        loaded = next((row for row in reversed(rows) if "load" in row), None)
        if loaded is not None:
            plots["expert_load"] = _save(_load_map(loaded), directory / "expert_load.png")
            plots["load_cv"] = _save(_curve(thinned, ("load_cv", "drop_fraction"), "share"), directory / "load_cv.png")
        return plots


def _curve(rows: Sequence[Row], names: Sequence[str], unit: str) -> Figure:
    figure = Figure(figsize=(6, 3.4), dpi=100, layout="constrained")
    axes = figure.add_subplot()
    for name in names:
        axes.plot([row["step"] for row in rows], [row[name] for row in rows], label=name.replace("_", " "), linewidth=1.2)
    axes.set_xlabel("step")
    axes.set_ylabel(unit)
    axes.legend()
    return figure


def _load_map(row: Row) -> Figure:
    """Load of each expert over the mean of its layer; 1 is perfect balance."""
    load = np.asarray(row["load"], dtype=np.float64)
    relative = load / np.maximum(load.mean(axis=1, keepdims=True), 1e-9)
    figure = Figure(figsize=(6, 3.4), dpi=100, layout="constrained")
    axes = figure.add_subplot()
    image = axes.imshow(relative, aspect="auto", cmap="coolwarm", vmin=0, vmax=2, interpolation="nearest")
    axes.grid(visible=False)
    axes.set_xlabel("expert")
    axes.set_ylabel("layer")
    axes.set_yticks(range(0, load.shape[0], -(-load.shape[0] // 16)))
    axes.set_title(f"load over mean, step {row['step']}")
    figure.colorbar(image, ax=axes)
    return figure


def _save(figure: Figure, path: Path) -> Path:
    # Without a fixed Software entry the PNG would name the library's version.
    FigureCanvasAgg(figure).print_png(str(path), metadata={"Software": None})  # type: ignore[no-untyped-call]
    return path
