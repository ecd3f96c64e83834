"""Which commit objects are deleted, in a folder and in a bucket: never one that is published, or could be yet."""

import random
from datetime import UTC, datetime, timedelta

import pytest

from marin_core.errors import DataError
from marin_core.mix.commit import Ancestor, CodeState, Commit, make_commit, skip_seqs
from marin_core.mix.leftovers import delete_leftovers, find_leftovers
from marin_core.mix.place import GcsPlace, LocalPlace
from marin_core.mix.read import MixReader, verify
from tests.mix.chains import content, hour, put

type Placed = LocalPlace | GcsPlace

IN_A_MONTH = timedelta(days=31)


def publish(place: Placed, count: int) -> list[Commit]:
    published = [put(place, number, content(tokens=1_000 + number)).commit for number in range(count)]
    return [commit for commit in published if commit is not None]


def leave(place: Placed, parent: Commit | None, what: str) -> Commit:
    """What a publisher writes before it is killed, or loses a race."""
    reader = MixReader(place)
    links = [] if parent is None else [reader.ancestor(parent, seq) for seq in skip_seqs(parent.seq + 1)]
    commit = make_commit(
        parent=parent,
        skip=[Ancestor(each.seq, each.id) for each in links],
        hour=hour(5_000),
        author="curator",
        message=what,
        code=CodeState(),
        content=content(tokens=9_999),
    )
    assert place.create(commit.path, commit.bytes())
    return commit


def test_only_old_objects_that_head_has_passed_go(place: Placed) -> None:
    chain = publish(place, 9)
    passed = [leave(place, chain[3], "lost a race"), leave(place, chain[3], "lost another"), leave(place, None, "of the first hour")]
    beyond = leave(place, chain[-1], "killed before it moved HEAD")
    now = datetime.now(UTC)
    assert find_leftovers(place, now) == []
    found = find_leftovers(place, now + IN_A_MONTH)
    assert {each.path for each in found} == {commit.path for commit in passed}
    assert all(each.bytes == len(next(c for c in passed if c.path == each.path).bytes()) for each in found)

    delete_leftovers(place, found)
    delete_leftovers(place, found)
    assert find_leftovers(place, now + IN_A_MONTH) == []
    verdict = verify(MixReader(place))
    assert (verdict.commits, verdict.problems, verdict.unreachable) == (9, (), (beyond.path,))

    assert put(place, 5_000, content(tokens=9_999)).outcome == "committed"
    assert [each.path for each in find_leftovers(place, now + IN_A_MONTH)] == [beyond.path]


def test_a_mix_with_nothing_to_delete_is_hardly_read(place: Placed, monkeypatch: pytest.MonkeyPatch) -> None:
    publish(place, 20)
    reads: list[str] = []
    read = type(place).read

    def counted(self: Placed, path: str) -> bytes | None:
        reads.append(path)
        return read(self, path)  # type: ignore[arg-type]

    monkeypatch.setattr(type(place), "read", counted)
    assert find_leftovers(place, datetime.now(UTC) + IN_A_MONTH) == []
    assert len(reads) == 2


def test_where_nothing_was_published_nothing_goes(place: Placed) -> None:
    leave(place, None, "killed in the first hour")
    assert find_leftovers(place, datetime.now(UTC) + IN_A_MONTH) == []


def test_the_only_object_of_a_number_stays_and_damage_is_told(place: Placed) -> None:
    chain = publish(place, 4)
    alone = leave(place, chain[1], "stands where a commit was lost")
    place.delete(chain[2].path)
    later = datetime.now(UTC) + IN_A_MONTH
    assert find_leftovers(place, later) == []
    other = leave(place, chain[1], "another one there")
    with pytest.raises(DataError, match="missing"):
        find_leftovers(place, later)
    assert place.read(alone.path)
    assert place.read(other.path)


def test_whatever_is_left_where_history_survives(place: Placed) -> None:
    chance = random.Random(7)
    published: list[Commit] = []
    for number in range(12):
        parents = [None, *published]
        for each in range(chance.randrange(3)):
            leave(place, chance.choice(parents), f"{number} {each}")
        commit = put(place, number, content(tokens=2_000 + number)).commit
        assert commit is not None
        published.append(commit)
    delete_leftovers(place, find_leftovers(place, datetime.now(UTC) + IN_A_MONTH))
    verdict = verify(MixReader(place))
    assert (verdict.commits, verdict.problems, verdict.unreachable) == (12, (), ())
