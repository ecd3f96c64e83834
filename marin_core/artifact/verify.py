"""Verification: every byte of a committed artifact read again and held against its record."""

from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from dataclasses import dataclass

from marin_core.artifact.objects import Objects, open_objects
from marin_core.artifact.record import File, Record, manifest_digest
from marin_core.artifact.store import Store
from marin_core.errors import DataError

RECORD = ".artifact/record.json"
CODE = ".artifact/attempts/{:05d}/code.json"


@dataclass(frozen=True)
class Damage:
    """What is wrong with one file.

    Attributes:
        path: relative to the payload's folder; of bookkeeping, to the artifact's address.
        problem: for people, going on after the path: `is gone`, `has another content`.
    """

    path: str
    problem: str


def verify(store: Store, record: Record, executor: Executor, on_file: Callable[[File], None] = lambda file: None) -> tuple[Damage, ...]:
    """Read everything that an artifact consists of, several files at once; empty if all is as it was committed.

    Args:
        executor: threads that read; checksums of different files don't wait for each other.
        on_file: called with each file of the manifest after it was read.

    Raises:
        InfrastructureError: something can't be read, so that it isn't known whether it is intact.
    """
    found = [*_bookkeeping(store, record)]
    source = open_objects(store.payload_url(record))
    checksums = executor.map(lambda file: source.sha256(file.path), record.files)
    for file, checksum in zip(record.files, checksums, strict=True):
        if checksum != file.sha256:
            found.append(Damage(file.path, _problem(source, file, checksum)))
        on_file(file)
    return tuple(found)


def _problem(source: Objects, file: File, checksum: str | None) -> str:
    if checksum is None:
        return "is gone"
    folder, _, name = file.path.rpartition("/")
    state = source.files(folder).get(name)
    if state is not None and state.size != file.size:
        return f"has {state.size} bytes instead of {file.size}"
    return "has another content"


def _bookkeeping(store: Store, record: Record) -> Iterator[Damage]:
    if manifest_digest(record.files) != record.manifest_digest:
        yield Damage(RECORD, "lists other files than those of which it has the digest")
    if not record.code.digest:
        return
    try:
        table = store.code_table(record)
    except DataError as error:
        yield Damage(CODE.format(record.attempt), f"can't be read: {error.message}")
        return
    if table is None:
        yield Damage(CODE.format(record.attempt), "is gone")
    elif table.digest != record.code.digest:
        yield Damage(CODE.format(record.attempt), f"has the digest {table.digest[:16]} instead of {record.code.digest[:16]}")
