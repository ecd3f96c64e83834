"""Proof of reproduction: an artifact built again at a shadow address, compared with the committed one file by file."""

import json
from collections.abc import Iterable, Sequence
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from marin_core.artifact.canonical import canonical_json
from marin_core.artifact.identity import ArtifactId
from marin_core.artifact.record import Record
from marin_core.artifact.store import META, Store
from marin_core.errors import DataError

CURVE_FILE = "metrics.jsonl"
"""A run's numbers, one row a step; its measured speeds differ from run to run, everything else must not."""

MEASURED = ("seconds", "tokens_per_second")
"""Ends of the names of numbers that measure the machine."""


class Reproduction(BaseModel):
    """What a rebuild showed (`.artifact/reproductions/N.json`).

    Attributes:
        attempt: the committed attempt that was put to the test.
        verdict: `bytes` (every file equal), `content` (the content digest is equal: arrays of checkpoints, token ids; some files
            differ in bytes, such as those with time stamps) or `different`.
        differing_files: paths whose bytes differ, or which only one of the two has.
        curve_rows: rows of the loss curve that were compared; None where there is none.
        first_different_row: the first row that differs in anything but measured speed.
        differing_tables: tables of the two records that differ, such as the digests of all checkpoints.
        code_changes: definitions that were changed since the artifact was built.
    """

    model_config = ConfigDict(frozen=True, extra="ignore")

    name: str
    version: str
    partition: str | None = None
    attempt: int
    verdict: Literal["bytes", "content", "different"]
    files: int
    differing_files: tuple[str, ...] = ()
    recorded_digest: str
    reproduced_digest: str
    curve_rows: int | None = None
    first_different_row: int | None = None
    differing_tables: tuple[str, ...] = ()
    code_changes: tuple[str, ...] = ()
    environment_changes: tuple[str, ...] = ()
    at: str
    shadow_address: str
    wall_seconds: float
    dagster_run_id: str | None = None

    @property
    def passed(self) -> bool:
        return self.verdict != "different"

    @property
    def summary(self) -> str:
        """One sentence for people."""
        curve = f", {self.curve_rows} rows of the loss curve equal" if self.curve_rows and self.first_different_row is None else ""
        if self.verdict == "bytes":
            return f"rebuilt with equal bytes in all {self.files} files{curve}"
        if self.verdict == "content":
            return f"rebuilt with equal content{curve}; {len(self.differing_files)} of {self.files} files differ in bytes only"
        what = [f"content {self.reproduced_digest[:16]} instead of {self.recorded_digest[:16]}"]
        if self.recorded_digest == self.reproduced_digest:
            what = []
        if self.first_different_row is not None:
            what.append(f"the loss curve differs from row {self.first_different_row} on")
        what += [f"table {name} differs" for name in self.differing_tables]
        what += [f"files differ: {', '.join(self.differing_files[:5])}"] if self.differing_files else []
        return f"rebuilt differently: {'; '.join(what)}"


def compare(store: Store, committed: Record, shadow: Store, rebuilt: Record, **about: Any) -> Reproduction:
    """Hold a rebuilt artifact against the committed one.

    Args:
        about: the fields of `Reproduction` that say when, where and with what it was rebuilt.
    """
    ours, theirs = ({file.path: file.sha256 for file in record.files} for record in (committed, rebuilt))
    differing = sorted(path for path in ours.keys() | theirs.keys() if ours.get(path) != theirs.get(path))
    curve_rows, first_different = None, None
    if CURVE_FILE in ours and CURVE_FILE in theirs:
        curves = [_curve(each.read_payload(record, CURVE_FILE)) for each, record in ((store, committed), (shadow, rebuilt))]
        curve_rows, first_different = len(curves[0]), _first_difference(*curves)
    tables = sorted(
        name for name in committed.tables.keys() | rebuilt.tables.keys() if committed.tables.get(name) != rebuilt.tables.get(name)
    )
    same = committed.content_digest == rebuilt.content_digest and first_different is None and not tables
    return Reproduction(
        name=committed.name,
        version=committed.version,
        partition=committed.partition,
        attempt=committed.attempt,
        verdict="different" if not same else "content" if differing else "bytes",
        files=len(ours),
        differing_files=tuple(differing),
        recorded_digest=committed.content_digest,
        reproduced_digest=rebuilt.content_digest,
        curve_rows=curve_rows,
        first_different_row=first_different,
        differing_tables=tuple(tables),
        environment_changes=tuple(_environment_changes(committed, rebuilt)),
        **about,
    )


def _curve(data: bytes) -> list[dict[str, Any]]:
    rows = [json.loads(line) for line in data.splitlines()]
    return [{name: value for name, value in row.items() if not name.endswith(MEASURED)} for row in rows]


def _first_difference(ours: Sequence[Any], theirs: Sequence[Any]) -> int | None:
    for number, (one, other) in enumerate(zip(ours, theirs, strict=False)):
        if one != other:
            return number
    return None if len(ours) == len(theirs) else min(len(ours), len(theirs))


def _environment_changes(committed: Record, rebuilt: Record) -> Iterable[str]:
    """Packages and machine that were others at the rebuild, which explain a difference or make equality worth more."""
    ours, theirs = committed.code.packages, rebuilt.code.packages
    for name in sorted(ours.keys() | theirs.keys()):
        if ours.get(name) != theirs.get(name):
            yield f"{name} {ours.get(name, 'absent')} → {theirs.get(name, 'absent')}"
    for name in ("python", "platform", "cpus"):
        one, other = getattr(committed.environment, name), getattr(rebuilt.environment, name)
        if one != other:
            yield f"{name} {one} → {other}"


def keep(store: Store, reproduction: Reproduction) -> None:
    """Keep a result beside the artifact's record; results are never overwritten."""
    folder = _folder(ArtifactId(reproduction.name, reproduction.version, reproduction.partition))
    data = canonical_json(reproduction.model_dump(mode="json"))
    number = len(store.objects.names(folder)) + 1
    while not store.objects.create(f"{folder}/{number:05d}.json", data):
        number += 1


def newest(store: Store, record: Record) -> Reproduction | None:
    """The newest result for what is committed now; None if this build was never put to the test."""
    folder = _folder(record.id)
    for name in reversed(store.objects.names(folder)):
        data = store.objects.read(f"{folder}/{name}")
        try:
            found = Reproduction.model_validate_json(data or b"")
        except ValidationError as error:
            raise DataError(
                f"{store.prefix}/{folder}/{name} is damaged: {error}", advice="Delete the file and reproduce the artifact again."
            ) from error
        if found.attempt == record.attempt:
            return found
    return None


def _folder(artifact: ArtifactId) -> str:
    return f"{artifact.path}/{META}/reproductions"
