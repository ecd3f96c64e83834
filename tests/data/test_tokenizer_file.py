"""Tokenizers from elsewhere: checked, refused with what is wrong, and identified by what they say; and tokenizers of bases."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from marin_core import experiment as lab
from marin_core.artifact.record import file_sha256
from marin_core.data.config import KmerConfig, Specials, TokenizerFile
from marin_core.data.files import percent_encoded
from marin_core.data.kmer import make_kmer_tokenizer
from marin_core.data.tokenizer import load_tokenizer, tokenizer_digest
from marin_core.data.tokenizer_file import adopt_tokenizer
from marin_core.data.units import Unit, UnitList
from marin_core.errors import ConfigError, DataError
from marin_core.experiment.jobs import KmerTokenizerJob, TokenizerFileJob
from marin_core.experiment.tokens import kmer_tokenizer, tokenizer_from
from marin_core.report import SilentReporter
from tests.data.conftest import Corpus
from tests.data.foreign_tokenizers import LLAMA3_SPECIALS, llama3_content
from tests.data.foreign_tokenizers import content as ours_content

SPECIALS = Specials(**LLAMA3_SPECIALS)


def raw_with(folder: Path, content: Any, name: str = "original/tokenizer.json") -> Path:
    """A raw source with one file."""
    unit = folder / "units" / "hub" / percent_encoded(name)
    unit.parent.mkdir(parents=True)
    unit.write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
    path = unit.relative_to(folder).as_posix()
    entry = Unit(path, unit.stat().st_size, file_sha256(unit), None, "llama3", "TRAINING_ALLOWED", None, "hub", percent_encoded(name))
    UnitList("raw/hub", (entry,)).write(folder)
    return folder


def adopt(raw: Path, output: Path, **changes: Any) -> Any:
    config = TokenizerFile(file="original/tokenizer.json", specials=SPECIALS).changed(**changes)
    return adopt_tokenizer(config, raw, output, SilentReporter())


def test_a_tokenizer_from_elsewhere_keeps_its_bytes_and_its_ids(corpus: Corpus, tmp_path: Path) -> None:
    content = llama3_content(corpus.tokenizer)
    raw = raw_with(tmp_path / "raw", content)
    report = adopt(raw, tmp_path / "out")
    assert (tmp_path / "out" / "tokenizer.json").read_bytes() == json.dumps(content).encode()
    assert [check.name for check in report.checks if not check.passed] == []
    tokenizer = load_tokenizer(tmp_path / "out")
    bos = content["added_tokens"][0]["id"]
    assert (tokenizer.bos_id, tokenizer.eos_id, tokenizer.pad_id) == (bos, bos + 1, bos + 2)
    assert tokenizer.vocab_size == bos + 4
    assert tokenizer.splittable
    assert report.content_digest == tokenizer_digest(tmp_path / "out" / "tokenizer.json")
    assert adopt(raw, tmp_path / "again", digest=report.content_digest).content_digest == report.content_digest
    assert [row["token"] for row in report.tables["added_tokens"]][-1] == "<|eot_id|>"


def test_an_embedding_needs_a_row_for_every_id_up_to_the_largest(corpus: Corpus, tmp_path: Path) -> None:
    content = ours_content(corpus.tokenizer)
    last = max(content["model"]["vocab"], key=content["model"]["vocab"].get)
    content["model"]["vocab"][last] += 7
    adopt(raw_with(tmp_path / "raw", content), tmp_path / "out", specials=Specials())
    assert load_tokenizer(tmp_path / "out").vocab_size == 400 + 7


def gap(content: Any) -> None:
    content["added_tokens"][2]["id"] += 7


def taken(content: Any) -> None:
    last = max(content["model"]["vocab"], key=content["model"]["vocab"].get)
    content["model"]["vocab"][last] += 1  # to the library there is one id less than the largest says


def unmarked(content: Any) -> None:
    content["added_tokens"][1]["special"] = False


REFUSED: list[tuple[Callable[[Any], Any], str]] = [
    (
        lambda content: content.update(truncation={"max_length": 8, "strategy": "LongestFirst", "stride": 0, "direction": "Right"}),
        "truncation",
    ),
    (lambda content: content.update(padding={"strategy": "BatchLongest"}), "padding set"),
    (lambda content: content["model"].update(dropout=0.1), "dropout set"),
    (
        lambda content: content["added_tokens"][1].update(content="<|end|>"),
        r"no special token '<\|end_of_text\|>'; its special tokens are '<\|begin_of_text\|>' = \d+",
    ),
    (gap, r"'<\|finetune_right_pad_id\|>' has id \d+ in the file, and \d+ as tokenizers"),
    (taken, r"id \d+ means '.*', '.*'"),
    (unmarked, r"'<\|end_of_text\|>' in a document would be encoded as id \d+"),
]


@pytest.mark.parametrize(("damage", "says"), REFUSED)
def test_a_tokenizer_that_would_change_documents_is_refused(
    damage: Callable[[Any], Any], says: str, corpus: Corpus, tmp_path: Path
) -> None:
    content = llama3_content(corpus.tokenizer)
    damage(content)
    with pytest.raises(ConfigError, match=says) as caught:
        adopt(raw_with(tmp_path / "raw", content), tmp_path / "out")
    assert caught.value.exit_code == 64
    assert not (tmp_path / "out").exists()


def test_a_changed_tokenizer_is_refused_with_both_digests(corpus: Corpus, tmp_path: Path) -> None:
    content = llama3_content(corpus.tokenizer)
    digest = adopt(raw_with(tmp_path / "raw", content), tmp_path / "out").content_digest
    content["model"]["merges"].pop()
    changed = raw_with(tmp_path / "changed", content)
    with pytest.raises(ConfigError) as caught:
        adopt(changed, tmp_path / "other", digest=digest)
    assert digest in caught.value.message
    now = tokenizer_digest(changed / "units" / "hub" / percent_encoded("original/tokenizer.json"))
    assert now in caught.value.message


def test_a_missing_or_broken_file_is_named(corpus: Corpus, tmp_path: Path) -> None:
    raw = raw_with(tmp_path / "raw", llama3_content(corpus.tokenizer))
    with pytest.raises(ConfigError, match=r"'tokenizer.json', of which the source has 0; it has original%2ftokenizer.json"):
        adopt(raw, tmp_path / "out", file="tokenizer.json")
    with pytest.raises(DataError, match="readable tokenizer"):
        adopt(raw_with(tmp_path / "html", b"<html>Sign in</html>"), tmp_path / "out")
    next((raw / "units" / "hub").iterdir()).write_bytes(b"{}")
    with pytest.raises(DataError, match=r"differs from units\.json"):
        adopt(raw, tmp_path / "out")


def test_what_is_not_byte_level_or_might_join_words_is_never_cut(corpus: Corpus, tmp_path: Path) -> None:
    def splittable(name: str, change: Callable[[Any], Any]) -> bool:
        content = llama3_content(corpus.tokenizer)
        change(content)
        adopt(raw_with(tmp_path / name / "raw", content), tmp_path / name / "out")
        return load_tokenizer(tmp_path / name / "out").splittable

    def spaced(content: Any) -> None:
        last = content["added_tokens"][-1]
        content["added_tokens"].append({**last, "id": last["id"] + 1, "content": "New York", "special": False})

    def one_word(content: Any) -> None:
        content["pre_tokenizer"]["pretokenizers"][0]["pattern"] = {"Regex": r"[^\n]+|\n+"}

    assert splittable("as it is", lambda content: None)
    assert not splittable("added token with a space", spaced)
    assert not splittable("lines as words", one_word)
    assert not splittable("normalizer", lambda content: content.update(normalizer={"type": "NFC"}))
    assert not splittable("prefix space", lambda content: content["pre_tokenizer"]["pretokenizers"][1].update(add_prefix_space=True))


@pytest.mark.parametrize("k", [1, 2, 6])
def test_words_of_bases_are_counted_off_from_the_left_and_anew_behind_anything_else(tmp_path: Path, k: int) -> None:
    report = make_kmer_tokenizer(KmerConfig(k=k), tmp_path, SilentReporter())
    assert all(check.passed for check in report.checks)
    tokenizer = load_tokenizer(tmp_path)
    assert tokenizer.vocab_size == 3 + 256 + (4**k if k > 1 else 0)

    def reference(text: str) -> list[str]:
        words, at = [], 0
        while at < len(text):
            run = text[at : at + k]
            words.append(run if len(run) == k and set(run) <= set("ACGT") else text[at])
            at += len(words[-1])
        return words

    for text in ("ACGTACGTACGTA", "ACGTNNNACGTACNA", "acgtACGTACGT", "N", "TTTTTTT", "GATTACA" * 50):
        assert tokenizer.tokens(tokenizer.encode(text)) == reference(text)
    assert tokenizer.tokens([259, tokenizer.vocab_size - 1]) == (["A" * k, "T" * k] if k > 1 else ["", tokenizer.tokens([258])[0]])


def test_bad_bases_are_refused_by_field() -> None:
    for values, says in (({"k": 0}, "k"), ({"k": 3, "bases": "ACCG"}, "each may stand once"), ({"k": 10, "bases": "ACGTU"}, "at most 2")):
        with pytest.raises(ConfigError, match=says):
            KmerConfig(**values)
    with pytest.raises(ConfigError, match="digest"):
        TokenizerFile(digest="abc")


def test_handles_say_where_a_tokenizer_comes_from() -> None:
    raw = lab.raw_source("raw/hub", "v1", lab.LocalFiles(root="x", pattern="*.json"), license="llama3")
    job = tokenizer_from("tokenizer/llama3", "v1", raw, file="original/tokenizer.json", specials=SPECIALS).symbolic_config
    assert isinstance(job, TokenizerFileJob)
    assert (job.raw, job.tokenizer.file, job.tokenizer.specials.eos) == (
        "artifact:raw/hub@v1",
        "original/tokenizer.json",
        "<|end_of_text|>",
    )
    made = kmer_tokenizer("tokenizer/dna", "v1", k=6).symbolic_config
    assert isinstance(made, KmerTokenizerJob)
    assert made.tokenizer == KmerConfig(k=6)
