"""Looks at the cluster: when they come, what they cost, and what a watch adds to them."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from marin_assets.launch.kubernetes.following import Connection
from marin_assets.launch.kubernetes.view import SOONEST_SECONDS, BackOff, View, Watcher
from tests.launch.kubernetes.desk import Desk
from tests.launch.kubernetes.scripted_api import Fault, ScriptedApi

WAIT_SECONDS = 60.0


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    with ScriptedApi() as api:
        desk = Desk(api, tmp_path)
        desk.submit()
        desk.start()
        yield desk


@pytest.fixture
def view(desk: Desk) -> View:
    return Connection.open(desk.profile, desk.api.cluster(), watch=False, clock=desk.time, wall=desk.time).view


def test_a_look_costs_four_lists_and_two_while_everything_waits(desk: Desk, view: View) -> None:
    before = desk.api.total()
    found = view.look(desk.name)
    assert desk.api.total() - before == 4
    assert found.objects.jobset is not None
    assert found.objects.workload is not None
    assert len(found.objects.pods) == 1
    desk.api.change(desk.path, lambda thing: thing["spec"].update(suspend=True))
    desk.workload(QuotaReserved=False)
    desk.time.now += 60
    before = desk.api.total()
    assert view.look(desk.name).objects.pods == ()
    assert desk.api.total() - before == 2


def test_nudges_never_make_more_than_a_look_a_second(desk: Desk, view: View) -> None:
    view.look(desk.name)
    before = desk.api.requests["GET jobsets"]
    for _ in range(100):
        view.nudge()
        desk.time.now += SOONEST_SECONDS / 10
        view.look(desk.name)
    assert 9 <= desk.api.requests["GET jobsets"] - before <= 11


def test_after_a_failure_it_waits_longer_and_as_long_as_the_server_asks(desk: Desk, view: View) -> None:
    desk.api.fail(Fault("GET", "jobsets", 503, times=1000))
    began = desk.time.now
    while desk.time.now < began + 600:
        view.look(desk.name)
        view.nudge()
        desk.time.now += 1
    assert desk.api.requests["GET jobsets"] <= 30
    assert BackOff().fail(45.0) == 45.0


def test_a_job_that_nobody_asks_about_is_followed_no_more(desk: Desk, view: View) -> None:
    view.look(desk.name)
    assert desk.name.split("-")[-2] in view.position()[0]
    other = desk.name.replace("-a1", "-a2")
    desk.time.now += 700
    view.look(other)
    desk.time.now += 10
    before = desk.api.requests["GET pods"]
    view.look(other)
    assert desk.api.requests["GET pods"] == before  # the only job with pods isn't looked at


def test_an_event_brings_the_next_look_forward(desk: Desk, view: View) -> None:
    view.look(desk.name)
    view.pace(desk.name, 1000)
    selector, version = view.position()
    assert version is not None
    desk.jobset(restarts=1)
    desk.api.fail(Fault("EVENT", "jobsets"))
    desk.jobset(restarts=2)
    Watcher(desk.api.cluster(), "team-a", view).watch_once(selector, version)  # ends when the connection is cut
    desk.time.now += SOONEST_SECONDS
    jobset = view.look(desk.name).objects.jobset
    assert jobset is not None


def test_a_version_that_is_too_old_is_dropped_and_listed_anew(desk: Desk, view: View) -> None:
    view.look(desk.name)
    selector, version = view.position()
    assert version is not None
    desk.api.forget_events()
    Watcher(desk.api.cluster(), "team-a", view).watch_once(selector, version)
    assert view.position()[1] is None
    desk.time.now += SOONEST_SECONDS
    view.look(desk.name)
    assert view.position()[1] not in (None, version)


def test_the_watch_goes_on_through_whatever_cuts_it(desk: Desk) -> None:
    """With the thread, and real time: what it sees is seen before the next look is due."""
    connection = Connection.open(desk.profile, desk.api.cluster(), clock=time.monotonic, wall=desk.time)
    assert connection.watcher is not None
    connection.view.look(desk.name)
    connection.view.pace(desk.name, 10_000)
    connection.watcher.start()
    connection.watcher.start()
    for number in range(1, 4):
        desk.api.fail(Fault("GET", "watch=true", [None, 429, 500][number - 1]), Fault("EVENT", "jobsets"))
        desk.jobset(restarts=number)
        deadline = time.monotonic() + WAIT_SECONDS
        while (jobset := connection.view.look(desk.name).objects.jobset) is None or jobset.get("status", {}).get("restarts") != number:
            assert time.monotonic() < deadline
            time.sleep(0.02)
