"""Consolidation: every document ends up in exactly one place, decided from what was measured; a changed threshold measures nothing."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marin_core import experiment as lab
from marin_core.data import consolidate as consolidate_module
from marin_core.data.attributes.files import AttributeWriter, attribute_file
from marin_core.data.attributes.measure import measure_shard
from marin_core.data.consolidate import consolidate_shard
from marin_core.data.dedup.config import RemoveRepeatedParagraphs
from marin_core.data.measures.config import CodeQualityMeasure, GopherQualityMeasure, LengthMeasure
from marin_core.data.normal_form import document_id
from marin_core.data.rules.config import CodeQuality, FilterRule, GopherQuality, MeasuredRule, MinCharacters
from marin_core.data.rules.interface import Outcome
from marin_core.data.shard import read_footer, read_part, read_rejected
from marin_core.data.stages import AttributesConfig, ConsolidateConfig
from marin_core.errors import ConfigError, DataError, MarinError
from marin_core.report import Report, SilentReporter
from tests.data.attributes.test_files import NAME, write_documents
from tests.data.conftest import Corpus, sentences

STEM = NAME.removesuffix(".parquet")
MEASURES = AttributesConfig(measures=(LengthMeasure(), GopherQualityMeasure(), CodeQualityMeasure()))
RULES: tuple[FilterRule, ...] = (MinCharacters(characters=100), GopherQuality(min_words=20), CodeQuality())


def consolidate(documents: Path, attributes: list[Path], output: Path, rules: tuple[FilterRule, ...] = RULES) -> Report:
    return consolidate_shard(ConsolidateConfig(rules=rules), documents, attributes, output, SilentReporter())


def measure(documents: Path, output: Path) -> Path:
    measure_shard(MEASURES, documents, {}, output, SilentReporter())
    return attribute_file(output)


def texts(part: Path) -> dict[str, str]:
    return {identity: text for group in read_part(part) for identity, text in zip(group["id"], group["text"], strict=True)}


def dropped(output: Path) -> dict[str, str]:
    rows = pq.read_table(output / "dropped" / NAME).to_pylist()
    return {row["id"]: row["reason"] for row in rows}


@pytest.fixture(scope="module")
def corpus_shard(corpus: Corpus, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A real shard of documents, without rules, and its attribute file."""
    folder = tmp_path_factory.mktemp("consolidate")
    part = write_documents(folder / "documents", [*sentences(300, seed=7), *("short", "x" * 3_000, "# do not edit\n" + "a = 1\n" * 60)])
    return part, measure(part.parent, folder / "attributes")


def test_every_document_is_kept_or_dropped_for_a_reason(corpus_shard: tuple[Path, Path], tmp_path: Path) -> None:
    part, attributes = corpus_shard
    report = consolidate(part.parent, [attributes], tmp_path)
    before, kept, away = texts(part), texts(tmp_path / NAME), dropped(tmp_path)
    assert kept.keys() | away.keys() == before.keys()
    assert not kept.keys() & away.keys()
    assert all(before[identity] == text for identity, text in kept.items())
    assert away[document_id("short")] == "too_short"
    assert set(away.values()) <= {reason for rule in RULES if isinstance(rule, MeasuredRule) for reason in rule.reasons}
    assert len(set(away.values())) >= 3
    (check,) = report.checks
    assert check.passed
    assert check.values == {"documents_in": len(before), "kept": len(kept), "dropped": len(away), "rejected": 0}
    counts = json.loads((tmp_path / "counts.json").read_text())
    assert counts["documents_in"] == counts["kept"] + sum(counts["dropped"].values()) + sum(counts["rejected"].values())
    assert counts["bytes_in"] == sum(len(text.encode()) for text in before.values())


