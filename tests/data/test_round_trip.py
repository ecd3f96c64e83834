"""decode(tokenize(x)) = x, for tokenizers that are trained, adopted and made, alone and through a cache, however it is run."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marin_core.data.cache import TokenCache
from marin_core.data.config import KmerConfig, TokenizeConfig
from marin_core.data.kmer import make_kmer_tokenizer
from marin_core.data.normal_form import normal_form
from marin_core.data.shard import find_part, read_part
from marin_core.data.tokenize import LongTextEncoder, tokenize_shard
from marin_core.data.tokenizer import Tokenizer, load_tokenizer
from marin_core.report import SilentReporter
from tests.data.conftest import Corpus
from tests.data.foreign_tokenizers import llama3_like
from tests.data.token_shards import digests, write_shard

LOOK_ALIKES = [
    "<|bos|>",
    "<|eos|>",
    "<|pad|>",
    "<|eot_id|>",
    "<|begin_of_text|>",
    "<|",
    "|>",
    "<|eos|",
    " <|eos|> ",
    "<|EOS|>",
    "<｜eos｜>",
]
PLANES = [st.characters(min_codepoint=plane << 16, max_codepoint=(plane << 16) + 0xFFFF, exclude_categories=["Cs"]) for plane in range(17)]
TEXTS = st.lists(
    st.one_of(
        st.sampled_from([*LOOK_ALIKES, "\u0000", "\u0000\u0000", "\ufeff", "\u202e", "\u200d", "\r\n", "   ", "\u00a0"]),
        st.text(max_size=20),
        st.one_of(PLANES),
        st.text(alphabet="ACGTNacgt", max_size=40),
    ),
    max_size=12,
).map("".join)


@pytest.fixture(scope="module", params=["trained", "adopted", "kmer_1", "kmer_4"])
def folder(request: pytest.FixtureRequest, corpus: Corpus, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tokenizer of each kind."""
    if request.param == "trained":
        return corpus.tokenizer
    made: Path = tmp_path_factory.mktemp(request.param)
    if request.param == "adopted":
        return llama3_like(corpus.tokenizer, made)
    make_kmer_tokenizer(KmerConfig(k=int(request.param[-1])), made, SilentReporter())
    return made


@pytest.fixture(scope="module")
def tokenizer(folder: Path) -> Tokenizer:
    return load_tokenizer(folder)


def test_every_text_survives_and_no_text_is_special(tokenizer: Tokenizer) -> None:
    special = {tokenizer.bos_id, tokenizer.eos_id, tokenizer.pad_id}

    @settings(max_examples=150)
    @given(TEXTS)
    def survives(text: str) -> None:
        ids = tokenizer.encode(text)
        assert tokenizer.decode(ids) == text
        assert not special & set(ids)
        assert all(0 <= index < tokenizer.vocab_size for index in ids)

    survives()


def test_long_documents_survive_being_cut(tokenizer: Tokenizer) -> None:
    @settings(max_examples=4, deadline=None)
    @given(st.lists(TEXTS.filter(bool), min_size=3, max_size=9), st.integers(0, 2**32))
    def survives(pieces: list[str], seed: int) -> None:
        words = np.random.default_rng(seed).choice([*pieces, "word", "Another", "x"], 4_000)
        text = " ".join(words.tolist())
        encoder = LongTextEncoder(tokenizer, 10_000)
        (ids,) = encoder.encode([text])
        assert ids.tolist() == tokenizer.encode(text)
        encoder._unchecked = 0  # from now on the pieces alone decide
        (ids,) = encoder.encode([text])
        assert tokenizer.decode(ids.tolist()) == text

    survives()


def fuzz_corpus(count: int, seed: int) -> list[str]:
    """Texts in normal form of look-alikes, characters of all planes and bases."""
    random = np.random.default_rng(seed)
    texts = []
    for _ in range(count):
        pieces = []
        for _ in range(int(random.integers(1, 30))):
            plane = int(random.integers(17))
            point = (plane << 16) + int(random.integers(0x10000))
            character = "" if 0xD800 <= point < 0xE000 else chr(point)
            bases = "".join("ACGTN"[base] for base in random.integers(5, size=9))
            look_alike = LOOK_ALIKES[int(random.integers(len(LOOK_ALIKES)))]
            pieces.append((look_alike, character, bases, " ", "\n", "naïve", "\x00")[int(random.integers(7))])
        texts.append(normal_form("".join(pieces))[0])
    return [text for text in texts if text]


def test_every_document_of_a_fuzz_corpus_survives_its_cache(folder: Path, tmp_path: Path) -> None:
    shard = write_shard(tmp_path / "shard", [*fuzz_corpus(400, 1), "word <|eos|> " * 2_000 + "end"])
    config = TokenizeConfig(long_document_characters=10_000)
    report = tokenize_shard(config, [shard], folder, tmp_path / "part", "00000", SilentReporter())
    assert [check.name for check in report.checks if not check.passed] == []
    tokenizer, cache = load_tokenizer(folder), TokenCache([tmp_path / "part"])
    decoded = {document.id: tokenizer.decode(document.tokens[1:-1].tolist()) for document in cache.documents()}
    (columns,) = read_part(find_part(shard))
    assert decoded == dict(zip(columns["id"], columns["text"], strict=True))


CHILD = """
import json, os, signal, sys
from pathlib import Path
from marin_core.data.config import TokenizeConfig
from marin_core.data.tokenize import tokenize_shard
from marin_core.report import SilentReporter

class KilledAt(SilentReporter):
    def progress(self, done, total, unit):
        if 0 < kill_at <= done:
            os.kill(os.getpid(), signal.SIGKILL)

shard, tokenizer, output, kill_at = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])
tokenize_shard(TokenizeConfig(batch_bytes=2048), [Path(shard)], Path(tokenizer), Path(output), "00000", KilledAt())
"""


def test_threads_and_kills_change_no_byte(corpus: Corpus, tmp_path: Path) -> None:
    def run(output: Path, threads: int, kill_at: int = 0) -> int:
        arguments = [str(corpus.shards[0]), str(corpus.tokenizer), str(output), str(kill_at)]
        environment = os.environ | {"RAYON_NUM_THREADS": str(threads), "PYTHONHASHSEED": str(threads), "TOKENIZERS_PARALLELISM": "true"}
        return subprocess.run([sys.executable, "-c", CHILD, *arguments], env=environment, check=False).returncode

    assert run(tmp_path / "one", 1) == run(tmp_path / "two", 2) == 0
    assert digests(tmp_path / "one") == digests(tmp_path / "two")
    assert run(tmp_path / "killed", 2, kill_at=40) == -signal.SIGKILL
    assert not (tmp_path / "killed" / "part.json").exists(), "an unfinished part has no part.json"
    assert run(tmp_path / "killed", 1) == 0
    assert digests(tmp_path / "killed") == digests(tmp_path / "one")
    info = json.loads((tmp_path / "one" / "part.json").read_text())
    assert {file["path"] for file in info["files"]} | {"part.json"} == digests(tmp_path / "one").keys()
