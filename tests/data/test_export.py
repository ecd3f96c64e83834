"""Exports, read back as their readers do: by numpy alone, from the documented bytes."""

import json
import struct
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import xxhash

from marin_core.data.cache import TokenCache
from marin_core.data.export.flat import export_flat
from marin_core.data.export.megatron import export_megatron
from marin_core.data.part import PartWriter, read_info, write_info
from marin_core.errors import ConfigError, DataError
from tests.data.conftest import Corpus


def documents(parts: list[Path]) -> list[list[int]]:
    return [document.tokens.tolist() for document in TokenCache(parts).documents()]


def described(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "export.json").read_text())
    return found


def read_megatron(prefix: Path) -> tuple[npt.NDArray[Any], list[npt.NDArray[Any]]]:
    """What Megatron's `_IndexReader` and `_MMapBinReader` do with the two files; the borders of documents, and the documents."""
    index = prefix.with_suffix(".idx").read_bytes()
    assert index[:9] == b"MMIDIDX\x00\x00"
    version, code, sequences, borders = struct.unpack_from("<QBQQ", index, 9)
    assert version == 1
    dtype = np.dtype({4: np.int32, 8: np.uint16}[code])
    at = 9 + struct.calcsize("<QBQQ")
    lengths = np.frombuffer(index, np.int32, sequences, at)
    pointers = np.frombuffer(index, np.int64, sequences, at + lengths.nbytes)
    document_indices = np.frombuffer(index, np.int64, borders, at + lengths.nbytes + pointers.nbytes)
    assert at + lengths.nbytes + pointers.nbytes + document_indices.nbytes == len(index), "nothing behind the last table"
    assert document_indices[0] == 0
    assert document_indices[-1] == sequences
    data = np.memmap(prefix.with_suffix(".bin"), mode="r", order="C")
    found = [np.frombuffer(data, dtype, count, pointer) for count, pointer in zip(lengths, pointers, strict=True)]
    return document_indices, found


def test_flat_is_a_memory_map_of_the_stream(corpus: Corpus, tmp_path: Path) -> None:
    exported = export_flat(corpus.parts, tmp_path / "out")
    tokens = np.memmap(tmp_path / "out" / "tokens.bin", "<u2", "r")
    offsets = np.fromfile(tmp_path / "out" / "offsets.bin", "<i8")
    expected = documents(corpus.parts)
    assert [tokens[start:end].tolist() for start, end in pairwise(offsets)] == expected
    assert (exported.documents, exported.tokens, offsets[-1]) == (len(expected), len(tokens), len(tokens))
    assert exported.digest == xxhash.xxh3_128_hexdigest(tokens.astype("<u4").tobytes())
    info = read_info(corpus.parts[0])
    said = described(tmp_path / "out")
    assert (said["bos_id"], said["eos_id"], said["tokenizer"]["digest"]) == (info.bos_id, info.eos_id, info.tokenizer.digest)


def test_megatron_reads_the_documents(corpus: Corpus, tmp_path: Path) -> None:
    exported = export_megatron(corpus.parts, tmp_path / "out")
    borders, found = read_megatron(tmp_path / "out" / "tokens")
    assert [document.tolist() for document in found] == documents(corpus.parts)
    assert borders.tolist() == list(range(len(found) + 1))
    assert (exported.dtype, exported.documents) == ("uint16", len(found))


@pytest.fixture
def wide(corpus: Corpus, tmp_path: Path) -> Path:
    """A part with ids beyond uint16."""
    writer = PartWriter(tmp_path / "wide", "uint32")
    for number, ids in enumerate([[0, 70_000, 1], [0, 5, 128_255, 65_536, 1]]):
        writer.add(f"{number:032x}", "s", np.array(ids, np.uint32), 3)
    digest, multiset = writer.finish()
    info = read_info(corpus.parts[0])
    changes = {"dtype": "uint32", "documents": 2, "tokens": 8, "bytes": 6, "digest": digest, "multiset_digest": multiset, "files": ()}
    write_info(tmp_path / "wide", info.changed(**changes))
    return tmp_path / "wide"


def test_ids_of_large_vocabularies_are_four_bytes_wide(wide: Path, tmp_path: Path) -> None:
    export_flat([wide], tmp_path / "flat")
    assert np.fromfile(tmp_path / "flat" / "tokens.bin", "<u4").tolist() == [0, 70_000, 1, 0, 5, 128_255, 65_536, 1]
    export_megatron([wide], tmp_path / "megatron")
    _, found = read_megatron(tmp_path / "megatron" / "tokens")
    assert [document.tolist() for document in found] == [[0, 70_000, 1], [0, 5, 128_255, 65_536, 1]]
    assert described(tmp_path / "megatron")["dtype"] == "int32"


@pytest.mark.parametrize("export", [export_flat, export_megatron])
def test_damage_and_a_used_folder_are_refused(export: Any, corpus: Corpus, tmp_path: Path) -> None:
    (tmp_path / "used").mkdir()
    (tmp_path / "used" / "notes.txt").write_text("mine")
    with pytest.raises(ConfigError, match="not an empty folder"):
        export(corpus.parts, tmp_path / "used")
    info = read_info(corpus.parts[0])
    part = tmp_path / "part"
    part.mkdir()
    for name in ("tokens", "offsets", "rejected", "ids.parquet"):
        (part / name).symlink_to(corpus.parts[0] / name)
    write_info(part, info.changed(digest="0" * 32))
    with pytest.raises(DataError, match=r"part\.json says 0000"):
        export([part], tmp_path / "out")
    assert not (tmp_path / "out" / "export.json").exists(), "what isn't whole has no description"
