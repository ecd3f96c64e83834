import json
import sysconfig
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marin_core.data.attributes.files import read_together
from marin_core.data.decontaminate.config import ContaminationIndexConfig, DropContaminated
from marin_core.data.decontaminate.contamination import find_contamination, find_matches
from marin_core.data.decontaminate.index import ContaminationIndex
from marin_core.data.decontaminate.rules import decide_contamination
from marin_core.data.documents import sample_of
from marin_core.data.shard import find_part
from marin_core.errors import ConfigError, DataError
from marin_core.evaluate.config import DOC_CONTINUATION, TaskSetConfig
from marin_core.evaluate.documents import HeldOutDocument
from marin_core.evaluate.tasks import make_tasks
from marin_core.report import SilentReporter
from tests.data.decontaminate.conftest import arithmetic, built, raw, science, trivia
from tests.data.dedup.conftest import document, words, write_shards

FILLER = " ".join(words(np.random.default_rng(0), 4_000))


def rewrapped(text: str) -> str:
    parts = text.split()
    return "\n\n".join(" ".join(parts[place : place + 8]) for place in range(0, len(parts), 8))


def shouted(text: str) -> str:
    return text.upper().replace(" ", " -- ").replace("?", "!").replace(".", " ;")


def buried(text: str) -> str:
    count = 50 * len(text)
    filler = (FILLER + " ") * (count // len(FILLER) + 1)
    return filler[: count // 2].rpartition(" ")[0] + " " + text + " " + filler[: count // 2]


def shuffled(text: str) -> str:
    parts = text.split()
    return " ".join(parts[place] for place in np.random.default_rng(len(text)).permutation(len(parts)).tolist())


def long_examples(index: ContaminationIndex) -> list[int]:
    return sorted(set(index.passage_example.tolist()))


@pytest.mark.parametrize(("disguise", "found"), [(str, 1.0), (rewrapped, 1.0), (shouted, 1.0), (buried, 1.0), (shuffled, 0.0)])
def test_leaks_of_three_evaluations_are_found_and_named(index: ContaminationIndex, disguise: Callable[[str], str], found: float) -> None:
    examples = long_examples(index)
    texts = [disguise(index.example_text[example]) for example in examples]
    hits: dict[str, list[bool]] = {}
    for example, matches in zip(examples, find_matches(index, texts), strict=True):
        named = [match for match in matches if match.example == example and match.overlap >= 0.5]
        hits.setdefault(index.example_eval[example], []).append(bool(named))
        if found:
            assert matches[0].overlap == 1
    assert {name: float(np.mean(each)) for name, each in hits.items()} == {"arithmetic": found, "science": found, "trivia": found}


def test_nothing_is_found_in_ten_megabytes_of_other_text(index: ContaminationIndex) -> None:
    texts: list[str] = []
    size = 0
    for path in sorted(Path(sysconfig.get_path("stdlib")).rglob("*.py")):
        if size < 10_000_000:
            texts.append(path.read_bytes().decode(errors="replace"))
            size += len(texts[-1].encode())
    assert size >= 10_000_000
    assert not any(find_matches(index, texts))


def test_the_question_alone_and_the_answer_alone_are_leaks_too(index: ContaminationIndex) -> None:
    example, other = arithmetic()[7], science()[3]
    texts = [example["question"], f"Solution: {example['answer']}", other["question"], " ".join(other["choices"]["text"])]
    best = [max([match.overlap for match in matches], default=0.0) for matches in find_matches(index, texts)]
    assert best[:3] == [1, 1, 1]
    assert best[3] < 0.5  # choices of four words each say nothing about one example


def test_a_short_example_is_found_as_a_whole_only(index: ContaminationIndex) -> None:
    short = trivia()[0]
    text = f"{short['query']} {short['target']}"
    whole, cut, gap = find_matches(index, [f"Q and A: {text} and so on", text.rsplit(" ", 1)[0], text.replace(" did ", " once did ")])
    assert [(match.overlap, index.example_eval[match.example]) for match in whole] == [(1.0, "trivia")]
    assert not cut
    assert not gap


def test_the_overlap_is_the_share_of_the_examples_grams(index: ContaminationIndex) -> None:
    example = next(each for each in long_examples(index) if index.example_eval[each] == "science")
    question = index.example_text[example].split("\n")[0].replace(",", " ").split()
    for missing in (0, 4, 10):
        text = " ".join([*question[: len(question) - missing], "entirely", "different", "ending"])
        (match,) = (match for match in next(iter(find_matches(index, [text]))) if match.example == example)
        total = len(question) - 12
        assert match.overlap == pytest.approx((total - missing) / total)


@given(st.data())
@settings(max_examples=40, deadline=None)
def test_matches_are_what_sets_of_words_say(index: ContaminationIndex, data: st.DataObject) -> None:
    examples = long_examples(index)
    parts = []
    for _ in range(data.draw(st.integers(1, 3))):
        text = index.example_text[data.draw(st.sampled_from(examples))].split()
        start = data.draw(st.integers(0, len(text) - 1))
        parts += [*text[start : start + data.draw(st.integers(5, 80))], "break"]
    document_words = "".join(each if each.isalnum() else " " for each in " ".join(parts).lower()).split()
    grams = {tuple(document_words[place : place + n]) for n in (10, 11, 12, 13) for place in range(len(document_words) - n + 1)}
    found = {match.example: match.overlap for match in next(iter(find_matches(index, [" ".join(parts)])))}
    for example in examples:
        best = 0.0
        pieces = index.example_text[example].split("\n")
        for number, piece in enumerate([" ".join(pieces), *pieces]):
            split = "".join(each if each.isalnum() else " " for each in piece.lower()).split()
            n = min(13, len(split))
            if n < 13 and number:
                continue
            own = {tuple(split[place : place + n]) for place in range(len(split) - n + 1)}
            both = len(own & grams)
            if both >= min(3, len(own)) and both / len(own) >= 0.2:
                best = max(best, both / len(own))
        assert found.get(example, 0.0) == pytest.approx(best)


def test_every_document_has_a_row_and_the_report_names_the_evaluations(tmp_path: Path, index: ContaminationIndex) -> None:
    leak, shorter = index.example_text[0], science()[0]["question"]
    clean = [document(f"nothing of interest stands here {number}") for number in range(30)]
    leaks = [document(f"intro. {leak}"), document(f"{leak}\n\n{shorter}"), document(f"<b>{shorter}</b>")]
    (shard,) = write_shards(tmp_path / "documents", [[*clean, *leaks]])
    report = find_contamination(index, shard, tmp_path / "found", SilentReporter())
    part = tmp_path / "found" / find_part(shard).name
    rows = {row["id"]: row["contamination.matches"] for row in pq.read_table(part).to_pylist()}
    assert {match["eval"] for match in rows[leaks[1].id]} == {"arithmetic", "science"}
    (unit,) = {index.example_name[example].rpartition(":")[0] for example in (0, 1)}
    assert rows[leaks[0].id][0] == {"eval": "arithmetic", "example": f"{unit}:1", "overlap": 1.0, "start": len("intro. ")}
    assert all(rows[each.id] == [] for each in clean)
    assert report.metrics["contaminated"] == 3
    assert (report.metrics["contaminated/arithmetic"], report.metrics["contaminated/science"]) == (2, 2)
    assert {check.name: check.passed for check in report.checks} == {
        "clean_of_arithmetic": False,
        "clean_of_science": False,
        "clean_of_trivia": True,
    }
    worst = report.tables["worst"]
    assert str(worst[0]["text"]).startswith(sample_of(leak)[:40])
    assert str(worst[0]["example_text"]).startswith(sample_of(leak)[:40])
    assert {row["eval"] for row in worst} == {"arithmetic", "science"}
    (group,) = read_together(find_part(shard), [part], ("text",))
    assert len(group["contamination.matches"]) == len(group["text"]) == 33
    again = find_contamination(index, shard, tmp_path / "again", SilentReporter())
    assert (tmp_path / "again" / part.name).read_bytes() == part.read_bytes()
    assert again == report


def test_the_rule_drops_or_marks_by_evaluation_and_overlap() -> None:
    found = (("a", 0.6), ("b", 0.3))
    values = {"matches": [{"eval": name, "example": "1", "overlap": overlap, "start": 0} for name, overlap in found]}
    outcomes = [
        decide_contamination(rule)(values)
        for rule in (
            DropContaminated(),
            DropContaminated(min_overlap=0.7),
            DropContaminated(evals=("b",)),
            DropContaminated(evals=("b",), min_overlap=0.3),
            DropContaminated(action="mark"),
        )
    ]
    assert [(outcome.reason, outcome.score) for outcome in outcomes] == [
        ("contaminated", 0.6),
        (None, 0.6),
        (None, 0.3),
        ("contaminated", 0.3),
        (None, 0.6),
    ]
    assert decide_contamination(DropContaminated())({"matches": []}).score is None
    with pytest.raises(ConfigError, match=r"min_overlap.*0\.2"):
        DropContaminated(min_overlap=0.1)


def test_tasks_that_were_made_here_are_an_evaluation(tmp_path: Path) -> None:
    random = np.random.default_rng(1)
    letters = str.maketrans("0123456789", "ghijklmnop")
    pages = [" ".join(words(random, 60)).translate(letters) + "." for _ in range(40)]
    documents = [HeldOutDocument(str(number), page, "prose/x", "") for number, page in enumerate(pages)]
    config = TaskSetConfig(tasks=(DOC_CONTINUATION,), prose_domains=("prose",), minimum_examples=5)
    (tmp_path / "tasks").mkdir()
    make_tasks(config, documents, tmp_path / "tasks", SilentReporter())
    folder, report = built(tmp_path, {"lab": tmp_path / "tasks"}, ContaminationIndexConfig())
    made = ContaminationIndex(folder)
    assert report.metrics["examples"] == len(made.example_name) >= 5
    assert all(name.startswith(f"{DOC_CONTINUATION}/") for name in made.example_name)
    lines = (tmp_path / "tasks" / DOC_CONTINUATION / "docs.jsonl").read_text(encoding="utf-8").splitlines()
    sources = {int(json.loads(line)["document"]) for line in lines}
    for number, matches in enumerate(find_matches(made, pages)):
        assert (number in sources) <= bool(matches and matches[0].overlap >= 0.5)


def test_what_is_too_short_is_listed_and_not_looked_for(tmp_path: Path) -> None:
    folder, report = built(tmp_path, {"trivia": raw(tmp_path, "trivia", trivia())})
    assert (report.metrics["examples"], report.metrics["too_short"]) == (3, 1)
    (listed,) = report.tables["too_short_examples"]
    assert (listed["eval"], listed["words"], str(listed["text"])[:12]) == ("trivia", 6, "Name the cap")
    assert not any(find_matches(ContaminationIndex(folder), ["Name the capital of Peru. Lima"]))


def test_a_stale_index_is_refused(tmp_path: Path, index: ContaminationIndex) -> None:
    current = {name: f"digest of {name}" for name in ("arithmetic", "science", "trivia")}
    index.refuse_stale(current)
    with pytest.raises(ConfigError, match="stale: evaluation 'science' is other, the index has digest of science"):
        index.refuse_stale(current | {"science": "other"})
    with pytest.raises(ConfigError, match="stale: evaluation 'more'"):
        index.refuse_stale(current | {"more": "new"})
    with pytest.raises(ConfigError, match="stale: evaluation 'trivia' is None"):
        index.refuse_stale({name: digest for name, digest in current.items() if name != "trivia"})


def test_the_identity_of_an_index_is_that_of_the_texts(tmp_path: Path) -> None:
    changed = arithmetic()
    changed[3]["answer"] += " Done."
    digests = []
    for number, records in enumerate((arithmetic(), arithmetic(), changed)):
        folder = tmp_path / str(number)
        _, report = built(folder, {"arithmetic": raw(folder, "arithmetic", records)}, ContaminationIndexConfig())
        digests.append(report.content_digest)
    assert digests[0] == digests[1] != digests[2]


@pytest.mark.parametrize(
    ("record", "error"),
    [
        ("[1]", "line 2 of .* is no example: it is a JSON list"),
        ("{", "line 2 of .* is no example: it is no JSON"),
        ('{"query": "x"}', "field 'question' is NoneType, not text"),
        ('{"question": 3}', "field 'question' is int, not text"),
        ('{"question": "x", "choices": "a b"}', "field 'choices' is no list of texts"),
        ('{"question": "x", "answer": ["a"]}', "field 'answer' is list, neither text nor number"),
    ],
)
def test_a_record_that_is_no_example_fails_and_is_not_left_out(tmp_path: Path, record: str, error: str) -> None:
    folder = raw(tmp_path, "bad", arithmetic()[:1])
    (unit,) = (path for path in (folder / "units").rglob("*") if path.is_file())
    with unit.open("a", encoding="utf-8") as file:
        file.write(record + "\n")
    with pytest.raises(DataError, match=error):
        built(tmp_path, {"bad": folder}, ContaminationIndexConfig())


def test_answers_are_texts_letters_or_numbers(tmp_path: Path) -> None:
    records: list[dict[str, Any]] = [
        {"question": "q", "choices": ["red", "blue"], "answer": answer} for answer in ("B", 1, "green", None, "Z", 7, 2.5)
    ]
    folder, _ = built(tmp_path, {"e": raw(tmp_path, "e", records)}, ContaminationIndexConfig())
    ends = [text.split("\n")[3:] for text in ContaminationIndex(folder).example_text]
    assert ends == [["blue"], ["blue"], ["green"], [], ["Z"], ["7"], ["2.5"]]


def test_a_damaged_index_is_refused(tmp_path: Path) -> None:
    folder, _ = built(tmp_path, {"arithmetic": raw(tmp_path, "arithmetic", arithmetic())}, ContaminationIndexConfig())
    data = (folder / "postings.npy").read_bytes()
    (folder / "postings.npy").write_bytes(data[:-4] + bytes([data[-4] ^ 1]) + data[-3:])
    with pytest.raises(DataError, match="array 'postings' of index is not what its list promises"):
        ContaminationIndex(folder)


def test_an_evaluation_without_examples_or_with_unknown_fields_is_refused(tmp_path: Path) -> None:
    empty = raw(tmp_path, "empty", [])
    with pytest.raises(DataError, match="evaluation 'empty' has no example"):
        built(tmp_path, {"empty": empty}, ContaminationIndexConfig())
    with pytest.raises(ConfigError, match="'fields' names 'trivia'"):
        built(tmp_path, {"empty": empty})
