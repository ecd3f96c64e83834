"""Many jobs at once: none is forgotten, none runs twice, and following them costs no more requests than following a few."""

from pathlib import Path

import pytest

from benchmarks import launcher
from benchmarks.report import print_table
from tests.kubernetes.bed.api import JOBSET
from tests.kubernetes.bed.cluster import Bed
from tests.kubernetes.bed.pods import Act
from tests.kubernetes.bed.programs import wait_until
from tests.kubernetes.jobs import Submitted, gpus, manifest

pytestmark = pytest.mark.kubernetes

JOBS = 100


def test_a_hundred_small_jobs_of_which_sixteen_fit_all_complete(bed: Bed) -> None:
    """Row 12 of spec/kubernetes.md §3."""
    for number in range(JOBS):
        Submitted(bed, manifest(f"small-{number}", gpus(2), Act(seconds=1)))

    def ended() -> bool:
        return all("terminalState" in jobset.get("status", {}) for jobset in bed.api.list(JOBSET, "JobSet", "team-a"))

    wait_until("all jobs to end", ended, 600)
    statuses = [jobset["status"] for jobset in bed.api.list(JOBSET, "JobSet", "team-a")]
    assert [status["terminalState"] for status in statuses] == ["Completed"] * JOBS
    assert all("restarts" not in status or status["restarts"] == 0 for status in statuses)


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_five_hundred_queued_artifacts_cost_bounded_requests_and_memory(
    bed: Bed, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The launcher's own process, with the rights of its account; `python -m benchmarks.launcher` prints the same figures."""
    figures = launcher.measure(bed, tmp_path, 500, 180.0)
    with capsys.disabled():
        print_table(launcher.rows(figures), title="500 queued artifacts")
    assert figures.submissions.times == 500
    # Some lists fall into the time of the submissions, since a watch tells of each job that was made.
    assert figures.submissions.requests["create"] <= 510
    for spell in (figures.settling, figures.settled):
        assert spell.looks >= 1
        assert 60 * sum(spell.requests.values()) / spell.seconds <= launcher.GOAL_REQUESTS
    assert launcher.growth_bytes(figures) <= launcher.GOAL_GROWTH_BYTES
    assert figures.end_bytes <= 1.1 * figures.followed_bytes[500]
    assert figures.end_bytes <= 1.03 * figures.warm_bytes
