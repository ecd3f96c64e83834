"""Which files of an ingestion are there for good while it still goes on, so that a later try fetches only the rest.

A line a file is appended once its last byte is written. Nothing is believed without being checked: the file's bytes against the line, and
the line against the source.
"""

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path, PurePosixPath
from threading import Lock
from typing import Any

from marin_core.artifact.canonical import canonical_json
from marin_core.artifact.record import file_sha256
from marin_core.data.sources.interface import Fetched

JOURNAL_FILE = "fetched.jsonl"


@dataclass(frozen=True)
class _Line:
    """`path` is the file's place below the output."""

    path: str
    fetched: Fetched

    @classmethod
    def parse(cls, text: bytes) -> "_Line | None":
        """A line, or None if it was cut when its writer died."""
        try:
            values: dict[str, Any] = json.loads(text)
            line = cls(str(values.pop("path")), Fetched(**values))
        except (ValueError, KeyError, TypeError, AttributeError):
            return None
        parts = PurePosixPath(line.path).parts
        return line if parts and ".." not in parts and not line.path.startswith("/") else None

    def encoded(self) -> bytes:
        return canonical_json({"path": self.path, **asdict(self.fetched)}) + b"\n"


class Journal:
    """The journal of one output folder, used by several threads."""

    def __init__(self, output: Path) -> None:
        """Open it, with what earlier tries left."""
        self._output = output
        self._path = output / JOURNAL_FILE
        self._lock = Lock()
        self._known = {line.path: line for line in _lines(self._path)}
        output.mkdir(parents=True, exist_ok=True)
        scratch = self._path.with_suffix(".new")
        scratch.write_bytes(b"".join(line.encoded() for line in self._known.values()))
        scratch.replace(self._path)  # without the line that a dying writer cut, which the next would be written onto

    def claimed(self, path: str) -> Fetched | None:
        """What an earlier try fetched to a path below the output."""
        line = self._known.get(path)
        return None if line is None else line.fetched

    def intact(self, path: str) -> bool:
        """Whether the file at a path has the bytes that its line claims."""
        fetched, file = self.claimed(path), self._output / path
        try:
            return fetched is not None and file.stat().st_size == fetched.size and file_sha256(file) == fetched.sha256
        except OSError:
            return False

    def note(self, path: str, fetched: Fetched) -> None:
        """A file is complete."""
        with self._lock, self._path.open("ab") as file:
            file.write(_Line(path, fetched).encoded())

    def clear(self, folder: str, wanted: set[str]) -> None:
        """Remove files below a folder of the output that aren't both claimed and wanted."""
        for file in (self._output / folder).rglob("*"):
            path = file.relative_to(self._output).as_posix()
            if file.is_file() and (path not in wanted or path not in self._known):
                file.unlink()

    def end(self) -> None:
        """Ingestion is complete; the journal is no part of it."""
        self._path.unlink(missing_ok=True)


def carry_over_files(earlier: Path, output: Path) -> None:
    """Begin an attempt's output with the files that an earlier one fetched completely: as hard links, since nobody rewrites them."""
    lines = [line for line in _lines(earlier / JOURNAL_FILE) if (earlier / line.path).is_file()]
    for line in lines:
        target = output / line.path
        target.parent.mkdir(parents=True, exist_ok=True)
        os.link(earlier / line.path, target)
    (output / JOURNAL_FILE).write_bytes(b"".join(line.encoded() for line in lines))


def _lines(path: Path) -> list[_Line]:
    """The whole lines of a journal, the last one of each path."""
    try:
        parsed = [line for text in path.read_bytes().splitlines() if (line := _Line.parse(text)) is not None]
    except FileNotFoundError:
        return []
    return list({line.path: line for line in parsed}.values())
