"""Publishing a mix for an hour: one more commit on the chain if anything changed, whoever else publishes, whenever it dies.

What is decided is decided by one conditional overwrite, that of HEAD. Before it a commit is nothing but an object that nobody names; after
it everything that is missing, the page and the status, is repaired by whoever publishes next.
"""

import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Literal

from marin_core.artifact.canonical import canonical_json, digest
from marin_core.errors import ConfigError, DataError, InfrastructureError, MarinError
from marin_core.mix.commit import (
    HOUR_FORMAT,
    Ancestor,
    CodeState,
    Commit,
    Json,
    differences,
    hour_text,
    make_commit,
    parse_hour,
    published_text,
    skip_seqs,
)
from marin_core.mix.message import message_of
from marin_core.mix.page import HISTORY, page_seq, render
from marin_core.mix.place import HEAD_FILE, PAGE_FILE, STATUS_FILE, Place, open_place
from marin_core.mix.read import Head, MixReader

STATUS_SCHEMA = "mix-status/1"
TRIES = 5
PAUSE_SECONDS = 1.0
"""Before the second try at most so long, twice that before the third, …; a store takes about one write a second to one object."""

LONGEST_ERROR = 2_000


@dataclass(frozen=True)
class Published:
    """What became of an hour.

    Attributes:
        outcome: `committed` (also where another publisher had committed the same first); `unchanged`, the content is HEAD's; `past`, the
            hour is before HEAD's, and `commit` is what was valid then.
        commit: the one that is valid for the hour; None if it is before the first.
        tries: how often HEAD was read.
        page: whether `index.html` shows HEAD now, or why not; the next publication repairs it.
    """

    outcome: Literal["committed", "unchanged", "past"]
    commit: Commit | None
    tries: int
    page: str = "up to date"


def publish(
    url: str,
    content: Callable[[], Json],
    *,
    hour: datetime,
    author: str,
    message: str | None,
    code: CodeState,
    weights_are_derived: bool = False,
) -> Published:
    """Publish what is mixed from an hour on to a folder or bucket (see `Publisher.publish`)."""
    return Publisher(open_place(url)).publish(
        content, hour=hour, author=author, message=message, code=code, weights_are_derived=weights_are_derived
    )


def _now() -> datetime:
    return datetime.now(UTC)


