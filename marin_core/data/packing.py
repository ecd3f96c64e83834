"""Packing: whole documents laid together into rows of one length, for fine-tuning and for data whose documents must not be cut."""

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import xxhash
from pydantic import Field

from marin_core.config import Config
from marin_core.data.part import open_array
from marin_core.data.permutation import Int64, Permutation, permutation_key
from marin_core.errors import DataError

BUCKET_DOCUMENTS = 4_096
"""Documents that follow each other in the stream and are packed together, so that a row reads from few chunks."""
MAX_PIECES = 64
"""Documents of a row at most."""


class PackingInfo(Config):
    """What a mixture says about the packing of a component.

    Attributes:
        rows: sequences of one epoch.
        pieces: documents in them, and parts of longer ones.
        digest: xxh3-128 of both arrays as little-endian int64.
    """

    rows: int = Field(ge=0)
    pieces: int = Field(ge=0)
    digest: str


class Packing(NamedTuple):
    """Rows of a component's documents.

    Attributes:
        firsts: int64 [rows + 1]; row r has the pieces [firsts[r], firsts[r + 1]).
        pieces: int64 [pieces, 2], first token in the stream and number of tokens.
    """

    firsts: Int64
    pieces: Int64

    def info(self) -> PackingInfo:
        """What a mixture remembers."""
        digest = xxhash.xxh3_128()
        for array in self:
            digest.update(np.ascontiguousarray(array, "<i8"))
        return PackingInfo(rows=len(self.firsts) - 1, pieces=len(self.pieces), digest=digest.hexdigest())

    def write(self, folder: Path, name: str) -> None:
        """Write both arrays."""
        folder.mkdir(parents=True, exist_ok=True)
        for path, array in zip(_files(folder, name), self, strict=True):
            np.save(path, array.astype("<i8"), allow_pickle=False)


def read_packing(folder: Path, name: str, info: PackingInfo) -> Packing:
    """The packing of a component, mapped from its files.

    Raises:
        DataError: if it is missing, or not the one that the mixture was made with.
    """
    try:
        packing = Packing(*(np.load(path, mmap_mode="r", allow_pickle=False) for path in _files(folder, name)))
        found = packing.info()
    except (OSError, ValueError, EOFError) as error:
        raise DataError(
            f"packing of component {name!r} in {str(folder)!r} can't be read: {error}", advice="Make the mixture again."
        ) from error
    if found != info:
        raise DataError(f"packing of component {name!r} in {str(folder)!r} is damaged", advice="Make the mixture again.")
    return packing


def pack(parts: Sequence[Path], length: int, name: str, seed: int, context: Any = None) -> Packing:
    """Pack the documents of a component's parts into rows of `length` tokens.

    First-fit-decreasing within each bucket; documents of one length are taken in a seeded order. Only a document longer than a row is cut:
    into whole rows and what is left.

    Raises:
        DataError: if a part's offsets can't be read.
    """
    counts, packed = [np.zeros(1, np.int64)], [np.empty((0, 2), np.int64)]
    before = 0
    for part in parts:
        try:
            offsets: npt.NDArray[np.int64] = open_array(part / "offsets", context).read().result().astype(np.int64)
        except (ValueError, OSError, RuntimeError) as error:
            raise DataError(f"offsets of cache part {str(part)!r} can't be read: {error}", advice="Rebuild this part.") from error
        for first in range(0, len(offsets) - 1, BUCKET_DOCUMENTS):
            bounds = (offsets[first : first + BUCKET_DOCUMENTS + 1] + before).tolist()
            pieces = [(start, min(length, end - start)) for low, end in pairwise(bounds) for start in range(low, end, length)]
            rows = first_fit_decreasing(pieces, length, permutation_key(seed, name, 0, f"pack/{bounds[0]}"))
            counts.append(np.array([len(row) for row in rows], np.int64))
            packed.append(np.array([piece for row in rows for piece in row], np.int64))
        before += int(offsets[-1])
    return Packing(np.cumsum(np.concatenate(counts)), np.concatenate(packed))


def first_fit_decreasing(pieces: list[tuple[int, int]], length: int, key: int) -> list[list[tuple[int, int]]]:
    """Rows of (start, tokens) pieces: the longest first, each into the first row that has room for it and fewer than `MAX_PIECES`.

    Pieces of one length are taken in an order of the key.
    """
    ties = Permutation(len(pieces), key)(np.arange(len(pieces), dtype=np.int64)).tolist()
    order = sorted(range(len(pieces)), key=lambda index: (-pieces[index][1], ties[index]))
    leaves = 1 << (len(pieces) - 1).bit_length()
    room = [length] * (2 * leaves)  # a tree of maxima over rows: the first row with room is found in logarithmic time
    rows: list[list[tuple[int, int]]] = []
    for index in order:
        size, node = pieces[index][1], 1
        while node < leaves:
            node = 2 * node if room[2 * node] >= size else 2 * node + 1
        row = node - leaves
        if row == len(rows):
            rows.append([])
        rows[row].append(pieces[index])
        room[node] = room[node] - size if len(rows[row]) < MAX_PIECES else 0
        while node > 1:
            node //= 2
            room[node] = max(room[2 * node], room[2 * node + 1])
    return rows


def _files(folder: Path, name: str) -> tuple[Path, Path]:
    return folder / f"{name}.firsts.npy", folder / f"{name}.pieces.npy"
