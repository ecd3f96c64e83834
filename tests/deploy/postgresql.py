"""PostgreSQL for tests, which are skipped where there is none."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from benchmarks import postgresql
from benchmarks.peers import PeerError
from benchmarks.postgresql import PORT

__all__ = ["PORT", "server"]


@contextmanager
def server() -> Iterator[Path]:
    """A running server with a database `dagster` of this process's user; yields what goes into PGHOST."""
    try:
        postgresql.programs()
    except PeerError as error:
        pytest.skip(f"{error.message}; {error.advice}")
    with postgresql.server() as sockets:
        yield sockets
