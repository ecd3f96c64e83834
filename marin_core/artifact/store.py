"""The store: `{prefix}/{name}/{version}[/{partition}]`, with attempts that are claimed once, closed once, and committed once.

The protocol needs nothing of a backend but create-only writes, and no clock:

1. `claim` attempt N by creating `.artifact/attempts/N/claim.json`. Before, every earlier attempt was closed.
2. Build in a folder of the attempt's own, `attempt-N`; nobody else ever writes there. Pods, of which an attempt on a cluster may have
   several, one after the other or unknowingly at once, have a folder each in it, named by their generation.
3. `close` it by creating `.artifact/attempts/N/end.json`: its own job with the record in it, or another builder with "lost".
   Whichever is first stands, so an attempt that was given up can't commit, however late it wakes.
4. Publish the record by creating `.artifact/record.json`. Only a closed success has one, so whoever finds one unpublished can do it.

Folders of attempts that were closed without success are debris, which anyone may clear at any time.
"""

import errno
import secrets
from collections.abc import Callable, Iterable, Mapping
from itertools import batched
from pathlib import Path

from pydantic import BaseModel, ValidationError

from marin_core.artifact.canonical import canonical_json
from marin_core.artifact.code import CodeTable
from marin_core.artifact.identity import DEV, ArtifactId
from marin_core.artifact.job_folder import GENERATION
from marin_core.artifact.objects import READ_BATCH, FileState, LocalObjects, Objects, is_copy, local_state, open_objects
from marin_core.artifact.record import Attempt, Claim, End, FormerAttempt, Record, file_sha256
from marin_core.errors import ConfigError, DataError, InfrastructureError, SupersededError
from marin_core.redaction import redact

META = ".artifact"
"""Folder of an artifact's own bookkeeping; everything else at the address is payload."""


def attempt_folder(number: int) -> str:
    """Folder of the payload that an attempt builds, relative to the artifact's address."""
    return f"attempt-{number}"


def payload_folder(number: int, generation: str | None) -> str:
    """The same of an attempt on a cluster: the folder of one generation of its pods (see `job_folder`)."""
    return attempt_folder(number) if generation is None else f"{attempt_folder(number)}/{generation}"


def standing_output(folder: Path) -> Path:
    """What stands in an attempt's folder: the output of its newest pod, or if it had none the folder itself."""
    return max((path for path in folder.glob("*") if GENERATION.fullmatch(path.name)), default=folder)


def unfinished_folder(number: int) -> str:
    """Where that folder is prepared; it appears by a rename."""
    return f"{attempt_folder(number)}.new"


