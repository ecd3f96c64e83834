"""What commands write: tables for people, one JSON document for programs."""

import json
import sys
from collections.abc import Mapping
from typing import Any

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from marin_core.errors import MarinError
from marin_core.redaction import redact

PIPE_WIDTH = 10_000
"""Columns where nobody watches (a log, a pipe), so that no line is cut or folded."""

DRAWN_ROWS = 300
"""Longer tables are listed without lines on a terminal too: drawing a row takes a millisecond."""

DIGEST_SHOWN = 12


def console(*, stderr: bool = False) -> Console:
    """Prints text as it is: names and values come from data, and `[red]` in one of them is no colour."""
    found = Console(stderr=stderr, markup=False, highlight=False, emoji=False)
    return found if found.is_terminal else Console(stderr=stderr, markup=False, highlight=False, emoji=False, width=PIPE_WIDTH)


class Sheet:
    """A table: drawn on a terminal, elsewhere aligned columns of whole cells, one line a row."""

    def __init__(self, title: str, *columns: str) -> None:
        self._title = title
        self._columns = columns
        self._rows: list[tuple[Text | str, ...]] = []

    def __len__(self) -> int:
        return len(self._rows)

    def add(self, *cells: object) -> None:
        """A row of values; texts keep their style."""
        self._rows.append(tuple(cell if isinstance(cell, Text) else plain(cell) for cell in cells))

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        if console.is_terminal and len(self) <= DRAWN_ROWS:
            yield self._drawn()
        else:
            for line in self._lines():  # folding takes its time, and few lines need it
                yield Segment(f"{line}\n") if cell_len(line) <= options.max_width else Text(line, overflow="fold")

    def _drawn(self) -> Table:
        table = Table(title=Text(self._title), title_justify="left")
        for column in self._columns:
            table.add_column(column, overflow="fold")
        for row in self._rows:
            table.add_row(*row)
        return table

    def _lines(self) -> list[str]:
        rows = [self._columns, *([str(cell).replace("\n", " ") for cell in row] for row in self._rows)]
        widths = [max(cell_len(row[column]) for row in rows) for column in range(len(self._columns))]
        lines = ["  ".join(cell + " " * (width - cell_len(cell)) for cell, width in zip(row, widths, strict=True)) for row in rows]
        return [self._title, *(line.rstrip() for line in lines)]


def new_table(title: str, *columns: str) -> Sheet:
    """An empty table."""
    return Sheet(title, *columns)


def add_row(table: Sheet, *cells: object) -> None:
    """A row of texts and values."""
    table.add(*cells)


def plain(value: object) -> str:
    """Text that is safe to print whatever it came from: control characters, which could drive a terminal, are escaped."""
    text = str(value)
    return text if text.isprintable() else "".join(each if each.isprintable() or each in "\n\t" else ascii(each)[1:-1] for each in text)


def styled(value: object, style: str = "") -> Text:
    """`plain` text in a style."""
    return Text(plain(value), style=style)


def print_fields(out: Console, fields: Mapping[str, object]) -> None:
    """Names and values, one a line; what is empty or not known is left out."""
    shown = {name: value for name, value in fields.items() if value not in (None, "", ())}
    width = max((len(name) for name in shown), default=0)
    for name, value in shown.items():
        out.print(f"{name:<{width}}  ", end="")
        out.print(value if isinstance(value, Text) else plain(value), soft_wrap=True)


def print_json(document: Any) -> None:
    """The one document of a command's `--json`, on standard output."""
    sys.stdout.write(redact(json.dumps(document, ensure_ascii=False, indent=2, allow_nan=False)) + "\n")


def print_error(error: MarinError, *, as_json: bool) -> None:
    """An error on standard error, for people or as `{"error": {"message", "advice", "exit_code"}}`."""
    if as_json:
        shown = {"message": error.message, "advice": error.advice, "exit_code": int(error.exit_code)}
        sys.stderr.write(redact(json.dumps({"error": shown}, ensure_ascii=False)) + "\n")
    else:
        sys.stderr.write(f"marin: {plain(error)}\n")


def size(count: float) -> str:
    """Bytes for people."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


def duration(seconds: float) -> str:
    """Seconds for people."""
    if seconds < 120:
        return f"{seconds:.1f} s"
    if seconds < 7200:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.0f} h" if seconds < 48 * 3600 else f"{seconds / 86400:.1f} d"


def short(digest: str) -> str:
    """The beginning of a digest, enough to compare by eye."""
    return digest[:DIGEST_SHOWN]
