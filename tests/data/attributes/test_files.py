"""Attribute files lie beside their part, row by row; one that belongs to other documents is refused."""

from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marin_core.data.attributes.files import AttributeWriter, attribute_file, columns_of, read_footer, read_together
from marin_core.data.documents import Document
from marin_core.data.normal_form import document_id
from marin_core.data.shard import ROW_GROUP_ROWS, SCHEMA_VERSION, read_part, write_part
from marin_core.errors import DataError

NAME = "part-00000-of-00001.parquet"
FOOTER = {"schema": SCHEMA_VERSION, "input_digest": "0", "licenses": '["CC0-1.0"]', "policies": '["TRAINING_ALLOWED"]'}


def write_documents(folder: Path, texts: list[str]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    documents = [Document(document_id(text), text, "raw/x/web", None, None, "{}", len(text.encode())) for text in sorted(set(texts))]
    write_part(folder / NAME, documents, FOOTER)
    return folder / NAME


def write_attributes(part: Path, folder: Path, name: str = "length.characters", upto: int | None = None) -> Path:
    with AttributeWriter(folder / NAME, {name: pa.int64()}, {"stage": "attributes"}) as writer:
        for number, group in enumerate(read_part(part)):
            if upto is None or number < upto:
                writer.write(group["id"], {name: [len(text) for text in group["text"]]})
    return folder / NAME


@settings(max_examples=20, deadline=None)
@given(st.lists(st.text(min_size=1, max_size=20), max_size=30))
def test_every_row_comes_back_beside_its_document(tmp_path_factory: pytest.TempPathFactory, texts: list[str]) -> None:
    texts = [text.encode("utf-8", "replace").decode() for text in texts]
    folder = tmp_path_factory.mktemp("attributes")
    part = write_documents(folder / "documents", texts)
    lengths = write_attributes(part, folder / "a")
    doubled = write_attributes(part, folder / "b", "length.again")
    rows = [
        row
        for group in read_together(part, [lengths, doubled], ("text",))
        for row in zip(group["text"], group["length.characters"], group["length.again"], strict=True)
    ]
    assert sorted(text for text, _, _ in rows) == sorted(set(texts))
    assert all(length == again == len(text) for text, length, again in rows)


def test_several_row_groups_stay_in_step(tmp_path: Path) -> None:
    part = write_documents(tmp_path / "documents", [f"text {index}" for index in range(2 * ROW_GROUP_ROWS + 7)])
    lengths = write_attributes(part, tmp_path / "a")
    groups = list(read_together(part, [lengths], ("text",)))
    assert [len(group["id"]) for group in groups] == [ROW_GROUP_ROWS, ROW_GROUP_ROWS, 7]
    assert all(len(text) == length for group in groups for text, length in zip(group["text"], group["length.characters"], strict=True))


@pytest.mark.parametrize("case", ["another version", "one document more", "one document less", "a row group less", "other order"])
def test_attributes_of_other_documents_are_out_of_step(tmp_path: Path, case: str) -> None:
    texts = [f"text {index}" for index in range(ROW_GROUP_ROWS + 10)]
    part = write_documents(tmp_path / "documents", texts)
    other = {
        "another version": [*texts[:-1], "another"],
        "one document more": [*texts, "one more"],
        "one document less": texts[:-1],
        "a row group less": texts,
        "other order": texts,
    }[case]
    about = write_documents(tmp_path / "other", other)
    attributes = write_attributes(about, tmp_path / "a", upto=1 if case == "a row group less" else None)
    if case == "other order":
        groups = list(read_part(part, ("id",)))
        with AttributeWriter(attributes, {"length.characters": pa.int64()}, {}) as writer:
            for group in groups:
                writer.write(group["id"][::-1], {"length.characters": [0] * len(group["id"])})
    with pytest.raises(DataError, match="out of step with part-00000-of-00001"):
        list(read_together(part, [attributes], ("text",)))


def test_an_empty_shard_has_empty_attributes(tmp_path: Path) -> None:
    part = write_documents(tmp_path / "documents", [])
    attributes = write_attributes(part, tmp_path / "a")
    assert list(read_together(part, [attributes], ("text",))) == []
    assert read_footer(attributes)["rows"] == "0"
    assert columns_of(attributes) == ("length.characters",)


def test_empty_attributes_of_full_documents_are_refused(tmp_path: Path) -> None:
    empty = write_attributes(write_documents(tmp_path / "empty", []), tmp_path / "a")
    part = write_documents(tmp_path / "documents", ["text"])
    with pytest.raises(DataError, match="out of step"):
        list(read_together(part, [empty], ("text",)))


def test_damage_is_named(tmp_path: Path) -> None:
    part = write_documents(tmp_path / "documents", [f"text {index}" for index in range(5_000)])
    attributes = write_attributes(part, tmp_path / "a")
    data = bytearray(attributes.read_bytes())
    data[200] ^= 1
    attributes.write_bytes(data)
    with pytest.raises(DataError, match=r"attribute file 'part-00000-of-00001.parquet' is damaged"):
        list(read_together(part, [attributes], ("text",)))
    attributes.write_bytes(bytes(data[: len(data) // 2]))
    with pytest.raises(DataError, match=r"no readable footer|can't be read"):
        list(read_together(part, [attributes], ("text",)))


def test_a_writer_that_was_not_closed_leaves_nothing_that_is_read(tmp_path: Path) -> None:
    part = write_documents(tmp_path / "documents", ["text"])
    writer = AttributeWriter(tmp_path / "a" / NAME, {"length.characters": pa.int64()}, {})
    writer.write(next(iter(read_part(part, ("id",))))["id"], {"length.characters": [4]})
    with pytest.raises(DataError):
        read_footer(tmp_path / "a" / NAME)
    writer.close()
    assert read_footer(tmp_path / "a" / NAME)["rows"] == "1"


def test_a_part_is_no_attribute_file(tmp_path: Path) -> None:
    part = write_documents(tmp_path / "documents", ["text"])
    with pytest.raises(DataError, match="schema 'document/1', this reader knows 'attributes/1'"):
        read_footer(part)


def test_a_folder_has_one_attribute_file(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="holds 0 attribute files"):
        attribute_file(tmp_path)
    (tmp_path / NAME).touch()
    assert attribute_file(tmp_path) == tmp_path / NAME
