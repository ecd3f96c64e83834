import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from marin_core.data.dedup.config import DuplicatesConfig, ParagraphHashes, RemoveRepeatedParagraphs
from marin_core.data.dedup.paragraphs import paragraphs
from marin_core.data.dedup.rules import decide_repeated_paragraphs
from marin_core.data.documents import Document
from marin_core.data.normal_form import document_id
from tests.data.dedup.conftest import document, family, search, words

PARAGRAPHS = DuplicatesConfig(find="repeated_paragraphs")


def paragraph(seed: int, count: int = 60) -> str:
    return " ".join(words(np.random.default_rng(seed), count))


def cut_out(text: str, spans: list[dict[str, Any]]) -> str:
    for span in reversed(spans):
        text = text[: span["start"]] + text[span["end"] :]
    return text


@given(st.text(st.sampled_from("ab \n\t\u00a0"), max_size=60), st.integers(1, 8))
def test_paragraphs_are_blocks_between_blank_lines(text: str, least: int) -> None:
    found = list(paragraphs(text, least))
    blocks = [" ".join(block.split()) for block in re.split(r"\n\s*\n", text)]
    assert [" ".join(text[each.start : each.end].split()) for each in found] == [block for block in blocks if len(block) >= least]
    assert all(left.end <= right.start for left, right in pairwise(found))


def test_layout_makes_no_difference_and_letters_do() -> None:
    same = [next(paragraphs(text, 5))[2:] for text in ("one two\nthree", "one  two three\n", "\t one two three")]
    assert same[0] == same[1] == same[2]
    assert next(paragraphs("one two Three", 5))[2:] != same[0]


def test_the_first_by_the_keeper_rule_keeps_its_paragraph(tmp_path: Path) -> None:
    shared, own = paragraph(0), [paragraph(seed) for seed in range(1, 5)]
    long = f"{own[0]}\n\n{shared}\n\n{own[1]}"
    short = f"{shared}\n \n{own[2]}"
    twice = f"{own[3]}\n\n{own[3].replace(' ', '  ')}"
    later = f"{shared} but longer by far\n\n{shared}\n\n" + "\n\n".join(paragraph(seed) for seed in range(10, 20))
    families = [
        family(tmp_path, "a", [[document(short)], [document(long), document(twice)]], ParagraphHashes()),
        family(tmp_path, "b", [[document(later)]], ParagraphHashes()),
    ]
    report, rows = search(PARAGRAPHS, families, tmp_path / "found")
    by_id = {row["id"]: row for found in rows.values() for row in found}
    assert by_id[document_id(long)]["spans"] == []
    assert cut_out(short, by_id[document_id(short)]["spans"]) == own[2]
    assert by_id[document_id(short)]["words_left"] == 60
    assert cut_out(twice, by_id[document_id(twice)]["spans"]) == f"{own[3]}\n\n"
    assert cut_out(later, by_id[document_id(later)]["spans"]) == later.replace(f"{shared}\n\n", "", 1)
    assert len({span["hash"] for text in (short, later) for span in by_id[document_id(text)]["spans"]}) == 1
    assert report.metrics == {"documents": 4, "repeated": 3, "repeated_words": 180}
    assert [row["times"] for row in report.tables["most_frequent"]] == [3, 2]


def test_the_outcome_depends_on_no_shard_no_order_and_no_memory(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    pool = [paragraph(seed) for seed in range(30)]
    documents: list[Document] = []
    for index in range(80):
        chosen = random.integers(0, len(pool), int(random.integers(1, 5)))
        documents.append(document("\n\n".join(pool[each] for each in chosen.tolist()) + f"\n\nnumber {index}", f"units/{index}"))
    outcomes = []
    for number, (shards, rows_at_once) in enumerate([(1, 1 << 20), (5, 10), (3, 7)]):
        order = [documents[index] for index in random.permutation(len(documents)).tolist()]
        made = family(tmp_path / str(number), "a", [order[index::shards] for index in range(shards)], ParagraphHashes())
        report, rows = search(PARAGRAPHS, [made], tmp_path / str(number) / "found", rows_at_once)
        found = sorted((row["id"], row["words_left"], str(row["spans"])) for row in rows["a"])
        outcomes.append((found, report.tables, report.metrics))
    assert outcomes[0] == outcomes[1] == outcomes[2]
    kept = [cut_out(each.text, row["spans"]) for each in documents for row in rows["a"] if row["id"] == each.id]
    for each in pool:
        assert sum(text.count(each) for text in kept) == any(each in document.text for document in documents)


@pytest.mark.parametrize(("least", "reason"), [(60, None), (61, "paragraph_dup")])
def test_a_document_of_which_little_is_left_is_dropped(least: int, reason: str | None) -> None:
    decide = decide_repeated_paragraphs(RemoveRepeatedParagraphs(min_words_left=least))
    outcome = decide({"spans": [{"start": 3, "end": 9, "hash": ""}], "words_left": 60})
    assert (outcome.reason, outcome.score) == (reason, 60)
    assert [(edit.start, edit.end, edit.text) for edit in outcome.edits] == ([] if reason else [(3, 9, "")])
    assert decide({"spans": [], "words_left": 1}).reason is None
