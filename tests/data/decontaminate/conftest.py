"""Three small evaluations in plain English, and what a document with text of them looks like."""

import json
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from marin_core.data.decontaminate.config import ContaminationIndexConfig, ExampleFields
from marin_core.data.decontaminate.index import ContaminationIndex, EvalSource, build_index
from marin_core.data.ingest import ingest
from marin_core.data.sources.config import IngestConfig, LocalFiles
from marin_core.report import Report, SilentReporter

PEOPLE = ("Amara", "Bjorn", "Chidi", "Dolores", "Eun-ji", "Farid")
THINGS = ("copper kettles", "wool blankets", "paper lanterns", "clay marbles", "pine seedlings")


def arithmetic() -> list[dict[str, Any]]:
    """Word problems with a worked answer, as in GSM8K."""
    return [
        {
            "question": f"{person} buys {count} {thing} at the harbour market and gives {given} of them to a neighbour who lost "
            f"everything in the storm. How many {thing} does {person} have left when the ferry leaves?",
            "answer": f"{person} had {count} {thing} and gave away {given}, so {count} - {given} = {count - given} are left.",
        }
        for (person, thing), (count, given) in zip(product(PEOPLE, THINGS), ((20 + 3 * each, 2 + each) for each in range(30)), strict=True)
    ]


def science() -> list[dict[str, Any]]:
    """Questions with four choices and a letter, as in ARC; the index of a choice, as in MMLU, for every second one."""
    choices = ["it turns into vapour", "it becomes heavier", "it loses its colour", "it conducts no heat"]
    return [
        {
            "id": f"S{index}",
            "question": f"A class heats {thing} over a small flame for {index + 3} minutes and {person} writes down what happens to the "
            "water that was inside. Which statement describes the observation best?",
            "choices": {"text": choices, "label": ["A", "B", "C", "D"]} if index % 2 else choices,
            "answer": "ABCD"[index % 4] if index % 2 else index % 4,
        }
        for index, (person, thing) in enumerate(product(PEOPLE, THINGS))
    ]


def trivia() -> list[dict[str, Any]]:
    """Short questions: some are looked for as a whole, some are too short for that."""
    return [
        {"query": "Which river did the old lighthouse keeper cross last winter?", "target": ["none", "Olt"][1]},
        {"query": "Who painted the blue ceiling of the northern railway chapel?", "target": "Ilse"},
        {"query": "Name the capital of Peru.", "target": "Lima"},
    ]


FIELDS = {"trivia": ExampleFields(question="query", answer="target", choices=None)}


def raw(folder: Path, name: str, records: Sequence[dict[str, Any]]) -> Path:
    source = folder / f"{name}-files"
    source.mkdir(parents=True)
    (source / f"{name}.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    config = IngestConfig.from_json({"source": LocalFiles(root=str(source)), "license": "CC0-1.0", "policy": "EVAL_ONLY", "name": name})
    ingest(config, folder / name, SilentReporter())
    return folder / name


def built(folder: Path, evals: dict[str, Path], config: ContaminationIndexConfig | None = None) -> tuple[Path, Report]:
    output = folder / "index"
    sources = {name: EvalSource(path, f"digest of {name}") for name, path in evals.items()}
    return output, build_index(config or ContaminationIndexConfig(fields=FIELDS), sources, output, SilentReporter())


@pytest.fixture(scope="session")
def index(tmp_path_factory: pytest.TempPathFactory) -> ContaminationIndex:
    folder = tmp_path_factory.mktemp("evals")
    records = {"arithmetic": arithmetic(), "science": science(), "trivia": trivia()}
    path, _ = built(folder, {name: raw(folder, name, values) for name, values in records.items()})
    return ContaminationIndex(path)
