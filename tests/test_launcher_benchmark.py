"""The benchmark of the launcher: what it makes of a process's figures."""

import json
from dataclasses import asdict, replace

import pytest

from benchmarks import launcher
from benchmarks.launcher_process import Figures, Spell, together

FOLLOWED = Spell(times=60_000, seconds=120.0, cpu_seconds=6.0, requests={"list": 24, "get": 24}, looks=12)
FIGURES = Figures(
    submissions=Spell(times=500, seconds=50.0, cpu_seconds=5.0, requests={"create": 500}, looks=0),
    settling=FOLLOWED,
    settled=FOLLOWED,
    followed_bytes={100: 100 * 2**20, 300: 110 * 2**20, 500: 120 * 2**20},
    warm_bytes=125 * 2**20,
    end_bytes=130 * 2**20,
    peer_submissions=Spell(times=10, seconds=1.0, cpu_seconds=0.2, requests={}, looks=0),
    peer_looks=Spell(times=10, seconds=1.0, cpu_seconds=0.1, requests={}, looks=0),
)


def test_rows_are_reckoned_for_one_job_and_one_minute() -> None:
    rows = {row.measure: row for row in launcher.rows(FIGURES)}
    assert rows["submit a job, CPU"].ours == pytest.approx(10.0)
    assert rows["submit a job, CPU"].peer == pytest.approx(20.0)
    assert rows["submit a job, requests"].ours == 1.0
    assert rows["a look at one of the jobs, CPU"].ours == pytest.approx(1.0)
    assert rows["a minute of all that wait, CPU"].ours == pytest.approx(3.0)
    assert rows["requests a minute, jobs that wait"].ours == pytest.approx(24.0)
    assert rows["requests a minute, jobs that wait"].peer == pytest.approx(6000.0)
    assert rows["memory of a job"].ours == pytest.approx(51.2)
    assert (rows["memory, all followed for a while"].ours, rows["memory, all followed for a while"].peer) == (125, 120)
    assert (rows["memory, all followed for longer"].ours, rows["memory, all followed for longer"].peer) == (130, 125)


def test_figures_come_back_from_the_process_as_it_prints_them() -> None:
    figures = replace(FIGURES, submissions=together([FIGURES.submissions, FIGURES.submissions]))
    assert Figures.from_json(json.dumps(asdict(figures))) == figures


def test_spells_add_up() -> None:
    both = together([FOLLOWED, FOLLOWED])
    assert (both.times, both.seconds, both.looks, both.requests["list"]) == (120_000, 240.0, 24, 48)
