import hashlib
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import tensorstore as ts

from marin_core.data.cache import TokenCache, ledger_of
from marin_core.data.config import TokenizeConfig, TokenizerConfig
from marin_core.data.filter import filter_shard
from marin_core.data.part import CHUNK, PartWriter, read_info
from marin_core.data.shard import find_part, read_part
from marin_core.data.split import held_out
from marin_core.data.stages import FilterConfig
from marin_core.data.tokenize import LongTextEncoder, cut, tokenize_shard
from marin_core.data.tokenizer import load_tokenizer, train_tokenizer
from marin_core.errors import ConfigError, DataError
from marin_core.report import SilentReporter
from tests.data.conftest import TOKENIZE, Corpus, ingest_texts, sentences


def texts_of(shards: list[Path]) -> dict[str, str]:
    return {
        identity: text
        for shard in shards
        for columns in read_part(find_part(shard))
        for identity, text in zip(columns["id"], columns["text"], strict=True)
    }


def test_every_document_has_bos_and_eos_once_and_decodes_to_its_text(corpus: Corpus) -> None:
    tokenizer = load_tokenizer(corpus.tokenizer)
    texts = texts_of(corpus.shards)
    cache = TokenCache(corpus.parts)
    seen = set()
    for document in cache.documents():
        tokens = document.tokens.tolist()
        assert (tokens[0], tokens[-1]) == (0, 1)
        assert not set(tokens[1:-1]) & {0, 1, 2}
        text = tokenizer.decode(tokens[1:-1])
        assert text == texts[document.id]
        assert document.bytes == len(text.encode())
        seen.add(document.id)
    assert len(seen) == cache.documents_total == sum(read_info(part).documents for part in corpus.parts)


def test_train_and_held_out_are_disjoint_by_document_and_complete(corpus: Corpus) -> None:
    train = {document.id for document in TokenCache(corpus.parts).documents()}
    kept_out = {document.id for document in TokenCache([corpus.held_out]).documents()}
    assert kept_out
    assert not train & kept_out
    assert train | kept_out == set(texts_of(corpus.shards))
    assert all(held_out(identity, 1_000) for identity in kept_out)


def test_special_text_in_a_document_ends_nothing(tmp_path: Path, corpus: Corpus) -> None:
    raw = ingest_texts(tmp_path / "in", {"a.jsonl": ["before <|eos|> after <|bos|><|pad|>"]}, tmp_path / "raw")
    filter_shard(FilterConfig(shards=1), raw, "00000", tmp_path / "f", SilentReporter())
    report = tokenize_shard(TokenizeConfig(), [tmp_path / "f"], corpus.tokenizer, tmp_path / "t", "00000", SilentReporter())
    assert all(check.passed for check in report.checks)
    (document,) = TokenCache([tmp_path / "t"]).documents()
    assert (document.tokens == 1).sum() == 1


def files(folder: Path) -> dict[str, str]:
    return {str(p.relative_to(folder)): hashlib.sha256(p.read_bytes()).hexdigest() for p in sorted(folder.rglob("*")) if p.is_file()}


@pytest.mark.parametrize("batch_bytes", [1_024, 100_000])
def test_the_batch_size_changes_nothing(tmp_path: Path, corpus: Corpus, batch_bytes: int) -> None:
    config = TOKENIZE.changed(batch_bytes=batch_bytes)
    tokenize_shard(config, corpus.shards[:1], corpus.tokenizer, tmp_path / "p", "00000", SilentReporter())
    assert files(tmp_path / "p") == files(corpus.parts[0])


def test_resharding_keeps_the_multiset_digest(tmp_path: Path, corpus: Corpus) -> None:
    tokenize_shard(TOKENIZE, corpus.shards, corpus.tokenizer, tmp_path / "p", "all", SilentReporter())
    whole = read_info(tmp_path / "p")
    parts = [read_info(part) for part in corpus.parts]
    assert int(whole.multiset_digest, 16) == sum(int(part.multiset_digest, 16) for part in parts) % 2**128
    assert whole.tokens == sum(part.tokens for part in parts)
    one, many = TokenCache([tmp_path / "p"]), TokenCache(corpus.parts)
    assert np.array_equal(one.read(0, one.tokens), many.read(0, many.tokens))


