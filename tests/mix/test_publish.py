"""Publishing: one more commit or none, whoever else publishes, whenever it dies."""

import asyncio
import json
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from marin_core.errors import ConfigError, DataError, InfrastructureError
from marin_core.mix.commit import CodeState
from marin_core.mix.page import page_seq
from marin_core.mix.place import HEAD_FILE, PAGE_FILE, STATUS_FILE, Place, open_place
from marin_core.mix.publish import TRIES
from marin_core.mix.read import MixReader, verify
from tests.mix import drill
from tests.mix.chains import Wrapped, content, hour, publisher, put
from tests.mix.conftest import bucket
from tests.storage.faults import FaultyProxy
from tests.storage.gcs import FakeGcs, ask


def status(place: Place) -> dict[str, Any]:
    data = place.read(STATUS_FILE)
    assert data is not None
    return dict(json.loads(data))


def seqs(place: Place) -> list[int]:
    return [commit.seq for commit in MixReader(place).history()]


# One publisher ---------------------------------------------------------------------------------------------------------


def test_hours_without_a_change_add_nothing_and_a_message_is_no_change(place: Place) -> None:
    assert put(place, 0, content(), "first mix").outcome == "committed"
    again = put(place, 1, content(), "another message")
    assert (again.outcome, again.commit and again.commit.seq, seqs(place)) == ("unchanged", 0, [0])
    assert status(place)["hour"] == "2026-03-01T01:00:00Z"
    assert status(place)["result"] == "unchanged"
    moved = put(place, 2, content(tokens=2_000), None)
    assert moved.commit is not None
    assert (moved.outcome, moved.commit.message, seqs(place)) == ("committed", "web +1.0 k tokens", [1, 0])
    assert [change.path for change in moved.commit.diff] == [
        f"/domains/web/{field}" for field in ("bytes", "cache_digest", "documents", "record_digest", "tokens")
    ]
    assert verify(MixReader(place)).problems == ()


def test_the_same_hour_twice_is_two_commits_only_if_something_changed(place: Place) -> None:
    put(place, 5, content(), "first")
    assert put(place, 5, content()).outcome == "unchanged"
    assert put(place, 5, content("0.5", "0.5"), "half and half").outcome == "committed"
    assert [commit.hour for commit in MixReader(place).history()] == ["2026-03-01T05:00:00Z"] * 2


def test_the_past_is_answered_and_never_changed(place: Place) -> None:
    put(place, 2, content(), "first")
    put(place, 4, content("0.6", "0.4"), "more code")
    found = put(place, 3, content("0.1", "0.9"), "too late")
    assert found.commit is not None
    assert (found.outcome, found.commit.seq, seqs(place)) == ("past", 0, [1, 0])
    before = put(place, 1, content("0.1", "0.9"), "too early")
    assert (before.outcome, before.commit) == ("past", None)


def test_an_hour_that_has_not_begun_is_refused_whatever_the_zone(place: Place) -> None:
    slow = publisher(place, now=hour(3) - timedelta(seconds=1))
    with pytest.raises(ConfigError, match=r"field 'hour': 2026-03-01T03:00:00Z is after this machine's clock"):
        slow.publish(content, hour=hour(3), author="curator", message="m", code=CodeState())
    assert place.read(HEAD_FILE) is None
    assert "is after this machine's clock" in status(place)["error"]
    right = publisher(place, now=hour(3))
    assert right.publish(content, hour=hour(3), author="curator", message="m", code=CodeState()).outcome == "committed"


def test_a_fast_clock_delays_others_and_breaks_nothing(place: Place) -> None:
    """A publisher that runs five hours ahead publishes for an hour that hasn't begun; until then others are told what is valid now."""
    put(place, 0, content(), "first")
    publisher(place, now=hour(6)).publish(
        lambda: content("0.6", "0.4"), hour=hour(6), author="fast", message="ahead of its time", code=CodeState()
    )
    slow = publisher(place, now=hour(1))
    found = slow.publish(lambda: content("0.5", "0.5"), hour=hour(1), author="slow", message="mine", code=CodeState())
    assert found.commit is not None
    assert (found.outcome, found.commit.seq) == ("past", 0)
    later = publisher(place, now=hour(6)).publish(
        lambda: content("0.5", "0.5"), hour=hour(6), author="slow", message="mine", code=CodeState()
    )
    assert (later.outcome, seqs(place)) == ("committed", [2, 1, 0])


