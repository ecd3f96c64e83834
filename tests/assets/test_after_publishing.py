"""What follows a commit of a mix: the lab's log has each change of weights, once and with its reason, and the page is up to date, whenever
the publisher died."""

import json
from typing import Any

import dagster as dg
import pytest

from marin_assets.automation.decisions import FOLDER, LOOK_BACK, DecisionRecord
from marin_assets.automation.desk import Desk
from marin_core import experiment as lab
from marin_core.mix.place import PAGE_FILE, open_place
from tests.assets.test_publishing import World, hour, world  # noqa: F401 - a fixture

LOG = f"{FOLDER}/published/small"


def decided(world: World) -> dict[str, Any]:  # noqa: F811
    """Records by name, in the order of commits."""
    objects = world.store.store.objects
    return {name: json.loads(objects.read(f"{LOG}/{name}") or b"") for name in objects.names(LOG)}


def publish(world: World, number: int, **weights: float) -> None:  # noqa: F811
    """What is mixed from an hour on, with other weights if any are given."""
    world.now = hour(number)
    world.weights |= weights
    world.desk().publish(hour(number))


def more_tokens(world: World) -> None:  # noqa: F811
    """A shard that was missing arrives."""
    world.build("web", 1, tokens=9_000)


@pytest.fixture
def built(world: World) -> World:  # noqa: F811
    """A mix with one commit, and a shard that may be missing."""
    for name, shard in (("web", 0), ("code", 0), ("code", 1)):
        world.build(name, shard)
    world.options["allow_missing_shards"] = {world.caches["web"]: ["00001"]}
    publish(world, 0)
    return world


def test_a_change_by_hand_is_recorded_once_with_who_why_and_what(built: World) -> None:
    assert decided(built) == {}, "the first weights change nothing"
    built.options["message"] = "More code: it helps reasoning."
    publish(built, 1, web=0.6, code=0.4)
    publish(built, 2)
    commit = built.reader().newest()
    assert decided(built) == {
        f"00000001-{commit.id}.json": {
            "schema_version": 1,
            "decision": "mix_weights",
            "mix": "published/small",
            "url": f"file://{built.store.folder}/published/small",
            "seq": 1,
            "commit": commit.id,
            "hour": commit.hour,
            "author": "curator",
            "message": "More code: it helps reasoning.",
            "code": commit.code.commit,
            "changes": [
                {"path": "/phases/0/weights/code", "old": "0.3", "new": "0.4"},
                {"path": "/phases/0/weights/web", "old": "0.7", "new": "0.6"},
            ],
        }
    }
    assert DecisionRecord.model_validate(next(iter(decided(built).values()))).commit == commit.id


def test_tokens_that_arrive_decide_nothing(built: World) -> None:
    more_tokens(built)
    publish(built, 1)
    assert len(list(built.reader().history())) == 2
    assert decided(built) == {}


def test_weights_that_follow_the_tokens_decide_nothing(built: World) -> None:
    mixture = lab.mixture("mixtures/small", "v1", list(built.caches.values()), temperature=3.0, sequence_length=128)
    desk = Desk.of(lab.published_mix("published/small", mixture, start=hour(0), **built.options), built.store.store, lambda: hour(2))
    desk.publish(hour(1))
    more_tokens(built)
    desk.publish(hour(2))
    assert [change.path for change in built.reader().newest().diff if change.path.startswith("/phases/")]
    assert decided(built) == {}


@pytest.mark.parametrize("later", ["nothing new", "new tokens", "new weights"])
def test_a_record_that_its_publisher_could_not_write_any_more_is_written_by_the_next(built: World, later: str) -> None:
    publish(built, 1, web=0.6, code=0.4)
    first = decided(built)
    (name,) = first
    built.store.store.objects.delete(f"{LOG}/{name}")  # as if the publisher had died just before
    if later == "new tokens":
        more_tokens(built)
    publish(built, 2, **({"web": 0.5, "code": 0.5} if later == "new weights" else {}))
    found = decided(built)
    assert found[name] == first[name]
    assert len(found) == (2 if later == "new weights" else 1)
    assert len(list(built.reader().history())) < LOOK_BACK


def test_a_page_that_was_left_behind_is_brought_up_to_date_by_the_next_tick(built: World) -> None:
    place = open_place(built.desk().url)
    shown = place.read(PAGE_FILE)
    publish(built, 1, web=0.6, code=0.4)
    fresh = place.read(PAGE_FILE)
    place.replace(PAGE_FILE, shown or b"")  # as if the publisher had died before it came to the page
    built.now = hour(2)
    request = built.tick()
    assert isinstance(request, dg.RunRequest)
    publish(built, 2)
    assert place.read(PAGE_FILE) == fresh
    assert built.reader().newest().seq == 1
    assert built.tick() == "nothing has changed since commit 1 of 2026-03-01T01:00:00Z"