def test_any_window_equals_the_slice_of_the_stream(corpus: Corpus) -> None:
    cache = TokenCache(corpus.parts)
    stream = np.concatenate([document.tokens for document in cache.documents()])
    starts = np.random.default_rng(0).integers(0, cache.tokens - 777, 50)
    border = cache.ledger[0].tokens
    starts[:3] = [0, cache.tokens - 777, border - 5]
    windows = cache.read_windows(starts, 777)
    assert windows.dtype == np.int32
    assert np.array_equal(windows, np.stack([stream[start : start + 777] for start in starts]))
    with pytest.raises(IndexError, match="not inside"):
        cache.read(0, cache.tokens + 1)
    cache.verify()


@pytest.mark.parametrize("bos", ["prepend", "none"])
@pytest.mark.parametrize("eos", ["append", "none"])
def test_the_policy_decides_which_special_ids_stand_in_the_stream(tmp_path: Path, corpus: Corpus, bos: str, eos: str) -> None:
    config = TokenizeConfig.from_json({"bos": bos, "eos": eos})
    report = tokenize_shard(config, corpus.shards[:1], corpus.tokenizer, tmp_path, "00000", SilentReporter())
    assert [check.name for check in report.checks if not check.passed] == []
    cache = TokenCache([tmp_path])
    tokens = cache.read(0, cache.tokens)
    assert (tokens == 0).sum() == (cache.documents_total if bos == "prepend" else 0)
    assert (tokens == 1).sum() == (cache.documents_total if eos == "append" else 0)


def test_a_part_is_plain_zarr_that_any_reader_opens(corpus: Corpus) -> None:
    spec = {"driver": "zarr3", "kvstore": {"driver": "file", "path": str(corpus.parts[0] / "tokens")}}
    array = ts.open(spec, read=True).result()
    info = read_info(corpus.parts[0])
    assert (array.shape, array.dtype.name) == ((info.tokens,), "uint16")
    metadata = json.loads((corpus.parts[0] / "tokens" / "zarr.json").read_text())
    assert metadata["shape"] == [info.tokens]
    assert metadata["codecs"][0]["configuration"]["chunk_shape"] == [CHUNK]
    assert [codec["name"] for codec in metadata["codecs"][0]["configuration"]["codecs"]] == ["bytes", "zstd", "crc32c"]


@pytest.fixture
def copy(corpus: Corpus, tmp_path: Path) -> Path:
    return Path(shutil.copytree(corpus.parts[1], tmp_path / "part"))


def test_a_flipped_byte_is_an_error_that_names_the_part(copy: Path) -> None:
    path = copy / "tokens" / "c" / "0"
    data = bytearray(path.read_bytes())
    data[len(data) // 2 - 40_000 if len(data) > 100_000 else 100] ^= 1
    path.write_bytes(data)
    cache = TokenCache([copy])
    with pytest.raises(DataError, match=r"cache part '.*part' is damaged.*[Dd]igest") as caught:
        cache.read(0, cache.tokens)
    assert caught.value.exit_code == 65


@pytest.mark.parametrize("file", ["tokens/c/0", "tokens/zarr.json", "offsets/c/0", "ids.parquet"])
@pytest.mark.parametrize("damage", ["missing", "cut", "empty"])
def test_a_missing_or_cut_file_is_an_error_and_never_zeros(copy: Path, file: str, damage: str) -> None:
    path = copy / file
    if damage == "missing":
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[:-40] if damage == "cut" else b"")
    cache = TokenCache([copy])
    with pytest.raises(DataError, match=file):
        cache.read(0, 10)
    with pytest.raises(DataError, match="damaged"):
        list(cache.documents())


def test_a_chunk_that_vanishes_after_opening_is_an_error(copy: Path) -> None:
    cache = TokenCache([copy])
    assert len(cache.read(0, 0)) == 0
    cache._array(0)
    (copy / "tokens" / "c" / "0").unlink()
    with pytest.raises(DataError, match="missing"):
        cache.read(0, 10)


def test_chunks_of_id_zero_are_stored_and_their_loss_is_noticed(tmp_path: Path) -> None:
    writer = PartWriter(tmp_path, "uint16", shard_tokens=2 * CHUNK)
    writer.add("a", "s", np.zeros(5 * CHUNK + 7, np.uint32), 1)
    writer.finish()
    assert sorted(path.name for path in (tmp_path / "tokens" / "c").iterdir()) == ["0", "1", "2"]
    spec = {"driver": "zarr3", "kvstore": {"driver": "file", "path": str(tmp_path / "tokens")}, "fill_missing_data_reads": False}
    assert (ts.open(spec, read=True).result().read().result() == 0).all()
    assert ts.open(spec, read=True).result().shape == (5 * CHUNK + 7,)


