"""A clock that stands until a test moves it, for every process of a Dagster and for what publishes mixes.

Dagster reads the time through two functions that are there to be replaced (`dagster._time`, for its own `freeze_time`). Started as
`python -m tests.integration.standing_clock dagster-daemon run …`, a program of Dagster has them replaced and is unchanged otherwise.
standing_definitions.py does the same for code server and run workers, and hands the clock to the lab's own code, which takes one. What
isn't about hours goes on by the real clock: pauses between two looks, time-outs, leases, the times of events.

At second 59 the scheduler looks once a second: it sleeps until the minute is over by the clock that it is shown.
"""

import os
import sys
from datetime import UTC, datetime
from importlib.metadata import entry_points
from pathlib import Path

import dagster._time

CLOCK_VARIABLE = "MARIN_TEST_CLOCK"
"""Names the file in which the time stands."""


def now() -> datetime:
    """What the clock shows."""
    return datetime.fromisoformat(Path(os.environ[CLOCK_VARIABLE]).read_text()).astimezone(UTC)


def move(clock: Path, to: datetime) -> None:
    """Set the clock of all processes at once."""
    new = clock.with_name(f"{clock.name}.new")
    new.write_text(to.isoformat())
    new.replace(clock)


def install() -> None:
    """Show the clock to Dagster in this process."""
    dagster._time._mockable_get_current_datetime = now
    dagster._time._mockable_get_current_timestamp = lambda: now().timestamp()


if __name__ == "__main__":
    install()
    program, sys.argv = sys.argv[1], sys.argv[1:]
    sys.exit(entry_points(group="console_scripts")[program].load()())
