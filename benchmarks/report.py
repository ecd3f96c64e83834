"""What every benchmark prints and writes: rows of ours against a peer's, and the machine they were measured on."""

import argparse
import json
import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Literal

import psutil
from rich.console import Console
from rich.table import Table
from rich.text import Text


@dataclass(frozen=True)
class Row:
    """One measure of ours beside one peer's.

    A number that couldn't be had is None, and `reason` says why: a row is shown without its number, never dropped.
    """

    measure: str
    ours: float | None
    peer: float | None
    peer_name: str
    unit: str
    better: Literal["lower", "higher"] = "lower"
    reason: str | None = None

    def __post_init__(self) -> None:
        if (self.ours is None or self.peer is None) and not self.reason:
            raise ValueError(f"the row {self.measure!r} lacks a number and doesn't say why; give it a reason")

    @property
    def ratio(self) -> float | None:
        """How many times better than the peer ours is; above 1 is better. None where a number is missing or zero."""
        if not self.ours or not self.peer:
            return None
        return self.peer / self.ours if self.better == "lower" else self.ours / self.peer

    def as_json(self) -> dict[str, str | float | None]:
        """The row as `--json` writes it."""
        return {
            "measure": self.measure,
            "ours": self.ours,
            "peer": self.peer,
            "peer_name": self.peer_name,
            "unit": self.unit,
            "ratio": self.ratio,
            "reason": self.reason,
        }


@dataclass(frozen=True)
class Machine:
    """What the rows were measured on, and how busy it was: without the load, a number of a shared machine says little."""

    cpu_count: int
    cpu_model: str
    memory_bytes: int
    load_average: tuple[float, float, float]
    platform: str

    @classmethod
    def now(cls) -> "Machine":
        """This machine and its load average over 1, 5 and 15 minutes. Call it before measuring, which makes load itself."""
        return cls(
            cpu_count=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
            cpu_model=_cpu_model(),
            memory_bytes=psutil.virtual_memory().total,
            load_average=psutil.getloadavg(),
            platform=f"{platform.system()} {platform.machine()}",
        )

    def __str__(self) -> str:
        load = " ".join(f"{each:.2f}" for each in self.load_average)
        return f"{self.cpu_count} CPUs ({self.cpu_model}), {self.memory_bytes / 2**30:.0f} GiB, load average before {load}"


def parser(description: str) -> argparse.ArgumentParser:
    """A benchmark's command line with the options that all of them have."""
    made = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--json", type=Path, metavar="FILE", help="write the machine, the versions and the rows to FILE")
    return made


def installed_versions(*distributions: str) -> dict[str, str]:
    """Versions of Python and of distributions in the running environment; of one that isn't installed, the text says so."""
    found = {"python": platform.python_version()}
    for each in distributions:
        try:
            found[each] = version(each)
        except PackageNotFoundError:
            found[each] = "not installed"
    return found


def publish(title: str, rows: Sequence[Row], *, machine: Machine, versions: Mapping[str, str], json_file: Path | None = None) -> None:
    """Print the rows and, where a file is given, write them: how every benchmark ends."""
    print_table(rows, title=title)
    Console().print(
        f"{machine}\n{', '.join(f'{name} {value}' for name, value in versions.items())}", style="dim", markup=False, highlight=False
    )
    if json_file is not None:
        write_json(json_file, rows, machine=machine, versions=versions)


def print_table(rows: Sequence[Row], *, title: str | None = None, console: Console | None = None) -> None:
    """Print the rows as a table, and below it why a number is missing."""
    table = Table(title=title, title_justify="left")
    table.add_column("measure", overflow="fold")
    for column in ("ours", "peer"):
        table.add_column(column, justify="right")
    table.add_column("peer's name", overflow="fold")
    table.add_column("unit")
    table.add_column("ratio", justify="right")
    reasons = list(dict.fromkeys(row.reason for row in rows if row.reason))
    for row in rows:
        missing = f"none ({reasons.index(row.reason) + 1})" if row.reason else ""
        table.add_row(
            Text(row.measure),
            *(Text(missing, style="yellow") if number is None else Text(_number(number)) for number in (row.ours, row.peer)),
            Text(row.peer_name),
            Text(row.unit),
            Text("–") if row.ratio is None else Text(f"{_number(row.ratio)}×", style="green" if row.ratio > 1 else "red"),
        )
    console = console or Console()
    console.print(table)
    for i, reason in enumerate(reasons, 1):
        console.print(Text(f"({i}) {reason}", style="yellow"))


def write_json(path: Path, rows: Sequence[Row], *, machine: Machine, versions: Mapping[str, str]) -> None:
    """Write `{machine, versions, rows}` in one rename, so that a reader never sees half a file."""
    document = {"machine": asdict(machine), "versions": dict(versions), "rows": [row.as_json() for row in rows]}
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    draft.write_text(json.dumps(document, indent=2, allow_nan=False, ensure_ascii=False) + "\n")
    draft.replace(path)


def _number(value: float) -> str:
    """Four significant digits, and no exponent where people still read the number without."""
    return f"{value:,.0f}" if abs(value) >= 1e3 else f"{value:.4g}"


def _cpu_model() -> str:
    """The processor's name as Linux tells it, which `platform.processor` leaves empty there."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text(errors="replace").splitlines() if info.exists() else []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, "") or platform.processor() or "unknown processor"
