"""A run's folder in a bucket, kept like the one on this disk: what a later attempt goes on from, on any machine. Imports no JAX.

Orbax 0.12 can write to a bucket by itself, and is not asked to. Its small files go through a client that gives up after six tries: a
store that answered 500 for a minute ended a save after 36 s, when the next step had long taken the state's memory. What lies on a disk
can be sent again for as long as a save may take.
"""

import json
import logging
import shutil
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

from marin_core.artifact.objects import FileState, Objects, is_copy, local_state
from marin_core.artifact.region import EgressGuard
from marin_core.errors import ConfigError, InfrastructureError
from marin_core.train.checkpoint.metadata import HELD_FILE, METADATA_FILE, UNFINISHED_FILE, CheckpointMetadata

RUN_FILE = "run.json"
"""Sent last: a folder without it is no run that anybody may go on with."""

CHECKPOINTS, UNREADABLE = "checkpoints", "unreadable"
SETTLED = (f"{CHECKPOINTS}/", f"{UNREADABLE}/")
"""Where nobody writes to files any more, pins aside; all others may grow while they are sent, or go."""

THREADS = "mirror"
"""What the names of threads begin with that talk to the store."""

AT_ONCE = 8
"""Files on their way side by side."""

SHORTEST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 1.0, 30.0
"""Between two tries; each is twice as long as the one before."""

_log = logging.getLogger(__name__)


class Mirror:
    """One attempt's folder in a store that is no file system. Nobody else writes there; a process of several that isn't the first has none.

    It holds committed checkpoints and the run's other files. At any instant it is a folder as a killed process might have left it: files
    before the metadata that commits them, metrics before the checkpoint that comes after them, and nothing of a step that the run
    has gone back from beside files that don't know of it.

    Args:
        folder: below the store's prefix.
    """

    def __init__(self, objects: Objects, folder: str) -> None:
        self.folder = folder
        self._objects = objects
        self._looked = False
        self._there: dict[str, FileState | None] = {}
        """Path → state of the local file when it was sent; None where what is there isn't known."""
        self._lock = threading.Lock()

    def beside(self, folder: str) -> "Mirror":
        """That of another attempt."""
        return Mirror(self._objects, folder)

    # To the store -------------------------------------------------------------------------------------------------------

    def begin(self, run_dir: Path, earlier: "Mirror | None") -> None:
        """Send the folder of a run that goes on; what the store has of it in the folder of an earlier attempt is copied within the store.

        Raises:
            InfrastructureError: the store doesn't answer.
        """
        if earlier is not None:
            kept = earlier._whole().keys() & _files(run_dir).keys() - {RUN_FILE}
            _side_by_side(lambda path: self._copy(earlier, path), kept)
        self.update(run_dir)

    def update(self, run_dir: Path, seconds: float = 0.0) -> None:
        """Send what is new in the local folder, and remove what is gone from it.

        Args:
            seconds: for so long it is tried again.

        Raises:
            InfrastructureError: the store doesn't answer, or refuses.
        """
        ends, pause = time.monotonic() + seconds, SHORTEST_PAUSE_SECONDS
        while True:
            try:
                with self._lock:
                    return self._update(run_dir)
            except InfrastructureError as error:
                if time.monotonic() + pause >= ends:
                    raise
                _log.warning("The run can't be sent to the store, trying again: %s", error.message)
            time.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE_SECONDS)

    def clear(self) -> None:
        """Remove everything."""
        self._objects.delete_tree(self.folder)
        self._there = {}

    def _update(self, run_dir: Path) -> None:
        local = _files(run_dir)
        if not self._looked:
            self._there, self._looked = self._look(local), True
        there = self._there
        commits = {path for path in local if _is_commit(path)}
        settled = {path for path in local if path.startswith(SETTLED) and not path.endswith(f"/{HELD_FILE}")}
        newest = max(map(_step, commits), default=-1)
        gone = [path for path in there if path not in local]
        # What the run has gone back from, or replaces, must not stand beside files that are about to change.
        self._remove(path for path in gone if _is_commit(path) and _step(path) > newest)
        self._remove([path for path in commits if path in there and there[path] != local_state(local[path])])
        self._send(local, settled - commits)
        for path in sorted(local.keys() - settled - {RUN_FILE}):  # alerts before the metrics that raised them
            self._send_growing(local[path], path, run_dir)
        self._send(local, commits)
        self._send(local, local.keys() & {RUN_FILE})
        gone = [path for path in there if path not in local]
        self._remove(filter(_is_commit, gone))
        self._remove(path for path in gone if path in there)

    def _look(self, local: Mapping[str, Path]) -> dict[str, FileState | None]:
        """What is in the store: path → state of the local file if it has that content."""
        found = self._objects.files(self.folder)
        there: dict[str, FileState | None] = dict.fromkeys(found)

        def compare(path: str) -> None:
            with suppress(FileNotFoundError):
                state = local_state(local[path])
                if is_copy(local[path], found[path]):
                    there[path] = state

        _side_by_side(compare, found.keys() & local.keys())
        return there

    def _send(self, local: Mapping[str, Path], paths: Iterable[str]) -> None:
        _side_by_side(lambda path: self._send_file(local[path], path, local_state(local[path])), paths)

    def _send_growing(self, source: Path, path: str, run_dir: Path) -> None:
        """Send a copy: a file that grows while it is sent would arrive cut, or not at all."""
        with suppress(FileNotFoundError):  # it was there when the folder was listed
            state = local_state(source)
            if self._there.get(path) == state:
                return
            copied = run_dir / "sending.new"
            try:
                shutil.copyfile(source, copied)
                self._send_file(copied, path, state)
            finally:
                copied.unlink(missing_ok=True)

    def _send_file(self, source: Path, path: str, state: FileState) -> None:
        if self._there.get(path) != state:
            self._there[path] = None
            self._objects.upload(source, self._at(path))
            self._there[path] = state

    def _copy(self, earlier: "Mirror", path: str) -> None:
        with suppress(FileNotFoundError):  # somebody clears it away; the local file is sent then
            self._objects.copy(earlier._at(path), self._at(path))

    def _remove(self, paths: Iterable[str]) -> None:
        def remove(path: str) -> None:
            self._objects.delete(self._at(path))
            self._there.pop(path, None)

        _side_by_side(remove, paths)

    # From the store -----------------------------------------------------------------------------------------------------

    def stands(self) -> bool:
        """Whether this is a run that may be gone on with."""
        return self._objects.read(self._at(RUN_FILE)) is not None

    def fetch(self, run_dir: Path) -> None:
        """Fill an empty local folder with the whole checkpoints and the other files.

        Raises:
            ConfigError: they lie in another region, and are more than may be read from there.
            InfrastructureError: the store doesn't answer, or a file was gone or changed meanwhile.
        """
        files = self._whole()
        url = f"{self._objects.url}/{self.folder}"
        EgressGuard().require(url, sum(state.size for state in files.values()), f"what an interrupted run left at {url}")

        def download(path: str) -> None:
            target = run_dir / path
            target.parent.mkdir(parents=True, exist_ok=True)
            try:
                self._objects.download(self._at(path), target)
            except FileNotFoundError:
                raise self._changed(path) from None
            if target.stat().st_size != files[path].size or (files[path].md5 and not is_copy(target, files[path])):
                raise self._changed(path)

        _side_by_side(download, files)

    def _whole(self) -> dict[str, FileState]:
        """All files but those of checkpoints that are not committed, or half gone since somebody is clearing them away."""
        files = self._objects.files(self.folder)
        commits = {path: self._at(path) for path in files if _is_commit(path)}
        read = self._objects.read_many(list(commits.values()))
        missing = {path.rpartition("/")[0] for path, at in commits.items() if at not in read or _lacks(path, read[at], files)}
        whole = {path.rpartition("/")[0] for path in commits} - missing
        return {path: state for path, state in files.items() if not path.startswith(f"{CHECKPOINTS}/") or _directory(path) in whole}

    def _changed(self, path: str) -> InfrastructureError:
        return InfrastructureError(f"{self._at(path)} was removed or changed while it was read", advice="Start the run again.")

    def _at(self, path: str) -> str:
        return f"{self.folder}/{path}"


