import hashlib
import json
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from marin_core.data import filter as filter_module
from marin_core.data import keeping
from marin_core.data.filter import filter_shard
from marin_core.data.ingest import ingest
from marin_core.data.limits import Limits
from marin_core.data.measures.interface import Measured
from marin_core.data.normal_form import document_id
from marin_core.data.rules.config import CodeQuality, FineWebQuality, GopherQuality, GopherRepetition, MinCharacters
from marin_core.data.rules.decide import Rule, make_rules
from marin_core.data.rules.interface import KEEP, Edit, Outcome
from marin_core.data.shard import SCHEMA, read_footer, read_part, read_rejected
from marin_core.data.sorted_documents import SeenIds, SortedDocuments
from marin_core.data.sources.config import IngestConfig, LocalFiles
from marin_core.data.stages import FilterConfig
from marin_core.data.words import UnicodeWords
from marin_core.errors import ConfigError, DataError, MarinError
from marin_core.report import Report, SilentReporter
from tests.data.conftest import FILTER, SHARDS, Corpus, ingest_texts, sentences, write_jsonl

SCRIPT = """
import socket, sys
from pathlib import Path

def refuse(*args, **kwargs):
    raise OSError("no network here")

socket.socket.connect = socket.getaddrinfo = socket.create_connection = refuse
from marin_core.data.rules.config import *
from marin_core.data.stages import FilterConfig
from marin_core.data.filter import filter_shard
from marin_core.report import SilentReporter
rules = (MinCharacters(characters=40), CodeQuality(), GopherQuality(min_words=10), GopherRepetition(), FineWebQuality())
config = FilterConfig(filters=rules, shards=1)
filter_shard(config, Path(sys.argv[1]), "00000", Path(sys.argv[2]), SilentReporter())
for name in ("torch", "spacy", "jax", "tensorstore", "matplotlib", "tokenizers"):
    assert name not in sys.modules, name
"""


def files(folder: Path) -> dict[str, str]:
    return {str(p.relative_to(folder)): hashlib.sha256(p.read_bytes()).hexdigest() for p in sorted(folder.rglob("*")) if p.is_file()}


def run(raw: Path, output: Path, config: FilterConfig, shard: str = "00000") -> Report:
    return filter_shard(config, raw, shard, output, SilentReporter())


def test_all_rules_run_without_network_or_home_and_give_the_same_bytes_anywhere(tmp_path: Path, corpus: Corpus) -> None:
    results = []
    for seed in ("1", "2"):
        cwd = tmp_path / f"cwd{seed}"
        cwd.mkdir()
        environment = {"PYTHONHASHSEED": seed, "HOME": "/nonexistent", "PYTHONPATH": str(Path.cwd())}
        subprocess.run([sys.executable, "-c", SCRIPT, str(corpus.raw), str(tmp_path / seed)], check=True, cwd=cwd, env=environment)
        results.append(files(tmp_path / seed))
    assert results[0] == results[1]
    assert len(results[0]) == 4


def test_a_shard_is_sorted_typed_and_signed(corpus: Corpus) -> None:
    (part,) = corpus.shards[1].glob("*.parquet")
    assert part.name == "part-00001-of-00003.parquet"
    table = pq.read_table(part)
    assert table.schema.remove_metadata().equals(SCHEMA)
    rows = table.to_pylist()
    assert [row["id"] for row in rows] == sorted({row["id"] for row in rows})
    assert all(row["id"] == document_id(row["text"]) for row in rows)
    footer = read_footer(part)
    assert footer["stage"] == "filter"
    assert footer["rows"] == str(len(rows))
    assert json.loads(footer["policies"]) == ["TRAINING_ALLOWED"]


def test_every_record_ends_up_in_exactly_one_place(tmp_path: Path) -> None:
    texts = [*sentences(300, 7), "short", "short", "tiny"]
    raw = ingest_texts(tmp_path / "in", {"a.jsonl": [*texts, texts[0]]}, tmp_path / "raw")
    with (raw / "units/documents/a.jsonl").open("ab") as file:
        file.write(b'{"text": 3}\nnonsense\n')
    source = LocalFiles(root=str(raw / "units/documents"))
    ingest(IngestConfig(source=source, license="x", policy="BLOCKED"), tmp_path / "raw2", SilentReporter())
    report = run(tmp_path / "raw2", tmp_path / "out", FilterConfig(filters=(MinCharacters(characters=40),), shards=1))
    (check,) = report.checks
    assert check.passed
    assert check.values == {"documents_in": 306, "kept": 300, "dropped": 4, "rejected": 2}
    counts = json.loads((tmp_path / "out" / "counts.json").read_text())
    assert counts["dropped"] == {"dup_in_shard": 2, "too_short": 2}
    assert counts["rejected"] == {"bad_json": 1, "text_type": 1}
    rejected = read_rejected(tmp_path / "out/rejected/part-00000-of-00001.jsonl.zst")
    assert [row["reason"] for row in rejected] == ["text_type", "bad_json"]
    dropped = pq.read_table(tmp_path / "out/dropped/part-00000-of-00001.parquet").to_pylist()
    assert {(row["reason"], row["text"]) for row in dropped} >= {("too_short", "short"), ("too_short", "tiny")}
    assert sum(int(row["documents"]) for row in report.tables["reasons"]) == 306


