"""Every incident of the training drill ends as it should; `python -m tests.train.drill` prints the table. Single causes: `test_loop`."""

from pathlib import Path

import pytest

from marin_core.train.loop import TrainResult
from tests.train.drill import INCIDENTS, Evidence, Incident, Stage


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory, finished: tuple[Path, TrainResult]) -> Stage:
    return Stage(tmp_path_factory.mktemp("drill"), undisturbed=finished[0])


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("incident", [pytest.param(each, id=each.play.__name__) for each in INCIDENTS])
def test_an_incident_costs_nothing_beyond_the_last_committed_step(stage: Stage, incident: Incident) -> None:
    verdict = incident.verdict(stage)
    assert not verdict.failed, verdict


def test_what_does_not_hold_and_what_breaks_off_are_failures(tmp_path: Path) -> None:
    def wrong(stage: Stage, folder: Path, seen: Evidence) -> tuple[str, int]:
        seen.require(True, "this holds")
        seen.require(False, "this does not")
        return "something", 3

    def broken(stage: Stage, folder: Path, seen: Evidence) -> tuple[str, int]:
        raise OSError("no such disk")

    found = [Incident("i", "e", play).verdict(Stage(tmp_path)) for play in (wrong, broken)]
    assert [(each.lost_steps, each.failed) for each in found] == [(3, ("this does not",)), (0, ("the drill itself broke off",))]
    assert found[1].happened == "OSError: no such disk"