def test_a_refusal_is_in_the_status_without_its_secrets(place: Place) -> None:
    put(place, 0, content(), "first")

    def refuse() -> dict[str, Any]:
        raise ConfigError("gs://b/x isn't committed, see https://u:hunter@host/log", advice="Build it.")

    with pytest.raises(ConfigError):
        publisher(place).publish(refuse, hour=hour(1), author="curator", message="m", code=CodeState())
    assert status(place)["result"] == "failed"
    assert status(place)["error"] == "gs://b/x isn't committed, see https://host/log Build it."
    assert seqs(place) == [0]


def test_weights_without_a_message_are_refused_and_nothing_is_written(place: Place) -> None:
    put(place, 0, content(), "first")
    with pytest.raises(ConfigError, match="field 'message'"):
        put(place, 1, content("0.6", "0.4"), None)
    assert len(place.names("commits")) == 1


# Others, and failures --------------------------------------------------------------------------------------------------


class Before(Wrapped):
    """Does something before the swaps of HEAD, as often as told."""

    def __init__(self, place: Place, act: Callable[[int], None], times: int = 1) -> None:
        super().__init__(place)
        self._act, self._times, self.swaps = act, times, 0

    def swap(self, path: str, data: bytes, expected: str | None) -> bool:
        if path == HEAD_FILE and self.swaps < self._times:
            self.swaps += 1
            self._act(self.swaps)
        return super().swap(path, data, expected)


def test_who_loses_a_race_stands_on_the_winner(place: Place) -> None:
    put(place, 0, content(), "first")
    rival = Before(place, lambda turn: _put(place, content("0.6", "0.4"), "the rival's"))
    found = put(rival, 1, content("0.5", "0.5"), "mine")
    assert found.tries == 2
    assert [commit.message for commit in MixReader(place).history()] == ["mine", "the rival's", "first"]
    verdict = verify(MixReader(place))
    assert verdict.problems == ()
    assert len(verdict.unreachable) == 1


def _put(place: Place, what: dict[str, Any], message: str) -> None:
    put(place, 1, what, message)


def test_who_loses_to_the_same_change_is_done(place: Place) -> None:
    rival = Before(place, lambda turn: _put(place, content(), "as wanted"))
    assert put(rival, 1, content()).outcome == "committed", "the very same commit"
    other = Before(place, lambda turn: _put(place, content(tokens=7), "whoever"))
    assert put(other, 1, content(tokens=7), author="somebody else").outcome == "unchanged"
    assert seqs(place) == [1, 0]


def test_who_loses_five_times_is_told_to_try_again_and_has_changed_nothing(place: Place) -> None:
    put(place, 0, content(), "first")
    rivals = Before(place, lambda turn: _put(place, content(tokens=10 + turn), "rival"), times=TRIES)
    with pytest.raises(InfrastructureError, match=f"moved by others in each of {TRIES} tries"):
        put(rivals, 1, content("0.5", "0.5"), "mine")
    assert [commit.weights()["web"] for commit in MixReader(place).history()] == ["0.7"] * (TRIES + 1)
    assert status(place)["result"] == "failed"


def test_the_content_is_made_anew_for_every_try(place: Place) -> None:
    """Else what was true before the rival's commit would be published after it."""
    put(place, 0, content(), "first")
    tokens = [2_000]

    def grow(turn: int) -> None:
        tokens[0] = 3_000
        _put(place, content(tokens=2_500), "rival")

    found = publisher(Before(place, grow)).publish(
        lambda: content(tokens=tokens[0]), hour=hour(1), author="curator", message=None, code=CodeState()
    )
    assert found.commit is not None
    assert found.commit.content["domains"]["web"]["tokens"] == 3_000