@dataclass(frozen=True)
class Publisher:
    """Publishes to one place; clock, pause and chance come from outside."""

    place: Place
    clock: Callable[[], datetime] = _now
    pause: Callable[[float], None] = time.sleep
    chance: random.Random = field(default_factory=random.Random)

    def publish(
        self,
        content: Callable[[], Json],
        *,
        hour: datetime,
        author: str,
        message: str | None,
        code: CodeState,
        weights_are_derived: bool = False,
    ) -> Published:
        """Commit what is mixed from an hour on, unless it is what HEAD says already. A message alone is no change.

        Args:
            content: makes the content; asked anew before every try, so that no older one ever follows a newer one.
            hour: a whole one, not after the clock's.
            message: why; may be None where only tokens moved.
            weights_are_derived: weights follow from the tokens, and need no message when they move.

        Raises:
            ConfigError: the hour lies in the future, something may not be published, or a message is missing; names the field.
            DataError: what is published already is damaged; nothing is put on top of it.
            InfrastructureError: the store doesn't answer, or others were faster in every try; publishing again is safe.
        """
        try:
            text = hour_text(hour)
            if parse_hour(text) > self.clock():
                raise ConfigError(
                    f"field 'hour': {text} is after this machine's clock, {self.clock().astimezone(UTC).isoformat()}",
                    advice="Publish for an hour that has begun, or correct the clock.",
                )
            draft = _Draft(content, parse_hour(text), author, message, code, weights_are_derived)
            found = self._settled(draft)
        except MarinError as error:
            self._say_status(hour, None, f"{error.message} {error.advice}")
            raise
        self._say_status(hour, found, None)
        return found

    def _settled(self, draft: "_Draft") -> Published:
        lost: InfrastructureError | None = None
        reader = MixReader(self.place)  # of all tries: commits never change, and HEAD is read anew
        for number in range(1, TRIES + 1):
            if number > 1:
                self.pause(self.chance.uniform(0, PAUSE_SECONDS * 2 ** (number - 2)))
            stamped = self.place.read_stamped(HEAD_FILE)
            head = None if stamped is None else reader.commit_of(reader.parse_head(stamped.data))
            if head is not None and draft.hour < head.time:
                return Published("past", reader.valid_at(head, draft.hour), number, self._show(reader, head))
            new = draft.content()
            if head is not None and digest(new) == head.content_digest:
                return Published("unchanged", head, number, self._show(reader, head))
            commit = draft.on(head, reader, new)
            self._create(commit)
            try:
                swapped = self.place.swap(HEAD_FILE, self._head(commit), None if stamped is None else stamped.stamp)
            except InfrastructureError as error:
                swapped, lost = False, error  # the answer may have been lost, not the write
            if swapped or self._is_published(reader, commit):
                return Published("committed", commit, number, self._show(reader, None))
        if lost is not None:
            raise lost
        raise InfrastructureError(
            f"HEAD of {self.place.url} was moved by others in each of {TRIES} tries", advice="Publish again; nothing was lost."
        )

    def _head(self, commit: Commit) -> bytes:
        return canonical_json(Head.of(commit, self.clock().astimezone(UTC).isoformat(timespec="seconds")).document())

    def _create(self, commit: Commit) -> None:
        """Exactly these bytes may be there already: from a try before, or from another who published the same."""
        if not self.place.create(commit.path, commit.bytes()) and self.place.read(commit.path) != commit.bytes():
            raise DataError(
                f"{self.place.url}/{commit.path} holds something else than its name says", advice="Delete it: it was never published."
            )

    def _is_published(self, reader: MixReader, commit: Commit) -> bool:
        """Whether a commit is in the history although its swap seemed to fail: the answer was lost, or another made the same one."""
        try:
            newest = reader.newest()
        except ConfigError:
            return False
        return newest.seq >= commit.seq and reader.ancestor(newest, commit.seq).id == commit.id

    def _show(self, reader: MixReader, head: Commit | None) -> str:
        """Bring the page up to HEAD. It has no authority: that it fails must not make a publication fail."""
        try:
            for _ in range(TRIES):
                newest = head or reader.newest()
                stamped = self.place.read_stamped(PAGE_FILE)
                if stamped is not None and page_seq(stamped.data) >= newest.seq:
                    break
                shown = render([commit for commit, _ in zip(reader.history(newest), range(HISTORY), strict=False)])
                if self.place.swap(PAGE_FILE, shown, None if stamped is None else stamped.stamp):
                    break
        except MarinError as error:
            return f"not up to date: {error.message}"
        return "up to date"

    def _say_status(self, hour: datetime, found: Published | None, error: str | None) -> None:
        """Leave a note of the last check, which nothing relies on."""
        commit = None if found is None else found.commit
        status = {
            "schema": STATUS_SCHEMA,
            "checked_at": self.clock().astimezone(UTC).isoformat(timespec="seconds"),
            "hour": f"{hour.astimezone(UTC):{HOUR_FORMAT}}",
            "result": "failed" if found is None else found.outcome,
            "seq": None if commit is None else commit.seq,
            "id": None if commit is None else commit.id,
            "error": None if error is None else published_text(error, "error", LONGEST_ERROR),
        }
        try:
            self.place.replace(STATUS_FILE, canonical_json(status))
        except MarinError:
            return


@dataclass(frozen=True)
class _Draft:
    """Everything of a commit but what it stands on."""

    content: Callable[[], Json]
    hour: datetime
    author: str
    message: str | None
    code: CodeState
    weights_are_derived: bool

    def on(self, parent: Commit | None, reader: MixReader, content: Json) -> Commit:
        diff = () if parent is None else differences(parent.content, content)
        message = message_of(diff, self.message, is_first=parent is None, weights_are_derived=self.weights_are_derived)
        return make_commit(
            parent=parent,
            skip=() if parent is None else _skip(parent, reader),
            hour=self.hour,
            author=self.author,
            message=message,
            code=self.code,
            content=content,
        )


def _skip(parent: Commit, reader: MixReader) -> tuple[Ancestor, ...]:
    """Links of a commit on `parent`: what lies 2^(k+1) back is 2^k before what lies 2^k back; log₂ n reads."""
    found, nearest = [], parent
    for power, seq in enumerate(skip_seqs(parent.seq + 1)):
        nearest = reader.back(nearest, power)
        if nearest.seq != seq:
            raise DataError(
                f"commit {nearest.seq} stands where commit {seq} should in {reader.url}", advice="`marin mix verify` finds what is wrong."
            )
        found.append(Ancestor(nearest.seq, nearest.id))
    return tuple(found)
