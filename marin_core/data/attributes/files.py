"""Attribute files: what is known about the documents of a part, row by row, in a file of its own.

`part-NNNNN-of-MMMMM.parquet` has `id` and typed columns `<attribute>.<column>`, with the rows and row groups of the part that it is
about. Its footer names that part's ids (`marin.ids`), so a file that belongs to another version of the documents is refused.
"""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from marin_core.data.shard import read_part
from marin_core.errors import DataError

SCHEMA_VERSION = "attributes/1"
REBUILD = "Build the attributes anew from these documents."


class AttributeWriter:
    """Writes the attributes of one part, a row group at a time, in the part's order.

    Args:
        path: the attribute file.
        columns: `<attribute>.<column>` → Arrow type.
        footer: more `marin.…` keys: stage, and what identifies how the values were made.
    """

    def __init__(self, path: Path, columns: Mapping[str, pa.DataType], footer: Mapping[str, str]) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._schema = pa.schema([pa.field("id", pa.string(), nullable=False), *(pa.field(name, kind) for name, kind in columns.items())])
        schema = self._schema.with_metadata({f"marin.{key}": value for key, value in {**footer, "schema": SCHEMA_VERSION}.items()})
        self._writer = pq.ParquetWriter(path, schema, compression="zstd", compression_level=3, write_page_checksum=True)
        self._ids = hashlib.sha256()
        self.rows = 0

    def write(self, ids: Sequence[str], values: Mapping[str, Sequence[Any]]) -> None:
        """Append one row group: a value of each column for each id."""
        self._ids.update("".join(ids).encode())
        self.rows += len(ids)
        arrays = [pa.array(ids if field.name == "id" else values[field.name], field.type) for field in self._schema]
        self._writer.write_table(pa.table(arrays, schema=self._schema), row_group_size=max(1, len(ids)))

    def close(self) -> None:
        """Finish the file; without it there is no footer, and no reader takes it."""
        self._writer.add_key_value_metadata({"marin.ids": self._ids.hexdigest(), "marin.rows": str(self.rows)})
        self._writer.close()

    def __enter__(self) -> "AttributeWriter":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def attribute_file(folder: Path) -> Path:
    """The attribute file of one shard in its folder.

    Raises:
        DataError: there is none, or more than one.
    """
    found = sorted(folder.glob("part-*-of-*.parquet"))
    if len(found) != 1:
        raise DataError(f"{folder.name!r} holds {len(found)} attribute files, expected one", advice=REBUILD)
    return found[0]


def read_footer(path: Path) -> dict[str, str]:
    """The `marin.…` keys of an attribute file's footer, without the prefix.

    Raises:
        DataError: the file is none, or of another schema.
    """
    try:
        metadata = pq.read_metadata(path).metadata or {}
    except (OSError, pa.ArrowException) as error:
        raise DataError(f"attribute file {path.name!r} has no readable footer ({error})", advice=REBUILD) from error
    footer = {key.decode()[6:]: value.decode() for key, value in metadata.items() if key.startswith(b"marin.")}
    if footer.get("schema") != SCHEMA_VERSION:
        raise DataError(
            f"attribute file {path.name!r} has schema {footer.get('schema')!r}, this reader knows {SCHEMA_VERSION!r}", advice=REBUILD
        )
    return footer


def columns_of(path: Path) -> tuple[str, ...]:
    """Names of an attribute file's columns, `id` left out."""
    return tuple(name for name in pq.read_schema(path).names if name != "id")


def read_together(part: Path, attributes: Sequence[Path], columns: Sequence[str]) -> Iterator[dict[str, list[Any]]]:
    """Columns of a part and all columns of its attribute files, one row group at a time.

    Args:
        columns: of the part; `id` always comes too.

    Raises:
        DataError: a file is damaged, or belongs to other documents ("out of step").
    """
    with ExitStack() as stack:
        files = [stack.enter_context(_open(path)) for path in attributes]
        promised = [read_footer(path)["ids"] for path in attributes]
        digest = hashlib.sha256()
        group = -1
        for group, rows in enumerate(read_part(part, tuple(dict.fromkeys(("id", *columns))))):
            digest.update("".join(rows["id"]).encode())
            merged = dict(rows)
            for path, file in zip(attributes, files, strict=True):
                read = _group(path, file, group)
                if read.pop("id", None) != rows["id"]:
                    raise _out_of_step(path, part)
                merged |= read
            yield merged
        for path, file, ids in zip(attributes, files, promised, strict=True):
            if file.num_row_groups != group + 1 or ids != digest.hexdigest():
                raise _out_of_step(path, part)


def _open(path: Path) -> pq.ParquetFile:
    try:
        return pq.ParquetFile(path, page_checksum_verification=True)
    except (OSError, pa.ArrowException) as error:
        raise DataError(f"attribute file {path.name!r} can't be read ({error})", advice=REBUILD) from error


def _group(path: Path, file: pq.ParquetFile, group: int) -> dict[str, list[Any]]:
    if group >= file.num_row_groups:
        return {}
    try:
        columns: dict[str, list[Any]] = file.read_row_group(group).to_pydict()
        return columns
    except (OSError, pa.ArrowException) as error:
        raise DataError(f"attribute file {path.name!r} is damaged ({error})", advice=REBUILD) from error


def _out_of_step(attributes: Path, part: Path) -> DataError:
    return DataError(f"attributes {attributes.parent.name}/{attributes.name} are out of step with {part.name}", advice=REBUILD)
