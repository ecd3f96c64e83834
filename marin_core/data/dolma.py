"""Shards and their attributes in the layout of Dolma (github.com/allenai/dolma), for other people's tools, and back without loss.

    documents/part-NNNNN-of-MMMMM.jsonl.gz          {id, text, source, added, created, metadata}
    attributes/<name>/part-NNNNN-of-MMMMM.jsonl.gz  {id, attributes: {"<name>__<column>": [[start, end, score]]}}
    marin.json                                      footers and column types, which Dolma has no place for

A number is a span over the whole text with that score; a word, or the kind of a span, stands at the end of the field's name, as Dolma's
own taggers have it (`language__code__en`). What Dolma can't say stands beside `attributes` in `values`, where its tools don't look.
Documents that come from elsewhere in this layout are read by the format `Jsonl`, like any others.
"""

import base64
import gzip
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from marin_core.artifact.canonical import canonical_json
from marin_core.data.attributes.files import AttributeWriter, read_together
from marin_core.data.attributes.files import read_footer as read_attribute_footer
from marin_core.data.documents import Document
from marin_core.data.files import write_json
from marin_core.data.measures.interface import SPANS
from marin_core.data.normal_form import document_id
from marin_core.data.shard import SCHEMA, read_footer, read_part, write_sorted
from marin_core.errors import DataError

LEDGER = "marin.json"
LEDGER_SCHEMA = "dolma-export/1"
_OWN_KEYS = ("ids", "rows", "schema")
"""Keys of an attribute file's footer that its writer makes."""


def export_dolma(parts: Sequence[Path], attributes: Mapping[str, Sequence[Path]], folder: Path) -> None:
    """Write shards and what is known of their documents below a folder. The same input gives the same bytes.

    Args:
        parts: part files.
        attributes: name → attribute files, one for each part, in their order.

    Raises:
        DataError: a file is damaged, or attributes belong to other documents.
    """
    ledger: dict[str, Any] = {"schema": LEDGER_SCHEMA, "parts": {}, "attributes": {name: {} for name in attributes}}
    for number, part in enumerate(parts):
        files = {name: paths[number] for name, paths in attributes.items()}
        ledger["parts"][part.stem] = read_footer(part)
        for name, path in files.items():
            footer = {key: value for key, value in read_attribute_footer(path).items() if key not in _OWN_KEYS}
            types = base64.b64encode(pq.read_schema(path).remove_metadata().serialize().to_pybytes()).decode()
            ledger["attributes"][name][part.stem] = {"footer": footer, "types": types}
        _export_part(part, files, folder)
    write_json(folder / LEDGER, ledger)


def _export_part(part: Path, files: Mapping[str, Path], folder: Path) -> None:
    columns = {name: [column for column in pq.read_schema(path) if column.name != "id"] for name, path in files.items()}
    with ExitStack() as stack:
        documents = stack.enter_context(_Lines(folder / "documents" / f"{part.stem}.jsonl.gz"))
        outputs = {name: stack.enter_context(_Lines(folder / "attributes" / name / f"{part.stem}.jsonl.gz")) for name in files}
        for group in read_together(part, list(files.values()), SCHEMA.names):
            for row in range(len(group["id"])):
                document = {name: group[name][row] for name in SCHEMA.names}
                documents.write(document | {"metadata": json.loads(document["metadata"])})
                for name, output in outputs.items():
                    values = {column.name: (column.type, group[column.name][row]) for column in columns[name]}
                    output.write({"id": document["id"], **_as_spans(name, values, len(document["text"]))})


def _as_spans(name: str, values: Mapping[str, tuple[pa.DataType, Any]], characters: int) -> dict[str, Any]:
    """Values of a document in Dolma's form; nulls are absent."""
    spans: dict[str, list[list[Any]]] = {}
    others: dict[str, Any] = {}
    for column, (kind, value) in values.items():
        field = _field(name, column)
        if value is None:
            continue
        if _is_number(kind):
            spans[field] = [[0, characters, value if kind != pa.bool_() else int(value)]]
        elif _is_word(kind):
            spans[f"{field}__{value}"] = [[0, characters, 1]]
        elif kind == SPANS:
            spans[field] = []  # none is something else than unknown
            for span in value:
                spans.setdefault(f"{field}__{span['kind']}", []).append([span["start"], span["end"], 1])
        else:
            others[column] = value
    return {"attributes": spans} | ({"values": others} if others else {})


