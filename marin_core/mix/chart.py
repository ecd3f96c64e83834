"""Shares over time as one inline SVG: steps, stacked to the whole, without a script."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import accumulate

COLORS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#f0e442", "#7f3c8d", "#80ba5a", "#a5aa99")
"""Of domains, the first eight or so told apart by people who don't see all colours (Okabe and Ito)."""

OTHER_COLOR = "#888888"

WIDTH, HEIGHT = 960, 240
LEFT, RIGHT, TOP, BOTTOM = 44, 10, 10, 26


@dataclass(frozen=True)
class Series:
    """One domain: its name, its colour, and its share [0, 1] from each time on."""

    name: str
    color: str
    shares: tuple[float, ...]


def chart(times: Sequence[datetime], series: Sequence[Series], title: str) -> str:
    """An SVG element of stacked steps. What holds from the last time on is drawn for one hour more.

    Args:
        times: from when on each share holds, not falling.
        title: for those who can't see it; already escaped.
    """
    if not times:
        return ""
    start, end = times[0], times[-1] + timedelta(hours=1)
    edges = [_x((time - start) / (end - start)) for time in (*times, end)]
    tops = [list(accumulate((each.shares[index] for each in series), initial=0.0)) for index in range(len(times))]
    bands = [
        f'<path d="{_band(edges, [top[row] for top in tops], [top[row + 1] for top in tops])}" fill="{each.color}"/>'
        for row, each in enumerate(series)
    ]
    return (
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" xmlns="http://www.w3.org/2000/svg"><title>{title}</title>\n'
        + "\n".join(bands)
        + "".join(_grid(share) for share in (0, 0.25, 0.5, 0.75, 1))
        + _label(edges[0], "start", start)
        + _label(edges[-1], "end", end)
        + "</svg>"
    )


def _band(edges: Sequence[float], low: Sequence[float], high: Sequence[float]) -> str:
    """Outline of one domain: along its upper steps and back along the lower ones."""
    there = [(x, _y(share)) for index, share in enumerate(high) for x in (edges[index], edges[index + 1])]
    back = [(x, _y(share)) for index, share in reversed(list(enumerate(low))) for x in (edges[index + 1], edges[index])]
    return "M" + "L".join(f"{x:g} {y:g}" for x, y in there + back) + "Z"


def _grid(share: float) -> str:
    y = _y(share)
    return (
        f'<path d="M{LEFT} {y:g}H{WIDTH - RIGHT}" stroke="currentColor" stroke-opacity=".2" fill="none"/>'
        f'<text x="{LEFT - 6}" y="{y + 4:g}" text-anchor="end">{share * 100:.0f} %</text>'
    )


def _label(x: float, anchor: str, time: datetime) -> str:
    return f'<text x="{x:g}" y="{HEIGHT - 8}" text-anchor="{anchor}">{time:%Y-%m-%d %H:%M} UTC</text>'


def _x(share: float) -> float:
    return round(LEFT + share * (WIDTH - LEFT - RIGHT), 2)


def _y(share: float) -> float:
    return round(HEIGHT - BOTTOM - share * (HEIGHT - TOP - BOTTOM), 2)
