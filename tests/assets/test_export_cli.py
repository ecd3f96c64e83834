"""`marin export`: every declared part of a cache in one stream, or an error that names what is missing."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from marin_core.artifact import ArtifactId, ArtifactStep
from marin_core.data.cache import TokenCache
from marin_core.data.config import KmerConfig, TokenizeConfig
from marin_core.data.kmer import make_kmer_tokenizer
from marin_core.data.tokenize import tokenize_shard
from marin_core.report import SilentReporter
from tests.assets.conftest import Said
from tests.assets.fabricated import Fabricated, step
from tests.data.token_shards import write_shard

Marin = Callable[..., Said]
SHARDS = ("00000", "00001")


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    base = tmp_path_factory.mktemp("parts")
    make_kmer_tokenizer(KmerConfig(k=1), base / "tokenizer", SilentReporter())
    for shard in SHARDS:
        texts = [f"shard {shard}, document {number}" for number in range(20)]
        write_shard(base / "documents" / shard, texts)
        tokenize_shard(TokenizeConfig(), [base / "documents" / shard], base / "tokenizer", base / shard, shard, SilentReporter())
    return [base / shard for shard in SHARDS]


@pytest.fixture
def cache(fabricated: Fabricated, parts: list[Path]) -> ArtifactStep:
    """A declared family, of which both parts are committed."""
    handle = step("tokenized/web", partitions=SHARDS)
    fabricated.declare(handle)
    for shard, part in zip(SHARDS, parts, strict=True):
        fabricated.build(handle, shard, content={"part.json": "{}"})
        record = fabricated.store.record(ArtifactId(handle.name, handle.version, shard))
        assert record is not None
        folder = fabricated.store.payload_path(record)
        assert folder is not None
        shutil.copytree(part, folder, dirs_exist_ok=True)
    return handle


@pytest.mark.parametrize("target", ["tokenized/web", "tokenized/web@v1"])
@pytest.mark.parametrize("layout", ["flat", "megatron"])
def test_all_parts_become_one_stream(
    target: str, layout: str, cache: ArtifactStep, parts: list[Path], marin: Marin, tmp_path: Path
) -> None:
    said = marin("export", target, "--format", layout, "--to", str(tmp_path / "out"), "--json")
    assert (said.code, said.err) == (0, "")
    expected = TokenCache(parts)
    assert (said.json["documents"], said.json["tokens"], said.json["folder"]) == (40, expected.tokens, str(tmp_path / "out"))
    tokens = np.fromfile(tmp_path / "out" / "tokens.bin", "<u2")
    assert np.array_equal(tokens, expected.read(0, expected.tokens))
    assert json.loads((tmp_path / "out" / "export.json").read_text())["digest"] == said.json["digest"]


def test_people_read_what_was_written(cache: ArtifactStep, marin: Marin, tmp_path: Path) -> None:
    said = marin("export", "tokenized/web@v1/00001", "--format", "flat", "--to", str(tmp_path / "one"))
    assert said.code == 0
    assert "20" in said.out
    assert "of uint16" in said.out
    again = marin("export", "tokenized/web@v1/00001", "--format", "flat", "--to", str(tmp_path / "one"))
    assert again.code == 64
    assert "not an empty folder" in again.err


def test_a_part_that_is_missing_or_no_cache_is_named(fabricated: Fabricated, marin: Marin, tmp_path: Path) -> None:
    family, other = step("tokenized/web", partitions=SHARDS), step("raw/notes")
    fabricated.declare(family, other)
    fabricated.build(family, "00000", content={"part.json": "{}"})
    fabricated.build(other)
    for target, says in (("tokenized/web", "tokenized/web@v1/00001 isn't committed"), ("raw/notes", "raw/notes@v1 is no token cache")):
        said = marin("export", target, "--format", "flat", "--to", str(tmp_path / "out"))
        assert said.code == 64
        assert says in said.err
        assert not (tmp_path / "out").exists()
