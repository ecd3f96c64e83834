"""The fast engine is used where its ids are the tokenizer's, and nowhere else; the part is the same either way."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from marin_core.data import engine as engines
from marin_core.data import tokenize
from marin_core.data.config import KmerConfig, TokenizeConfig
from marin_core.data.engine import Encoded, EngineUnusableError, GigatokenEngine, PlainEngine
from marin_core.data.kmer import make_kmer_tokenizer
from marin_core.data.part import read_info
from marin_core.data.shard import read_rejected
from marin_core.data.tokenize import LongTextEncoder, tokenize_shard
from marin_core.data.tokenizer import Tokenizer, load_tokenizer
from marin_core.errors import MarinError
from marin_core.report import Report, SilentReporter
from tests.data.conftest import Corpus
from tests.data.foreign_tokenizers import llama3_like
from tests.data.token_shards import digests, write_shard

FAST = TokenizeConfig(engine="gigatoken")


class Listening(SilentReporter):
    def __init__(self) -> None:
        self.lines: list[str] = []

    def log(self, message: str) -> None:
        self.lines.append(message)


class Imitation:
    """Encodes like the tokenizer, but for one document."""

    def __init__(self, tokenizer: Tokenizer, wrong_about: str = "") -> None:
        self._tokenizer = tokenizer
        self._wrong_about = wrong_about

    def encode(self, text: str) -> npt.NDArray[np.uint32]:
        ids = np.array(self._tokenizer.encode(text), np.uint32)
        return ids[::-1] if self._wrong_about and self._wrong_about in text else ids


def imitated(monkeypatch: pytest.MonkeyPatch, wrong_about: str = "") -> None:
    monkeypatch.setattr(engines, "_build", lambda tokenizer: Imitation(tokenizer, wrong_about))


def run(shards: Sequence[Path], tokenizer: Path, output: Path, config: TokenizeConfig = FAST) -> tuple[Report, list[str]]:
    reporter = Listening()
    return tokenize_shard(config, shards, tokenizer, output, "00000", reporter), reporter.lines


def check(report: Report) -> tuple[bool, str]:
    (found,) = (check for check in report.checks if check.name == "engine_as_asked")
    return found.passed, found.description


@pytest.mark.parametrize("kind", ["trained", "llama3"])
def test_gigatoken_makes_the_same_part(corpus: Corpus, tmp_path: Path, kind: str) -> None:
    pytest.importorskip("gigatoken")
    tokenizer = corpus.tokenizer if kind == "trained" else llama3_like(corpus.tokenizer, tmp_path / "llama3")
    shards = [*corpus.shards, write_shard(tmp_path / "special", ["before <|eos|> after", "<|bos|>", "\u4f60\u597d  \n\n x", "a\u00a0b"])]
    plain, _ = run(shards, tokenizer, tmp_path / "plain", TokenizeConfig())
    fast, lines = run(shards, tokenizer, tmp_path / "fast", TokenizeConfig(engine="gigatoken", long_document_characters=10_000))
    assert (fast.metrics["engine"], lines, check(fast)[0]) == ("gigatoken", [], True)
    same = digests(tmp_path / "plain").items() ^ digests(tmp_path / "fast").items()
    assert {path for path, _ in same} == {"part.json"}, "only long_document_characters differs"
    assert fast.content_digest == plain.content_digest


def test_a_tokenizer_that_gigatoken_does_not_know_falls_back_to_the_same_part(corpus: Corpus, tmp_path: Path) -> None:
    pytest.importorskip("gigatoken")
    make_kmer_tokenizer(KmerConfig(k=3), tmp_path / "kmer", SilentReporter())
    shard = write_shard(tmp_path / "shard", ["ACGTTGCAN" * 40, "acgt ACG", "<|eos|>"])
    run([shard], tmp_path / "kmer", tmp_path / "plain", TokenizeConfig())
    fast, _ = run([shard], tmp_path / "kmer", tmp_path / "fast")
    assert digests(tmp_path / "plain") == digests(tmp_path / "fast")
    assert (fast.metrics["engine"] == "gigatoken") == check(fast)[0]


def test_gigatoken_with_special_tokens_is_caught_by_the_probes(corpus: Corpus, monkeypatch: pytest.MonkeyPatch) -> None:
    gigatoken = pytest.importorskip("gigatoken")
    tokenizer = load_tokenizer(corpus.tokenizer)
    monkeypatch.setattr(engines, "_build", lambda known: gigatoken.Tokenizer.from_json(json.dumps(known.content)).backend)
    with pytest.raises(EngineUnusableError, match=r"other ids for '<\|bos\|>'"):
        GigatokenEngine(tokenizer, LongTextEncoder(tokenizer, 10_000))


def fails_in_the_middle(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(engines, "COMPARED_PER_100", 100)
    imitated(patch, wrong_about="Document 4-")


def panics(patch: pytest.MonkeyPatch) -> None:
    class PanicError(BaseException):
        """As the library's panics, no Exception."""

    class Panicking(Imitation):
        def encode(self, text: str) -> npt.NDArray[np.uint32]:
            if "Document 4-" in text:
                raise PanicError("index out of bounds")
            return super().encode(text)

    patch.setattr(engines, "_build", Panicking)