def test_the_texts_of_the_hundred_smallest_ids_are_kept_for_each_reason(tmp_path: Path) -> None:
    raw = ingest_texts(tmp_path / "in", {"a.jsonl": [f"short {i}" for i in range(250)]}, tmp_path / "raw")
    run(raw, tmp_path / "out", FilterConfig(filters=(MinCharacters(),), shards=1))
    rows = pq.read_table(tmp_path / "out/dropped/part-00000-of-00001.parquet").to_pylist()
    assert len(rows) == 250
    assert all((row["text"] is not None) == (index < 100) for index, row in enumerate(rows))
    assert all(document_id(row["text"]) == row["id"] for row in rows[:100])


def test_shards_share_the_documents_without_overlap(corpus: Corpus) -> None:
    ids = [identity for shard in corpus.shards for columns in read_part(next(shard.glob("*.parquet"))) for identity in columns["id"]]
    assert len(ids) == len(set(ids)) > 550


@pytest.mark.parametrize(
    ("rule", "text", "reason"),
    [
        (CodeQuality(), "x = 1\n" * 3 + "y" * 1_001, "minified"),
        (CodeQuality(), "# This file is generated; DO NOT EDIT\nx = 1", "generated"),
        (CodeQuality(max_bytes=10), "x = 'abcdefgh'", "data_file"),
        (CodeQuality(), "((((((((((((((((x", "low_alphanumeric"),
        (CodeQuality(), "def f(x):\n    return x", None),
        (MinCharacters(characters=5), "abcd", "too_short"),
        (GopherQuality(), "too short a text", "gopher_short_doc"),
        (GopherQuality(min_words=3), "what the cat said to me", None),
        (GopherRepetition(), "the same line\n" * 20, "dup_line_frac"),
        (GopherRepetition(), " ".join(f"word{i}" for i in range(60)), None),
        (FineWebQuality(), "no punctuation here\nnor here\n", "line_punct_ratio"),
    ],
)
def test_a_rule_decides_and_names_its_reason(rule: CodeQuality, text: str, reason: str | None) -> None:
    (made,) = make_rules([rule])
    assert made.decide(Measured(text, "{}", UnicodeWords())).reason == reason


def test_words_are_split_as_documented_and_once_a_text() -> None:
    words = UnicodeWords()
    assert words.word_tokenize("Don't stop—it’s 3.14, naïve: 你好!? नमस्ते")[:9] == [
        "Don't",
        "stop",
        "—",
        "it’s",
        "3",
        ".",
        "14",
        ",",
        "naïve",
    ]
    text = "one two three"
    assert words.word_tokenize(text) is words.word_tokenize(text)
    assert words.sent_tokenize("One. Two? 三。四") == ["One.", "Two?", "三。", "四"]


def test_a_raising_rule_is_set_aside_and_many_of_them_fail_the_shard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    raw = ingest_texts(tmp_path / "in", {"a.jsonl": sentences(300, 3)}, tmp_path / "raw")

    def raising(fragment: str) -> list[Rule]:
        def decide(document: Measured) -> Outcome:
            if fragment in document.text:
                raise ZeroDivisionError("oops")
            return KEEP

        return [Rule("brittle", decide)]

    monkeypatch.setattr(filter_module, "make_rules", lambda _: raising("3-17:"))
    report = run(raw, tmp_path / "out", FilterConfig(shards=1))
    assert report.checks[0].passed
    (row,) = read_rejected(tmp_path / "out/rejected/part-00000-of-00001.jsonl.zst")
    assert (row["reason"], row["unit"]) == ("error:brittle:ZeroDivisionError", "units/documents/a.jsonl")
    monkeypatch.setattr(filter_module, "make_rules", lambda _: raising("Document"))
    with pytest.raises(MarinError, match="300 of 300") as caught:
        run(raw, tmp_path / "out2", FilterConfig(shards=1))
    assert caught.value.exit_code == 70