def test_files_of_tokens_are_cut_at_their_size_and_read_back(tmp_path: Path) -> None:
    random = np.random.default_rng(1)
    documents = [random.integers(0, 60_000, int(n)).astype(np.uint32) for n in random.integers(1, 3 * CHUNK, 12)]
    writer = PartWriter(tmp_path, "uint16", shard_tokens=2 * CHUNK)
    for index, ids in enumerate(documents):
        writer.add(str(index), "s", ids, 1)
    writer.finish()
    spec = {"driver": "zarr3", "kvstore": {"driver": "file", "path": str(tmp_path / "tokens")}}
    assert np.array_equal(ts.open(spec, read=True).result().read().result(), np.concatenate(documents))


def test_parts_of_another_tokenizer_policy_or_schema_are_refused(tmp_path: Path, corpus: Corpus, copy: Path) -> None:
    train_tokenizer(TokenizerConfig(vocab_size=300), corpus.shards, tmp_path / "tok", SilentReporter())
    tokenize_shard(TOKENIZE, corpus.shards[:1], tmp_path / "tok", tmp_path / "other", "00000", SilentReporter())
    ours, theirs = read_info(copy).tokenizer.digest, read_info(tmp_path / "other").tokenizer.digest
    with pytest.raises(ConfigError, match="tokenizer digest") as caught:
        TokenCache([copy, tmp_path / "other"])
    assert ours in caught.value.message
    assert theirs in caught.value.message
    assert caught.value.exit_code == 64
    tokenize_shard(TOKENIZE.changed(bos="none"), corpus.shards[:1], corpus.tokenizer, tmp_path / "nobos", "00000", SilentReporter())
    with pytest.raises(ConfigError, match="policy"):
        TokenCache([copy, tmp_path / "nobos"])
    content = json.loads((copy / "part.json").read_text())
    (copy / "part.json").write_text(json.dumps(content | {"schema": "cache-part/9"}))
    with pytest.raises(ConfigError, match=r"cache-part/9.*cache-part/1"):
        TokenCache([copy])
    (copy / "part.json").unlink()
    with pytest.raises(DataError, match=r"part\.json"):
        TokenCache([copy])


def test_with_a_ledger_no_part_is_opened_before_it_is_needed(corpus: Corpus, tmp_path: Path) -> None:
    ledger = [ledger_of(read_info(part)) for part in corpus.parts]
    cache = TokenCache([corpus.parts[0], tmp_path / "gone", corpus.parts[2]], ledger=ledger)
    cache.read(0, 5)
    cache.read(cache.tokens - 5, cache.tokens)
    with pytest.raises(DataError, match="gone"):
        cache.read(ledger[0].tokens - 1, ledger[0].tokens + 1)
    swapped = TokenCache(corpus.parts[::-1], ledger=ledger)
    with pytest.raises(ConfigError, match="the mixture was made with"):
        swapped.read(0, 5)


def test_an_empty_part_is_valid_and_has_no_tokens(tmp_path: Path, corpus: Corpus) -> None:
    config = TokenizeConfig(split="train", held_out_per_10000=10_000)
    report = tokenize_shard(config, corpus.shards[:1], corpus.tokenizer, tmp_path, "00000", SilentReporter())
    assert report.metrics["tokens"] == 0
    assert all(check.passed for check in report.checks)
    cache = TokenCache([tmp_path, corpus.parts[0]])
    assert len(list(cache.documents())) == cache.documents_total


def test_long_documents_are_cut_without_changing_their_ids(corpus: Corpus) -> None:
    tokenizer = load_tokenizer(corpus.tokenizer)
    long = " ".join(sentences(400, 5)) + "   double  spaces, 1 2 3\n" + "x" * 30_000 + " end"
    pieces = cut(long)
    assert "".join(pieces) == long
    assert len(pieces) > 5
    encoder = LongTextEncoder(tokenizer, 10_000)
    (ids, short) = encoder.encode([long, "short"])
    assert not encoder.split_off
    assert ids.tolist() == tokenizer.encode(long)
    assert short.tolist() == tokenizer.encode("short")
    encoder._unchecked = 0
    assert encoder.encode([long])[0].tolist() == ids.tolist()


def test_a_document_that_does_not_match_its_id_is_an_error(tmp_path: Path, corpus: Corpus, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("marin_core.data.tokenize.document_id", lambda _: "0" * 32)
    with pytest.raises(DataError, match="has a text with id"):
        tokenize_shard(TOKENIZE, corpus.shards[:1], corpus.tokenizer, tmp_path, "00000", SilentReporter())
