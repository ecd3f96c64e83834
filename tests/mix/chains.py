"""Mixes for tests: contents, and publishers whose clock stands where the test says."""

import random
from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta
from typing import Any

from marin_core.mix.commit import Ancestor, CodeState, Commit, Json, make_commit, skip_seqs
from marin_core.mix.place import Place, Stamped, open_place
from marin_core.mix.publish import Published, Publisher

START = datetime(2026, 3, 1, 0, tzinfo=UTC)


def hour(number: int) -> datetime:
    """The hour so many after the first."""
    return START + timedelta(hours=number)


def domain(tokens: int = 1_000, **changes: Any) -> Json:
    return {
        "artifact": "tokenized/web@v1",
        "cache_digest": f"{tokens:064x}",
        "record_digest": f"{tokens:064x}",
        "tokens": tokens,
        "documents": tokens // 10,
        "bytes": 4 * tokens,
        "shards": 1,
        "missing_shards": [],
        "license": "CC-BY-4.0",
        "policy": "TRAINING_ALLOWED",
        **changes,
    }


def content(web: str = "0.7", code: str = "0.3", *, tokens: int = 1_000, **changes: Any) -> Json:
    """Two domains in one phase."""
    return {
        "mixture": {"name": "mixtures/small", "version": "v1", "fingerprint": "0" * 16},
        "tokenizer": {"digest": "00", "vocab_size": 512},
        "sequence_length": 128,
        "block_sequences": 2048,
        "phases": [{"start": "0", "weights": {"code": code, "web": web}}],
        "domains": {"code": domain(500, artifact="tokenized/code@v1"), "web": domain(tokens)},
        **changes,
    }


def publisher(place: Place | str, now: datetime = START + timedelta(days=3650)) -> Publisher:
    """One that never really waits."""
    found = open_place(place) if isinstance(place, str) else place
    return Publisher(found, clock=lambda: now, pause=lambda seconds: None, chance=random.Random(0))


def put(place: Place | str, number: int, what: Json, message: str | None = "as wanted", **options: Any) -> Published:
    """Publish a content for an hour."""
    fields: dict[str, Any] = {"author": "curator", "code": CodeState()}
    return publisher(place).publish(lambda: what, hour=hour(number), message=message, **(fields | options))


def chain_of(contents: Iterable[Json], hours: Callable[[int], datetime] = hour) -> list[Commit]:
    """Commits of contents, one on the other, that nobody published; oldest first."""
    commits: list[Commit] = []
    for seq, each in enumerate(contents):
        commits.append(
            make_commit(
                parent=commits[-1] if commits else None,
                skip=[Ancestor(back, commits[back].id) for back in skip_seqs(seq)],
                hour=hours(seq),
                author="curator",
                message=f"number {seq}",
                code=CodeState(),
                content=each,
            )
        )
    return commits


class Wrapped:
    """A place that others can stand before: everything goes through."""

    def __init__(self, place: Place) -> None:
        self.inner = place
        self.url = place.url

    def read(self, path: str) -> bytes | None:
        return self.inner.read(path)

    def read_stamped(self, path: str) -> Stamped | None:
        return self.inner.read_stamped(path)

    def create(self, path: str, data: bytes) -> bool:
        return self.inner.create(path, data)

    def replace(self, path: str, data: bytes) -> None:
        self.inner.replace(path, data)

    def swap(self, path: str, data: bytes, expected: str | None) -> bool:
        return self.inner.swap(path, data, expected)

    def names(self, folder: str) -> list[str]:
        return self.inner.names(folder)
