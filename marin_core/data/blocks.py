"""Mixture blocks: which component each sequence of a run comes from, whatever batches and lengths the sequences have."""

from bisect import bisect_right
from collections.abc import Sequence
from functools import lru_cache
from operator import add, sub

import numpy as np

from marin_core.data.permutation import Apportionment, Int64, Permutation, permutation_key


class MixtureBlocks:
    """Blocks of M sequences, in each of which every component has an exact count; the weights may change from block to block.

    Args:
        block_sequences: M.
        phases: first block of each phase, rising from 0, and its integer weights.
        seed: of the order inside the blocks.
    """

    def __init__(self, block_sequences: int, phases: Sequence[tuple[int, Sequence[int]]], seed: int) -> None:
        self.size = block_sequences
        self.components = len(phases[0][1])
        self._seed = seed
        self._firsts = [first for first, _ in phases]
        self._shares = [Apportionment(weights, block_sequences) for _, weights in phases]
        self._corrections = [[0] * self.components]
        """For each phase: sequences of each component before its first block, less those that its own weights would have given."""
        for first, before, after in zip(self._firsts[1:], self._shares, self._shares[1:], strict=False):
            given = map(sub, before.counts_before(first), after.counts_before(first))
            self._corrections.append(list(map(add, self._corrections[-1], given)))
        self._block = lru_cache(4)(self._make_block)

    def counts_before(self, position: int) -> list[int]:
        """Sequences of each component among the first `position` of the run."""
        block, rest = divmod(position, self.size)
        counts = self._counts(block)
        if rest:
            component, _ = self.ranks(block * self.size, rest)
            counts = list(map(add, counts, np.bincount(component, minlength=self.components).tolist()))
        return counts

    def ranks(self, first: int, rows: int) -> tuple[Int64, Int64]:
        """Component of the sequences [first, first + rows) of the run, and how many of that component come before each."""
        pieces = []
        done = 0
        while done < rows:
            block, position = divmod(first + done, self.size)
            taken = min(rows - done, self.size - position)
            pieces.append([values[position : position + taken] for values in self._block(block)])
            done += taken
        return np.concatenate([piece[0] for piece in pieces]), np.concatenate([piece[1] for piece in pieces])

    def _counts(self, block: int) -> list[int]:
        """Sequences of each component in all blocks before `block`."""
        phase = self._phase(block)
        return list(map(add, self._corrections[phase], self._shares[phase].counts_before(block)))

    def _make_block(self, block: int) -> tuple[Int64, Int64]:
        """Component of each sequence of a block, and how many of that component come before it: int64 [M] each."""
        slots = Permutation(self.size, permutation_key(self._seed, "mixture", 0, f"order/{block}"))(np.arange(self.size, dtype=np.int64))
        bounds = self._shares[self._phase(block)].block_bounds(block)
        owner = np.searchsorted(bounds, slots, side="right") - 1
        # A component's own order is kept, so that the sequences before any place are the first ones of each component.
        by_component = np.argsort(owner, kind="stable")
        first = np.array(self._counts(block), np.int64) - bounds[:-1]
        rank = np.empty_like(owner)
        rank[by_component] = first[owner[by_component]] + np.arange(self.size)
        return owner, rank

    def _phase(self, block: int) -> int:
        return bisect_right(self._firsts, block) - 1
