"""Files of a local folder: listed once, in byte order, and copied as they are."""

import os
import shutil
from pathlib import Path

from marin_core.errors import ConfigError, DataError


def matching_files(root: Path, pattern: str) -> list[str]:
    """Relative paths of the regular files that match, sorted by bytes.

    Raises:
        ConfigError: if `root` is no folder.
        DataError: if nothing matches, or a symbolic link leaves `root`.
    """
    if not root.is_dir():
        raise ConfigError(f"field 'root' is {str(root)!r}, which is not a folder", advice="Give the folder that holds the files.")
    real_root = root.resolve()
    found = []
    for path in root.glob(pattern):
        if not path.is_file():
            continue
        if not path.resolve().is_relative_to(real_root):
            raise DataError(
                f"{str(path.relative_to(root))!r} is a symbolic link that leaves the root",
                advice="Copy the file below the root, or narrow 'pattern'.",
            )
        found.append(path.relative_to(root).as_posix())
    if not found:
        raise DataError(f"no file below {str(root)!r} matches {pattern!r}", advice="Correct 'root' or 'pattern'.")
    return sorted(set(found), key=os.fsencode)


def copy_unchanged(source: Path, target: Path) -> None:
    """Copy a file's bytes.

    Raises:
        DataError: if its size or time of change differs before and after.
    """
    before = source.stat()
    shutil.copyfile(source, target)
    after = source.stat()
    if (before.st_size, before.st_mtime_ns) != (after.st_size, after.st_mtime_ns) or target.stat().st_size != after.st_size:
        raise DataError(f"file {source.name!r} changed while it was copied", advice="Ingest when nothing writes to it.")
