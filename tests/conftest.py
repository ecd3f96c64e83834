"""Shared by all tests: nothing here reaches outside a temporary folder."""

import atexit
import os
import shutil
import signal
import sys
import tempfile
from typing import Any

import absl.logging
import hypothesis
import pytest
from xdist.scheduler import LoadFileScheduling  # type: ignore[import-untyped]

# How long an example takes says something about the machine, not about the code.
hypothesis.settings.register_profile("untimed", deadline=None)
hypothesis.settings.load_profile("untimed")
os.environ.pop("DAGSTER_HOME", None)
os.environ.pop("WANDB_API_KEY", None)
os.environ["WANDB_MODE"] = "offline"
os.environ["DO_NOT_TRACK"] = "1"
# Meshes of several devices; what names none runs on the first. Child processes get the same: XLA shares out its threads by this number,
# and sums in another order.
os.environ["JAX_NUM_CPU_DEVICES"] = "8"
# What XLA has compiled for one test or job is there for all others of the run, whichever worker or process they are in: whoever starts
# pytest makes the folder, and its workers inherit the variable.
if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
    os.environ["JAX_COMPILATION_CACHE_DIR"] = tempfile.mkdtemp(prefix="marin-compiled-")
    atexit.register(shutil.rmtree, os.environ["JAX_COMPILATION_CACHE_DIR"], ignore_errors=True)
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.3")
# A shell ignores interrupts for what it runs in the background, and so would everything that tests start.
signal.signal(signal.SIGINT, signal.default_int_handler)
# Dagster closes all log handlers when it sets up its own, and absl's then closes a stream that isn't `sys.stderr` any more: pytest's.
absl.logging.get_absl_handler().python_handler.stream = sys.__stderr__

TOGETHER = ("tests/browser/",)
"""Folders whose files share what takes a worker long to make."""


class FilesTogether(LoadFileScheduling):  # type: ignore[misc]
    """A file runs in one worker, and so do all files of some folders."""

    def _split_scope(self, nodeid: str) -> str:
        return next((folder for folder in TOGETHER if nodeid.startswith(folder)), str(super()._split_scope(nodeid)))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> FilesTogether | None:
    return FilesTogether(config, log) if config.getoption("dist") == "loadfile" else None


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files that ask for the most time come first, or a worker would be left alone with one at the end."""
    asked: dict[object, float] = {}
    for item in items:
        mark = item.get_closest_marker("timeout")
        asked[item.path] = max(asked.get(item.path, 0), mark.args[0] if mark else 0)
    items.sort(key=lambda item: -asked[item.path])
