"""Pictures of a plan."""

from collections.abc import Mapping
from pathlib import Path

import matplotlib as mpl
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from marin_core.plan.report import PlanReport


def draw_plots(report: PlanReport, directory: Path) -> dict[str, Path]:
    """Write memory.png, traffic.png and roofline.png; returns name → file."""
    directory.mkdir(parents=True, exist_ok=True)
    with mpl.rc_context({"font.family": "DejaVu Sans", "axes.grid": True, "grid.alpha": 0.3}):
        return {
            "memory": _save(_memory(report), directory / "memory.png"),
            "traffic": _save(_traffic(report), directory / "traffic.png"),
            "roofline": _save(_roofline(report), directory / "roofline.png"),
        }


def _memory(report: PlanReport) -> Figure:
    """One bar of what a device keeps at once, and the memories of the devices there are."""
    memory = report.memory
    kept = {
        "arguments": memory.argument_bytes,
        "outputs that are new": max(memory.output_bytes - memory.aliased_bytes, 0),
        "temporaries (estimate)": memory.temporary_bytes,
    }
    figure = Figure(figsize=(7, 2.6), dpi=100, layout="constrained")
    axes = figure.add_subplot()
    left = 0.0
    for name, count in kept.items():
        axes.barh(0, count / 1e9, left=left, label=name, height=0.5)
        left += count / 1e9
    for line, fit in enumerate(sorted(report.fits, key=lambda fit: fit.hbm_bytes)):
        planned = fit.device == report.device.name
        axes.axvline(fit.hbm_bytes / 1e9, color="black" if planned else "grey", linewidth=2 if planned else 0.8, linestyle="--")
        axes.text(fit.hbm_bytes / 1e9, 0.62 - 0.16 * (line % 2), f" {fit.device}", fontsize=8, fontweight="bold" if planned else None)
    axes.set_xlim(0, 1.1 * max(left, *(fit.hbm_bytes / 1e9 for fit in report.fits)))
    axes.set_ylim(-0.4, 0.8)
    axes.set_yticks([])
    axes.set_xlabel("GB of one device")
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.3), ncols=3, fontsize=8)
    return figure


def _traffic(report: PlanReport) -> Figure:
    """Bytes that a device sends in a step, in its rack and across racks, by kind of collective."""
    kinds = tuple(dict.fromkeys(row.kind for row in report.traffic))
    figure = Figure(figsize=(7, 3.2), dpi=100, layout="constrained")
    axes = figure.add_subplot()
    left = [0.0, 0.0]
    for kind in kinds:
        rows = [row for row in report.traffic if row.kind == kind]
        sent = [sum(row.cross_rack_bytes for row in rows) / 1e9, sum(row.rack_link_bytes for row in rows) / 1e9]
        axes.barh([0, 1], sent, left=left, label=kind, height=0.6)
        left = [before + more for before, more in zip(left, sent, strict=True)]
    axes.set_yticks([0, 1], ["across racks", "in the rack"])
    axes.set_xlabel("GB that one device sends in a step")
    axes.legend(fontsize=8)
    return figure


def _roofline(report: PlanReport) -> Figure:
    """The least time of each resource, and the two bounds of a step."""
    bound = report.roofline
    times: Mapping[str, float] = {
        "compute": bound.compute_seconds,
        "compute again": bound.recompute_seconds,
        "device memory": bound.hbm_seconds,
        "rack link": bound.rack_link_seconds,
        "cross-rack link": bound.cross_rack_seconds,
        "all at once": bound.overlapped_step_seconds,
        "one after the other": bound.serial_step_seconds,
    }
    figure = Figure(figsize=(7, 3.2), dpi=100, layout="constrained")
    axes = figure.add_subplot()
    colours = ["tab:blue"] * 5 + ["tab:orange"] * 2
    axes.barh(list(times)[::-1], list(times.values())[::-1], color=colours[::-1])
    axes.set_xlabel("seconds of a step, at least")
    return figure


def _save(figure: Figure, path: Path) -> Path:
    # Without a fixed Software entry the PNG would name the library's version.
    FigureCanvasAgg(figure).print_png(str(path), metadata={"Software": None})  # type: ignore[no-untyped-call]
    return path
