"""Folders of numpy arrays with a list of what they hold: sizes and checksums, so that a cut or changed file is never read as data."""

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt
import xxhash

from marin_core.data.files import write_json
from marin_core.errors import ConfigError, DataError

Array = npt.NDArray[Any]
_CHUNK = 1 << 22


class ArrayFolder:
    """Arrays of a committed folder, read in pieces.

    Attributes:
        about: everything else that its list says.
    """

    def __init__(self, folder: Path, list_file: str, schema: str, advice: str) -> None:
        """Read the list and check every file against it.

        Raises:
            DataError: the list or a file is missing, cut or changed.
            ConfigError: it was written in another schema; names both.
        """
        self._folder = folder
        self._advice = advice
        try:
            content = json.loads((folder / list_file).read_bytes())
            found, self._promised = content.pop("schema"), content.pop("arrays")
        except (OSError, ValueError, KeyError, AttributeError) as error:
            raise DataError(f"{folder.name} has no readable {list_file} ({error})", advice=advice) from error
        if found != schema:
            raise ConfigError(f"{folder.name} has schema {found!r}, this reader knows {schema!r}", advice=advice)
        self.about: dict[str, Any] = content
        for name, promised in self._promised.items():
            self._check(name, promised)

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(self._promised[name]["shape"])

    def digest(self, name: str) -> str:
        """Checksum of an array's file."""
        return str(self._promised[name]["xxh3_128"])

    def mapped(self, name: str) -> Array:
        """The array without reading it. Copy what is needed and let it go: pages that were touched count as memory until then."""
        if 0 in self.shape(name):
            return self.read(name)
        return np.load(self._path(name), mmap_mode="r", allow_pickle=False)  # type: ignore[no-any-return]

    def read(self, name: str) -> Array:
        """The whole array."""
        return np.load(self._path(name), allow_pickle=False)  # type: ignore[no-any-return]

    def _path(self, name: str) -> Path:
        return self._folder / f"{name}.npy"

    def _check(self, name: str, promised: Mapping[str, Any]) -> None:
        path = self._path(name)
        try:
            digest = _file_digest(path)
            with path.open("rb") as file:
                np.lib.format.read_magic(file)
                shape, _, dtype = np.lib.format.read_array_header_1_0(file)
        except (OSError, ValueError) as error:
            raise DataError(f"array {name!r} of {self._folder.name} can't be read ({error})", advice=self._advice) from error
        if digest != promised["xxh3_128"] or list(shape) != promised["shape"] or dtype.str != promised["dtype"]:
            raise DataError(f"array {name!r} of {self._folder.name} is not what its list promises", advice=self._advice)


class ArrayWriter:
    """Writes arrays into a folder; the list comes last, and without it no reader takes the folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._written: dict[str, dict[str, Any]] = {}
        folder.mkdir(parents=True, exist_ok=True)

    def write(self, name: str, array: Array) -> None:
        """Write one array."""
        self.write_pieces(name, array.dtype, array.shape, [array])

    def write_pieces(self, name: str, dtype: npt.DTypeLike, shape: Sequence[int], pieces: Iterable[Array]) -> None:
        """Write one array that never lies in memory as a whole, from pieces along its first axis."""
        path = self._folder / f"{name}.npy"
        little = np.dtype(dtype).newbyteorder("<")
        with path.open("wb") as file:
            header = {"descr": little.str, "fortran_order": False, "shape": tuple(shape)}
            np.lib.format.write_array_header_1_0(file, header)
            for piece in pieces:
                file.write(np.ascontiguousarray(piece, little).tobytes())
        self._written[name] = {"dtype": little.str, "shape": list(shape), "xxh3_128": _file_digest(path)}

    def close(self, list_file: str, schema: str, about: Mapping[str, Any]) -> dict[str, str]:
        """Write the list; returns the checksum of each array."""
        write_json(self._folder / list_file, {"schema": schema, "arrays": self._written, **about})
        return {name: str(written["xxh3_128"]) for name, written in self._written.items()}


def _file_digest(path: Path) -> str:
    with path.open("rb") as file:
        return _stream_digest(file)


def _stream_digest(file: BinaryIO) -> str:
    state = xxhash.xxh3_128()
    for chunk in iter(lambda: file.read(_CHUNK), b""):
        state.update(chunk)
    return state.hexdigest()
