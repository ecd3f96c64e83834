"""Examples of evaluations as text: from raw JSON lines with a question, choices and an answer, or from tasks that were made here."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from marin_core.data.decontaminate.config import ExampleFields
from marin_core.data.limits import Limits
from marin_core.data.streams import DamagedStreamError, chunks, lines
from marin_core.data.units import UNITS_FILE, read_units
from marin_core.errors import DataError

TASKS_FILE = "tasks.json"
TASK_FIELDS = ExampleFields(question="context")
LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


class Example(NamedTuple):
    """One example.

    Attributes:
        name: what its evaluation calls it, else its file and line.
        parts: question, choices and answer, as far as it has them.
    """

    name: str
    parts: tuple[str, ...]

    @property
    def text(self) -> str:
        """The whole example, each part on a line of its own."""
        return "\n".join(self.parts)


def read_examples(folder: Path, fields: ExampleFields | None) -> Iterator[Example]:
    """All examples of an evaluation, in the order of its files and lines.

    Args:
        folder: payload of a raw source with JSON lines, or of an `eval_tasks` artifact.
        fields: names of the fields; None = the usual ones.

    Raises:
        DataError: naming file and line: not JSON, or not an example. What can't be read can't be looked for, so nothing is left out.
    """
    if (folder / TASKS_FILE).exists():
        for task in sorted(json.loads((folder / TASKS_FILE).read_bytes())["tasks"]):
            yield from _read_file(folder / task / "docs.jsonl", f"{task}/", task, fields or TASK_FIELDS)
    elif (folder / UNITS_FILE).exists():
        for unit in read_units(folder).units:
            yield from _read_file(folder / unit.path, "", unit.path, fields or ExampleFields())
    else:
        raise DataError(
            f"{folder.name} has neither {UNITS_FILE} nor {TASKS_FILE}", advice="Give a raw source of JSON lines, or an eval_tasks artifact."
        )


def _read_file(path: Path, prefix: str, shown: str, fields: ExampleFields) -> Iterator[Example]:
    limits = Limits()
    try:
        for number, line in enumerate(lines(chunks(path, limits), limits.record_bytes), start=1):
            where = f"line {number} of {shown!r}"
            if line.data is None:
                raise _bad(where, f"it has {line.length} bytes")
            try:
                record = json.loads(line.data)
            except ValueError as error:
                raise _bad(where, f"it is no JSON ({error})") from error
            if not isinstance(record, dict):
                raise _bad(where, f"it is a JSON {type(record).__name__}")
            name = record.get(fields.id) if fields.id else None
            yield Example(f"{prefix}{f'{shown}:{number}' if name is None else name}", _parts(record, fields, where))
    except OSError as error:
        raise DataError(f"examples {shown!r} can't be read ({error})", advice="Build the evaluation anew.") from error
    except DamagedStreamError as error:
        raise DataError(f"examples {shown!r}: {error.reason} at byte {error.offset}", advice="Fetch the evaluation again.") from error


def _parts(record: Mapping[str, Any], fields: ExampleFields, where: str) -> tuple[str, ...]:
    question = record.get(fields.question)
    if not isinstance(question, str):
        raise _bad(where, f"field {fields.question!r} is {type(question).__name__}, not text")
    choices = record.get(fields.choices) if fields.choices else None
    if isinstance(choices, dict):
        choices = choices.get("text")
    if choices is None:
        choices = []
    if not isinstance(choices, list) or not all(isinstance(choice, str) for choice in choices):
        raise _bad(where, f"field {fields.choices!r} is no list of texts")
    answer = _answer(record.get(fields.answer) if fields.answer else None, choices, where, fields)
    return tuple(part for part in (question, *choices, answer) if part.strip())


def _answer(answer: Any, choices: list[str], where: str, fields: ExampleFields) -> str:
    """The answer's text; where it names a choice, that choice's."""
    if answer is None:
        return ""
    if isinstance(answer, str):
        place = LETTERS.find(answer) if len(answer) == 1 else -1
        return choices[place] if 0 <= place < len(choices) else answer
    if isinstance(answer, int) and not isinstance(answer, bool):
        return choices[answer] if 0 <= answer < len(choices) else str(answer)
    if isinstance(answer, float):
        return str(answer)
    raise _bad(where, f"field {fields.answer!r} is {type(answer).__name__}, neither text nor number")


def _bad(where: str, what: str) -> DataError:
    return DataError(f"{where} is no example: {what}", advice="Name the fields of this evaluation with ExampleFields, or repair the file.")