@pytest.mark.parametrize(
    ("broken", "says"),
    [
        (lambda patch: patch.setattr(engines, "find_spec", lambda _: None), "not installed; the extra `fast`"),
        (lambda patch: imitated(patch, wrong_about="import"), "other ids for 'import'"),
        (fails_in_the_middle, "other ids for document"),
        (panics, "PanicError: index out of bounds"),
    ],
)
def test_without_proof_the_part_is_encoded_with_tokenizers(
    broken: Callable[[pytest.MonkeyPatch], None], says: str, corpus: Corpus, tmp_path: Path
) -> None:
    run(corpus.shards, corpus.tokenizer, tmp_path / "plain", TokenizeConfig())
    with pytest.MonkeyPatch.context() as patch:
        broken(patch)
        report, lines = run(corpus.shards, corpus.tokenizer, tmp_path / "fast", FAST.changed(batch_bytes=2_048))
    assert digests(tmp_path / "fast") == digests(tmp_path / "plain")
    assert report.metrics["engine"] == "tokenizers"
    passed, description = check(report)
    assert not passed
    assert says in description
    assert says in str(report.metrics["engine_fallback"])
    assert len(lines) == 1
    assert says in lines[0]


def test_a_hundredth_of_the_documents_and_the_first_ones_are_compared(corpus: Corpus, monkeypatch: pytest.MonkeyPatch) -> None:
    imitated(monkeypatch)
    tokenizer = load_tokenizer(corpus.tokenizer)
    engine = GigatokenEngine(tokenizer, LongTextEncoder(tokenizer, 10_000))
    random = np.random.default_rng(0)
    identities = [random.bytes(16).hex() for _ in range(5_000)]
    for start in range(0, 5_000, 500):
        engine.encode(identities[start : start + 500], ["x"] * 500)
    assert 25 < engine.compared - engines.COMPARED_FIRST < 85


def test_a_document_without_tokens_is_set_aside(corpus: Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shard = write_shard(tmp_path / "shard", ["first", "nothing\x1b of it", "last"])

    class Forgetful(PlainEngine):
        def encode(self, identities: Sequence[str], texts: Sequence[str]) -> Encoded:
            return Encoded.of([np.array([] if "nothing" in text else [7, 8], np.uint32) for text in texts])

    monkeypatch.setattr(tokenize, "PlainEngine", Forgetful)
    report, _ = run([shard], corpus.tokenizer, tmp_path / "part", TokenizeConfig())
    assert all(check.passed for check in report.checks)
    assert (report.metrics["documents"], report.metrics["documents_without_tokens"]) == (2, 1)
    (row,) = read_rejected(tmp_path / "part" / "rejected" / "00000.jsonl.zst")
    assert (row["stage"], row["reason"], row["sample"]) == ("tokenize", "no_tokens", "nothing\\x1b of it")


def test_an_id_outside_the_vocabulary_is_a_defect(corpus: Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    encode: Callable[..., Any] = LongTextEncoder.encode
    monkeypatch.setattr(LongTextEncoder, "encode", lambda self, texts: [ids + 70_000 for ids in encode(self, texts)])
    with pytest.raises(MarinError, match="outside the vocabulary of 400") as caught:
        run(corpus.shards, corpus.tokenizer, tmp_path, TokenizeConfig())
    assert caught.value.exit_code == 70
    assert not (tmp_path / "part.json").exists()


def test_a_renewed_tokenizer_goes_on_alike(corpus: Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run(corpus.shards, corpus.tokenizer, tmp_path / "one", TokenizeConfig())
    renewals: list[None] = []
    renew = Tokenizer.renew
    monkeypatch.setattr(Tokenizer, "renew", lambda self: renewals.append(renew(self)))
    monkeypatch.setattr(tokenize, "RENEWED_EVERY", 8_000)
    run(corpus.shards, corpus.tokenizer, tmp_path / "many", TokenizeConfig(batch_bytes=1_024))
    assert len(renewals) == read_info(tmp_path / "many").bytes // 8_000 or len(renewals) > 5
    assert digests(tmp_path / "one") == digests(tmp_path / "many")
