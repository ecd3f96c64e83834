"""Commit objects that were never published and can't be any more: what a publisher leaves that was killed, or lost a race."""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

from marin_core.mix.commit import commit_path
from marin_core.mix.place import COMMITS, HEAD_FILE, GcsPlace, LocalPlace
from marin_core.mix.read import MixReader, listed_commits

KEEP_DAYS = 30
"""How long such an object is kept (spec: data §8.3), for whoever wants to know what was nearly published."""


@dataclass(frozen=True)
class Leftover:
    """A commit object that no HEAD will ever lead to.

    Attributes:
        path: below the mix.
    """

    path: str
    bytes: int
    written_at: datetime


def find_leftovers(place: LocalPlace | GcsPlace, now: datetime, keep_days: float = KEEP_DAYS) -> list[Leftover]:
    """Commit objects that may be deleted: older than so many days, and of a number at which another commit is published.

    HEAD only moves on, so at a number that it has passed nothing else can be published, by whomever and however late. An object beyond
    HEAD stays, and so does the only one of its number, unread: a publisher may be about to move HEAD to the former, and the latter is in
    the history unless the mix is damaged. So a mix without leftovers costs a listing and two reads.

    Raises:
        DataError: the history is damaged, so that nobody can say what belongs to it.
        ConfigError: it is written in another schema.
        InfrastructureError: the place doesn't answer.
    """
    reader, head = MixReader(place), place.read(HEAD_FILE)
    if head is None:  # nothing was published yet
        return []
    newest = reader.commit_of(reader.parse_head(head))
    by_number: dict[int, set[str]] = defaultdict(set)
    for seq, commit_id in listed_commits(place):
        by_number[seq].add(commit_id)
    stored = place.stored(COMMITS)
    found = []
    for seq in sorted(seq for seq, ids in by_number.items() if len(ids) > 1 and seq <= newest.seq):
        for commit_id in sorted(by_number[seq] - {reader.ancestor(newest, seq).id}):
            path = commit_path(seq, commit_id)
            state = stored.get(path.removeprefix(f"{COMMITS}/"))
            if state is not None and now - state.written_at > timedelta(days=keep_days):
                found.append(Leftover(path, state.bytes, state.written_at))
    return found


def delete_leftovers(place: LocalPlace | GcsPlace, leftovers: Iterable[Leftover]) -> None:
    """Delete them; one that is gone by now is no error.

    Raises:
        InfrastructureError: the place doesn't answer.
    """
    for each in leftovers:
        place.delete(each.path)
