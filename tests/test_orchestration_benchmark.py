"""The benchmark of backfills: what it makes of figures, and that it finds them in a real one."""

import json
from pathlib import Path

import pytest

from benchmarks import orchestration
from benchmarks.orchestration_backfill import PHASES, PROCESSES, Figures

FIGURES = Figures(4.0, 9.0, dict.fromkeys(PROCESSES, 2.0), dict.fromkeys(PHASES, 0.5))


def test_each_storage_has_its_rows_and_shares_sum_to_all() -> None:
    rows = orchestration.rows({("SQLite", "in process"): FIGURES, ("SQLite", "multiprocess"): FIGURES})
    found = {row.measure.removeprefix("SQLite: "): row.ours for row in rows}
    assert len(found) == len(rows)
    assert (found["a partition"], found["a partition, CPU"], found["until the first run worker is asked for"], found["a run worker"]) == (
        4,
        6,
        9,
        3,
    )
    assert sum(number or 0 for measure, number in found.items() if measure.startswith("share")) == pytest.approx(100)


def test_a_storage_that_is_not_here_is_named_in_every_row() -> None:
    rows = orchestration.rows(
        {("PostgreSQL", executor): "no PostgreSQL below /usr/lib/postgresql" for executor in ("in process", "multiprocess")}
    )
    assert rows
    assert {(row.ours, row.peer, row.reason) for row in rows} == {(None, None, "no PostgreSQL below /usr/lib/postgresql")}


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_a_real_backfill_is_measured_in_both_ways(tmp_path: Path) -> None:
    file = tmp_path / "rows.json"
    orchestration.main(["--partitions", "1", "--storages", "SQLite", "--json", str(file)])
    rows = {row["measure"]: row for row in json.loads(file.read_text())["rows"]}
    assert all(row["ours"] > 0 and row["peer"] > 0 for measure, row in rows.items() if measure != "SQLite: of which the code server's")
