"""What a partition costs that goes through a backfill, beside its own work: seconds, whose CPU, and what a run worker spends them on.

    python -m benchmarks.orchestration --json orchestration.json

A real daemon takes up an asset backfill of trivial partitions as `marin backfill` asks for it, one run a partition, two at a time, with
the limits of the embedded default, and beside it stands a code server, as on a shared machine. Measured are SQLite, the embedded default's
storage, and PostgreSQL, that of a shared machine, each with run workers that execute their step in their own process, as ours do, and in
one more, as Dagster's own default does. A run worker's phases are taken from the event log of its run, and what is ours of the step from
the artifact's record.
"""

import argparse
import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

from rich.console import Console

from benchmarks.orchestration_backfill import PHASES, PROCESSES, Figures, measure
from benchmarks.peers import PeerError
from benchmarks.report import Machine, Row, installed_versions, parser, publish

STORAGES = ("SQLite", "PostgreSQL")
OURS, PEER = "in process", "multiprocess"
PEER_NAME = "Dagster's multiprocess executor"

type Measured = Mapping[tuple[str, str], Figures | str]
"""Storage and executor → figures, or why there are none."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print the table, and write the rows."""
    options = _options(arguments)
    machine, progress = Machine.now(), Console(stderr=True)
    measured: dict[tuple[str, str], Figures | str] = {}
    for storage in options.storages:
        for executor in (OURS, PEER):
            progress.print(f"a backfill of {options.partitions} partitions: {storage}, {executor}")
            with tempfile.TemporaryDirectory(prefix="benchmark-", ignore_cleanup_errors=True) as folder:
                try:
                    measured[storage, executor] = found = measure(Path(folder), storage, executor, options.partitions)
                    progress.print(f"  {found.seconds:.2f} s a partition, {sum(found.cpu_seconds.values()):.2f} s of CPU")
                except PeerError as error:
                    measured[storage, executor] = error.message
    title = f"Backfill of {options.partitions} trivial partitions, two at a time"
    versions = installed_versions("marin-assets", "dagster", "dagster-postgres", "sqlalchemy", "psycopg2-binary")
    publish(title, rows(measured), machine=machine, versions=versions, json_file=options.json)


def rows(measured: Measured) -> list[Row]:
    """Each storage: what a partition costs, whose CPU it is, and a run worker's phases as shares."""
    made = []
    for storage in dict.fromkeys(storage for storage, _ in measured):
        ours, peer = measured[storage, OURS], measured[storage, PEER]
        made += [
            _row(f"{storage}: a partition", ours, peer, lambda each: each.seconds),
            _row(f"{storage}: a partition, CPU", ours, peer, lambda each: sum(each.cpu_seconds.values())),
            *(_row(f"{storage}: of which the {who}'s", ours, peer, partial(_spent, who=who)) for who in PROCESSES),
            _row(f"{storage}: until the first run worker is asked for", ours, peer, lambda each: each.first_seconds),
            _row(f"{storage}: a run worker", ours, peer, lambda each: sum(each.phases.values())),
            *(_row(f"{storage}: share of it: {phase}", ours, peer, partial(_share, phase=phase), "%") for phase in PHASES),
        ]
    return made


def _row(measure: str, ours: Figures | str, peer: Figures | str, find: Callable[[Figures], float], unit: str = "s") -> Row:
    """Ours beside the peer's; where one of them couldn't be had, the reason."""
    reason = next((each for each in (ours, peer) if isinstance(each, str)), None)
    found, theirs = (None if isinstance(each, str) else find(each) for each in (ours, peer))
    return Row(measure, found, theirs, PEER_NAME, unit, reason=reason)


def _spent(figures: Figures, who: str) -> float:
    return figures.cpu_seconds[who]


def _share(figures: Figures, phase: str) -> float:
    return 100 * figures.phases[phase] / sum(figures.phases.values())


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    made = parser(__doc__ or "")
    made.add_argument("--partitions", type=int, default=10, metavar="N", help="of each backfill (default: %(default)s)")
    made.add_argument("--storages", nargs="+", choices=STORAGES, default=STORAGES, help="which to measure (default: both)")
    return made.parse_args(arguments)


if __name__ == "__main__":
    main()