class Store:
    """Reads and writes artifacts below one prefix.

    Args:
        prefix: folder or fsspec URL (`file:///data/lab`, `gs://bucket/lab`, `memory://lab`).
    """

    def __init__(self, prefix: str) -> None:
        self._objects: Objects = open_objects(prefix)
        self.prefix = self._objects.url
        self.is_local = isinstance(self._objects, LocalObjects)

    @property
    def objects(self) -> Objects:
        """The bare objects below the prefix."""
        return self._objects

    def address(self, artifact: ArtifactId) -> str:
        return f"{self.prefix}/{artifact.path}"

    def ensure_writable(self) -> None:
        """Fail early, and for the right reason, when nothing could be saved.

        Raises:
            ConfigError: the prefix can't be created or written.
            InfrastructureError: the disk is full or the store doesn't answer, which may pass.
        """
        probe = f".write-probe-{secrets.token_hex(4)}"  # of our own: buckets limit how often one object may change
        try:
            self._objects.replace(probe, b"")
            self._objects.delete(probe)
        except Exception as error:
            if isinstance(error, InfrastructureError) and not _is_for_people(error.__cause__):
                raise
            raise ConfigError(
                f"the store prefix {self.prefix} can't be written: {error}",
                advice="Point MARIN_PREFIX at a place this user may write, or correct its permissions.",
            ) from error

    # Records -----------------------------------------------------------------------------------------------------

    def record(self, artifact: ArtifactId) -> Record | None:
        """The committed record, or None if the artifact was never committed.

        Raises:
            DataError: a record is there but can't be read.
        """
        return self.records([artifact])[artifact]

    def records(self, artifacts: Iterable[ArtifactId]) -> dict[ArtifactId, Record | None]:
        """The committed records of many artifacts, read together."""
        paths = {artifact: _meta(artifact, "record.json") for artifact in artifacts}
        found = self._objects.read_many(list(paths.values()))
        published = {artifact: self._published(artifact, found[path]) for artifact, path in paths.items() if path in found}
        markers = {artifact: _withdrawn(artifact, record.attempt) for artifact, record in published.items()}
        withdrawn = self._objects.read_many(list(markers.values()))  # a late builder may have published what was taken back
        standing = {artifact: record for artifact, record in published.items() if markers[artifact] not in withdrawn}
        return {artifact: standing.get(artifact) for artifact in paths}

    def committed(self, artifacts: Iterable[ArtifactId], on_damage: Callable[[ArtifactId, DataError], None]) -> set[ArtifactId]:
        """Those of many artifacts that have a commit. Records are read in batches and not kept, so that memory stays small.

        Args:
            on_damage: told of a record that can't be read; such an artifact is none of them.
        """
        found: set[ArtifactId] = set()
        for batch in batched(dict.fromkeys(artifacts), READ_BATCH):
            paths = {artifact: _meta(artifact, "record.json") for artifact in batch}
            data = self._objects.read_many(list(paths.values()))
            markers = {}
            for artifact, path in paths.items():
                try:
                    if path in data:
                        where = f"the record of {artifact} at {self.prefix}/{path}"
                        markers[artifact] = _withdrawn(artifact, _parse(_Commit, data[path], where).attempt)
                except DataError as error:
                    on_damage(artifact, error)
            withdrawn = self._objects.read_many(list(markers.values()))
            found.update(artifact for artifact, marker in markers.items() if marker not in withdrawn)
        return found

    def _published(self, artifact: ArtifactId, data: bytes) -> Record:
        return _parse(Record, data, f"the record of {artifact} at {self.prefix}/{_meta(artifact, 'record.json')}")

    def withdraw(self, artifact: ArtifactId) -> None:
        """Take back the commit of a `dev` artifact so that it can be rebuilt; its payload is debris from here on."""
        if artifact.version != DEV:
            raise ConfigError(f"{artifact} has a fixed version and is never rebuilt", advice="Give it a new version.")
        self.forget(artifact)

    def forget(self, artifact: ArtifactId, number: int | None = None) -> None:
        """Take back a commit whatever the version: housekeeping alone may do this, after it was asked to.

        Args:
            number: the attempt whose commit is meant; another's stays.
        """
        data = self._objects.read(_meta(artifact, "record.json"))
        if data is None:
            return
        record = self._published(artifact, data)
        if number in (None, record.attempt):
            self._objects.create(_withdrawn(artifact, record.attempt), b"{}")
            self._objects.delete(_meta(artifact, "record.json"))
            self.settle(artifact)  # a new attempt may have published in between, and its record went along

    def restore(self, artifact: ArtifactId, number: int) -> Record | None:
        """Undo `forget` while the payload is untouched; returns the record that stands then."""
        self._objects.delete(_withdrawn(artifact, number))
        return self.settle(artifact)

    def is_withdrawn(self, artifact: ArtifactId, number: int) -> bool:
        """Whether the commit of an attempt was taken back."""
        return self._objects.read(_withdrawn(artifact, number)) is not None

    # Attempts ----------------------------------------------------------------------------------------------------

    def attempts(self, artifact: ArtifactId) -> list[Attempt]:
        """All attempts so far, in order."""
        names = self._objects.names(_meta(artifact, "attempts"))
        paths = {
            name: (_meta(artifact, f"attempts/{name}/claim.json"), _meta(artifact, f"attempts/{name}/end.json"))
            for name in names
            if name.isdigit()
        }
        former = {name: _meta(artifact, f"attempts/{name}") for name in names if name.endswith(".json")}
        found = self._objects.read_many([path for pair in paths.values() for path in pair] + list(former.values()))
        attempts = []
        for name in names:
            if name in former and former[name] in found:
                where = f"attempt of {artifact} at {self.prefix}/{former[name]}"
                attempts.append(_parse(FormerAttempt, found[former[name]], where).as_attempt())
            elif name in paths and paths[name][0] in found:
                claim, end = paths[name]
                where = f"attempt of {artifact} at {self.prefix}/{claim}"
                ended = _parse(End, found[end], where) if end in found else None
                attempts.append(Attempt(claim=_parse(Claim, found[claim], where), end=ended))
        return attempts

    def attempted(self, artifacts: Iterable[ArtifactId]) -> set[ArtifactId]:
        """Those of many artifacts that anyone ever began to build, asked for together: the first claim stays for good."""
        first = {artifact: _meta(artifact, "attempts/00001/claim.json") for artifact in artifacts}
        found = self._objects.read_many(list(first.values()))
        return {artifact for artifact, path in first.items() if path in found}

    def claim(self, artifact: ArtifactId, claim: Claim) -> bool:
        """Begin an attempt; False if someone else has claimed its number. All earlier attempts must be closed."""
        return self._objects.create(_meta(artifact, f"attempts/{claim.number:05d}/claim.json"), _document(claim))

    def beat(self, artifact: ArtifactId, number: int, count: int) -> None:
        """A sign of life of an attempt; `count` differs from that of the beat before."""
        self._objects.replace(_meta(artifact, f"attempts/{number:05d}/heartbeat.json"), canonical_json({"beat": count}))

    def last_beat(self, artifact: ArtifactId, number: int) -> bytes | None:
        """The newest sign of life, whose bytes differ from beat to beat."""
        return self._objects.read(_meta(artifact, f"attempts/{number:05d}/heartbeat.json"))

    def end(self, artifact: ArtifactId, number: int) -> End | None:
        """How an attempt ended, or None while it is open."""
        data = self._objects.read(_meta(artifact, f"attempts/{number:05d}/end.json"))
        return None if data is None else _parse(End, data, f"the end of attempt {number} of {artifact}")

    def close(self, artifact: ArtifactId, number: int, end: End) -> End:
        """End an attempt; returns the end that stands, which is another's if that was there first."""
        document = _document(end)
        if self._objects.create(_meta(artifact, f"attempts/{number:05d}/end.json"), document):
            return end
        standing = self.end(artifact, number)
        if standing is None:
            raise DataError(
                f"attempt {number} of {artifact} was closed and its end is gone", advice="Restore the file, or make a new version."
            )
        return standing

    def commit(self, artifact: ArtifactId, end: End, code: CodeTable | None = None) -> Record:
        """Close an attempt as succeeded and publish its record; returns the record that stands.

        Raises:
            SupersededError: another builder has given this attempt up; nothing was changed.
        """
        record = end.record
        if record is None:
            raise ValueError("only a success with a record can be committed")
        if code is not None:
            self._objects.create(_meta(artifact, f"attempts/{record.attempt:05d}/code.json"), _document(code))
        standing = self.close(artifact, record.attempt, end)
        if standing.record is None:
            raise superseded(artifact, record.attempt, standing)
        if self.is_withdrawn(artifact, record.attempt):
            raise SupersededError(
                f"attempt {record.attempt} of {artifact} was committed and has been deleted or withdrawn since; nothing was changed",
                advice="Materialize it again if it is still needed.",
            )
        self._publish(artifact, standing.record)
        return standing.record

    def settle(self, artifact: ArtifactId) -> Record | None:
        """The committed record; one that its builder closed but could not publish any more is published now."""
        record = self.record(artifact)
        if record is not None:
            return record
        for attempt in reversed(self.attempts(artifact)):
            if attempt.end is not None and attempt.end.record is not None and not self.is_withdrawn(artifact, attempt.number):
                self._publish(artifact, attempt.end.record)
                return attempt.end.record
        return None

    def _publish(self, artifact: ArtifactId, record: Record) -> None:
        path = _meta(artifact, "record.json")
        while not self._objects.create(path, _document(record)):
            if self.record(artifact) is not None:
                return
            self._objects.delete(path)  # of an attempt that was withdrawn and published too late

    def code_table(self, record: Record) -> CodeTable | None:
        """The code that built an artifact, definition by definition; None in records of before it was kept."""
        data = self._objects.read(_meta(record.id, f"attempts/{record.attempt:05d}/code.json"))
        return None if data is None else _parse(CodeTable, data, f"the code table of {record.id}")

    # Payload -----------------------------------------------------------------------------------------------------

    def payload_url(self, record: Record) -> str:
        """URL of the folder that holds the files of a committed artifact."""
        if "://" in record.payload:
            return record.payload
        return f"{self.address(record.id)}/{record.payload}".rstrip("/")

    def payload_path(self, record: Record) -> Path | None:
        """The same as a path of this machine, or None if it lies elsewhere."""
        return local_path(self.payload_url(record))

    def output_path(self, artifact: ArtifactId, number: int) -> Path | None:
        """Where an attempt builds on this machine's disk, or None in a remote store (see `standing_output`)."""
        return local_path(f"{self.address(artifact)}/{attempt_folder(number)}")

    def upload(self, folder: Path, artifact: ArtifactId, payload: str) -> dict[str, FileState]:
        """Make the attempt's folder of a remote store a copy of a locally built payload; what the store says about its files then.

        Files that a job has sent while it ran are not sent again.

        Args:
            payload: the folder relative to the artifact's address (see `Record`).
        """
        target = f"{artifact.path}/{payload}"
        there = self._objects.files(target)
        local = {path.relative_to(folder).as_posix(): path for path in sorted(folder.rglob("*")) if path.is_file()}
        for name in there.keys() - local.keys():
            self._objects.delete(f"{target}/{name}")
        for name, path in local.items():
            if name not in there or not is_copy(path, there[name]):
                self._objects.upload(path, f"{target}/{name}")
        return self._objects.files(target)

    def download(self, record: Record, folder: Path, below: str = "") -> None:
        """Copy the files of a committed artifact to a local folder, checking each against the manifest.

        Args:
            below: only what lies in this folder of the payload, whose content becomes that of `folder`.

        Raises:
            DataError: a file is gone or isn't what was committed, or there is no such folder.
        """
        source = open_objects(self.payload_url(record))
        inside = f"{below}/" if below else ""
        files = [file for file in record.files if file.path.startswith(inside)]
        if below and not files:
            raise DataError(f"{record.id} has no folder {below!r}", advice="Build it anew from what it is asked about.")
        for file in files:
            target = folder / file.path.removeprefix(inside)
            target.parent.mkdir(parents=True, exist_ok=True)
            try:
                source.download(file.path, target)
            except FileNotFoundError:
                raise _corrupt(record, [f"{file.path} is gone"]) from None
            if file_sha256(target) != file.sha256:
                raise _corrupt(record, [f"{file.path} has another content"])

    def read_payload(self, record: Record, path: str) -> bytes:
        """Bytes of one payload file.

        Raises:
            DataError: the file is gone although the artifact is committed.
        """
        data = open_objects(self.payload_url(record)).read(path)
        if data is None:
            raise _corrupt(record, [f"{path} is gone"])
        return data

    def require_intact(self, record: Record, *, every_byte: bool = False) -> None:
        """Refuse to serve an artifact whose payload isn't what was committed.

        Presence and size of every file are checked, and the checksum of those that changed since the commit; with `every_byte` of all.

        Raises:
            DataError: names every file that is missing or differs.
        """
        problems = self.damage(record, every_byte=every_byte)
        if problems:
            raise _corrupt(record, problems)

    def damage(self, record: Record, *, every_byte: bool = False) -> list[str]:
        """What is wrong with the payload of a committed artifact, one sentence a file (see `require_intact`)."""
        source = open_objects(self.payload_url(record))
        states = self._states(source, record)
        problems = []
        for file in record.files:
            state = states.get(file.path)
            if state is None:
                problems.append(f"{file.path} is gone")
            elif state.size != file.size:
                problems.append(f"{file.path} has {state.size} bytes instead of {file.size}")
            elif (every_byte or state.stamp != file.stamp) and source.sha256(file.path) != file.sha256:
                problems.append(f"{file.path} has another content")
        return problems

    def _states(self, source: Objects, record: Record) -> Mapping[str, FileState]:
        if not isinstance(source, LocalObjects):
            return source.files("")
        return {file.path: local_state(path) for file in record.files if (path := source.root / file.path).is_file()}

    def clear_debris(self, artifact: ArtifactId, *, keep: int) -> None:
        """Delete the folders of attempts that were closed without success or withdrawn, save that of one attempt."""
        for attempt in self.attempts(artifact):
            stands = attempt.end is None or (attempt.end.record is not None and not self.is_withdrawn(artifact, attempt.number))
            if attempt.number != keep and not stands:
                for folder in (attempt_folder(attempt.number), unfinished_folder(attempt.number)):
                    self._objects.delete_tree(f"{artifact.path}/{folder}")


