"""What 500 queued artifacts cost the launcher on a cluster: processor time, requests to the API server, and memory.

    python -m benchmarks.launcher --json launcher.json

The cluster is the test bed: a real API server, JobSet and Kueue, built from Go modules the first time (26 CPU-minutes; needs Go), with
nodes that are only names. A process with the launcher's own account submits the jobs, of which four may run at a time, and asks about each
five times a second, as whoever builds an artifact does. The peer is the plain Python client, a job at a time: one request for the job and
one for its pods whenever somebody asks, as Dagster's own client for pods does; what it would ask for in a minute is reckoned at our own
pace.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from benchmarks.launcher_process import Figures, Spell
from benchmarks.report import Machine, Row, installed_versions, parser, publish
from marin_assets.launch.kubernetes.view import STEADY_SECONDS
from tests.kubernetes.bed.cluster import Bed
from tests.kubernetes.bed.pods import Act
from tests.kubernetes.jobs import PROFILES

PEER_NAME = "kubernetes client, a job at a time"
REQUESTS_A_LOOK = 2
"""Of the peer: the job, and its pods."""

GOAL_REQUESTS = 300.0
"""A minute, however many jobs there are: a look a second at four kinds of objects, the order of the queue, and a watch."""

GOAL_GROWTH_BYTES = 400 * 2**10
"""Of memory, with each more followed job: what lists say of it, twice, since the old ones go when the new ones are there."""

VERBS = ("list", "get", "watch")


def main(arguments: Sequence[str] | None = None) -> None:
    """Bring up the bed, measure, print the table, and write the rows."""
    options = _options(arguments)
    machine, progress = Machine.now(), Console(stderr=True)
    with tempfile.TemporaryDirectory(prefix="benchmark-") as folder:
        progress.print("bringing up the test bed")
        with Bed(Path(folder) / "bed") as bed:
            progress.print(f"{options.jobs} jobs, followed twice for {options.seconds:g} s")
            figures = measure(bed, Path(folder), options.jobs, options.seconds)
    versions = installed_versions("marin-assets", "kubernetes")
    publish(f"Launcher: {options.jobs} queued artifacts", rows(figures), machine=machine, versions=versions, json_file=options.json)


def measure(bed: Bed, folder: Path, jobs: int, seconds: float) -> Figures:
    """Let a process of its own submit and follow jobs on a bed; pods are acted for as long as it takes."""
    before, bed.kubelet.act = bed.kubelet.act, lambda pod: Act()
    try:
        command = [str(PROFILES / "testbed.yaml"), f"file://{folder}/store", str(jobs), str(seconds)]
        process = subprocess.run(
            [sys.executable, "-m", "benchmarks.launcher_process", *command],
            env={**os.environ, "KUBECONFIG": str(bed.launcher_kubeconfig())},
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
    finally:
        bed.kubelet.act = before
    return Figures.from_json(process.stdout)


def rows(figures: Figures) -> list[Row]:
    """What a submission costs, what following costs, and how memory grows."""
    submitted, peer_submitted, settled = figures.submissions, figures.peer_submissions, figures.settled
    jobs = max(figures.followed_bytes)
    peer_looks_a_minute = jobs * 60 / STEADY_SECONDS
    peer_requests = REQUESTS_A_LOOK * peer_looks_a_minute
    return [
        Row("submit a job, CPU", _cpu_ms(submitted), _cpu_ms(peer_submitted), PEER_NAME, "ms"),
        Row("submit a job", _ms(submitted), _ms(peer_submitted), PEER_NAME, "ms"),
        Row("submit a job, requests", submitted.requests.get("create", 0) / submitted.times, 1.0, PEER_NAME, "requests"),
        Row("a look at one of the jobs, CPU", _look_ms(settled, jobs), _cpu_ms(figures.peer_looks), PEER_NAME, "ms"),
        Row(
            "a minute of all that wait, CPU",
            settled.cpu_seconds * 60 / settled.seconds,
            figures.peer_looks.cpu_seconds / figures.peer_looks.times * peer_looks_a_minute,
            f"{PEER_NAME}, reckoned",
            "s",
        ),
        Row("requests a minute, jobs that wait", _a_minute(settled), peer_requests, f"{PEER_NAME}, reckoned", "requests"),
        *(Row(f"of which {verb}", _a_minute(settled, verb), GOAL_REQUESTS, "goal of all", "requests") for verb in VERBS),
        Row("requests a minute, new jobs", _a_minute(figures.settling), GOAL_REQUESTS, "goal", "requests"),
        *(
            Row(f"memory, {number} jobs followed", size / 2**20, None, PEER_NAME, "MB", reason="the peer keeps nothing of a job")
            for number, size in sorted(figures.followed_bytes.items())
        ),
        Row("memory of a job", growth_bytes(figures) / 2**10, GOAL_GROWTH_BYTES / 2**10, "goal", "KB"),
        Row("memory, all followed for a while", figures.warm_bytes / 2**20, figures.followed_bytes[jobs] / 2**20, "at first", "MB"),
        Row("memory, all followed for longer", figures.end_bytes / 2**20, figures.warm_bytes / 2**20, "for a while", "MB"),
    ]


def growth_bytes(figures: Figures) -> float:
    """Memory of one more followed job."""
    few, most = min(figures.followed_bytes), max(figures.followed_bytes)
    return (figures.followed_bytes[most] - figures.followed_bytes[few]) / (most - few)


def _a_minute(spell: Spell, verb: str | None = None) -> float:
    """Requests, of one kind or of all."""
    return (sum(spell.requests.values()) if verb is None else spell.requests.get(verb, 0)) * 60 / spell.seconds


def _look_ms(spell: Spell, jobs: int) -> float:
    return 1e3 * spell.cpu_seconds / (max(1, spell.looks) * jobs)


def _cpu_ms(spell: Spell) -> float:
    return 1e3 * spell.cpu_seconds / spell.times


def _ms(spell: Spell) -> float:
    return 1e3 * spell.seconds / spell.times


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    made = parser(__doc__ or "")
    made.add_argument("--jobs", type=int, default=500, metavar="N", help="how many artifacts are queued (default: %(default)s)")
    made.add_argument("--seconds", type=float, default=60.0, metavar="S", help="how long they are followed, twice (default: %(default)s)")
    return made.parse_args(arguments)


if __name__ == "__main__":
    main()
