"""A commit of the published mix: canonical JSON whose id is the SHA-256 of all the rest.

No wall clock enters an id: two publishers, or a retry, that commit the same content for the same hour on the same parent write the same
bytes. No number in it is a float: decimals are text, so that every reader in every language hashes the same bytes.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from marin_core.artifact.canonical import canonical_json, digest
from marin_core.data.sources.urls import SECRET_PARAMETER, bare_url
from marin_core.errors import ConfigError, DataError
from marin_core.redaction import redact

COMMIT_SCHEMA = "mix-commit/1"
HOUR_FORMAT = "%Y-%m-%dT%H:%M:%SZ"
LONGEST_AUTHOR = 100
LONGEST_MESSAGE = 4_000
NO_COMMIT = "0" * 40
"""Git commit of code that stands in no checkout."""

_ID = re.compile(r"[0-9a-f]{64}")
_GIT_COMMIT = re.compile(r"[0-9a-f]{40}")
_HOUR = re.compile(r"\d{4}-\d{2}-\d{2}T\d{2}:00:00Z")
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://[^\s\"'<>]+")
_PARAMETER = re.compile(r"[?&;#]([^=&;#]+)=")

type Json = dict[str, Any]


@dataclass(frozen=True)
class Ancestor:
    """A commit that lies 2, 4, 8, … commits back."""

    seq: int
    id: str


@dataclass(frozen=True)
class CodeState:
    """The checkout that published: git commit (40 hex digits) and whether the tree had changes."""

    commit: str = NO_COMMIT
    dirty: bool = False


@dataclass(frozen=True)
class Change:
    """A leaf of the content that differs from the parent's: JSON Pointer (RFC 6901), old and new value; None where it isn't there."""

    path: str
    old: Any
    new: Any


@dataclass(frozen=True)
class Commit:
    """One commit.

    Attributes:
        seq: from 0, one more than the parent's.
        parent: id of the commit before; None of the first.
        skip: ancestors 2, 4, 8, … commits back, nearest first; the parent is the one 1 back.
        hour: from when on the content is valid, as `2026-11-29T10:00:00Z`; never before the parent's.
        content: what is mixed (spec: data §8.2), plain JSON without floats.
        diff: against the parent's content, in the order of paths; empty in the first commit.
        id: SHA-256 of the canonical JSON of all the rest.
    """

    seq: int
    parent: str | None
    skip: tuple[Ancestor, ...]
    hour: str
    author: str
    message: str
    code: CodeState
    content: Json
    content_digest: str
    diff: tuple[Change, ...]
    id: str

    @property
    def path(self) -> str:
        """The object's name below the mix."""
        return commit_path(self.seq, self.id)

    @property
    def time(self) -> datetime:
        """The hour as a time in UTC."""
        return parse_hour(self.hour)

    def document(self) -> Json:
        """The whole commit as plain JSON values."""
        return {**_rest(self), "id": self.id}

    def bytes(self) -> bytes:
        """The object's content."""
        return canonical_json(self.document())

    def weights(self, phase: int = 0) -> dict[str, str]:
        """Domain → weight of a phase as decimal text; empty if there is no such phase."""
        phases = self.content.get("phases", [])
        return dict(phases[phase]["weights"]) if phase < len(phases) else {}


def make_commit(
    *,
    parent: Commit | None,
    skip: Sequence[Ancestor],
    hour: datetime,
    author: str,
    message: str,
    code: CodeState,
    content: Json,
) -> Commit:
    """The commit of a content on a parent; a pure function, so everybody who is asked for it makes the same bytes.

    Raises:
        ConfigError: naming the field, if the hour isn't one, the author or the message is empty, the git commit isn't one, or the content
            has a float.
    """
    _refuse_floats(content, "content")
    if not _GIT_COMMIT.fullmatch(code.commit):
        raise ConfigError(f"field 'code': {code.commit!r} is no git commit", advice="Give 40 lower-case hex digits.")
    fields: Json = {
        "seq": 0 if parent is None else parent.seq + 1,
        "parent": None if parent is None else parent.id,
        "skip": tuple(skip),
        "hour": hour_text(hour),
        "author": published_text(author, "author", LONGEST_AUTHOR),
        "message": published_text(message, "message", LONGEST_MESSAGE),
        "code": code,
        "content": content,
        "content_digest": digest(content),
        "diff": () if parent is None else differences(parent.content, content),
    }
    return Commit(**fields, id=digest(_rest(Commit(**fields, id=""))))


