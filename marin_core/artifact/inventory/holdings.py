"""Who holds what at a store."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Literal

from marin_core.artifact.identity import ArtifactId

State = Literal["committed", "building", "debris", "history"]
"""Of an address: committed; an attempt is open, or its success not published yet; only debris; only the attempts' history."""

Role = Literal["payload", "building", "debris", "unknown"]
"""Of a payload folder: the record's; of an open attempt, or one not published yet; of a closed attempt that doesn't count; nobody's."""


@dataclass(frozen=True)
class Folder:
    """A payload folder at an address.

    Attributes:
        attempt: number of the attempt that built it.
        bytes: of a committed payload as the manifest says, of all others as measured.
        reason: why it is debris, or what is unknown about it.
        succeeded: its attempt was committed, and withdrawn later.
        resumable: the newest unsuccessful attempt of an artifact that isn't committed: the next attempt may go on from here.
        ended_at: when its attempt was closed; None if it wasn't, or nobody knows.
        fingerprint: of what the attempt built.
        linked: it is a symbolic link.
    """

    name: str
    attempt: int
    role: Role
    bytes: int
    reason: str = ""
    succeeded: bool = False
    resumable: bool = False
    ended_at: datetime | None = None
    fingerprint: str = ""
    linked: bool = False


@dataclass(frozen=True)
class Holding:
    """Everything at one address.

    Attributes:
        artifact: what lies there; where no record says so, the likeliest reading of the address.
        declared: whether the given graph declares it, or a step of it is pinned to it.
        owner: its owner, if it is declared.
        experiments: names of the experiments that lead to it.
        attempt: number of the attempt that built what is committed.
        payload: where the record says that its files are (`Record.payload`).
        inputs: addresses of what it was built from, relative to the prefix.
        ended_at: when it was committed.
        keep_days: of the record.
        open_attempts: numbers of attempts that are being built.
        referrers: committed artifacts that were built from it, or that are pinned to it.
        readers: artifacts whose open attempts read it.
        newest_activity: the newest time in its records and attempts.
        linked: it is reached through a symbolic link, and lies outside the store.
    """

    artifact: ArtifactId
    state: State
    declared: bool = False
    owner: str | None = None
    experiments: tuple[str, ...] = ()
    attempt: int | None = None
    payload: str = ""
    inputs: tuple[str, ...] = ()
    ended_at: datetime | None = None
    keep_days: int | None = None
    open_attempts: tuple[int, ...] = ()
    folders: tuple[Folder, ...] = ()
    payload_bytes: int = 0
    bookkeeping_bytes: int = 0
    referrers: tuple[ArtifactId, ...] = ()
    readers: tuple[ArtifactId, ...] = ()
    newest_activity: datetime | None = None
    linked: bool = False

    @property
    def path(self) -> str:
        return self.artifact.path

    @property
    def debris_bytes(self) -> int:
        return self.bytes_of("debris")

    def bytes_of(self, role: Role) -> int:
        return sum(folder.bytes for folder in self.folders if folder.role == role)


@dataclass(frozen=True)
class Shadow:
    """A shadow store; `open_builds` are under way in it. If it is `doomed`, its deletion had begun."""

    path: str
    bytes: int
    newest_activity: datetime | None
    open_builds: tuple[ArtifactId, ...]
    linked: bool
    doomed: bool


@dataclass(frozen=True)
class Survey:
    """Everything at a store.

    Attributes:
        holdings: by address relative to the prefix, in order.
        pins: places inside the store that a committed record's payload lies at, or that an open attempt is about to point to,
            relative to the prefix, and whose they are.
        foreign: payload folders that lie at no artifact's address, with their bytes; nobody knows whose they are.
        damaged: one sentence for each record or attempt that can't be read; what it refers to isn't known.
    """

    holdings: Mapping[str, Holding]
    shadows: tuple[Shadow, ...] = ()
    pins: Mapping[str, ArtifactId] = field(default_factory=dict)
    foreign: Mapping[str, int] = field(default_factory=dict)
    damaged: tuple[str, ...] = ()

    def pinned_by(self, path: str) -> ArtifactId | None:
        """Who has its payload in a folder, or anywhere in or around it."""
        parts = path.split("/")
        for depth in range(1, len(parts) + 1):
            if found := self.pins.get("/".join(parts[:depth])):
                return found
        return self._pins_around.get(path)

    @cached_property
    def _pins_around(self) -> Mapping[str, ArtifactId]:
        return {str(parent): artifact for pin, artifact in self.pins.items() for parent in Path(pin).parents}
