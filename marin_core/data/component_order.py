"""The order of one component's sequences: blocks that lie side by side on disk, shuffled in windows, anew each epoch."""

from functools import lru_cache
from typing import Protocol

import numpy as np

from marin_core.data.permutation import Int64, Permutation, permutation_key

IO_BLOCK = 256
"""Sequences that lie side by side in the stream and stay close in the order, so that reads share chunks."""


class Order(Protocol):
    """An order of `n` sequences in each epoch, in windows that are used up one after the other."""

    @property
    def n(self) -> int: ...

    def sequences(self, epoch: int, positions: Int64) -> Int64:
        """Sequence numbers at positions in [0, n) of an epoch: int64 [positions]."""

    def window_start(self, epoch: int, window: int) -> int:
        """Position of the first sequence of a window."""

    def window_after(self, epoch: int, position: int) -> tuple[int, int]:
        """Epoch and number of the window that follows the one of a position."""


class ComponentOrder:
    """The order of a component's n sequences, anew each epoch.

    io-blocks of 256 sequences (the last may be short) are permuted with purpose `blocks`; consecutive windows of W blocks of that
    order are formed, and the sequences inside window w are permuted with purpose `window/w`.

    Args:
        io_block: sequences of a block.
        blocks: how many; as many as hold n sequences when not given. The last may then be empty.
    """

    def __init__(
        self, name: str, sequences: int, window_blocks: int, seed: int, *, io_block: int = IO_BLOCK, blocks: int | None = None
    ) -> None:
        self.n = sequences
        self._name = name
        self._window = window_blocks
        self._seed = seed
        self._size = io_block
        self._blocks = -(-sequences // io_block) if blocks is None else blocks
        self._missing = self._blocks * io_block - sequences
        """Sequences by which the last block is short."""
        self._epoch_blocks = lru_cache(4)(self._make_blocks)
        # A window is used up before the next one begins, so its order is made once, whole.
        self._window_order = lru_cache(2)(self._make_window)

    @classmethod
    def of_length(cls, name: str, tokens: int, length: int, block_tokens: int, window_blocks: int, seed: int) -> "ComponentOrder | None":
        """The order of sequences of `length` tokens, which divides `block_tokens`; None where there is no whole one.

        Blocks, and with them windows, are the same tokens at every length, so that a run can change its length between two windows. No
        sequence reaches beyond the last block.
        """
        blocks = -(-(tokens // (block_tokens // IO_BLOCK)) // IO_BLOCK)
        io_block = block_tokens // length
        sequences = min(tokens // length, blocks * io_block)
        return cls(name, sequences, window_blocks, seed, io_block=io_block, blocks=blocks) if sequences else None

    def sequences(self, epoch: int, positions: Int64) -> Int64:
        """Sequence numbers at positions in [0, n) of an epoch: int64 [positions]."""
        out = np.empty_like(positions)
        _, short_slot = self._epoch_blocks(epoch)
        windows = self._windows_of(positions, short_slot)
        for window in np.unique(windows).tolist():
            chosen = windows == window
            first, order = self._window_order(epoch, window)
            out[chosen] = order[positions[chosen] - first]
        return out

    def window_start(self, epoch: int, window: int) -> int:
        """Position of the first sequence of a window."""
        return self._slot_start(window * self._window, self._epoch_blocks(epoch)[1])

    def window_after(self, epoch: int, position: int) -> tuple[int, int]:
        """Epoch and number of the window that follows the one of a position."""
        window = int(self._windows_of(np.array([position]), self._epoch_blocks(epoch)[1])[0]) + 1
        return (epoch, window) if window * self._window < self._blocks else (epoch + 1, 0)

    def _make_window(self, epoch: int, window: int) -> tuple[int, Int64]:
        """First position of a window, and its sequence numbers in order: int64 [window]."""
        blocks, short_slot = self._epoch_blocks(epoch)
        first = self._slot_start(window * self._window, short_slot)
        end = self._slot_start(min((window + 1) * self._window, self._blocks), short_slot)
        shuffle = Permutation(end - first, permutation_key(self._seed, self._name, epoch, f"window/{window}"))
        place = first + shuffle(np.arange(end - first, dtype=np.int64))
        # A place after the short block is as far along as if that block were whole.
        place += np.where(place >= self._slot_start(short_slot + 1, short_slot), self._missing, 0)
        slot, inside = np.divmod(place, self._size)
        return first, blocks(slot) * self._size + inside

    def _make_blocks(self, epoch: int) -> tuple[Permutation, int]:
        """The permutation of the blocks, and the slot where the last, perhaps short, block lands."""
        blocks = Permutation(self._blocks, permutation_key(self._seed, self._name, epoch, "blocks"))
        return blocks, int(blocks.inverse(np.array([self._blocks - 1]))[0])

    def _slot_start(self, slot: int, short_slot: int) -> int:
        """Position of the first sequence of a block slot."""
        return slot * self._size - (self._missing if slot > short_slot else 0)

    def _windows_of(self, positions: Int64, short_slot: int) -> Int64:
        after_short = self._slot_start(short_slot + 1, short_slot)
        whole = positions + np.where(positions >= after_short, self._missing, 0)
        windows: Int64 = whole // (self._size * self._window)
        return windows


class CutOrder:
    """The order of a component that is cut to the first `n` sequences of its epoch 0, as simulated epoching does (training.md §5.2).

    Each epoch permutes the windows of the whole component's order, and the sequences inside each: reads stay as close as they were.
    """

    def __init__(self, whole: ComponentOrder, name: str, n: int, window_blocks: int, seed: int) -> None:
        self.n = n
        self._whole = whole
        self._order = ComponentOrder(name, n, 1, seed, io_block=IO_BLOCK * window_blocks)

    def sequences(self, epoch: int, positions: Int64) -> Int64:
        """Sequence numbers at positions in [0, n) of an epoch: int64 [positions]."""
        return self._whole.sequences(0, self._order.sequences(epoch, positions))

    def window_start(self, epoch: int, window: int) -> int:
        """Position of the first sequence of a window."""
        return self._order.window_start(epoch, window)

    def window_after(self, epoch: int, position: int) -> tuple[int, int]:
        """Epoch and number of the window that follows the one of a position."""
        return self._order.window_after(epoch, position)