def test_the_report_weighs_reasons_by_documents_and_bytes_with_samples(corpus_shard: tuple[Path, Path], tmp_path: Path) -> None:
    part, attributes = corpus_shard
    report = consolidate(part.parent, [attributes], tmp_path)
    reasons = report.tables["reasons"]
    assert sum(int(row["documents"]) for row in reasons) == report.metrics["documents_in"]
    assert sum(float(row["share_of_bytes"]) for row in reasons) == pytest.approx(1, abs=1e-4)
    for reason in {row["reason"] for row in reasons if row["outcome"] == "dropped"}:
        assert 1 <= sum(row["reason"] == reason for row in report.tables["samples"]) <= 10
    assert report.tables["sources"][0]["source"] == "raw/x/web"
    assert report.plots["shares"].read_bytes().startswith(b"\x89PNG")


def test_another_threshold_needs_no_other_attributes(corpus_shard: tuple[Path, Path], tmp_path: Path) -> None:
    part, attributes = corpus_shard
    counts = []
    for characters in (10, 200, 100_000):
        consolidate(part.parent, [attributes], tmp_path / str(characters), (MinCharacters(characters=characters),))
        counts.append(len(texts(tmp_path / str(characters) / NAME)))
    assert counts == [sum(len(text) >= characters for text in texts(part).values()) for characters in (10, 200, 100_000)]


def test_the_first_rule_that_objects_gives_the_reason(corpus_shard: tuple[Path, Path], tmp_path: Path) -> None:
    part, attributes = corpus_shard
    consolidate(part.parent, [attributes], tmp_path / "a", (MinCharacters(characters=100), GopherQuality()))
    consolidate(part.parent, [attributes], tmp_path / "b", (GopherQuality(), MinCharacters(characters=100)))
    assert dropped(tmp_path / "a")[document_id("short")] == "too_short"
    assert dropped(tmp_path / "b")[document_id("short")] == "gopher_short_doc"
    assert texts(tmp_path / "a" / NAME) == texts(tmp_path / "b" / NAME)


