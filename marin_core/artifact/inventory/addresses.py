"""Finding what lies at a store without a catalogue: walks on this machine, one listing elsewhere, and never into a payload."""

import os
import re
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path

from marin_core.artifact.objects import LocalObjects, Objects
from marin_core.artifact.store import META, Store, local_path
from marin_core.errors import InfrastructureError

PAYLOAD_FOLDER = re.compile(r"attempt-(\d+)(\.new)?")
_DOOM_MARKER = re.compile(r"\.([A-Za-z0-9][A-Za-z0-9._-]*)\.deleted")
PART = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
"""What a part of a name, a version or a partition key can look like; other folders (`.jobs`, `lost+found`) hold no artifacts."""


def addresses(store: Store) -> Iterator[str]:
    """Addresses with bookkeeping, relative to the prefix; not all of them are committed.

    Raises:
        InfrastructureError: a folder can't be listed, so that it isn't known what lies there.
    """
    if isinstance(store.objects, LocalObjects):
        yield from (path for path, _, is_address in local_folders(store.objects.root) if is_address)
    else:
        yield from sorted(listed_addresses(store.objects.files("")))


def listed_addresses(paths: Iterable[str]) -> set[str]:
    """Addresses in a listing of all files below a prefix."""
    candidates = {path.partition(f"/{META}/")[0] for path in paths if f"/{META}/" in path}
    return {path for path in candidates if all(PART.fullmatch(part) and not PAYLOAD_FOLDER.fullmatch(part) for part in path.split("/"))}


def payload_folder(path: str) -> tuple[str, str] | None:
    """The address and the name of the payload folder in which a file lies."""
    parts = path.split("/")[:-1]
    for depth, part in enumerate(parts):
        if not PART.fullmatch(part):
            return None
        if depth and PAYLOAD_FOLDER.fullmatch(part):
            return "/".join(parts[:depth]), part
    return None


def local_folders(root: Path) -> Iterator[tuple[str, bool, bool]]:
    """Addresses, and payload folders that lie at none: path, whether it is reached through a link, whether it is an address.

    Links are followed, as the store itself does, but only out of the store, and to no place twice.
    """
    store = os.path.realpath(root)
    waiting = [("", False)]
    links: list[str] = []
    seen: set[str] = set()
    while waiting or links:
        if not waiting:
            link = links.pop()
            target = os.path.realpath(root / link)
            if target not in seen and not Path(target).is_relative_to(store) and not Path(store).is_relative_to(target):
                seen.add(target)
                waiting.append((link, True))
            continue
        folder, linked = waiting.pop()
        entries = _entries(root / folder)
        is_address = any(entry.name == META for entry in entries)
        if folder and is_address:
            yield folder, linked, True
        for entry in entries:
            path = f"{folder}/{entry.name}".lstrip("/")
            if PAYLOAD_FOLDER.fullmatch(entry.name):
                if folder and not is_address:
                    yield path, linked, False
            elif not PART.fullmatch(entry.name):
                continue
            elif entry.is_symlink():
                links.append(path)
            elif entry.is_dir():
                waiting.append((path, linked))


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    """What lies in a folder, last name first."""
    try:
        return sorted(os.scandir(folder), key=lambda entry: entry.name, reverse=True)
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise _unlisted(error) from error


def place_inside(store: Store, url: str) -> str | None:
    """A URL relative to the store's prefix, or None if it lies elsewhere."""
    root, path = local_path(store.prefix), local_path(url)
    if root is not None and path is not None:
        inside, outside = Path(os.path.realpath(path)), Path(os.path.realpath(root))
        return inside.relative_to(outside).as_posix() if inside != outside and inside.is_relative_to(outside) else None
    prefix, url = (each.replace("gcs://", "gs://").rstrip("/") for each in (store.prefix, url))
    return url.removeprefix(f"{prefix}/") if url.startswith(f"{prefix}/") else None


def is_linked(objects: Objects, path: str) -> bool:
    """Whether a path, or a folder that it lies in, is a symbolic link."""
    if not isinstance(objects, LocalObjects):
        return False
    parts = path.split("/")
    return any((objects.root / "/".join(parts[:depth])).is_symlink() for depth in range(1, len(parts) + 1))


def doom_marker(folder: str) -> str:
    """File beside a folder that says that it is being deleted: half deleted, it may look as if it were in use.

    Payload folders need none: the attempt's history, which stays, says that they are debris.
    """
    parent, _, name = folder.rpartition("/")
    return f"{parent}/.{name}.deleted".lstrip("/")


def folders_and_doomed(objects: Objects, parent: str) -> dict[str, bool]:
    """Names of the folders in a folder, and for each whether its deletion had begun; dot-folders are left out."""
    names = objects.names(parent)
    doomed = {found[1] for name in names if (found := _DOOM_MARKER.fullmatch(name))}
    return {name: name in doomed for name in sorted(doomed | {name for name in names if PART.fullmatch(name)})}


def tree(objects: Objects, path: str) -> dict[str, int]:
    """Bytes of every file below a folder, by path relative to it; links are counted as links."""
    if not isinstance(objects, LocalObjects):
        return {name: state.size for name, state in objects.files(path).items()}
    root = objects.root / path
    found = {}
    for parent, _, names in os.walk(root, onerror=_refuse):
        inner = os.path.relpath(parent, root)
        for name in names:
            try:
                found[name if inner == "." else f"{inner}/{name}"] = os.lstat(os.path.join(parent, name)).st_size  # noqa: PTH118
            except FileNotFoundError:
                continue
    return found


def _refuse(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError | NotADirectoryError):
        raise _unlisted(error) from error


def _unlisted(error: OSError) -> InfrastructureError:
    return InfrastructureError(
        f"{error.filename} can't be listed: {error.strerror}",
        advice="Let this user read the whole store, or move the folder out of it.",
    )


def modified_at(objects: Objects, path: str) -> datetime | None:
    """When a folder or file of this machine was last changed."""
    if not isinstance(objects, LocalObjects):
        return None
    try:
        return datetime.fromtimestamp((objects.root / path).lstat().st_mtime, UTC)
    except FileNotFoundError:
        return None
