"""Rows of Parquet files, in pieces whatever the size of the row groups."""

import datetime
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from marin_core.data.formats.config import ParquetRows
from marin_core.data.formats.items import Extract, Item, Piece, RejectedError
from marin_core.data.formats.pages import Pages
from marin_core.data.limits import MIB, Limits
from marin_core.data.streams import DamagedStreamError
from marin_core.errors import DataError

BATCH_BYTES = 8 * MIB
MAX_BATCH_ROWS = 1_024
BUFFER_BYTES = MIB
_PLAIN = (str, int, bool, type(None))


@dataclass
class ParquetReader:
    """See `ParquetRows`."""

    config: ParquetRows
    limits: Limits
    pages: Pages

    def items(self, piece: Piece) -> Iterator[Item]:
        if piece.path is None:
            raise DataError("Parquet inside an archive can't be read as a stream", advice="Ingest the Parquet files themselves.")
        try:
            file = pq.ParquetFile(piece.path, pre_buffer=False, buffer_size=BUFFER_BYTES, page_checksum_verification=True)
            schema = file.schema_arrow
            schema.names  # noqa: B018  # a broken footer may show only here
        except (OSError, ValueError, pa.ArrowException) as error:
            raise DataError(f"not a readable Parquet file ({error})", advice="Fetch the file again.") from error
        with file:
            columns = self._columns(schema)
            row = 0
            try:
                for group in range(file.num_row_groups):
                    for batch in file.iter_batches(_batch_rows(file.metadata.row_group(group)), row_groups=[group], columns=columns):
                        for values in zip(*(batch.column(name) for name in columns), strict=True):
                            yield self._item(dict(zip(columns, values, strict=True)), row)
                            row += 1
            except (OSError, ValueError, pa.ArrowException) as error:
                damaged = DamagedStreamError("damaged_unit", f"Parquet: {error}")
                damaged.offset = row
                raise damaged from error

    def _columns(self, schema: pa.Schema) -> list[str]:
        """The columns to read; the text's stands first.

        Raises:
            DataError: one is missing, or the text's holds no text; names it and the schema that was found.
        """
        text = self.config.html_column or self.config.text_column
        found = ", ".join(f"{field.name}: {field.type}" for field in schema)
        for name in (text, *self.config.columns.values()):
            if name not in schema.names:
                raise DataError(f"it has no column {name!r}; it has {found}", advice="Name its columns in the format's configuration.")
        kind = schema.field(text).type
        kind = kind.value_type if pa.types.is_dictionary(kind) else kind
        allowed = [pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view]
        if self.config.html_column:
            allowed += [pa.types.is_binary, pa.types.is_large_binary]
        if not any(check(kind) for check in allowed):
            raise DataError(f"column {text!r} holds {kind}, not text; the file has {found}", advice="Name the column with the text.")
        return list(dict.fromkeys((text, *self.config.columns.values())))

    def _item(self, scalars: Mapping[str, Any], row: int) -> Item:
        try:
            values = {name: scalar.as_py() for name, scalar in scalars.items()}
        except (UnicodeDecodeError, ValueError, OverflowError) as error:
            return Item(b"", row, 0, reason="invalid_utf8" if isinstance(error, UnicodeDecodeError) else "bad_value", detail=str(error))
        text = values[self.config.html_column or self.config.text_column]
        if text is None:
            return Item(b"", row, 0, reason="no_text", detail="the cell is null")
        data = text if isinstance(text, bytes) else text.encode()
        if len(data) > self.limits.record_bytes:
            return Item(data[:1_000], row, len(data), reason="record_too_long", detail=f"{len(data)} bytes")
        return Item(data, row, len(data), fields=values)

    def extract(self, item: Item, piece: Piece) -> Extract:
        text = item.fields[self.config.html_column or self.config.text_column]
        metadata: dict[str, Any] = {}
        times: dict[str, str | None] = {"created": None, "added": None}
        for key, column in self.config.columns.items():
            value = plain_value(item.fields[column])
            if value is None:
                continue
            if key in times:
                times[key] = str(value)
            else:
                metadata[key] = str(value) if key == "origin_id" else value
        if self.config.html_column:
            charset = "utf-8" if isinstance(text, str) else None
            text, title = self.pages.text(item.data or b"", charset)
            if title:
                metadata.setdefault("title", title)
        return Extract(text, metadata, **times)

    def close(self) -> None:
        self.pages.close()


def _batch_rows(group: Any) -> int:
    """Rows that make at most about 8 MiB, so that a row group of gigabytes is decoded page by page.

    The size is that of all columns, read or not: a look at a column's broken statistics ends the process (pyarrow 26).
    """
    return max(1, min(MAX_BATCH_ROWS, int(BATCH_BYTES * group.num_rows // max(1, group.total_byte_size))))


def plain_value(value: Any) -> Any:
    """A cell as JSON has it: times in RFC 3339, decimals and bytes as text, NaN and infinities as null.

    Raises:
        RejectedError: `bad_value`, for a value nested too deeply.
    """
    try:
        return _plain(value)
    except RecursionError:
        raise RejectedError("bad_value", "metadata is nested too deeply") from None


def _plain(value: Any) -> Any:
    if isinstance(value, _PLAIN):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, datetime.datetime | datetime.date | datetime.time):
        return value.isoformat()
    if isinstance(value, bytes):
        return value.decode(errors="backslashreplace")
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return str(value) if not isinstance(value, Decimal) else format(value, "f")
