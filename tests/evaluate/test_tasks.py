import json
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from marin_core.errors import ConfigError, DataError
from marin_core.evaluate.config import DOC_CONTINUATION, PYTHON_NEXT_LINE, EvaluateConfig, TaskSetConfig
from marin_core.evaluate.documents import HeldOutDocument
from marin_core.evaluate.tasks import make_tasks
from marin_core.report import SilentReporter

CONFIG = TaskSetConfig(examples_per_task=60, minimum_examples=20)


def make(config: TaskSetConfig, documents: list[HeldOutDocument], output: Path) -> dict[str, list[dict[str, Any]]]:
    make_tasks(config, documents, output, SilentReporter())
    return {
        task: [json.loads(line) for line in (output / task / "docs.jsonl").read_text().splitlines()]
        for task in (PYTHON_NEXT_LINE, DOC_CONTINUATION)
    }


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def test_tasks_follow_from_config_and_documents_alone(documents: list[HeldOutDocument], tmp_path: Path) -> None:
    make(CONFIG, documents, tmp_path / "a")
    shuffled = documents.copy()
    random.Random(1).shuffle(shuffled)
    make(CONFIG, shuffled, tmp_path / "b")
    make(CONFIG.changed(seed=1), documents, tmp_path / "c")
    assert files(tmp_path / "a") == files(tmp_path / "b")
    assert files(tmp_path / "a")["python_next_line/docs.jsonl"] != files(tmp_path / "c")["python_next_line/docs.jsonl"]
    assert sorted(files(tmp_path / "a")) == [
        "doc_continuation/doc_continuation.yaml",
        "doc_continuation/docs.jsonl",
        "python_next_line/docs.jsonl",
        "python_next_line/python_next_line.yaml",
        "tasks.json",
    ]
    assert str(tmp_path) not in "".join(content.decode() for content in files(tmp_path / "a").values())


def test_the_true_answer_follows_its_context_and_the_wrong_ones_are_elsewhere(documents: list[HeldOutDocument], tmp_path: Path) -> None:
    texts = {document.id: document.text for document in documents}
    for examples in make(CONFIG, documents, tmp_path).values():
        assert 20 <= len(examples) <= 60
        assert len({example["id"] for example in examples}) == len(examples)
        assert len({example["document"] for example in examples[:12]}) == 12
        for example in examples:
            choices, true = example["choices"], example["choices"][example["answer"]]
            assert len({choice.strip() for choice in choices}) == 4
            assert example["context"] + true in texts[example["document"]]
            assert len(example["context"]) <= CONFIG.context_characters
            for wrong in choices:
                if wrong != true:
                    assert wrong.strip() not in example["context"]
                    assert abs(len(wrong) - len(true)) <= 0.25 * len(true)
                    assert any(wrong in text for document, text in texts.items() if document != example["document"])
                    assert len(wrong) - len(wrong.lstrip()) == len(true) - len(true.lstrip())


def test_no_position_is_favoured_and_documents_take_turns(documents: list[HeldOutDocument], tmp_path: Path) -> None:
    for examples in make(CONFIG, documents, tmp_path).values():
        positions = Counter(example["answer"] for example in examples)
        assert max(positions.values()) - min(positions[position] for position in range(4)) <= 1
        turns = Counter(example["document"] for example in examples)
        assert len(turns) >= 15
        assert max(turns.values()) <= 6


def test_the_index_counts_what_was_written(documents: list[HeldOutDocument], tmp_path: Path) -> None:
    report = make_tasks(CONFIG, documents, tmp_path, SilentReporter())
    index = json.loads((tmp_path / "tasks.json").read_text())["tasks"]
    for task, entry in index.items():
        assert entry["examples"] == len((tmp_path / task / "docs.jsonl").read_text().splitlines()) == report.metrics[f"examples/{task}"]
        assert sum(entry["answer_positions"]) == entry["examples"]
    assert [row["task"] for row in report.tables["tasks"]] == [PYTHON_NEXT_LINE, DOC_CONTINUATION]


def test_too_few_examples_are_an_error_that_says_how_many(documents: list[HeldOutDocument], tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"doc_continuation: only 0 examples could be made from 20 held-out documents"):
        make_tasks(CONFIG, documents[:20], tmp_path, SilentReporter())
    with pytest.raises(DataError, match=r"python_next_line: only \d+ examples"):
        make_tasks(CONFIG.changed(minimum_examples=60), documents[:2] + documents[20:], tmp_path, SilentReporter())
    with pytest.raises(DataError, match="occurs twice"):
        make_tasks(CONFIG, documents + documents[:1], tmp_path, SilentReporter())


@pytest.mark.parametrize("text", ["", "\n" * 500, '"""' * 99, "\x0c", "x" * 100_000, "(" * 5000, " " * 3000 + "a = 1", "\u2028" * 300])
def test_odd_documents_do_no_harm(documents: list[HeldOutDocument], tmp_path: Path, text: str) -> None:
    odd = [HeldOutDocument("odd code", text, "code", ""), HeldOutDocument("odd prose", text, "prose", "")]
    examples = make(CONFIG, documents + odd, tmp_path)
    assert all(len(rows) >= 20 for rows in examples.values())


@pytest.mark.parametrize("wrong", [{"minimum_examples": 300}, {"choices": 1}, {"unknown": 1}])
def test_a_task_set_that_cannot_work_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        TaskSetConfig(**wrong)


@pytest.mark.parametrize(
    "wrong", [{"tasks": ("a", "a")}, {"tasks": ("../x",)}, {"length_buckets": (64, 32)}, {"window_overlap": 1.0}, {"batch_size": 0}]
)
def test_an_evaluation_that_cannot_work_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        EvaluateConfig(**wrong)
