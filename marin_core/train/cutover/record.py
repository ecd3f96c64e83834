"""The record of a cut-over: what was planned, done and found, in the order in which it was. Entries are added, never changed."""

import json
from collections.abc import Sequence
from typing import Annotated, Literal

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError

from marin_core.artifact import ArtifactId
from marin_core.artifact.canonical import canonical_json
from marin_core.artifact.objects import Objects
from marin_core.config import Config
from marin_core.errors import ConfigError, DataError
from marin_core.redaction import redact
from marin_core.train.cutover.compare import Comparison, Thresholds
from marin_core.train.cutover.point import ForkPoint

CUTOVERS = ".cutovers"
"""Folder of all records, below the store's prefix: `.cutovers/NAME/VERSION/NNNNN.json`, by the fork's identity."""

CONTROL_STEPS = 200
"""So many steps from the fork on are compared (`spec/training.md` §11)."""


class Change(Config):
    """One thing in which the fork differs from its parent.

    Attributes:
        kind: `config` and `data` make another result; `operational` fields shouldn't; `code` is a definition that has changed since the
            parent was built.
        field: dotted field of the job's configuration, `file:definition`, or an input.
    """

    kind: Literal["config", "operational", "code", "data"]
    field: str
    parent: str
    child: str


class _Entry(Config):
    """One entry; unknown fields of a newer writer are ignored.

    Attributes:
        at: when, ISO 8601 in UTC.
        commit: of the checkout in which it was written; None outside one.
    """

    model_config = ConfigDict(extra="ignore")
    at: str
    commit: str | None


class Plan(_Entry):
    """What is tried, and what will count as success: written before the fork starts.

    Attributes:
        parent, child: artifacts, `name@version`, with their fingerprints.
        source: artifact whose checkpoint is forked: the parent, or a hand-off of it.
        step: completed updates at the fork.
        control_steps: steps that are compared.
        same_batches: whether both train on the same batches; else losses differ by the data too.
        changes: in what the fork differs.
        parent_commit: of the code that the parent runs.
        rollback: the command that returns to the parent.
    """

    kind: Literal["plan"] = "plan"
    parent: str
    parent_fingerprint: str
    child: str
    child_fingerprint: str
    source: str
    step: int
    control_steps: int
    thresholds: Thresholds
    same_batches: bool
    changes: tuple[Change, ...]
    parent_commit: str | None
    rollback: str


class Forked(_Entry):
    """The checkpoint was verified and is held.

    Attributes:
        folder: URL or path of the parent's files, in which it is held.
        handed_off: folder of the copy that was made of them, as the parent isn't committed.
    """

    kind: Literal["fork"] = "fork"
    point: ForkPoint
    folder: str
    handed_off: str | None = None


class Launch(_Entry):
    """The launch record (marin #8506), written before the launch: run, commit, clean tree, target, fork point, hand-off checkpoint."""

    kind: Literal["launch"] = "launch"
    child: str
    run_name: str
    dirty: Literal[False] = False
    target: str
    checkpoint: int
    content_digest: str


class Live(_Entry):
    """After the launch exactly one job was seen alive."""

    kind: Literal["live"] = "live"
    job: str
    host: str
    attempt: int


class Compared(_Entry):
    """One comparison of the fork with its control."""

    kind: Literal["compare"] = "compare"
    control: str
    child: str
    comparison: Comparison


class RolledBack(_Entry):
    """The change is given up; `command` returns to the parent."""

    kind: Literal["rollback"] = "rollback"
    reason: str
    parent: str
    parent_commit: str | None
    command: str


class Closed(_Entry):
    """The window in which one may go back is over; the checkpoint is held no more."""

    kind: Literal["close"] = "close"
    released: bool


Entry = Annotated[Plan | Forked | Launch | Live | Compared | RolledBack | Closed, Field(discriminator="kind")]
_ENTRY: TypeAdapter[Entry] = TypeAdapter(Entry)


class CutoverRecord:
    """The entries about one fork, in a store."""

    def __init__(self, objects: Objects, child: ArtifactId) -> None:
        self._objects = objects
        self.child = child
        self.folder = f"{CUTOVERS}/{child.path}"

    def entries(self) -> list[Entry]:
        """All of them, oldest first.

        Raises:
            DataError: one can't be read.
        """
        names = [name for name in self._objects.names(self.folder) if name.endswith(".json")]
        paths = [f"{self.folder}/{name}" for name in names]
        found = self._objects.read_many(paths)
        return [_parsed(path, found[path]) for path in paths if path in found]

    def append(self, entry: Entry) -> int:
        """Add an entry; its number, from 1.

        Raises:
            ConfigError: a plan or a fork comes after the launch, whose conditions it would change.
        """
        if isinstance(entry, (Plan, Forked)) and self.newest(Launch) is not None:
            raise ConfigError(
                f"{self.child} was launched already: what it was planned to be can't be changed any more",
                advice="Give the changed fork a new version, and plan that.",
            )
        document = redact(canonical_json(entry.model_dump(mode="json")).decode()).encode()
        number = len(self.entries()) + 1
        while not self._objects.create(f"{self.folder}/{number:05d}.json", document):
            number += 1
        return number

    def newest[E: _Entry](self, kind: type[E]) -> E | None:
        """The newest entry of a kind."""
        return next((entry for entry in reversed(self.entries()) if isinstance(entry, kind)), None)

    def plan(self) -> Plan:
        """The plan that counts: the newest.

        Raises:
            ConfigError: there is none.
        """
        found = self.newest(Plan)
        if found is None:
            raise ConfigError(f"{self.child} has no plan of a cut-over", advice=f"Write one first: marin cutover plan PARENT {self.child}.")
        return found

    def forked(self) -> Forked:
        """The fork point that was verified for the newest plan.

        Raises:
            ConfigError: there is none.
        """
        found = _after_newest_plan(self.entries())
        if found is None:
            raise ConfigError(
                f"no checkpoint is verified and held for {self.child}", advice=f"Do that first: marin cutover fork {self.child}."
            )
        return found


def _after_newest_plan(entries: Sequence[Entry]) -> Forked | None:
    for entry in reversed(entries):
        if isinstance(entry, Forked):
            return entry
        if isinstance(entry, Plan):
            return None
    return None


def _parsed(path: str, data: bytes) -> Entry:
    try:
        return _ENTRY.validate_python(json.loads(data))
    except (ValueError, ValidationError) as error:
        raise DataError(
            f"{path} in the store is damaged: {error}", advice="Restore the file from a backup; it is never guessed."
        ) from error
