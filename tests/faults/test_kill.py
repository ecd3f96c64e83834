"""Kill -9 at any instant of any job or builder: nothing committed is lost, nothing half-committed is served, nothing is built twice."""

import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.faults.drill import BUILDER_PHASES, JOB_PHASES, PROJECT, Tally, drill, show


def killed(tally: Tally, target: str) -> Counter[str]:
    """Kills by phase."""
    phases: Counter[str] = Counter()
    for (_, _, whom, phase), times in tally.kills.items():
        phases[phase] += times if whom == target else 0
    return phases


def run(folder: Path, stores: Sequence[str], kills: int, seed: int) -> Tally:
    tally = drill(folder, stores, kills, seed)
    print(show(tally))
    assert sum(tally.killed(store) for store in stores) == kills
    assert all(tally.checks[store] > 20 * tally.killed(store) for store in stores)
    return tally


def test_forty_kills_on_files(tmp_path: Path) -> None:
    tally = run(tmp_path, ["file"], 40, seed=11)
    assert len(killed(tally, "job")) >= 4
    assert len(killed(tally, "builder")) >= 3


@pytest.mark.slow
def test_forty_kills_on_google_cloud_storage(tmp_path: Path) -> None:
    tally = run(tmp_path, ["gcs"], 40, seed=12)
    assert len(killed(tally, "job")) >= 4
    assert len(killed(tally, "builder")) >= 3


@pytest.mark.drill
@pytest.mark.timeout(1800)
def test_five_hundred_kills_hit_every_phase_of_a_build(tmp_path: Path) -> None:
    tally = run(tmp_path, ["file", "gcs"], 500, seed=13)
    assert set(killed(tally, "job")) == set(JOB_PHASES)
    assert set(killed(tally, "builder")) == set(BUILDER_PHASES)


def test_builders_load_neither_dagster_nor_a_jobs_libraries() -> None:
    script = "import sys; import marin_assets.builder; assert not {'dagster', 'jax', 'pyarrow', 'marin_jobs'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", script], cwd=PROJECT, check=True)