class LostAnswers(Wrapped):
    """HEAD is moved and the answer lost; then, if told, another moves it on before anybody looks."""

    def __init__(self, place: Place, then: Callable[[], None] = lambda: None) -> None:
        super().__init__(place)
        self._then = then
        self._lost = False

    def swap(self, path: str, data: bytes, expected: str | None) -> bool:
        swapped = super().swap(path, data, expected)
        if path == HEAD_FILE and not self._lost:
            self._lost = True
            self._then()
            raise InfrastructureError("the connection was closed", advice="Try again.")
        return swapped


def test_a_lost_answer_makes_no_second_commit(place: Place) -> None:
    put(place, 0, content(), "first")
    assert put(LostAnswers(place), 1, content("0.5", "0.5"), "mine").outcome == "committed"
    assert seqs(place) == [1, 0]


def test_a_lost_answer_never_undoes_what_others_put_on_top(place: Place) -> None:
    put(place, 0, content(), "first")
    lost = LostAnswers(place, then=lambda: _put(place, content("0.6", "0.4"), "the other's"))
    found = put(lost, 1, content("0.5", "0.5"), "mine")
    assert found.commit is not None
    assert (found.outcome, found.commit.seq) == ("committed", 1)
    assert [commit.message for commit in MixReader(place).history()] == ["the other's", "mine", "first"]


def test_a_forged_or_missing_commit_stops_all_publishing(place: Place) -> None:
    put(place, 0, content(), "first")
    newest = MixReader(place).newest()
    place.replace(newest.path, newest.bytes().replace(b"first", b"other"))
    for damage in ("not what was published", "is missing"):
        with pytest.raises(DataError, match=damage):
            put(place, 1, content(tokens=2))
        place.delete(newest.path)  # type: ignore[attr-defined]
    place.replace(newest.path, newest.bytes())
    assert put(place, 1, content(tokens=2)).outcome == "committed"