def test_the_same_input_gives_the_same_bytes(corpus_shard: tuple[Path, Path], tmp_path: Path) -> None:
    part, attributes = corpus_shard
    first, second = (consolidate(part.parent, [attributes], tmp_path / name) for name in ("a", "b"))
    assert first.content_digest == second.content_digest
    for file in ("counts.json", NAME, f"dropped/{NAME}", f"rejected/{STEM}.jsonl.zst", f"edited/{NAME}"):
        assert (tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes(), file


def test_terms_of_use_are_those_of_the_documents(corpus_shard: tuple[Path, Path], tmp_path: Path) -> None:
    documents = tmp_path / "documents"
    documents.mkdir()
    table = pq.read_table(corpus_shard[0])
    footer = {"marin.schema": "document/1", "marin.rows": str(table.num_rows), "marin.policies": '["EVAL_ONLY"]', "marin.licenses": '["X"]'}
    pq.write_table(table.replace_schema_metadata(footer | {"marin.input_digest": "0"}), documents / NAME, row_group_size=4_096)
    consolidate(documents, [corpus_shard[1]], tmp_path / "out")
    made = read_footer(tmp_path / "out" / NAME)
    assert (made["policies"], made["licenses"], made["input_digest"]) == ('["EVAL_ONLY"]', '["X"]', "0")


# Edits --------------------------------------------------------------------------------------------------------------

SPANS = pa.list_(pa.struct([("start", pa.int32()), ("end", pa.int32()), ("hash", pa.string())]))


def write_spans(part: Path, folder: Path, spans: dict[str, list[tuple[int, int]]]) -> Path:
    """Attributes as the search for repeated paragraphs writes them."""
    columns = {"repeated_paragraphs.spans": SPANS, "repeated_paragraphs.words_left": pa.int64()}
    with AttributeWriter(folder / NAME, columns, {}) as writer:
        for group in read_part(part):
            found = [[{"start": a, "end": b, "hash": "0"} for a, b in spans.get(text, [])] for text in group["text"]]
            left = [len(text.split()) for text in group["text"]]
            writer.write(group["id"], {"repeated_paragraphs.spans": found, "repeated_paragraphs.words_left": left})
    return folder / NAME


CUT: tuple[FilterRule, ...] = (RemoveRepeatedParagraphs(min_words_left=0),)


def test_an_edited_document_has_a_new_id_and_says_which_it_had(tmp_path: Path) -> None:
    text = "This stays. This goes. This stays too."
    part = write_documents(tmp_path / "documents", [text, "untouched text"])
    spans = write_spans(part, tmp_path / "a", {text: [(12, 23)]})
    report = consolidate(part.parent, [spans], tmp_path / "out", CUT)
    kept = texts(tmp_path / "out" / NAME)
    new = "This stays. This stays too."
    assert kept == {document_id(new): new, document_id("untouched text"): "untouched text"}
    assert list(kept) == sorted(kept)
    (row,) = pq.read_table(tmp_path / "out" / "edited" / NAME).to_pylist()
    assert row == {"id": document_id(text), "new_id": document_id(new), "edits": 1, "rules": "repeated_paragraphs"}
    assert report.metrics["notes/edited"] == 1


def test_documents_that_become_equal_are_kept_once_and_empty_ones_are_dropped(tmp_path: Path) -> None:
    part = write_documents(tmp_path / "documents", ["same one", "same two", "gone"])
    spans = write_spans(part, tmp_path / "a", {"same one": [(4, 8)], "same two": [(4, 8)], "gone": [(0, 4)]})
    report = consolidate(part.parent, [spans], tmp_path / "out", CUT)
    assert list(texts(tmp_path / "out" / NAME).values()) == ["same"]
    assert sorted(dropped(tmp_path / "out").values()) == ["dup_in_shard", "nothing_left"]
    assert report.checks[0].passed


@settings(max_examples=25, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 30), st.integers(1, 10)), max_size=4), st.integers(1, 12))
def test_whatever_is_cut_the_accounts_add_up(tmp_path_factory: pytest.TempPathFactory, cuts: list[tuple[int, int]], count: int) -> None:
    folder = tmp_path_factory.mktemp("edits")
    given_texts = [f"{'word ' * index}text number {index % 3}" for index in range(count)]
    part = write_documents(folder / "documents", given_texts)
    spans = {text: [(start, min(start + size, len(text))) for start, size in cuts if start < len(text)] for text in given_texts}
    report = consolidate(part.parent, [write_spans(part, folder / "a", spans)], folder / "out", CUT)
    assert report.checks[0].passed
    assert all(document_id(text) == identity for identity, text in texts(folder / "out" / NAME).items())


# What goes wrong ----------------------------------------------------------------------------------------------------


def test_a_rule_that_raises_sets_the_document_aside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    part = write_documents(tmp_path / "documents", [f"text {index}" for index in range(150)])
    attributes = measure(part.parent, tmp_path / "a")

    def decide(values: Any) -> Outcome:
        if values["characters"] == 6 and values["error"] is None and "seen" not in once:
            once.add("seen")
            raise ZeroDivisionError("nothing to divide")
        return Outcome()

    once: set[str] = set()
    monkeypatch.setattr(consolidate_module, "make_decision", lambda config: decide)
    report = consolidate(part.parent, [attributes], tmp_path / "out", (MinCharacters(characters=1),))
    (row,) = read_rejected(tmp_path / "out" / "rejected" / f"{STEM}.jsonl.zst")
    assert (row["reason"], row["detail"]) == ("error:min_characters:ZeroDivisionError", "nothing to divide")
    assert report.checks[0].passed


def test_values_that_could_not_be_measured_set_the_document_aside(tmp_path: Path) -> None:
    part = write_documents(tmp_path / "documents", [f"text {index}" for index in range(150)])
    columns = {"length.characters": pa.int64(), "length.error": pa.string()}
    with AttributeWriter(tmp_path / "a" / NAME, columns, {}) as writer:
        for group in read_part(part):
            values = [None, *(len(text) for text in group["text"][1:])]
            writer.write(group["id"], {"length.characters": values, "length.error": ["OverflowError", *[None] * 149]})
    consolidate(part.parent, [tmp_path / "a" / NAME], tmp_path / "out", (MinCharacters(characters=1),))
    (row,) = read_rejected(tmp_path / "out" / "rejected" / f"{STEM}.jsonl.zst")
    assert row["reason"] == "error:min_characters:OverflowError"


