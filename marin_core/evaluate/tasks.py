"""Make two small multiple-choice tasks for lm-evaluation-harness from held-out documents.

`python_next_line`: the code before, and which of four lines comes next. `doc_continuation`: the beginning of a paragraph of
documentation, and which of four continuations is its own. Wrong answers are true answers of *other* documents, matched on
length (and indentation), so that an answer can't be recognised without its context. Each position holds the true answer
equally often. Everything follows from (config, documents) by hashes; neither the documents' order nor the machine matters.
In docs.jsonl each document has one example before any has two, so that a limit still draws on many documents.

A task is a folder of `docs.jsonl` (`id, document, domain, title, context, choices, answer`) and `<task>.yaml`, which names
its data by a relative path; `harness.run_tasks` makes it absolute where the folder lies at run time.
"""

import hashlib
import json
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from marin_core.errors import DataError
from marin_core.evaluate.config import DOC_CONTINUATION, PYTHON_NEXT_LINE, TaskSetConfig
from marin_core.evaluate.documents import HeldOutDocument
from marin_core.report import Report, Reporter, Scalar

QUESTIONS_PER_DOCUMENT = 24
"""Most places of one document that are considered, so that memory doesn't grow with long documents."""

LINES_BEFORE = 6
LINE_CHARACTERS = (16, 90)
PARAGRAPH_CHARACTERS = 160
CONTINUATION_CHARACTERS = (60, 120)
LENGTH_TOLERANCE = 0.25
"""Wrong answers are within ± this share of the true answer's length."""

TEMPLATE = """\
task: {task}
dataset_path: json
dataset_kwargs:
  data_files:
    test: docs.jsonl
test_split: test
output_type: multiple_choice
num_fewshot: 0
doc_to_text: context
doc_to_choice: choices
doc_to_target: answer
target_delimiter: ""
metric_list:
  - metric: acc
    aggregation: mean
    higher_is_better: true
  - metric: acc_norm
    aggregation: mean
    higher_is_better: true
metadata:
  version: 1.0
"""


class Question(NamedTuple):
    """A place in a document with its true answer.

    Attributes:
        rank: hash that orders questions independently of the documents' order.
        turn: the question's number within its document, by rank.
        document: where it is from.
        place: line or character offset of the answer.
        context: text before the answer.
        answer: the text that follows.
        form: what a wrong answer must share with the true one, besides its length.
    """

    rank: str
    turn: int
    document: HeldOutDocument
    place: int
    context: str
    answer: str
    form: str


class Place(NamedTuple):
    offset: int
    context: str
    answer: str
    form: str


Finder = Callable[[HeldOutDocument, int], Iterator[Place]]


def make_tasks(config: TaskSetConfig, documents: Iterable[HeldOutDocument], output: Path, reporter: Reporter) -> Report:
    """Write the tasks and their index `tasks.json` below `output`.

    Raises:
        DataError: two documents have the same id, or a task has fewer than `minimum_examples` examples.
    """
    known: dict[str, tuple[tuple[str, ...], Finder]] = {
        PYTHON_NEXT_LINE: (config.code_domains, python_lines),
        DOC_CONTINUATION: (config.prose_domains, paragraph_halves),
    }
    finders = {task: known[task] for task in config.tasks}
    questions: dict[str, list[Question]] = {task: [] for task in finders}
    seen: set[str] = set()
    for document in documents:
        if document.id in seen:
            raise DataError(f"held-out document {document.id!r} occurs twice", advice="Pass each held-out document once.")
        seen.add(document.id)
        for task, (domains, find) in finders.items():
            if any(document.domain == domain or document.domain.startswith(f"{domain}/") for domain in domains):
                questions[task].extend(_questions(config, task, document, find))
    index: dict[str, dict[str, object]] = {}
    rows: list[dict[str, Scalar]] = []
    for number, task in enumerate(finders, start=1):
        examples = _examples(config, task, questions[task])
        if len(examples) < config.minimum_examples:
            raise DataError(
                f"task {task}: only {len(examples)} examples could be made from {len(seen)} held-out documents, "
                f"of which {len({question.document.id for question in questions[task]})} have usable places; "
                f"{config.minimum_examples} are needed",
                advice="Hold out more documents, check code_domains and prose_domains, or lower minimum_examples.",
            )
        index[task] = _write_task(config, task, examples, output)
        sources = len({example["document"] for example in examples})
        rows.append({"task": task, "examples": len(examples), "documents": sources, "choices": config.choices})
        reporter.progress(number, len(finders), "tasks")
    content = json.dumps({"schema": 1, "config": config.model_dump(mode="json"), "tasks": index}, indent=2, sort_keys=True)
    (output / "tasks.json").write_text(content + "\n", encoding="utf-8")
    metrics = {f"examples/{row['task']}": row["examples"] for row in rows}
    return Report(metrics=metrics, tables={"tasks": rows})


def python_lines(document: HeldOutDocument, context_characters: int) -> Iterator[Place]:
    """Places before a line of code that says something: not blank, prose, a comment, an import, a decorator or a repetition."""
    offset = filled = 0
    in_string = False
    for number, line in enumerate(document.text.split("\n")):
        stripped = line.strip()
        indent = len(line) - len(line.lstrip(" "))
        quotes = len(re.findall(r"\"{3}|'{3}", line))
        if filled >= LINES_BEFORE and indent % 4 == 0 and not (in_string or quotes) and _is_telling(stripped):
            context = _last_lines(document.text, offset, context_characters)
            if stripped not in context:
                yield Place(number, context, line.rstrip(), str(indent))
        in_string ^= quotes % 2 == 1
        filled += bool(stripped)
        offset += len(line) + 1