def _rest(commit: Commit) -> Json:
    """Everything that the id is the hash of."""
    return {
        "schema": COMMIT_SCHEMA,
        "seq": commit.seq,
        "parent": commit.parent,
        "skip": [{"seq": each.seq, "id": each.id} for each in commit.skip],
        "hour": commit.hour,
        "author": commit.author,
        "message": commit.message,
        "code": {"commit": commit.code.commit, "dirty": commit.code.dirty},
        "content": commit.content,
        "content_digest": commit.content_digest,
        "diff": [{"path": each.path, "old": each.old, "new": each.new} for each in commit.diff],
    }


def parse_commit(data: bytes, where: str) -> Commit:
    """Read a commit object and prove that it is what its id says.

    Args:
        where: what to call it in an error.

    Raises:
        DataError: it can't be read, its id isn't the hash of the rest, or its content isn't what `content_digest` says.
        ConfigError: it was written in another schema; names both.
    """
    document = parse_document(data, where)
    if document.get("schema") != COMMIT_SCHEMA:
        raise ConfigError(
            f"{where} has schema {document.get('schema')!r}, this reader knows {COMMIT_SCHEMA!r}",
            advice="Read it with the version that wrote it.",
        )
    claimed = document.pop("id", None)
    actual = digest(document)
    if claimed != actual:
        raise forged(where, f"it says that its id is {claimed!r} and hashes to {actual}")
    try:
        commit = Commit(
            seq=document["seq"],
            parent=document["parent"],
            skip=tuple(Ancestor(each["seq"], each["id"]) for each in document["skip"]),
            hour=document["hour"],
            author=document["author"],
            message=document["message"],
            code=CodeState(document["code"]["commit"], document["code"]["dirty"]),
            content=document["content"],
            content_digest=document["content_digest"],
            diff=tuple(Change(each["path"], each["old"], each["new"]) for each in document["diff"]),
            id=actual,
        )
    except (KeyError, TypeError) as error:
        raise forged(where, f"it lacks or misshapes a field ({error})") from error
    _check_shape(commit, where)
    if commit.bytes() != data:
        raise forged(where, "it isn't canonical JSON, or has a field that the schema doesn't know")
    return commit


def _check_shape(commit: Commit, where: str) -> None:
    """What hashing alone doesn't say: fields of the wrong kind, links that can't be."""
    links = [each.seq for each in commit.skip]
    faults = {
        "seq": type(commit.seq) is not int or commit.seq < 0,
        "parent": (commit.parent is None) != (commit.seq == 0) or (commit.parent is not None and not is_id(commit.parent)),
        "skip": links != skip_seqs(commit.seq) or not all(is_id(each.id) for each in commit.skip),
        "hour": not isinstance(commit.hour, str) or not _HOUR.fullmatch(commit.hour),
        "author": not isinstance(commit.author, str) or not 1 <= len(commit.author) <= LONGEST_AUTHOR,
        "message": not isinstance(commit.message, str) or not 1 <= len(commit.message) <= LONGEST_MESSAGE,
        "content": not isinstance(commit.content, dict),
    }
    for field, is_wrong in faults.items():
        if is_wrong:
            raise forged(where, f"its field {field!r} is {str(getattr(commit, field))[:100]!r}")
    if commit.content_digest != digest(commit.content):
        raise forged(where, f"its content_digest is {commit.content_digest!r} and its content hashes to {digest(commit.content)}")


def parse_document(data: bytes, where: str) -> Json:
    """A JSON object.

    Raises:
        DataError: it is none.
    """
    try:
        document = json.loads(data, parse_float=_no_float, parse_constant=_no_float)
    except (ValueError, RecursionError) as error:
        raise forged(where, f"it can't be read ({error})") from error
    if not isinstance(document, dict):
        raise forged(where, f"it is no JSON object but {type(document).__name__}")
    return document


def _no_float(text: str) -> Any:
    raise ValueError(f"it has the number {text}; decimals are text here")


def forged(where: str, what: str) -> DataError:
    """A commit, or a HEAD, that can't be believed."""
    return DataError(
        f"{where} is not what was published: {what}", advice="Restore it from a copy; `marin mix verify` finds all that is wrong."
    )