def _files(run_dir: Path) -> dict[str, Path]:
    """Path → file, of all that a run has left for good: nothing of a checkpoint without metadata, and no file that will be renamed."""
    found = {path.relative_to(run_dir).as_posix(): path for path in run_dir.rglob("*") if path.is_file()}
    committed = {_directory(path) for path in found if _is_commit(path)}
    unfinished = {name for name in found if name.startswith(f"{CHECKPOINTS}/") and _directory(name) not in committed}
    return {name: found[name] for name in found.keys() - unfinished if name != UNFINISHED_FILE and not name.endswith(".new")}


def _lacks(commit: str, content: bytes, files: Mapping[str, FileState]) -> bool:
    """Whether a checkpoint's metadata names files that aren't there. What can't be read is judged by whoever restores it."""
    try:
        metadata = CheckpointMetadata.from_json(json.loads(content))
    except (ValueError, ConfigError):
        return False
    sizes = {path: files[at].size for path in metadata.files if (at := f"{_directory(commit)}/{path}") in files}
    return sizes != metadata.files


def _is_commit(path: str) -> bool:
    folder, _, name = path.rpartition("/")
    return name == METADATA_FILE and folder == f"{CHECKPOINTS}/{folder.rpartition('/')[2]}"


def _directory(path: str) -> str:
    """That of the checkpoint in which a file lies."""
    return "/".join(path.split("/")[:2])


def _step(commit: str) -> int:
    return int(commit.split("/")[1])


def _side_by_side(action: Callable[[str], None], paths: Iterable[str]) -> None:
    """Do something with many files; the first error is raised, after what was begun has ended."""
    pool = ThreadPoolExecutor(AT_ONCE, thread_name_prefix=THREADS)
    try:
        for _ in pool.map(action, sorted(paths)):
            pass
    finally:
        pool.shutdown(cancel_futures=True)