def _is_telling(line: str) -> bool:
    low, high = LINE_CHARACTERS
    return (
        low <= len(line) <= high
        and bool(re.match(r"[A-Za-z_]", line))
        and bool(re.search(r"[=(\[.:]", line))
        and not re.match(r"(import|from)\b", line)
    )


def paragraph_halves(document: HeldOutDocument, context_characters: int) -> Iterator[Place]:
    """Places in the middle of a paragraph, between two words; the continuation ends between two words too."""
    low, high = CONTINUATION_CHARACTERS
    for paragraph in re.finditer(r"\S(?:(?!\n[ \t]*\n)[\s\S])*", document.text):
        text = paragraph.group().rstrip()
        if len(text) < PARAGRAPH_CHARACTERS or sum(letter.isalpha() for letter in text) < 0.6 * len(text):
            continue
        split = text.rfind(" ", 0, len(text) // 2)
        if split <= 0 or not text[split - 1].isalnum() or not text[split + 1].isalnum():
            continue
        end = len(text) if len(text) - split <= high else text.rfind(" ", split + low, split + high)
        if end - split < low:
            continue
        offset = paragraph.start() + split
        yield Place(offset, _last_lines(document.text, offset, context_characters), text[split:end].rstrip(), "")


def _last_lines(text: str, end: int, characters: int) -> str:
    """At most so many characters before `end`, from the beginning of a line where there is one."""
    begin = max(0, end - characters)
    if begin:
        newline = text.find("\n", begin - 1, end - 1)
        begin = begin if newline < 0 else newline + 1
    return text[begin:end]


def _questions(config: TaskSetConfig, task: str, document: HeldOutDocument, find: Finder) -> list[Question]:
    ranked = sorted((_rank(config, task, document.id, str(place.offset)), place) for place in find(document, config.context_characters))
    slim = document._replace(text="")
    return [
        Question(rank, turn, slim, place.offset, place.context, place.answer, place.form)
        for turn, (rank, place) in enumerate(ranked[:QUESTIONS_PER_DOCUMENT])
    ]


def _examples(config: TaskSetConfig, task: str, questions: Sequence[Question]) -> list[dict[str, object]]:
    """Examples in an order that makes the first few a fair sample: each document has its turn before any has a second one."""
    pools: dict[str, list[Question]] = defaultdict(list)
    for question in sorted(questions):
        pools[question.form].append(question)
    examples: list[dict[str, object]] = []
    for question in sorted(questions, key=lambda question: (question.turn, question.rank)):
        if len(examples) == config.examples_per_task:
            break
        wrong = _wrong_answers(config, task, question, pools[question.form])
        if wrong is None:
            continue
        answer = len(examples) % config.choices
        examples.append(
            {
                "id": f"{question.document.id}:{question.place}",
                "document": question.document.id,
                "domain": question.document.domain,
                "title": question.document.title,
                "context": question.context,
                "choices": [*wrong[:answer], question.answer, *wrong[answer:]],
                "answer": answer,
            }
        )
    return examples


def _wrong_answers(config: TaskSetConfig, task: str, question: Question, pool: Sequence[Question]) -> list[str] | None:
    """Answers of other documents, at most one of each, in an order of this question's own; None if there are too few."""
    length = len(question.answer)
    fitting = [
        (_rank(config, task, question.rank, other.rank), other)
        for other in pool
        if other.document.id != question.document.id and abs(len(other.answer) - length) <= LENGTH_TOLERANCE * length
    ]
    taken = {question.answer.strip()}
    sources: set[str] = set()
    wrong: list[str] = []
    for _, other in sorted(fitting):
        text = other.answer.strip()
        if text not in taken and text not in question.context and other.document.id not in sources:
            taken.add(text)
            sources.add(other.document.id)
            wrong.append(other.answer)
            if len(wrong) == config.choices - 1:
                return wrong
    return None


def _rank(config: TaskSetConfig, *parts: str) -> str:
    """A hash of the seed and the parts, as hex."""
    return hashlib.blake2b("\0".join([str(config.seed), *parts]).encode(), digest_size=16).hexdigest()


def _write_task(config: TaskSetConfig, task: str, examples: Sequence[dict[str, object]], output: Path) -> dict[str, object]:
    """Write a task's folder and return its entry of the index."""
    folder = output / task
    folder.mkdir(parents=True, exist_ok=True)
    files = {
        "docs.jsonl": "".join(json.dumps(example, ensure_ascii=False) + "\n" for example in examples),
        f"{task}.yaml": TEMPLATE.format(task=task),
    }
    for name, content in files.items():
        (folder / name).write_text(content, encoding="utf-8", newline="\n")
    return {
        "examples": len(examples),
        "choices": config.choices,
        "documents": len({example["document"] for example in examples}),
        "answer_positions": [sum(example["answer"] == position for example in examples) for position in range(config.choices)],
        "sha256": {name: hashlib.sha256(content.encode()).hexdigest() for name, content in files.items()},
    }
