"""Every committed record below a prefix."""

from collections.abc import Callable, Iterator
from itertools import batched

from pydantic import BaseModel, ValidationError

from marin_core.artifact.inventory.addresses import (
    addresses,
)
from marin_core.artifact.record import Record
from marin_core.artifact.store import META, Store
from marin_core.errors import DataError

BATCH = 500
"""Records read together: one round trip on a remote store, and a bound of what is held in memory."""


def committed(store: Store, on_damage: Callable[[DataError], None] | None = None) -> Iterator[Record]:
    """Every committed record below the prefix, in order of address; jobs' folders and reproductions are no part of the store.

    Args:
        on_damage: called with each record that can't be read, which is left out; without it the first one is raised.

    Raises:
        DataError: a record is damaged.
        InfrastructureError: a folder can't be listed, so that it isn't known what is committed.
    """
    for batch in batched(addresses(store), BATCH):
        found = store.objects.read_many([f"{address}/{META}/record.json" for address in batch])
        records = []
        for path, data in found.items():
            try:
                record = parse(Record, store, path, data)
            except DataError as error:
                if on_damage is None:
                    raise
                on_damage(error)
                continue
            if path == f"{record.id.path}/{META}/record.json":  # a copy that lies elsewhere is not what it says
                records.append(record)
        withdrawn = store.objects.read_many([_withdrawn(record) for record in records])
        yield from (record for record in records if _withdrawn(record) not in withdrawn)


def _withdrawn(record: Record) -> str:
    return f"{record.id.path}/{META}/attempts/{record.attempt:05d}/withdrawn.json"


def parse[T: BaseModel](cls: type[T], store: Store, path: str, data: bytes) -> T:
    """A document of a store.

    Raises:
        DataError: it is damaged.
    """
    try:
        return cls.model_validate_json(data)
    except ValidationError as error:
        raise DataError(
            f"{store.prefix}/{path} is damaged: {error}",
            advice="Restore the file from a backup, or give the artifact a new version; it is never guessed.",
        ) from error