def test_edits_of_all_rules_are_made_and_the_text_gets_a_new_id(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    raw = ingest_texts(tmp_path / "in", {"a.jsonl": ["secret one", "secret two", "one", "secret"]}, tmp_path / "raw")

    def decide(document: Measured) -> Outcome:
        return Outcome(edits=(Edit(0, 7),)) if document.text.startswith("secret ") else Outcome(edits=(Edit(0, 6),))

    monkeypatch.setattr(filter_module, "make_rules", lambda _: [Rule("cut", lambda d: KEEP if d.text == "one" else decide(d))])
    report = run(raw, tmp_path / "out", FilterConfig(shards=1))
    assert report.checks[0].passed
    rows = pq.read_table(tmp_path / "out/part-00000-of-00001.parquet").to_pylist()
    assert {(row["id"], row["text"]) for row in rows} == {(document_id(text), text) for text in ("one", "two")}
    counts = json.loads((tmp_path / "out" / "counts.json").read_text())
    assert counts["dropped"] == {"dup_in_shard": 1, "nothing_left": 1}


def test_documents_beyond_the_memory_give_the_same_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = sentences(400, 11)
    raw = ingest_texts(tmp_path / "in", {"a.jsonl": [*texts, *texts[:50]]}, tmp_path / "raw")
    whole = run(raw, tmp_path / "whole", FilterConfig(shards=1))
    monkeypatch.setattr(keeping, "SortedDocuments", lambda folder: SortedDocuments(folder, memory_bytes=20_000))
    monkeypatch.setattr(filter_module, "SeenIds", lambda: SeenIds(recent=16))
    in_runs = run(raw, tmp_path / "runs", FilterConfig(shards=1))
    assert files(tmp_path / "runs") == files(tmp_path / "whole")
    assert in_runs.content_digest == whole.content_digest
    assert json.loads((tmp_path / "runs" / "counts.json").read_text())["dropped"] == {"dup_in_shard": 50}


def test_seen_ids_are_a_set() -> None:
    seen = SeenIds(recent=64)
    ids = [document_id(str(index % 1_500)) for index in range(4_000)]
    ids += [identity[:16] + "0" * 16 for identity in ids[:200]]  # upper halves alike
    expected: set[str] = set()
    for identity in ids:
        assert seen.add(identity) == (identity not in expected)
        expected.add(identity)


def test_wrong_shards_domains_and_sizes_are_refused(tmp_path: Path, corpus: Corpus) -> None:
    with pytest.raises(ConfigError, match=r"'shards' is 9.* 5 units"):
        run(corpus.raw, tmp_path, FilterConfig(shards=9))
    with pytest.raises(ConfigError, match="'domains' names 'web'"):
        run(corpus.raw, tmp_path, FilterConfig(shards=1, domains=("web",)))
    with pytest.raises(ConfigError, match="'00003'"):
        run(corpus.raw, tmp_path, FILTER, "00003")
    with pytest.raises(ConfigError, match="more than 2000 bytes"):
        run(corpus.raw, tmp_path, FilterConfig(shards=SHARDS, limits=Limits(shard_bytes=2_000)))
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.jsonl").write_text("\n")
    ingest(IngestConfig(source=LocalFiles(root=str(tmp_path / "in")), license="x", policy="BLOCKED"), tmp_path / "raw", SilentReporter())
    with pytest.raises(DataError, match="empty"):
        run(tmp_path / "raw", tmp_path / "out", FilterConfig(shards=1))


def test_a_damaged_part_is_an_error(tmp_path: Path, corpus: Corpus) -> None:
    (part,) = corpus.shards[0].glob("*.parquet")
    data = bytearray(part.read_bytes())
    copy = tmp_path / part.name
    copy.write_bytes(data[:-20])
    with pytest.raises(DataError, match="footer"):
        list(read_part(copy))
    data[2_000] ^= 1
    copy.write_bytes(data)
    with pytest.raises(DataError, match="damaged"):
        list(read_part(copy, SCHEMA.names))


@pytest.mark.slow
def test_memory_does_not_grow_with_rejected_records(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "in" / "a.jsonl.gz", ["x"] * 50_000)
    ingest(IngestConfig(source=LocalFiles(root=str(tmp_path / "in")), license="x", policy="BLOCKED"), tmp_path / "raw", SilentReporter())
    report = run(tmp_path / "raw", tmp_path / "out", FilterConfig(shards=1))
    assert report.metrics["documents_kept"] == 1
    assert report.checks[0].passed
