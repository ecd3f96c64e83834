"""Reading a published mix: now, by number, by id or at a time. Every commit is hashed before it is believed, from HEAD on."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from marin_core.data.sources.urls import bare_url
from marin_core.errors import ConfigError, DataError
from marin_core.mix.commit import (
    Change,
    Commit,
    Json,
    commit_path,
    differences,
    forged,
    is_id,
    parse_commit,
    parse_document,
)
from marin_core.mix.place import COMMITS, HEAD_FILE, Readable, open_readable

HEAD_SCHEMA = "mix-head/1"

At = int | str | datetime | None
"""Which commit: the newest (None), by number, by id, or the one that was valid at a time."""


@dataclass(frozen=True)
class Head:
    """What `HEAD.json` says; `published_at` is the publisher's clock and decides nothing."""

    seq: int
    id: str
    content_digest: str
    published_at: str

    @classmethod
    def of(cls, commit: Commit, published_at: str) -> "Head":
        return cls(commit.seq, commit.id, commit.content_digest, published_at)

    def document(self) -> Json:
        return {"schema": HEAD_SCHEMA, **vars(self)}


def read_mix(url: str, at: At = None) -> Commit:
    """A commit of the mix at a folder, bucket or http(s) URL, without credentials.

    By number or time it takes at most ⌊log₂ n⌋ + 1 reads beyond those of HEAD and its commit. By id alone every commit from HEAD back to it
    is read, unless the place can be listed.

    Args:
        at: None for what is valid now; a number; an id; or a time with its zone, for what was valid then.

    Raises:
        ConfigError: nothing was published there, or not by that number, id or time.
        DataError: a commit is missing, or isn't what its id says.
        InfrastructureError: the place doesn't answer.
    """
    return MixReader(open_readable(url)).commit(at)


