"""One finished tiny run that many tests read."""

from pathlib import Path

import pytest

from marin_core.train.loop import TrainResult
from tests.train.tiny_run import run


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, TrainResult]:
    run_dir = tmp_path_factory.mktemp("finished") / "run"
    return run_dir, run(run_dir)