def committed_at(address: str) -> tuple[Record, CodeTable | None]:
    """The record at an address of any store, its payload given by URL, and the code table beside it.

    Raises:
        ConfigError: nothing is committed there.
    """
    objects = open_objects(address)
    data = objects.read(f"{META}/record.json")
    if data is None:
        raise ConfigError(f"nothing is committed at {address}", advice="Correct the address; it ends in name/version[/partition].")
    record = _parse(Record, data, f"the record at {address}")
    if objects.read(f"{META}/attempts/{record.attempt:05d}/withdrawn.json") is not None:
        raise ConfigError(f"what was committed at {address} was taken back", advice="Build it there again, or correct the address.")
    code = objects.read(f"{META}/attempts/{record.attempt:05d}/code.json")
    payload = record.payload if "://" in record.payload else f"{objects.url}/{record.payload}".rstrip("/")
    table = None if code is None else _parse(CodeTable, code, f"the code table at {address}")
    return record.model_copy(update={"payload": payload}), table


def _is_for_people(error: BaseException | None) -> bool:
    """Whether an error of the file system stays until somebody repairs something."""
    misplaced = isinstance(error, PermissionError | FileNotFoundError | FileExistsError | NotADirectoryError | IsADirectoryError)
    return misplaced or (isinstance(error, OSError) and error.errno == errno.EROFS)