class MixReader:
    """Reads commits of one mix, each of them once.

    Attributes:
        reads: commit objects that were fetched.
    """

    def __init__(self, place: Readable) -> None:
        self.place = place
        self.reads = 0
        self._known: dict[str, Commit] = {}

    @property
    def url(self) -> str:
        return bare_url(self.place.url) if "://" in self.place.url else self.place.url

    def head(self) -> Head:
        """The newest commit's number and id.

        Raises:
            ConfigError: nothing was published.
        """
        data = self.place.read(HEAD_FILE)
        if data is None:
            raise ConfigError(f"no mix was ever published at {self.url}", advice="Correct the URL, or publish one.")
        return self.parse_head(data)

    def parse_head(self, data: bytes) -> Head:
        """Read `HEAD.json`.

        Raises:
            DataError: it is damaged.
            ConfigError: it has another schema; names both.
        """
        where = f"{self.url}/{HEAD_FILE}"
        document = parse_document(data, where)
        if document.get("schema") != HEAD_SCHEMA:
            raise ConfigError(
                f"{where} has schema {document.get('schema')!r}, this reader knows {HEAD_SCHEMA!r}",
                advice="Read it with the version that wrote it.",
            )
        try:
            head = Head(document["seq"], document["id"], document["content_digest"], document["published_at"])
        except KeyError as error:
            raise forged(where, f"it lacks the field {error}") from error
        if type(head.seq) is not int or head.seq < 0 or not is_id(head.id):
            raise forged(where, f"it names commit {str(head.seq)[:40]!r} with id {str(head.id)[:80]!r}")
        return head

    def newest(self) -> Commit:
        """HEAD's commit."""
        return self.commit_of(self.head())

    def commit_of(self, head: Head) -> Commit:
        """The commit that a HEAD names, proven to be it."""
        commit = self.fetch(head.seq, head.id)
        if commit.content_digest != head.content_digest:
            raise forged(f"{self.url}/{HEAD_FILE}", f"its content_digest {head.content_digest!r} isn't that of commit {head.seq}")
        return commit

    def fetch(self, seq: int, commit_id: str) -> Commit:
        """The commit of a number and an id.

        Raises:
            DataError: it is missing, or isn't that one.
        """
        if commit_id in self._known:
            return self._known[commit_id]
        where = f"{self.url}/{commit_path(seq, commit_id)}"
        data = self.place.read(commit_path(seq, commit_id))
        self.reads += 1
        if data is None:
            raise DataError(f"{where} is missing, although it was published", advice="Restore it from a copy: commits are never deleted.")
        commit = parse_commit(data, where)
        if commit.id != commit_id or commit.seq != seq:
            raise forged(where, f"it is commit {commit.seq} with id {commit.id}")
        self._known[commit_id] = commit
        return commit

    # Which one -----------------------------------------------------------------------------------------------------

    def commit(self, at: At = None) -> Commit:
        """The commit that `read_mix` describes."""
        if at is None:
            return self.newest()
        if isinstance(at, datetime):
            if at.tzinfo is None:
                raise ConfigError(f"{at.isoformat()} has no time zone", advice="Give a time such as 2026-11-29T10:00:00Z.")
            found = self.valid_at(self.newest(), at)
            if found is None:
                raise ConfigError(
                    f"nothing was published at {self.url} by {at.astimezone(UTC).isoformat()}", advice="`marin mix log` lists what was."
                )
            return found
        if isinstance(at, int):
            return self._numbered(at)
        if not is_id(at):
            raise ConfigError(f"{at[:80]!r} is no commit id", advice="Give all its 64 lower-case hex digits, a number, or a time.")
        return self._identified(at)

    def _numbered(self, seq: int) -> Commit:
        newest = self.newest()
        if not 0 <= seq <= newest.seq:
            raise ConfigError(f"{self.url} has no commit {seq}", advice=f"It has those from 0 to {newest.seq}.")
        return self.ancestor(newest, seq)

    def ancestor(self, commit: Commit, seq: int) -> Commit:
        """The commit of a number, from a later one (or itself) back by the longest links that don't lead beyond it."""
        while commit.seq > seq:
            commit = self.fetch(*min(link for link in self._links(commit) if link[0] >= seq))
        return commit

    def valid_at(self, newest: Commit, time: datetime) -> Commit | None:
        """The last commit up to `newest` whose hour isn't after a time; None if the first one's is.

        Each link, from the longest on, is followed if what it leads to is still too late, so each commit read halves what is left.
        """
        if newest.time <= time:
            return newest
        late, power = newest, newest.seq.bit_length()
        while power:
            power -= 1
            if 1 << power > late.seq:
                continue
            earlier = self.back(late, power)
            late = earlier if earlier.time > time else late
        return self.back(late, 0) if late.seq else None

    def back(self, commit: Commit, power: int) -> Commit:
        """The commit 2^power before."""
        if power == 0 and commit.parent is not None:
            return self.fetch(commit.seq - 1, commit.parent)
        link = commit.skip[power - 1]
        return self.fetch(link.seq, link.id)

    def _links(self, commit: Commit) -> list[tuple[int, str]]:
        parent = [(commit.seq - 1, commit.parent)] if commit.parent is not None else []
        return parent + [(each.seq, each.id) for each in commit.skip]

    def _identified(self, commit_id: str) -> Commit:
        """By id; what lies there and was never HEAD, such as a killed publisher leaves, isn't published."""
        newest = self.newest()
        listed = next((seq for seq, each in listed_commits(self.place) if each == commit_id), None) if _can_list(self.place) else None
        if listed is not None and listed <= newest.seq:
            found = self.ancestor(newest, listed)
            if found.id == commit_id:
                return found
        elif not _can_list(self.place):
            for found in self.history(newest):
                if found.id == commit_id:
                    return found
        raise ConfigError(f"{self.url} has no commit {commit_id}", advice="`marin mix log` lists what was published.")

    # History -------------------------------------------------------------------------------------------------------

    def history(self, newest: Commit | None = None) -> Iterator[Commit]:
        """Commits from a later one (the newest) back to the first."""
        commit = newest or self.newest()
        yield commit
        while commit.parent is not None:
            commit = self.back(commit, 0)
            yield commit

    def log(self, count: int) -> list[Commit]:
        """The newest commits, at most so many, newest first."""
        return [commit for commit, _ in zip(self.history(), range(count), strict=False)]

    def diff(self, old: At, new: At) -> tuple[Change, ...]:
        """How two commits' contents differ: weights, tokens, shards, licences, tokenizer."""
        return differences(self.commit(old).content, self.commit(new).content)

    def blame(self, domain: str) -> Commit:
        """The newest commit that changed a domain, or one of its weights; its message says why.

        Raises:
            ConfigError: no commit has such a domain.
        """
        before = f"/domains/{domain}/"
        for commit in self.history():
            if any(
                change.path.startswith(before) or (change.path.startswith("/phases/") and change.path.endswith(f"/weights/{domain}"))
                for change in commit.diff
            ):
                return commit
            if commit.parent is None and domain in domain_names(commit.content):
                return commit
        raise ConfigError(
            f"{self.url} never had a domain {domain!r}", advice=f"It has: {', '.join(domain_names(self.newest().content)) or 'none'}."
        )