def test_a_rule_that_raises_often_fails_the_shard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    part = write_documents(tmp_path / "documents", [f"text {index}" for index in range(50)])
    attributes = measure(part.parent, tmp_path / "a")
    monkeypatch.setattr(consolidate_module, "make_decision", lambda config: lambda values: 1 / 0)
    with pytest.raises(MarinError, match="steps failed on 50 of 50 documents") as error:
        consolidate(part.parent, [attributes], tmp_path / "out", (MinCharacters(characters=1),))
    assert error.value.exit_code == 70


def test_attributes_of_other_documents_fail_the_shard(tmp_path: Path) -> None:
    part = write_documents(tmp_path / "documents", ["one text", "another text"])
    attributes = measure(write_documents(tmp_path / "others", ["one text"]).parent, tmp_path / "a")
    with pytest.raises(DataError, match="out of step"):
        consolidate(part.parent, [attributes], tmp_path / "out")


def test_a_rule_needs_its_attribute_once(tmp_path: Path) -> None:
    part = write_documents(tmp_path / "documents", ["one text"])
    attributes = measure(part.parent, tmp_path / "a")
    with pytest.raises(ConfigError, match="decides from 'repeated_paragraphs', which was not measured"):
        consolidate(part.parent, [attributes], tmp_path / "out", CUT)
    with pytest.raises(ConfigError, match="measured twice"):
        consolidate(part.parent, [attributes, attributes], tmp_path / "out")


def test_more_text_than_a_shard_may_hold_is_refused(tmp_path: Path) -> None:
    part = write_documents(tmp_path / "documents", ["one text", "another text"])
    config = ConsolidateConfig(rules=(MinCharacters(characters=1),), shard_bytes=10)
    with pytest.raises(ConfigError, match="more than 10 bytes of text stay in one shard"):
        consolidate_shard(config, part.parent, [measure(part.parent, tmp_path / "a")], tmp_path / "out", SilentReporter())


# Handles ------------------------------------------------------------------------------------------------------------

RAW = lab.raw_source("raw/x", "v1", lab.PythonStdlib(), license="PSF-2.0")
DOCUMENTS = lab.documents("documents/x", "v1", RAW, shards=2)
LENGTHS = lab.attributes("attributes/x/length", "v1", DOCUMENTS, [lab.LengthMeasure()])


def test_a_threshold_changes_the_identity_of_the_last_stage_alone() -> None:
    def identities(characters: int) -> list[dict[str, Any]]:
        made = lab.consolidated("filtered/x", "v1", DOCUMENTS, attributes=[LENGTHS], rules=[lab.MinCharacters(characters=characters)])
        return [made.own_identity, *(dep.own_identity for dep in made.deps)]

    first, second = identities(100), identities(200)
    assert first[0] != second[0]
    assert first[1:] == second[1:]


@pytest.mark.parametrize(
    ("attributes", "rules", "message"),
    [
        ([LENGTHS], [lab.GopherQuality()], "rule 'gopher_quality' decides from 'gopher_quality', which was not measured"),
        ([LENGTHS, LENGTHS], [lab.MinCharacters()], "'length' was measured twice"),
        ([DOCUMENTS], [lab.MinCharacters()], "holds no attributes"),
        (
            [lab.attributes("attributes/x/words", "v1", DOCUMENTS, [GopherQualityMeasure(stop_words=("a",))])],
            [lab.GopherQuality()],
            "but measured was",
        ),
        (
            [lab.attributes("attributes/y/length", "v1", lab.documents("documents/y", "v1", RAW, shards=3), [lab.LengthMeasure()])],
            [lab.MinCharacters()],
            "has 3 partitions",
        ),
    ],
)
def test_a_rule_without_its_measure_fails_where_the_handle_is_made(attributes: list[Any], rules: list[Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        lab.consolidated("filtered/x", "v1", DOCUMENTS, attributes=attributes, rules=rules)