def _field(name: str, column: str) -> str:
    return f"{name}__{column.replace('.', '__')}"


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind))


def _is_word(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def import_dolma(folder: Path, output: Path) -> None:
    """Make again what `export_dolma` wrote: `documents/part-….parquet` and `attributes/<name>/part-….parquet`.

    Raises:
        DataError: the folder isn't an export of ours, a file is broken, or a document isn't what its id says.
    """
    try:
        ledger = json.loads((folder / LEDGER).read_bytes())
        if ledger["schema"] != LEDGER_SCHEMA:
            raise ValueError(f"schema {ledger['schema']!r}, this reader knows {LEDGER_SCHEMA!r}")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(
            f"{folder.name!r} has no readable {LEDGER} ({error})",
            advice="Ingest it as local files of format jsonl if it is from elsewhere.",
        ) from error
    (output / "documents").mkdir(parents=True, exist_ok=True)
    for part, footer in ledger["parts"].items():
        source = folder / "documents" / f"{part}.jsonl.gz"
        rows = int(footer["rows"])
        write_sorted(output / "documents" / f"{part}.parquet", _documents(source), rows, {k: v for k, v in footer.items() if k != "rows"})
        for name, files in ledger["attributes"].items():
            _import_attributes(folder, output, name, part, files[part])


def _documents(path: Path) -> Iterator[Document]:
    for record in _records(path):
        text = record["text"]
        if document_id(text) != record["id"]:
            raise DataError(f"{path.name}: document {record['id']} is not the text that its id says", advice="Export the shard again.")
        metadata = canonical_json(record["metadata"]).decode()
        yield Document(record["id"], text, record["source"], record["added"], record["created"], metadata, len(text.encode()))


def _import_attributes(folder: Path, output: Path, name: str, part: str, about: Mapping[str, Any]) -> None:
    """Rows and row groups are those of the part, which is there already."""
    schema = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(about["types"])))
    columns = {column.name: column.type for column in schema if column.name != "id"}
    records = _records(folder / "attributes" / name / f"{part}.jsonl.gz")
    path = output / "attributes" / name / f"{part}.parquet"
    with AttributeWriter(path, columns, about["footer"]) as writer:
        for group in read_part(output / "documents" / f"{part}.parquet", ("id",)):
            rows = [record for _, record in zip(group["id"], records, strict=False)]
            if [record["id"] for record in rows] != group["id"]:
                raise DataError(f"attributes {name}/{part} are out of step with the documents", advice="Export the shard again.")
            writer.write(group["id"], {column: [_value(name, column, kind, row) for row in rows] for column, kind in columns.items()})


def _value(name: str, column: str, kind: pa.DataType, record: Mapping[str, Any]) -> Any:
    """The value of a column, from a document's spans."""
    field = _field(name, column)
    attributes = record["attributes"]
    if _is_number(kind):
        found = attributes.get(field)
        return None if found is None else bool(found[0][2]) if kind == pa.bool_() else found[0][2]
    named = [(key.removeprefix(f"{field}__"), spans) for key, spans in attributes.items() if key.startswith(f"{field}__")]
    if _is_word(kind):
        return named[0][0] if named else None
    if kind == SPANS:
        spans = [{"start": start, "end": end, "kind": word} for word, places in named for start, end, _ in places]
        return sorted(spans, key=lambda span: (span["start"], span["end"])) if field in attributes else None
    return record.get("values", {}).get(column)


class _Lines:
    """Writes JSON lines in gzip, without a time stamp."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file: BinaryIO = path.open("wb")
        self._stream = gzip.GzipFile("", "wb", 6, self._file, mtime=0)

    def write(self, record: Mapping[str, Any]) -> None:
        self._stream.write(canonical_json(record) + b"\n")

    def __enter__(self) -> "_Lines":
        return self

    def __exit__(self, *_: object) -> None:
        self._stream.close()
        self._file.close()


def _records(path: Path) -> Iterator[dict[str, Any]]:
    try:
        with gzip.open(path, "rb") as file:
            for line in file:
                yield json.loads(line)
    except (OSError, EOFError, ValueError) as error:
        raise DataError(f"{path.name} can't be read ({error})", advice="Export the shard again.") from error
