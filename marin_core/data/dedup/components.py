"""Connected components of pairs that come in any order, in memory that grows with what is connected and not with the pairs."""

import numpy as np
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from marin_core.data.dedup.word_hashes import Int64
from marin_core.errors import MarinError

BUFFER_EDGES = 1 << 20
SCIPY_EDGES = 10**8
"""Edges up to which scipy's depth-first search is used; beyond, labels are propagated, which needs a third of its memory."""
MAX_ROUNDS = 10


class Components:
    """Collects edges between rows; from time to time they are replaced by a star for each component.

    A star has one edge less than the component has rows, so that a million equal bands don't add up.
    """

    def __init__(self, buffer_edges: int = BUFFER_EDGES, scipy_edges: int = SCIPY_EDGES) -> None:
        self._buffer_edges = buffer_edges
        self._scipy_edges = scipy_edges
        empty = np.empty(0, np.int64)
        self._stars = (empty, empty)
        self._left: list[Int64] = []
        self._right: list[Int64] = []
        self._waiting = 0

    def add(self, left: Int64, right: Int64) -> None:
        """Connect left[i] with right[i]."""
        self._left.append(left)
        self._right.append(right)
        self._waiting += len(left)
        if self._waiting >= max(self._buffer_edges, len(self._stars[0])):
            self._compact()

    def finish(self) -> tuple[Int64, Int64]:
        """All connected rows, ascending, and the smallest row of each one's component.

        Raises:
            MarinError: (exit code 70) labels don't settle within ten rounds.
        """
        self._compact()
        leaves, roots = self._stars
        rows = np.concatenate([leaves, np.unique(roots)])
        order = np.argsort(rows)
        return rows[order], np.concatenate([roots, np.unique(roots)])[order]

    def _compact(self) -> None:
        left = np.concatenate([self._stars[0], *self._left])
        right = np.concatenate([self._stars[1], *self._right])
        rows, places = np.unique(np.concatenate([left, right]), return_inverse=True)
        smallest = _smallest(places[: len(left)], places[len(left) :], len(rows), self._scipy_edges)
        leaf = smallest != np.arange(len(rows))
        self._stars = (rows[leaf], rows[smallest[leaf]])
        self._left, self._right, self._waiting = [], [], 0


def _smallest(left: Int64, right: Int64, count: int, scipy_edges: int) -> Int64:
    """The smallest node that each of the nodes 0 … count-1 is connected with."""
    if len(left) > scipy_edges:
        return propagated(left, right, count)
    edges = coo_array((np.ones(len(left), np.int8), (left, right)), shape=(count, count))
    found, labels = connected_components(edges, directed=False)
    smallest = np.empty(found, np.int64)
    smallest[labels[::-1]] = np.arange(count)[::-1]  # the last value that is assigned stays
    of_each: Int64 = smallest[labels]
    return of_each


def propagated(left: Int64, right: Int64, count: int) -> Int64:
    """The same by label propagation: roots are hooked to smaller ones, then every node is pointed at its root (Shiloach & Vishkin 1982).

    Raises:
        MarinError: (exit code 70) labels still change after ten rounds; a wrong answer would look like a right one.
    """
    labels = np.arange(count)
    for _ in range(MAX_ROUNDS):
        mine, theirs = labels[left], labels[right]
        if np.array_equal(mine, theirs):
            return labels
        lower = np.minimum(mine, theirs)
        np.minimum.at(labels, mine, lower)
        np.minimum.at(labels, theirs, lower)
        while not np.array_equal(pointed := labels[labels], labels):
            labels = pointed
    if np.array_equal(labels[left], labels[right]):
        return labels
    raise MarinError(
        f"labels of {count} connected documents don't settle within {MAX_ROUNDS} rounds",
        advice="Search fewer families at a time, or report the corpus.",
    )
