"""Reading: from a folder, a bucket or a plain web server; far back in few reads; never what was not published."""

import bisect
import random
import threading
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from marin_core.artifact.canonical import canonical_json
from marin_core.errors import ConfigError, DataError, InfrastructureError
from marin_core.mix.commit import Ancestor, CodeState, Commit, make_commit, skip_seqs
from marin_core.mix.place import HEAD_FILE, Place, WebPlace, open_readable
from marin_core.mix.read import Head, MixReader, read_mix, verify
from tests.mix.chains import START, chain_of, content, hour, put
from tests.mix.conftest import bucket
from tests.storage.gcs import FakeGcs


class Memory:
    """A place that holds objects by name; whoever reads may count."""

    url = "memory"

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}

    def read(self, path: str) -> bytes | None:
        return self.objects.get(path)


def chain(length: int, hours: Callable[[int], datetime] = hour) -> tuple[Memory, list[Commit]]:
    """A mix of so many commits, made without a publisher."""
    commits = chain_of(({"phases": [], "domains": {"web": {"tokens": seq}}} for seq in range(length)), hours)
    return memory_of(commits), commits


def memory_of(commits: list[Commit]) -> Memory:
    place = Memory()
    place.objects |= {commit.path: commit.bytes() for commit in commits}
    place.objects[HEAD_FILE] = canonical_json(Head.of(commits[-1], "now").document())
    return place