def commit_path(seq: int, commit_id: str) -> str:
    """Name of a commit object below the mix."""
    return f"commits/{seq:08d}-{commit_id}.json"


def skip_seqs(seq: int) -> list[int]:
    """Which ancestors a commit links to besides its parent: those 2, 4, 8, … back, as far as there are any."""
    return [seq - (1 << power) for power in range(1, seq.bit_length()) if 1 << power <= seq]


def is_id(text: object) -> bool:
    """Whether something is a SHA-256 in lower-case hex."""
    return isinstance(text, str) and _ID.fullmatch(text) is not None


# Hours -----------------------------------------------------------------------------------------------------------------


def hour_text(hour: datetime) -> str:
    """A whole hour as text.

    Raises:
        ConfigError: it has no time zone, or isn't a whole hour in UTC.
    """
    if hour.tzinfo is None:
        raise ConfigError(f"field 'hour': {hour.isoformat()} has no time zone", advice="Give it in UTC.")
    utc = hour.astimezone(UTC)
    if utc != floor_hour(utc):
        raise ConfigError(f"field 'hour': {utc.isoformat()} is no whole hour", advice=f"Publish for {floor_hour(utc):{HOUR_FORMAT}}.")
    return f"{utc:{HOUR_FORMAT}}"


def floor_hour(time: datetime) -> datetime:
    """The hour that a time lies in."""
    return time.astimezone(UTC).replace(minute=0, second=0, microsecond=0)


def parse_hour(text: str) -> datetime:
    """Read what `hour_text` wrote.

    Raises:
        DataError: it is no hour.
    """
    try:
        return datetime.strptime(text, HOUR_FORMAT).replace(tzinfo=UTC)
    except ValueError as error:
        raise DataError(f"{text[:40]!r} is no hour of a mix", advice="Hours look like 2026-11-29T10:00:00Z.") from error


# Texts -----------------------------------------------------------------------------------------------------------------


def published_text(text: str, field: str, longest: int) -> str:
    """Text of a person as the world may read it: cut to a length, without secrets, valid Unicode.

    User and password of a URL, and a query that grants access, are left out; so are values of secret environment variables.

    Raises:
        ConfigError: it is empty.
    """
    sound = text[: 4 * longest].encode("utf-8", "backslashreplace").decode()
    shown = redact(_URL.sub(_without_credentials, sound)).strip()[:longest].strip()
    if not shown:
        raise ConfigError(f"field {field!r} is empty", advice=f"Give a text of 1 to {longest:,} characters.")
    return shown


def _without_credentials(found: re.Match[str]) -> str:
    url = found.group()
    authority = url.split("://", 1)[1].split("/", 1)[0]
    grants = any(SECRET_PARAMETER.match(name) for name in _PARAMETER.findall(url))
    return bare_url(url) if "@" in authority or grants else url


# Differences -----------------------------------------------------------------------------------------------------------


def differences(old: Json, new: Json) -> tuple[Change, ...]:
    """Every leaf that differs, by JSON Pointer, in the order of the pointers; an empty list or object is a leaf."""
    ours, theirs = pointers(old), pointers(new)
    return tuple(
        Change(path, ours.get(path), theirs.get(path))
        for path in sorted(ours.keys() | theirs.keys())
        if path not in ours or path not in theirs or canonical_json(ours[path]) != canonical_json(theirs[path])
    )


def pointers(value: Any) -> dict[str, Any]:
    """JSON Pointer → leaf of a document."""
    flat: dict[str, Any] = {}
    waiting: list[tuple[str, Any]] = [("", value)]
    while waiting:
        path, item = waiting.pop()
        inner: list[tuple[str, Any]] = []
        if isinstance(item, Mapping):
            inner = [(key, each) for key, each in item.items()]
        elif isinstance(item, list):
            inner = [(str(index), each) for index, each in enumerate(item)]
        if inner:
            waiting += [(f"{path}/{key.replace('~', '~0').replace('/', '~1')}", each) for key, each in inner]
        else:
            flat[path] = item
    return flat


def _refuse_floats(value: Json, where: str) -> None:
    for path, leaf in pointers(value).items():
        if isinstance(leaf, float):
            raise ConfigError(f"field '{where}{path}' is the float {leaf!r}", advice="Write decimals as text.")
