import json
import shutil
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer as RustTokenizer

from marin_core.data.config import TokenizerConfig
from marin_core.data.filter import filter_shard
from marin_core.data.probes import PROBES
from marin_core.data.rules.config import MinCharacters
from marin_core.data.stages import FilterConfig
from marin_core.data.tokenizer import Tokenizer, load_tokenizer, tokenizer_digest, train_tokenizer
from marin_core.errors import ConfigError, DataError
from marin_core.report import SilentReporter
from tests.data.conftest import Corpus, ingest_texts


@pytest.fixture(scope="module")
def tokenizer(corpus: Corpus) -> Tokenizer:
    return load_tokenizer(corpus.tokenizer)


def test_there_are_two_hundred_distinct_probes() -> None:
    assert len(PROBES) == len(set(PROBES)) == 200


def test_specials_are_the_first_ids_and_their_text_is_plain(tokenizer: Tokenizer) -> None:
    assert (tokenizer.bos_id, tokenizer.eos_id, tokenizer.pad_id) == (0, 1, 2)
    for text in ("<|bos|>", "<|eos|>", "a<|pad|>b", " <|eos|> <|eos|>"):
        ids = tokenizer.encode(text)
        assert not set(ids) & {0, 1, 2}
        assert tokenizer.decode(ids) == text
    assert tokenizer.decode([0, *tokenizer.encode("x"), 1]) == "<|bos|>x<|eos|>"


def test_encoding_is_reversible(tokenizer: Tokenizer) -> None:
    @given(st.text(max_size=200) | st.text(alphabet=" \n\t<|eos>ab…é你🙂\u0000\u200d", max_size=200))
    def reversible(text: str) -> None:
        assert tokenizer.decode(tokenizer.encode(text)) == text

    reversible()


def test_a_batch_gives_the_ids_of_its_texts(tokenizer: Tokenizer) -> None:
    assert tokenizer.encode_batch(PROBES) == [tokenizer.encode(text) for text in PROBES]


def test_training_is_deterministic(corpus: Corpus, tmp_path: Path) -> None:
    report = train_tokenizer(TokenizerConfig(vocab_size=400), corpus.shards, tmp_path, SilentReporter())
    assert (tmp_path / "tokenizer.json").read_bytes() == (corpus.tokenizer / "tokenizer.json").read_bytes()
    assert report.content_digest == load_tokenizer(corpus.tokenizer).digest
    assert all(check.passed for check in report.checks)
    assert report.metrics["vocab_size"] == 400


def test_the_digest_is_of_the_meaning_not_of_the_formatting(corpus: Corpus, tmp_path: Path) -> None:
    digest = tokenizer_digest(corpus.tokenizer / "tokenizer.json")
    content = json.loads((corpus.tokenizer / "tokenizer.json").read_bytes())
    content["model"]["merges"] = [" ".join(merge) for merge in content["model"]["merges"]]
    content["padding"] = {"strategy": "BatchLongest"}
    (tmp_path / "a.json").write_text(json.dumps(content, indent=3))
    assert tokenizer_digest(tmp_path / "a.json") == digest
    content["model"]["merges"].pop()
    (tmp_path / "a.json").write_text(json.dumps(content))
    assert tokenizer_digest(tmp_path / "a.json") != digest


def test_a_tokenizer_that_truncates_pads_or_lacks_specials_is_refused(corpus: Corpus, tmp_path: Path) -> None:
    for setting in ("truncation", "padding"):
        rust = RustTokenizer.from_file(str(corpus.tokenizer / "tokenizer.json"))
        rust.enable_truncation(8) if setting == "truncation" else rust.enable_padding()
        rust.save(str(tmp_path / "tokenizer.json"))
        with pytest.raises(ConfigError, match=setting):
            load_tokenizer(tmp_path)
    shutil.copy(corpus.tokenizer / "tokenizer.json", tmp_path)
    (tmp_path / "tokenizer_info.json").write_text(json.dumps({"specials": {"bos": "<s>", "eos": "</s>", "pad": "<pad>"}}))
    with pytest.raises(ConfigError, match="<s>"):
        load_tokenizer(tmp_path)


@pytest.mark.parametrize("content", [None, "", "[]", '{"model": 1}'])
def test_a_broken_tokenizer_file_is_an_error(tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises(DataError, match="tokenizer"):
        load_tokenizer(tmp_path)


def test_training_without_documents_is_an_error(tmp_path: Path) -> None:
    raw = ingest_texts(tmp_path / "in", {"a.jsonl": ["short"]}, tmp_path / "raw")
    filter_shard(FilterConfig(filters=(MinCharacters(),), shards=1), raw, "00000", tmp_path / "f", SilentReporter())
    with pytest.raises(DataError, match="no document"):
        train_tokenizer(TokenizerConfig(vocab_size=300), [tmp_path / "f"], tmp_path / "t", SilentReporter())