def local_path(url: str) -> Path | None:
    """Path of a URL on this machine's disk, or None if it lies elsewhere."""
    if url.startswith("file://") or "://" not in url:
        return Path(url.removeprefix("file://"))
    return None


def superseded(artifact: ArtifactId, number: int, end: End) -> SupersededError:
    """The error of a builder that finds its attempt closed by another."""
    return SupersededError(
        f"attempt {number} of {artifact} lost its lease and was given up by another builder ({end.error or end.state}); "
        "its work is not used and nothing was changed",
        advice="Nothing: the builder that took over goes on, or has committed already.",
    )


def _corrupt(record: Record, problems: list[str]) -> DataError:
    shown = "; ".join(problems[:5]) + (f"; and {len(problems) - 5} more" if len(problems) > 5 else "")
    return DataError(
        f"{record.id} is corrupt: {shown}",
        advice="Restore the files from a backup, or build a new version; "
        f"`marin verify {record.id}` lists everything, and what was built from it can be checked with `marin lineage`.",
    )


def _meta(artifact: ArtifactId, name: str) -> str:
    return f"{artifact.path}/{META}/{name}"


def _withdrawn(artifact: ArtifactId, number: int) -> str:
    return _meta(artifact, f"attempts/{number:05d}/withdrawn.json")


def _document(document: Record | Claim | End | CodeTable) -> bytes:
    return redact(canonical_json(document.model_dump(mode="json")).decode()).encode()


class _Commit(BaseModel):
    """What of a record says which attempt it commits; the rest is skipped, which is most of the time that a record takes."""

    attempt: int


def _parse[T: (Record, Claim, End, FormerAttempt, CodeTable, _Commit)](cls: type[T], data: bytes, where: str) -> T:
    try:
        return cls.model_validate_json(data)
    except ValidationError as error:
        raise DataError(
            f"{where} is damaged: {error}",
            advice="Restore the file from a backup, or give the artifact a new version; it is never guessed.",
        ) from error