@pytest.fixture(scope="module")
def long_chain() -> tuple[Memory, list[Commit]]:
    """10,000 commits; every seventh is of the same hour as the one before, and no hour is without a gap after it."""
    return chain(10_000, lambda seq: hour(2 * (seq - seq // 7)))


def test_ten_thousand_commits_back_takes_a_logarithm_of_reads(long_chain: tuple[Memory, list[Commit]]) -> None:
    place, commits = long_chain
    chance = random.Random(0)
    for seq in [0, 1, 9_999, 9_998, 1_808, 8_191, *(chance.randrange(10_000) for _ in range(200))]:
        reader = MixReader(place)
        assert reader.commit(seq) == commits[seq]
        assert reader.reads <= 14, "log₂ of 10,000 is 13.3"


def test_time_travel_finds_what_was_valid_then(long_chain: tuple[Memory, list[Commit]]) -> None:
    place, commits = long_chain
    chance = random.Random(1)
    hours = [commit.time for commit in commits]
    for seq in [0, 1, 9_999, *(chance.randrange(10_000) for _ in range(200))]:
        time = hours[seq] + timedelta(minutes=chance.choice([0, 30, 90]))
        reader = MixReader(place)
        assert reader.commit(time) == commits[bisect.bisect_right(hours, time) - 1]
        assert reader.reads <= 15, "HEAD's, and ⌊log₂ n⌋ + 1"
    with pytest.raises(ConfigError, match="nothing was published at memory by 2026-02-28T23:59:00"):
        MixReader(place).commit(START - timedelta(minutes=1))


def test_a_publisher_links_as_the_long_chain_does(tmp_path: Path) -> None:
    for number in range(20):
        put(f"file://{tmp_path}/mix", number, content(tokens=number), "m")
    reader = MixReader(open_readable(f"file://{tmp_path}/mix"))
    commits = list(reader.history())[::-1]
    assert [[each.seq for each in commit.skip] for commit in commits] == [skip_seqs(seq) for seq in range(20)]
    assert verify(reader).problems == ()


# Doors -----------------------------------------------------------------------------------------------------------------


@pytest.fixture
def web(tmp_path: Path) -> Iterator[str]:
    """A plain web server over a folder."""

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(tmp_path)))
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()
    thread.join()


def test_a_plain_web_server_serves_readers_without_credentials(web: str, tmp_path: Path) -> None:
    for number in range(5):
        put(f"file://{tmp_path}/mix", number, content(tokens=number), "m")
    commits = list(MixReader(open_readable(f"{tmp_path}/mix")).history())[::-1]
    assert read_mix(f"{web}/mix") == commits[4]
    assert read_mix(f"{web}/mix/", 1) == commits[1]
    assert read_mix(f"{web}/mix", commits[2].id) == commits[2]
    assert read_mix(f"{web}/mix", hour(3) + timedelta(minutes=59)) == commits[3]
    with pytest.raises(ConfigError, match="no mix was ever published"):
        read_mix(f"{web}/other")
    with pytest.raises(ConfigError, match="has no commit 5"):
        read_mix(f"{web}/mix", 5)
    with pytest.raises(ConfigError, match=f"has no commit {'0' * 64}"):
        read_mix(f"{web}/mix", "0" * 64)


def test_a_public_bucket_is_read_over_http_as_it_is(gcs: FakeGcs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = bucket(gcs, f"{tmp_path.name}/mix", monkeypatch)
    put(place, 0, content(), "first")
    assert read_mix(f"{gcs.url}/lab/{tmp_path.name}/mix") == read_mix(place.url)


def test_a_server_that_is_gone_says_try_again_and_a_signed_url_is_refused(web: str) -> None:
    with pytest.raises(InfrastructureError, match="can't be read"):
        read_mix("http://127.0.0.1:9/mix")
    with pytest.raises(ConfigError) as error:
        read_mix("https://host/mix?X-Goog-Signature=abcdef")
    assert "abcdef" not in str(error.value)
    assert isinstance(open_readable(web), WebPlace)


@pytest.mark.parametrize("at", ["abc", "0" * 63, "G" * 64, datetime(2026, 3, 1)])
def test_what_names_no_commit_says_what_would(place: Place, at: Any) -> None:
    put(place, 0, content(), "first")
    with pytest.raises(ConfigError, match=r"commit id|time zone"):
        read_mix(place.url, at)


# What was not published ------------------------------------------------------------------------------------------------


def test_a_commit_that_no_head_leads_to_was_not_published(place: Place) -> None:
    put(place, 0, content(), "first")
    put(place, 1, content(tokens=2), "second")
    stray = make_commit(
        parent=read_mix(place.url, 0), skip=(), hour=hour(1), author="x", message="x", code=CodeState(), content=content(tokens=9)
    )
    place.create(stray.path, stray.bytes())
    with pytest.raises(ConfigError, match=f"has no commit {stray.id}"):
        read_mix(place.url, stray.id)
    assert verify(MixReader(place)).unreachable == (stray.path,)


@pytest.mark.parametrize("damage", ["missing", "cut", "another commit", "empty"])
def test_damage_in_the_middle_is_met_only_by_who_goes_there(damage: str) -> None:
    place, commits = chain(40)
    broken = commits[20]
    data = {"missing": None, "cut": broken.bytes()[:-9], "another commit": commits[19].bytes(), "empty": b""}[damage]
    place.objects.pop(broken.path)
    if data is not None:
        place.objects[broken.path] = data
    assert read_from(place, None) == commits[39]
    assert read_from(place, 23) == commits[23]
    with pytest.raises(DataError, match="is missing, although" if damage == "missing" else "not what was published"):
        read_from(place, 20)
    (problem,) = verify(MixReader(place)).problems
    assert broken.path in problem


def read_from(place: Memory, at: Any) -> Commit:
    return MixReader(place).commit(at)


def test_verify_finds_links_hours_and_diffs_that_hash_right_and_are_wrong() -> None:
    place, commits = chain(6)
    forged = make_commit(
        parent=commits[5],
        skip=[Ancestor(4, commits[4].id), Ancestor(2, "0" * 64)],
        hour=hour(0),
        author="x",
        message="x",
        code=CodeState(),
        content={},
    )
    place.objects[forged.path] = forged.bytes()
    place.objects[HEAD_FILE] = canonical_json(Head.of(forged, "now").document())
    assert verify(MixReader(place)).problems == (
        f"commit 6 links to 2 with id {'0' * 64}, which isn't in its history",
        "commit 6 is of 2026-03-01T00:00:00Z, before its parent's 2026-03-01T05:00:00Z",
    )


# Questions -------------------------------------------------------------------------------------------------------------


def test_blame_names_the_commit_that_last_changed_a_domain(place: Place) -> None:
    put(place, 0, content(), "first")
    put(place, 1, content("0.6", "0.4"), "more code")
    put(place, 2, content("0.6", "0.4", tokens=2_000), None)
    put(place, 3, content("0.6", "0.4", tokens=2_000, sequence_length=256), "longer")
    reader = MixReader(place)
    assert reader.blame("web").message == "web +1.0 k tokens"
    assert reader.blame("code").message == "more code"
    with pytest.raises(ConfigError, match=r"never had a domain 'x'\n.*It has: code, web"):
        reader.blame("x")
    assert [commit.seq for commit in reader.log(2)] == [3, 2]
    assert [(change.path, change.old, change.new) for change in reader.diff(0, 1)] == [
        ("/phases/0/weights/code", "0.3", "0.4"),
        ("/phases/0/weights/web", "0.7", "0.6"),
    ]
    assert reader.diff(1, 1) == ()


def test_blame_of_what_never_changed_is_the_first_commit() -> None:
    unchanged = memory_of(chain_of([content(), content(sequence_length=64), content(sequence_length=32)]))
    assert MixReader(unchanged).blame("web").seq == 0