def domain_names(content: Json) -> list[str]:
    """Domains that a content describes or weighs."""
    weighed = {name for phase in content.get("phases", ()) for name in phase["weights"]}
    return sorted(weighed | set(content.get("domains", ())))


def _can_list(place: Readable) -> bool:
    return hasattr(place, "names")


def listed_commits(place: Any) -> list[tuple[int, str]]:
    """Number and id of every commit object that lies in a place, published or not."""
    found = []
    for name in place.names(COMMITS):
        seq, _, rest = name.partition("-")
        if seq.isdigit() and is_id(rest.removesuffix(".json")) and not name.startswith("."):
            found.append((int(seq), rest.removesuffix(".json")))
    return found


@dataclass(frozen=True)
class Verdict:
    """What a walk over a whole mix showed.

    Attributes:
        commits: that were read.
        problems: one sentence each; empty if everything is as published.
        unreachable: names of commit objects that no HEAD leads to, such as a publisher leaves that was killed or lost a race.
    """

    commits: int
    problems: tuple[str, ...]
    unreachable: tuple[str, ...]


def verify(reader: MixReader) -> Verdict:
    """Read every commit from HEAD to the first; hashes, links, hours and diffs must be right."""
    problems: list[str] = []
    chain: dict[int, Commit] = {}
    try:
        for commit in reader.history():
            chain[commit.seq] = commit
    except DataError as error:
        problems.append(error.message)
    for seq in sorted(chain):
        problems += _wrong_links(chain, chain[seq])
    unreachable = []
    if not problems and _can_list(reader.place):
        unreachable = [commit_path(seq, each) for seq, each in listed_commits(reader.place) if seq not in chain or chain[seq].id != each]
    return Verdict(len(chain), tuple(problems), tuple(unreachable))


def _wrong_links(chain: dict[int, Commit], commit: Commit) -> list[str]:
    """What hashes don't prove, since whoever writes a commit may write anything into it."""
    problems = [
        f"commit {commit.seq} links to {link.seq} with id {link.id}, which isn't in its history"
        for link in commit.skip
        if link.seq in chain and chain[link.seq].id != link.id
    ]
    parent = chain.get(commit.seq - 1)
    if parent is not None and parent.hour > commit.hour:
        problems.append(f"commit {commit.seq} is of {commit.hour}, before its parent's {parent.hour}")
    if parent is not None and differences(parent.content, commit.content) != commit.diff:
        problems.append(f"commit {commit.seq} says that other things have changed than have")
    if parent is None and commit.seq == 0 and commit.diff:
        problems.append("commit 0 has a diff, but no parent")
    return problems
