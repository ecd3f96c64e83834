"""The Dagster instance that the command line shares with the UI."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import dagster as dg

from marin_assets.lab import PROJECT, STATE


def use_project_home() -> None:
    """Without DAGSTER_HOME, work in the project's root with the state in its ignored folder, as `dagster dev` does there.

    `dagster.yaml` names its folders relative to the root; the link lets commands that insist on DAGSTER_HOME find it too.
    """
    if os.environ.get("DAGSTER_HOME"):
        return
    os.chdir(PROJECT)
    STATE.mkdir(exist_ok=True)
    with suppress(FileExistsError):
        (STATE / "dagster.yaml").symlink_to("../dagster.yaml")
    os.environ["DAGSTER_HOME"] = str(STATE)


@contextmanager
def open_instance() -> Iterator[dg.DagsterInstance]:
    """The instance of DAGSTER_HOME, or the project's own."""
    use_project_home()
    with dg.DagsterInstance.get() as instance:
        yield instance
