"""Files of a local folder: listed once, and copied as they are."""

import os
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from marin_core.data.sources.config import LocalFiles
from marin_core.data.sources.interface import BLOCK_BYTES, Fetched, Listed, Target, Watch
from marin_core.errors import ConfigError, DataError


@dataclass(frozen=True)
class _State:
    """What changes when a file does."""

    device: int
    inode: int
    size: int
    modified_ns: int

    @classmethod
    def of(cls, found: os.stat_result) -> "_State":
        return cls(found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns)


class OpenedLocalFiles:
    """The files below a folder that match a pattern."""

    connections = 1

    def __init__(self, source: LocalFiles) -> None:
        self._root = Path(source.root)
        self._pattern = source.pattern
        self.skipped: Counter[str] = Counter()
        self.notes: dict[str, str] = {}

    def files(self, watch: Watch) -> list[Listed]:
        """Regular files; what else matches, such as a socket or a link to nowhere, is counted.

        Raises:
            ConfigError: if `root` is no folder.
            DataError: if nothing matches, or a symbolic link leaves `root`.
        """
        root = self._root
        if not root.is_dir():
            raise ConfigError(f"field 'root' is {str(root)!r}, which is not a folder", advice="Give the folder that holds the files.")
        real_root = root.resolve()
        found: dict[str, Listed] = {}
        below = self._pattern.split("/")[-1] == "**"  # which is folders alone for Python before 3.13, and files everywhere else
        for path in root.glob(f"{self._pattern}/*" if below else self._pattern):
            name = path.relative_to(root).as_posix()
            if path.is_dir():
                continue
            if not path.resolve().is_relative_to(real_root):
                raise DataError(
                    f"{name!r} is a symbolic link that leaves the root", advice="Copy the file below the root, or narrow 'pattern'."
                )
            if not path.is_file():
                self.skipped["no_file"] += 1
                continue
            state = _State.of(path.stat())
            found[name] = Listed(name, state.size, state)
        if not found:
            raise DataError(f"no file below {str(root)!r} matches {self._pattern!r}", advice="Correct 'root' or 'pattern'.")
        return list(found.values())

    def still(self, listed: Listed, fetched: Fetched, watch: Watch) -> bool:
        """Never: to copy a file is no more work than to compare it."""
        return False

    def fetch(self, listed: Listed, path: Path, watch: Watch) -> Fetched:
        """Copy a file.

        Raises:
            DataError: if it isn't the file that was listed, or changes while it is read.
        """
        try:
            with (self._root / listed.name).open("rb") as file, Target(path, watch) as target:
                before = _State.of(os.fstat(file.fileno()))
                while block := file.read(BLOCK_BYTES):
                    target.write(block)
                after = _State.of(os.fstat(file.fileno()))
        except FileNotFoundError:
            raise _changed(listed.name, "is gone") from None
        if before != listed.key or after != before or target.size != after.size:
            raise _changed(listed.name, "changed")
        return Fetched(target.size, target.sha256)


def _changed(name: str, what: str) -> DataError:
    return DataError(f"file {name!r} {what} since it was listed", advice="Ingest when nothing writes to it.")
