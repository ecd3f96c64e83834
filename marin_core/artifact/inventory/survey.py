"""The survey: one pass over a store. Payloads are never entered, except to measure folders that no record accounts for."""

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from itertools import batched
from pathlib import Path

from marin_core.artifact.graph import ArtifactGraph
from marin_core.artifact.identity import DEV, ArtifactId
from marin_core.artifact.inventory.addresses import (
    PAYLOAD_FOLDER,
    doom_marker,
    folders_and_doomed,
    is_linked,
    listed_addresses,
    local_folders,
    modified_at,
    payload_folder,
    place_inside,
    tree,
)
from marin_core.artifact.inventory.holdings import Folder, Holding, Role, Shadow, State, Survey
from marin_core.artifact.inventory.records import BATCH, parse
from marin_core.artifact.objects import LocalObjects, Objects
from marin_core.artifact.record import Claim, End, Record
from marin_core.artifact.step import ArtifactStep
from marin_core.artifact.store import META, Store, attempt_folder
from marin_core.errors import ConfigError, DataError

REPRODUCTIONS = ".reproductions"
"""Folder of the shadow stores in which artifacts are rebuilt to compare them; each folder in it is a store of its own."""

_ATTEMPT_FILE = re.compile(r"attempts/(\d+)/(claim|end|withdrawn)\.json")
_VERSION_LIKE = re.compile(rf"{DEV}|v\d\S*|\d{{4}}\.\S+")


def survey(store: Store, graph: ArtifactGraph | None = None, experiments: Mapping[ArtifactId, Sequence[str]] | None = None) -> Survey:
    """Everything at a store, with what the graph says about it.

    Args:
        graph: everything that is declared; without it nothing is.
        experiments: names of the experiments that lead to a family.

    Raises:
        InfrastructureError: a part of the store can't be read.
    """
    found = _Surveyor(store, _Declared(store, graph, experiments or {}))
    found.read()
    shadows = []
    for name in folders_and_doomed(store.objects, REPRODUCTIONS):
        shadow, surveyor = _shadow(store, name)
        if not shadow.doomed:
            found.take_over(surveyor)
        shadows.append(shadow)
    return replace(found.survey(), shadows=tuple(shadows))


def survey_shadow(store: Store, name: str) -> Shadow:
    """One shadow store as it is now."""
    return _shadow(store, name)[0]


def _shadow(store: Store, name: str) -> tuple[Shadow, "_Surveyor"]:
    path = f"{REPRODUCTIONS}/{name}"
    shadow = _Surveyor(Store(f"{store.prefix}/{path}"), _Declared(store, None, {}))
    shadow.read()
    times = [holding.newest_activity for holding in shadow.holdings.values() if holding.newest_activity]
    found = Shadow(
        path=path,
        bytes=_size(store.objects, path),
        newest_activity=max(times) if times else modified_at(store.objects, path),
        open_builds=tuple(holding.artifact for holding in shadow.holdings.values() if holding.open_attempts),
        linked=is_linked(store.objects, path),
        doomed=store.objects.read(doom_marker(path)) is not None,
    )
    return found, shadow


# What the graph says ----------------------------------------------------------------------------------------------


class _Declared:
    """What is declared, by address."""

    def __init__(self, store: Store, graph: ArtifactGraph | None, experiments: Mapping[ArtifactId, Sequence[str]]) -> None:
        steps = list(graph or ())
        self._steps: dict[str, tuple[ArtifactId, ArtifactStep]] = {
            artifact.path: (artifact, step) for step in steps for artifact in step.ids()
        }
        self._pinned = {place for step in steps if step.pin and (place := place_inside(store, step.pin)) is not None}
        self._experiments = experiments

    def add(self, holding: Holding) -> Holding:
        artifact, step = self._steps.get(holding.path, (None, None))
        if step is None or artifact is None:
            pinned = holding.path in self._pinned or holding.artifact.family.path in self._pinned
            return replace(holding, declared=pinned)
        return replace(
            holding,
            artifact=artifact,
            declared=True,
            owner=step.owner,
            experiments=tuple(self._experiments.get(step.id, ())),
        )


