"""A local copy of what a job's pods have said: whoever reads a local job's folder reads a cluster's alike. Losing it loses nothing."""

import fcntl
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from marin_core.artifact.job_folder import GENERATION_DIGITS, MESSAGES, JobFolder, log_stream

LOCAL_NAMES = {MESSAGES: "messages", log_stream(0): "log"}
"""Streams that are copied, and what a local job calls them."""

POSITIONS = "mirrored.json"
"""In the copy: of each stream the last piece that was appended, and how long the file was then."""


class Mirror:
    """Appends new pieces of a job's streams to files of a local folder.

    Several processes may follow one job on one machine, and each may be killed at any time: a lock makes them take turns, and a piece of
    which only a part was appended is cut off again.

    Attributes:
        first_done: progress that a generation of pods reported first, by generation: how far what they went on from had come.
    """

    def __init__(self, folder: JobFolder, local: Path) -> None:
        self._folder = folder
        self._local = local
        self.first_done: dict[str, float] = {}

    def pull(self) -> None:
        """Append what is new.

        Raises:
            InfrastructureError: the store doesn't answer.
        """
        with self._turn():
            positions = self._positions()
            for stream, name in LOCAL_NAMES.items():
                path = self._local / name
                after, size = positions.get(stream, (None, 0))
                for chunk in self._folder.chunks(stream, after):
                    data = self._folder.read(stream, chunk)
                    with path.open("r+b" if path.exists() else "w+b") as file:
                        file.truncate(size)
                        file.seek(size)
                        file.write(data)
                    size += len(data)
                    positions[stream] = (chunk, size)
                    self._write(positions)
                    if stream == MESSAGES:
                        self._note_progress(chunk[:GENERATION_DIGITS], data)

    def tail(self, process: int, lines: int) -> str:
        """The last lines that a process printed, from the store; only as many pieces as that takes are read."""
        stream = log_stream(process)
        found = b""
        for chunk in reversed(self._folder.chunks(stream)):
            found = self._folder.read(stream, chunk) + found
            if found.count(b"\n") > lines:
                break
        return "\n".join(found.decode(errors="replace").splitlines()[-lines:])

    def _note_progress(self, generation: str, data: bytes) -> None:
        if generation in self.first_done:
            return
        for line in data.splitlines():
            if b'"progress"' not in line:
                continue
            try:
                payload = json.loads(line)["params"]["payload"]
                self.first_done[generation] = float(payload["done"])
            except (ValueError, KeyError, TypeError):  # another message that has this word in it
                continue
            return

    @contextmanager
    def _turn(self) -> Iterator[None]:
        self._local.mkdir(parents=True, exist_ok=True)
        with (self._local / "mirror.lock").open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def _positions(self) -> dict[str, tuple[str | None, int]]:
        """Where the copy of each stream ends; it begins anew where that isn't known, or the copy is shorter."""
        try:
            read = json.loads((self._local / POSITIONS).read_text())
        except (FileNotFoundError, ValueError):
            return {}
        sizes = {stream: _size(self._local / name) for stream, name in LOCAL_NAMES.items()}
        return {stream: (chunk, size) for stream, (chunk, size) in read.items() if stream in sizes and sizes[stream] >= size}

    def _write(self, positions: dict[str, tuple[str | None, int]]) -> None:
        temporary = self._local / f"{POSITIONS}.tmp"
        temporary.write_text(json.dumps(positions))
        temporary.replace(self._local / POSITIONS)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0
