"""Metrics of several artifacts side by side."""

import json
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from pathlib import Path

from marin_core.artifact.record import Record
from marin_core.report import Report, Scalar

SUMMARY_FILE = "summary.json"


def write_summary(records: Iterable[Record], patterns: Sequence[str], output: Path) -> Report:
    """One row an artifact with every metric whose name matches a pattern (`*/acc`, `bits_per_byte/*`), in artifact order."""
    rows: list[dict[str, Scalar]] = []
    for record in sorted(records, key=lambda record: record.id):
        metrics = {name: value for name, value in record.metrics.items() if any(fnmatchcase(name, pattern) for pattern in patterns)}
        rows.append({"artifact": str(record.id), **metrics})
    (output / SUMMARY_FILE).write_text(json.dumps(rows, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    return Report(metrics={"artifacts": len(rows)}, tables={"summary": rows})