# Reading a store --------------------------------------------------------------------------------------------------


@dataclass
class _Listing:
    """An address as the listing shows it; sizes of payload folders only where they come for free."""

    path: str
    linked: bool = False
    meta: dict[str, int] = field(default_factory=dict)
    folders: dict[str, int | None] = field(default_factory=dict)

    def attempts(self, file: str) -> set[int]:
        """Numbers of the attempts that have a claim, an end, or a mark of withdrawal."""
        return {int(found[1]) for name in self.meta if (found := _ATTEMPT_FILE.fullmatch(name)) and found[2] == file}

    def file(self, number: int, name: str) -> str:
        return f"{self.path}/{META}/attempts/{number:05d}/{name}.json"


class _Surveyor:
    """One pass over a store: first the listing, then records and attempts in batches, then who refers to whom."""

    def __init__(self, store: Store, declared: _Declared) -> None:
        self._store = store
        self._objects = store.objects
        self._declared = declared
        self.holdings: dict[str, Holding] = {}
        self.reads: dict[str, list[ArtifactId]] = defaultdict(list)
        self._referrers: dict[str, list[ArtifactId]] = defaultdict(list)
        self._payload_urls: dict[str, ArtifactId] = {}
        self.pins: dict[str, ArtifactId] = {}
        self.foreign: dict[str, int] = {}
        self.damaged: list[str] = []

    def read(self) -> None:
        for batch in batched(self._listings(), BATCH):
            self._read_batch(batch)
        self.pins |= self.pins_into(self._store)

    def pins_into(self, store: Store) -> dict[str, ArtifactId]:
        """Places inside a store that records of this one point to."""
        return {place: artifact for url, artifact in self._payload_urls.items() if (place := place_inside(store, url)) is not None}

    def take_over(self, shadow: "_Surveyor") -> None:
        """What a shadow store's open builds read lies in this store, and so may what its records point to."""
        for place, builders in shadow.reads.items():
            self.reads[place].extend(builders)
        self.pins |= shadow.pins_into(self._store)
        self.damaged.extend(shadow.damaged)

    def survey(self) -> Survey:
        for place, artifact in self.pins.items():
            if (holding := self._around(place)) is not None:
                self._referrers[holding.path].append(artifact)
        for holding in self.holdings.values():
            self.holdings[holding.path] = replace(
                holding,
                referrers=tuple(sorted(set(self._referrers.get(holding.path, ())))),
                readers=tuple(sorted(set(self.reads.get(holding.path, ())))),
            )
        return Survey(dict(sorted(self.holdings.items())), (), self.pins, self.foreign, tuple(self.damaged))

    def _around(self, place: str) -> Holding | None:
        parts = place.split("/")
        return next((found for depth in range(len(parts), 0, -1) if (found := self.holdings.get("/".join(parts[:depth])))), None)

    # The listing -----------------------------------------------------------------------------------------------------

    def _listings(self) -> Iterator[_Listing]:
        if isinstance(self._objects, LocalObjects):
            yield from self._local_listings(self._objects.root)
        else:
            yield from self._remote_listings()

    def _local_listings(self, root: Path) -> Iterator[_Listing]:
        for path, linked, is_address in local_folders(root):
            if is_address:
                names = [name for name in self._objects.names(path) if PAYLOAD_FOLDER.fullmatch(name)]
                yield _Listing(path, linked, tree(self._objects, f"{path}/{META}"), dict.fromkeys(names))
            else:
                self.foreign[path] = _size(self._objects, path)

    def _remote_listings(self) -> Iterator[_Listing]:
        files = self._objects.files("")
        listings = {address: _Listing(address) for address in sorted(listed_addresses(files))}
        for path, state in files.items():
            address, found, name = path.partition(f"/{META}/")
            if found and address in listings:
                listings[address].meta[name] = state.size
            elif (place := payload_folder(path)) is not None:
                address, name = place
                if address in listings:
                    listings[address].folders[name] = (listings[address].folders.get(name) or 0) + state.size
                else:
                    self.foreign[f"{address}/{name}"] = self.foreign.get(f"{address}/{name}", 0) + state.size
        yield from listings.values()

    # Records and attempts --------------------------------------------------------------------------------------------

    def _read_batch(self, listings: Sequence[_Listing]) -> None:
        records = self._documents(Record, [f"{each.path}/{META}/record.json" for each in listings if "record.json" in each.meta])
        standing = {each.path: record for each in listings if (record := self._standing(each, records)) is not None}
        claims: list[str] = []
        ends: list[str] = []
        for each in listings:
            record = standing.get(each.path)
            closed = each.attempts("end")
            accounted = record is not None and each.folders.keys() <= {attempt_folder(record.attempt)}
            claims.extend(each.file(number, "claim") for number in each.attempts("claim") if not accounted or number not in closed)
            ends.extend(each.file(number, "end") for number in closed if not accounted)
        found_claims, found_ends = self._documents(Claim, claims), self._documents(End, ends)
        for each in listings:
            holding = self._holding(each, standing.get(each.path), found_claims, found_ends)
            if holding is None:
                self.foreign[each.path] = _size(self._objects, each.path)
            else:
                self.holdings[each.path] = holding

    def _documents[T: (Record, Claim, End)](self, cls: type[T], paths: Sequence[str]) -> dict[str, T]:
        documents = {}
        for path, data in self._objects.read_many(paths).items():
            try:
                documents[path] = parse(cls, self._store, path, data)
            except DataError as error:
                self.damaged.append(error.message)
        return documents

    def _standing(self, listing: _Listing, records: Mapping[str, Record]) -> Record | None:
        """The record that counts: at its own address, and not withdrawn."""
        record = records.get(f"{listing.path}/{META}/record.json")
        if record is None or record.id.path != listing.path or record.attempt in listing.attempts("withdrawn"):
            return None
        return record

    def _holding(self, listing: _Listing, record: Record | None, claims: Mapping[str, Claim], ends: Mapping[str, End]) -> Holding | None:
        attempts = [
            _Attempt(
                number=number,
                claim=claims.get(listing.file(number, "claim")),
                end=ends.get(listing.file(number, "end")),
                closed=number in listing.attempts("end"),
                withdrawn=number in listing.attempts("withdrawn"),
            )
            for number in sorted(listing.attempts("claim") | listing.attempts("end"))
        ]
        folders = self._folders(listing, record, {each.number: each for each in attempts})
        open_attempts = tuple(each.number for each in attempts if not each.closed)
        unpublished = [each.end.record for each in attempts if record is None and each.unpublished and each.end and each.end.record]
        state: State = "history"
        if record is not None:
            state = "committed"
        elif open_attempts or unpublished:
            state = "building"
        elif any(folder.role == "debris" for folder in folders):
            state = "debris"
        known = record or next((each.end.record for each in attempts if each.end and each.end.record), None)
        artifact = known.id if known is not None and known.id.path == listing.path else _guess(listing.path)
        if artifact is None:
            return None
        for each in ([record] if record else []) + unpublished:
            for read in each.inputs:
                self._referrers[read.id.path].append(artifact)
            if "://" in each.payload:
                self._payload_urls[each.payload] = artifact
        for attempt in attempts:
            if not attempt.closed and attempt.claim is not None:
                self._remember_reads(artifact, attempt.claim)
        times = [moment(record.ended_at)] if record else [time for each in attempts for time in each.times()]
        return self._declared.add(
            Holding(
                artifact=artifact,
                state=state,
                attempt=record.attempt if record else None,
                payload=record.payload if record else "",
                inputs=tuple(read.id.path for read in record.inputs) if record else (),
                ended_at=moment(record.ended_at) if record else None,
                keep_days=record.keep_days if record else None,
                open_attempts=open_attempts,
                folders=folders,
                payload_bytes=record.size if record and "://" not in record.payload else 0,
                bookkeeping_bytes=sum(listing.meta.values()),
                newest_activity=max((time for time in times if time is not None), default=None),
                linked=listing.linked,
            )
        )

    def _remember_reads(self, artifact: ArtifactId, claim: Claim) -> None:
        for read in claim.reads:
            if "://" in read:
                self._payload_urls[read] = artifact
                continue
            try:
                self.reads[ArtifactId.parse(read).path].append(artifact)
            except ConfigError as error:
                self.damaged.append(f"the claim of {artifact} reads {read!r}: {error.message}")

    def _folders(self, listing: _Listing, record: Record | None, attempts: Mapping[int, "_Attempt"]) -> tuple[Folder, ...]:
        unsuccessful = [each.number for each in attempts.values() if each.end is not None and each.end.record is None]
        folders = []
        for name in sorted(listing.folders):
            found = PAYLOAD_FOLDER.fullmatch(name)
            number = int(found[1]) if found else 0
            if record is not None and name == attempt_folder(record.attempt):
                bytes_here = record.size if "://" not in record.payload else self._measured(listing, name)
                folders.append(Folder(name, number, "payload", bytes_here, linked=self._linked(listing, name)))
                continue
            attempt = attempts.get(number)
            role, reason = _role(attempt, fresh=name.endswith(".new"))
            folders.append(
                Folder(
                    name=name,
                    attempt=number,
                    role=role,
                    bytes=self._measured(listing, name),
                    reason=reason,
                    succeeded=attempt is not None and attempt.end is not None and attempt.end.record is not None,
                    resumable=record is None and name == attempt_folder(number) and number == max(unsuccessful, default=0),
                    ended_at=moment(attempt.end.ended_at) if attempt and attempt.end else None,
                    fingerprint=attempt.claim.fingerprint if attempt and attempt.claim else "",
                    linked=self._linked(listing, name),
                )
            )
        return tuple(folders)

    def _measured(self, listing: _Listing, name: str) -> int:
        size = listing.folders[name]
        return _size(self._objects, f"{listing.path}/{name}") if size is None else size

    def _linked(self, listing: _Listing, name: str) -> bool:
        """An address that wasn't reached through a link has none above it."""
        objects = self._objects
        return listing.linked or (isinstance(objects, LocalObjects) and objects.root.joinpath(listing.path, name).is_symlink())


