"""What is exported in Dolma's layout comes back without loss, and is what Dolma's tools expect."""

import gzip
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from marin_core.data.attributes.files import AttributeWriter, read_footer
from marin_core.data.dolma import export_dolma, import_dolma
from marin_core.data.formats.config import Jsonl
from marin_core.data.measures.interface import SPANS
from marin_core.data.shard import read_part
from marin_core.errors import DataError
from tests.data.conftest import Corpus
from tests.data.formats.made import Read

COLUMNS = {
    "length.characters": pa.int64(),
    "quality.score": pa.float64(),
    "language.code": pa.string(),
    "code.binary": pa.bool_(),
    "personal.spans": SPANS,
    "contamination.matches": pa.list_(pa.struct([pa.field("eval", pa.string()), pa.field("start", pa.int32())])),
}


def attributes_of(part: Path, path: Path) -> Path:
    """Values of every type for a part's documents, nulls and empty lists among them."""
    with AttributeWriter(path, COLUMNS, {"stage": "attributes", "fingerprint": "f"}) as writer:
        for group in read_part(part):
            texts = group["text"]
            odd = [index % 2 == 1 for index in range(len(texts))]
            spans = [
                {"start": 0, "end": 2, "kind": "email"},
                {"start": 3, "end": 4, "kind": "phone"},
                {"start": 5, "end": 7, "kind": "email"},
            ]
            writer.write(
                group["id"],
                {
                    "length.characters": [len(text) if flag else None for text, flag in zip(texts, odd, strict=True)],
                    "quality.score": [len(text) / 7 for text in texts],
                    "language.code": ["en" if flag else None for flag in odd],
                    "code.binary": odd,
                    "personal.spans": [(None, [], spans)[index % 3] for index in range(len(texts))],
                    "contamination.matches": [[{"eval": "e", "start": 1}] if flag else None for flag in odd],
                },
            )
    return path


@pytest.fixture
def exported(tmp_path: Path, corpus: Corpus) -> tuple[list[Path], list[Path], Path]:
    parts = [next(shard.glob("part-*.parquet")) for shard in corpus.shards]
    attributes = [attributes_of(part, tmp_path / "made" / part.name) for part in parts]
    export_dolma(parts, {"web": attributes}, tmp_path / "dolma")
    return parts, attributes, tmp_path / "dolma"


def test_a_round_trip_loses_nothing(tmp_path: Path, exported: tuple[list[Path], list[Path], Path]) -> None:
    parts, attributes, folder = exported
    import_dolma(folder, tmp_path / "back")
    for part, attribute in zip(parts, attributes, strict=True):
        again = tmp_path / "back" / "documents" / part.name
        assert pq.read_table(again).equals(pq.read_table(part), check_metadata=False)
        assert pq.read_schema(again).metadata == pq.read_schema(part).metadata
        values = tmp_path / "back" / "attributes" / "web" / part.name
        assert pq.read_table(values).equals(pq.read_table(attribute), check_metadata=False)
        assert read_footer(values) == read_footer(attribute)


def test_the_files_are_what_dolma_reads(exported: tuple[list[Path], list[Path], Path]) -> None:
    parts, _, folder = exported
    name = f"{parts[0].stem}.jsonl.gz"
    documents = [json.loads(line) for line in gzip.decompress((folder / "documents" / name).read_bytes()).splitlines()]
    assert all(set(document) == {"id", "text", "source", "added", "created", "metadata"} for document in documents)
    rows = [json.loads(line) for line in gzip.decompress((folder / "attributes" / "web" / name).read_bytes()).splitlines()]
    assert [row["id"] for row in rows] == [document["id"] for document in documents]
    size = len(documents[5]["text"])
    assert rows[5]["attributes"] == {
        "web__length__characters": [[0, size, size]],
        "web__quality__score": [[0, size, size / 7]],
        "web__language__code__en": [[0, size, 1]],
        "web__code__binary": [[0, size, 1]],
        "web__personal__spans": [],
        "web__personal__spans__email": [[0, 2, 1], [5, 7, 1]],
        "web__personal__spans__phone": [[3, 4, 1]],
    }


def test_an_export_gives_the_same_bytes_and_our_reader_takes_its_documents(
    tmp_path: Path, exported: tuple[list[Path], list[Path], Path]
) -> None:
    parts, attributes, folder = exported
    export_dolma(parts, {"web": attributes}, tmp_path / "again")
    for path in folder.rglob("*"):
        assert path.is_dir() or path.read_bytes() == (tmp_path / "again" / path.relative_to(folder)).read_bytes()
    data = (folder / "documents" / f"{parts[0].stem}.jsonl.gz").read_bytes()
    read = Read(tmp_path, Jsonl(), data, "a.jsonl.gz")
    assert sorted(document.id for document in read.documents) == [i for group in read_part(parts[0]) for i in group["id"]]


def test_a_foreign_folder_and_a_changed_text_are_refused(tmp_path: Path, exported: tuple[list[Path], list[Path], Path]) -> None:
    parts, _, folder = exported
    with pytest.raises(DataError, match=r"no readable marin\.json"):
        import_dolma(tmp_path / "nowhere", tmp_path / "back")
    path = folder / "documents" / f"{parts[0].stem}.jsonl.gz"
    path.write_bytes(gzip.compress(gzip.decompress(path.read_bytes()).replace(b"Document", b"Dokument", 1)))
    with pytest.raises(DataError, match="not the text that its id says"):
        import_dolma(folder, tmp_path / "back")