def test_a_damaged_head_stops_all_publishing_and_reading(place: Place) -> None:
    put(place, 0, content(), "first")
    head = place.read(HEAD_FILE)
    assert head is not None
    for damaged, said in [
        (head.replace(b'"content_digest":"', b'"content_digest":"0'), "its content_digest"),
        (head.replace(b'"seq":0', b'"seq":9'), "is missing"),
        (head.replace(b'"seq":0', b'"seq":"../../x"'), "it names commit"),
        (head.replace(b"mix-head/1", b"mix-head/2"), "this reader knows 'mix-head/1'"),
        (head[: len(head) // 2], "it can't be read"),
        (b"", "it can't be read"),
    ]:
        place.replace(HEAD_FILE, damaged)
        with pytest.raises((DataError, ConfigError), match=said):
            put(place, 1, content(tokens=2))
        with pytest.raises((DataError, ConfigError), match=said):
            MixReader(place).newest()
        assert place.read(HEAD_FILE) == damaged
    assert len(place.names("commits")) == 1


def test_a_page_that_cannot_be_written_fails_nothing_and_is_repaired(place: Place) -> None:
    class NoPage(Wrapped):
        def swap(self, path: str, data: bytes, expected: str | None) -> bool:
            if path == PAGE_FILE:
                raise InfrastructureError("429", advice="Wait.")
            return super().swap(path, data, expected)

    found = put(NoPage(place), 0, content(), "first")
    assert (found.outcome, found.page, place.read(PAGE_FILE)) == ("committed", "not up to date: 429", None)
    assert put(place, 1, content()).page == "up to date"
    page = place.read(PAGE_FILE)
    assert page is not None
    assert page_seq(page) == 0


def test_an_older_page_never_replaces_a_newer_one(place: Place) -> None:
    put(place, 0, content(), "first")

    class Slow(Wrapped):
        def swap(self, path: str, data: bytes, expected: str | None) -> bool:
            if path == PAGE_FILE and page_seq(data) == 1:
                put(self.inner, 1, content(tokens=3))
            return super().swap(path, data, expected)

    put(Slow(place), 1, content(tokens=2))
    page = place.read(PAGE_FILE)
    assert page is not None
    assert page_seq(page) == 2


# On Google Cloud Storage -----------------------------------------------------------------------------------------------


def test_objects_say_how_long_they_may_be_kept(gcs: FakeGcs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = bucket(gcs, f"{tmp_path.name}/mix", monkeypatch)
    for number in range(2):
        put(place, number, content(tokens=number), "first")
    found = json.loads(ask(gcs.url, "GET", f"/storage/v1/b/lab/o?prefix={tmp_path.name}/")[1])["items"]
    shown = {item["name"].split("/mix/")[1].split("/")[0]: (item["contentType"], item.get("cacheControl")) for item in found}
    assert shown == {
        "commits": ("application/json", "public, max-age=31536000, immutable"),
        "HEAD.json": ("application/json", "no-store"),
        "status.json": ("application/json", "no-store"),
        "index.html": ("text/html; charset=utf-8", "public, max-age=60"),
    }


def test_a_swap_whose_answer_is_lost_on_the_way_is_not_made_twice(gcs: FakeGcs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import gcsfs.retry

    sleep = asyncio.sleep
    monkeypatch.setattr(gcsfs.retry, "asyncio", SimpleNamespace(sleep=lambda seconds: sleep(seconds / 50)))
    with FaultyProxy(gcs.url) as proxy:
        for variable, value in proxy.environment().items():
            monkeypatch.setenv(variable, value)
        place = open_place(f"gs://lab/{tmp_path.name}/mix")
        put(place, 0, content(), "first")
        for fault, name in [
            ("lost_response", "HEAD.json"),
            ("503", "HEAD.json"),
            ("lost_response", "commits/"),
            ("lost_response", "index"),
        ]:
            proxy.next(fault, when=lambda request, name=name: request.is_upload and name in request.name)  # type: ignore[arg-type,misc]
        for number in range(1, 4):
            assert put(place, number, content(tokens=number)).outcome == "committed"
        assert proxy.counts == Counter({"lost_response": 3, "503": 1})
    place = bucket(gcs, f"{tmp_path.name}/mix", monkeypatch)
    assert seqs(place) == [3, 2, 1, 0]
    assert verify(MixReader(place)).unreachable == ()


def test_a_bucket_that_is_not_there_is_a_wrong_setting(gcs: FakeGcs, monkeypatch: pytest.MonkeyPatch) -> None:
    bucket(gcs, "any", monkeypatch)
    with pytest.raises(ConfigError, match="doesn't exist"):
        put("gs://no-such-bucket/mix", 0, content(), "first")


@pytest.mark.parametrize("url", ["https://host/mix", "memory://mix", "s3://bucket/mix", "https://user:hunter@host/mix"])
def test_where_nothing_can_be_swapped_nothing_is_published(url: str) -> None:
    with pytest.raises(ConfigError, match="'to'") as error:
        put(url, 0, content(), "first")
    assert "hunter" not in str(error.value)


# Drills ----------------------------------------------------------------------------------------------------------------


def storm(
    url: str, folder: Path, environment: dict[str, str], publishers: int, attempts: int, pause_seconds: float
) -> list[dict[str, Any]]:
    """Run it, and prove that the history is one line in which nobody's change is lost or goes back."""
    options = {"publishers": publishers, "attempts": attempts, "pause_seconds": pause_seconds}
    results: list[dict[str, Any]] = drill.run("storm", environment, timeout_seconds=1500, url=url, folder=str(folder), **options)
    assert len(results) == publishers * attempts
    assert {result["outcome"] for result in results} <= {"committed", "unchanged", "try again"}
    reader = MixReader(open_place(url))
    assert verify(reader).problems == ()
    chain = list(reader.history())[::-1]
    by_id = {commit.id: commit for commit in chain}
    tokens = [{name: each["tokens"] for name, each in commit.content["domains"].items()} for commit in chain]
    assert all(earlier[name] <= later[name] for earlier, later in pairwise(tokens) for name in later)
    for result in results:
        if result["outcome"] != "try again":
            seen = by_id[result["id"]].content["domains"][f"p{result['publisher']:02d}"]["tokens"]
            assert seen == result["value"], "what was published holds what its publisher had changed"
    committed = Counter(result["id"] for result in results if result["outcome"] == "committed")
    assert set(committed) == set(by_id)
    assert max(committed.values()) == 1
    return results


def test_publishers_at_once_make_one_history_in_which_nobody_is_lost(tmp_path: Path) -> None:
    results = storm(f"file://{tmp_path}/mix", tmp_path, {}, publishers=16, attempts=3, pause_seconds=0.02)
    assert any(result.get("tries", 1) > 1 for result in results), "nobody met anybody"


def test_publishers_at_once_in_a_bucket(gcs: FakeGcs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bucket(gcs, "any", monkeypatch)
    storm(f"gs://lab/{tmp_path.name}/mix", tmp_path, gcs.environment(), publishers=4, attempts=3, pause_seconds=0.1)


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(("kind", "changes"), [("file", 200), ("gcs", 50), ("gcs", 200)])
def test_sixteen_publishers_of_many_changes_each(
    kind: str, changes: int, gcs: FakeGcs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a bucket also fewer: the server that stands for one takes tenths of a CPU-second for a change."""
    bucket(gcs, "any", monkeypatch)
    url = f"file://{tmp_path}/mix" if kind == "file" else f"gs://lab/{tmp_path.name}/mix"
    storm(url, tmp_path, gcs.environment(), publishers=16, attempts=changes, pause_seconds=0.1)


def test_a_publisher_killed_between_any_two_steps_leaves_a_mix_that_the_next_one_completes(tmp_path: Path) -> None:
    deaths = drill.run("steps", url=f"file://{tmp_path}")
    assert [death["code"] for death in deaths if death["code"] != -9] == [0, 0]
    assert len(deaths) > 20
    for death in deaths:
        assert death["before"] in ("commit 2", "commit 3"), death
        assert (death["after_repair"], death["published"], death["page_is_current"]) == (3, True, True), death
        assert (death["problems"], death["unreachable"]) == ([], 0), death


def test_a_publisher_that_vanishes_between_any_two_requests_to_a_bucket(
    gcs: FakeGcs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As above, with an exception that nothing catches in place of a signal."""

    class Vanished(BaseException):
        pass

    class Vanishing(Wrapped):
        left = 0

        def swap(self, path: str, data: bytes, expected: str | None) -> bool:
            return bool(self._step(super().swap, path, data, expected))

        def create(self, path: str, data: bytes) -> bool:
            return bool(self._step(super().create, path, data))

        def replace(self, path: str, data: bytes) -> None:
            self._step(super().replace, path, data)

        def _step(self, operation: Callable[..., Any], *arguments: Any) -> Any:
            result = operation(*arguments)
            self.left -= 1
            if self.left == 0:
                raise Vanished
            return result

    for number in range(1, 5):  # commit, HEAD, page, status
        place = bucket(gcs, f"{tmp_path.name}/{number}", monkeypatch)
        put(place, 0, content(tokens=0), "first")
        dying = Vanishing(place)
        dying.left = number
        with pytest.raises(Vanished):
            put(dying, 3, content(tokens=3))
        seen = drill.looked(place, 3)
        assert (seen["before"], seen["after_repair"]) == ("commit 0" if number == 1 else "commit 1", 1)
        assert (seen["published"], seen["page_is_current"], seen["problems"]) == (True, True, [])


def test_killed_at_random_instants_head_is_always_valid(tmp_path: Path) -> None:
    seen = drill.run("instants", url=f"file://{tmp_path}/mix", kills=8, seed=1)
    assert (seen["reader"], seen["problems"], seen["grew"]) == (0, [], True)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_killed_at_two_hundred_random_instants(tmp_path: Path) -> None:
    seen = drill.run("instants", url=f"file://{tmp_path}/mix", kills=200, seed=2, timeout_seconds=500)
    assert (seen["reader"], seen["problems"], seen["grew"]) == (0, [], True)
    assert seen["commits"] > 100