@dataclass(frozen=True)
class _Attempt:
    """What is known of an attempt; its claim or end is None where it isn't there, wasn't needed, or can't be read."""

    number: int
    claim: Claim | None
    end: End | None
    closed: bool
    withdrawn: bool

    @property
    def unpublished(self) -> bool:
        return self.end is not None and self.end.record is not None and not self.withdrawn

    def times(self) -> list[datetime | None]:
        return [moment(self.claim.submitted_at) if self.claim else None, moment(self.end.ended_at) if self.end else None]


def _role(attempt: _Attempt | None, *, fresh: bool) -> tuple[Role, str]:
    """What a folder of an attempt is; a `fresh` one had only begun to be made."""
    if attempt is None:
        return "unknown", "no attempt of this number is known"
    if not attempt.closed:
        return "building", ""
    if attempt.end is None:
        return "unknown", "the end of its attempt can't be read"
    if attempt.withdrawn:
        return "debris", f"attempt {attempt.number} was withdrawn"
    if attempt.unpublished:
        return ("debris", f"attempt {attempt.number} went on without it") if fresh else ("building", "")
    lines = (attempt.end.error or "").strip().splitlines()
    return "debris", f"attempt {attempt.number} {attempt.end.state}" + (f": {lines[0]}" if lines else "")


def _guess(path: str) -> ArtifactId | None:
    """The likeliest artifact at an address where nothing says which it is; None if there can't be one."""
    *name, version = path.split("/")
    readings: list[tuple[list[str], str, str | None]] = [(name, version, None)]
    if len(name) > 1:
        readings.append((name[:-1], name[-1], version))
        if _VERSION_LIKE.fullmatch(name[-1]) and not _VERSION_LIKE.fullmatch(version):
            readings.reverse()
    for reading in readings:
        try:
            return ArtifactId("/".join(reading[0]), reading[1], reading[2])
        except ConfigError:
            continue
    return None


def moment(text: str) -> datetime | None:
    """A time as records write it, or None if it can't be read."""
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        return None
    return found if found.tzinfo else found.replace(tzinfo=UTC)


def _size(objects: Objects, path: str) -> int:
    return sum(tree(objects, path).values())
