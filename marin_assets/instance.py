"""The Dagster instance that the command line shares with `dagster dev`."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

import dagster as dg
from dagster._core.instance import InstanceRef

from marin_assets.lab import PROJECT, STATE


@contextmanager
def open_instance() -> Iterator[dg.DagsterInstance]:
    """DAGSTER_HOME's instance if it is set; else the one that `dagster dev` opens in the project's root."""
    if os.environ.get("DAGSTER_HOME"):
        with dg.DagsterInstance.get() as instance:
            yield instance
        return
    os.chdir(PROJECT)  # dagster.yaml names its folders relative to the root, as `dagster dev` resolves them
    STATE.mkdir(exist_ok=True)
    with dg.DagsterInstance.from_ref(InstanceRef.from_dir(str(STATE), config_dir=str(PROJECT))) as instance:
        yield instance
