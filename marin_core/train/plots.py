"""Pictures of a run, drawn from its metrics alone: the same rows give the same bytes."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import matplotlib as mpl
import numpy as np
import numpy.typing as npt
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from PIL import Image

from marin_core.train.metrics import LAYERS, ROUTED_EXPERTS, Row, RowSample

SPANS = {"duration": "compute", "loading_time": "input", "checkpoint_time": "checkpoint", "hook_time": "hooks", "gc_time": "gc"}
"""`throughput/*` → what its seconds went to."""

COLOURS = 64
"""Of a picture's palette."""

STRETCHES = 100
"""So many means are drawn of times."""


def draw_plots(rows: Iterable[Row], directory: Path) -> dict[str, Path]:
    """Write the plots that the rows have numbers for; returns name → PNG file, each under 100 kB.

    `loss` always; of a mixture of experts `expert_load` and `load_cv`; with norms `gradient_norm` and `layer_gradients`; with learning
    rates of groups `learning_rates`; with times `throughput`. Rows may be all of a run or its `RowSample`: the pictures are the same.
    """
    sample = RowSample()
    for row in rows:
        sample.add(row)
    directory.mkdir(parents=True, exist_ok=True)
    with mpl.rc_context({"font.family": "DejaVu Sans", "axes.grid": True, "grid.alpha": 0.3}):
        return {name: _save(draw(), directory / f"{name}.png") for name, draw in _due(sample).items()}


def _due(sample: RowSample) -> Mapping[str, Callable[[], Figure]]:
    """Name → what draws it, of all that the sample has numbers for."""
    rows, load, norms = sample.numbers, sample.load, sample.norms
    seen = dict.fromkeys(name for row in (rows[:1] + rows[-1:]) for name in row)
    rates = [name for name in seen if name.startswith("learning_rate/")]
    due: dict[str, Callable[[], Figure]] = {"loss": lambda: _curve(rows, ("loss", "cross_entropy"), "nats per token")}
    if load is not None:
        due["expert_load"] = lambda: _load_map(load)
        due["load_cv"] = lambda: _curve(rows, ("load_cv", "drop_fraction"), "share")
    if norms:
        due["gradient_norm"] = lambda: _curve(rows, ("gradient_norm",), "gradient norm", logarithmic=True)
        due["layer_gradients"] = lambda: _layer_map(norms)
    if rates:
        due["learning_rates"] = lambda: _curve(rows, rates, "learning rate")
    if "throughput/iteration_time" in seen:
        due["throughput"] = lambda: _time_split(rows)
    return due


def _curve(rows: Sequence[Row], names: Sequence[str], unit: str, *, logarithmic: bool = False) -> Figure:
    figure = Figure(figsize=(6, 3.4), dpi=100, layout="constrained")
    axes = figure.add_subplot()
    for name in names:
        points = [(row["step"], row[name]) for row in rows if name in row]
        axes.plot(*zip(*points, strict=True) if points else ([], []), label=name.replace("_", " "), linewidth=1.2)
    axes.set_xlabel("step")
    axes.set_ylabel(unit)
    if logarithmic:
        axes.set_yscale("log")
    axes.legend()
    return figure


def _load_map(row: Row) -> Figure:
    """Load of each expert over the mean of its layer; 1 is perfect balance."""
    load = np.asarray(row["load"], dtype=np.float64)
    relative = load / np.maximum(load.mean(axis=1, keepdims=True), 1e-9)
    return _heat_map(relative, f"load over mean, step {row['step']}", "expert", "coolwarm", (0, 2))


def _layer_map(rows: Sequence[Row]) -> Figure:
    """Gradient norm of each layer over time, of its routed experts where it has them: dead layers are dark from side to side."""
    name = ROUTED_EXPERTS if ROUTED_EXPERTS in rows[-1]["norms"] else LAYERS
    kept = [row for row in rows if name in row["norms"]]
    norms = np.asarray([row["norms"][name] for row in kept], dtype=np.float64).T
    with np.errstate(divide="ignore", invalid="ignore"):
        decades = np.where(norms > 0, np.log10(norms), np.nan)
    title = "log10 of the gradient norm of a layer" + ("'s routed experts" if name == ROUTED_EXPERTS else "")
    figure = _heat_map(decades, title, f"step {kept[0]['step']} to {kept[-1]['step']}", "viridis", None)
    figure.axes[0].set_xticks([])
    return figure


def _heat_map(values: npt.NDArray[np.float64], title: str, columns: str, colours: str, limits: tuple[float, float] | None) -> Figure:
    """values [L, columns]."""
    figure = Figure(figsize=(6, 3.4), dpi=100, layout="constrained")
    axes = figure.add_subplot()
    low, high = limits or (None, None)
    image = axes.imshow(values, aspect="auto", cmap=colours, vmin=low, vmax=high, interpolation="nearest")
    axes.grid(visible=False)
    axes.set_xlabel(columns)
    axes.set_ylabel("layer")
    axes.set_yticks(range(0, len(values), -(-len(values) // 16)))
    axes.set_title(title)
    figure.colorbar(image, ax=axes)
    return figure


def _time_split(rows: Sequence[Row]) -> Figure:
    """Seconds of an iteration, stacked by what they went to; the line is the whole. Means over stretches: single steps are noise."""
    timed = [row for row in rows if "throughput/iteration_time" in row]
    size = -(-len(timed) // STRETCHES)
    stretches = [timed[begin : begin + size] for begin in range(0, len(timed), size)]
    steps = [stretch[0]["step"] for stretch in stretches]

    def means(name: str) -> list[float]:
        return [float(np.mean([row[f"throughput/{name}"] for row in stretch])) for stretch in stretches]

    figure = Figure(figsize=(6, 3.4), dpi=100, layout="constrained")
    axes = figure.add_subplot()
    axes.stackplot(steps, [means(name) for name in SPANS], labels=list(SPANS.values()), linewidth=0)
    axes.plot(steps, means("iteration_time"), color="black", linewidth=0.8, label="iteration")
    axes.set_xlabel("step")
    axes.set_ylabel("seconds of an iteration")
    axes.set_ylim(bottom=0)
    axes.legend(loc="upper right", ncols=2, fontsize=8)
    return figure


def _save(figure: Figure, path: Path) -> Path:
    """Write a PNG of 64 colours, a third as large as one of all; who reads the file meanwhile sees the old picture or the new one."""
    scratch = path.with_suffix(".png.new")
    canvas = FigureCanvasAgg(figure)
    canvas.draw()  # type: ignore[no-untyped-call]
    pixels = np.asarray(canvas.buffer_rgba())  # type: ignore[no-untyped-call]
    picture = Image.fromarray(pixels).convert("RGB").quantize(COLOURS)
    picture.save(scratch, format="png", optimize=True)
    return scratch.replace(path)
