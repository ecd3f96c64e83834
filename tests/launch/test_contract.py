"""What every launcher promises, on one machine and on a cluster alike (spec/kubernetes.md §1.1). The processes are real."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from marin_assets.launch import State
from marin_core.errors import ExitCode
from tests.launch.worlds import TOY, World, kubernetes, local


@pytest.fixture(params=[local, kubernetes], ids=["local", "kubernetes"])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    opened: Callable[[Path], AbstractContextManager[World]] = request.param
    with opened(tmp_path) as world:
        yield world


def test_a_job_commits_and_says_what_it_did(world: World) -> None:
    handle = world.submit("nothing")
    assert world.end(handle).state == State.SUCCEEDED
    record = world.store.record(TOY)
    assert record is not None
    assert record.metrics == {"pods": 1}
    assert "toy runs in" in (handle.folder / "log").read_text()
    assert "toy runs in" in world.launcher.logs(handle, 50)


def test_a_job_that_fails_says_why_and_of_which_class(world: World) -> None:
    handle = world.submit("bad data")
    seen = world.end(handle)
    assert (seen.state, seen.exit_code) == (State.FAILED, ExitCode.BAD_DATA)
    assert "shard 7 is broken" in seen.reason
    assert seen.failure in (None, "data")  # None = as the exit code says


def test_a_job_that_dies_without_a_word_is_told_by_its_code(world: World) -> None:
    handle = world.submit("exit")
    seen = world.end(handle)
    assert seen.state == State.FAILED, seen
    assert seen.exit_code in (3, ExitCode.BUG)  # a gang's is that of the class, and its reason has the code
    assert world.store.record(TOY) is None


def test_a_job_is_started_once_however_many_submit_it(world: World) -> None:
    launchers = [world.make() for _ in range(4)]
    go = world.folder / "go"
    spec = world.spec("wait for a file", file=str(go))
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda launcher: world.submit("wait for a file", launcher, file=str(go)), launchers))
    handle = world.launcher.handle(world.name())
    world.until_it_runs(handle)
    assert world.started(handle) == 1
    assert spec.id == TOY
    go.write_text("")
    assert [world.end(handle, launcher).state for launcher in launchers] == [State.SUCCEEDED] * 4


def test_another_launcher_adopts_a_job_that_runs_and_harvests_it(world: World) -> None:
    go = world.folder / "go"
    handle = world.submit("wait for a file", file=str(go))
    world.until_it_runs(handle)
    second = world.make()
    assert world.submit("wait for a file", second, file=str(go)) == handle
    go.write_text("")
    assert world.end(handle, second).state == State.SUCCEEDED
    assert world.end(handle, world.make()).state == State.SUCCEEDED


def test_cancel_ends_the_job_and_may_be_repeated(world: World) -> None:
    handle = world.submit("wait until told")
    world.until_it_runs(handle)
    world.launcher.cancel(handle)
    world.launcher.cancel(handle)
    world.make().cancel(handle)
    assert world.store.record(TOY) is None
    assert "saved" in world.launcher.logs(handle, 20)
    assert world.launcher.observe(handle).state != State.SUCCEEDED


def test_a_job_that_is_taken_away_is_found_vanished(world: World) -> None:
    handle = world.submit("wait until told")
    world.until_it_runs(handle)
    world.lose(handle)
    seen = world.end(handle)
    assert seen.state in (State.VANISHED, State.FAILED)
    assert seen.failure in (None, "infrastructure")
    assert seen.exit_code in (None, -9, ExitCode.TRY_AGAIN)
    assert seen.reason
