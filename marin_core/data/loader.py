"""The loader: a pure function from (mixture, seed, step) to a batch. No cursor is saved; resuming is calling with the next step."""

import queue
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import count
from pathlib import Path
from typing import NamedTuple

import numpy as np
import tensorstore as ts

from marin_core.data.batch import Batch
from marin_core.data.cache import CACHE_BYTES, TokenCache, read_context
from marin_core.data.mixture import read_mixture
from marin_core.data.permutation import Apportionment, Int64, Permutation, permutation_key
from marin_core.errors import ConfigError

IO_BLOCK = 256
"""Sequences that lie side by side in the stream and stay close in the order, so that reads share chunks."""


class ComponentOrder:
    """The order of a component's n sequences, anew each epoch.

    io-blocks of 256 sequences (the last may be short) are permuted with purpose `blocks`; consecutive windows of W blocks of that
    order are formed, and the sequences inside window w are permuted with purpose `window/w`.
    """

    def __init__(self, name: str, sequences: int, window_blocks: int, seed: int) -> None:
        self._name = name
        self._n = sequences
        self._window = window_blocks
        self._seed = seed
        self._blocks = -(-sequences // IO_BLOCK)
        self._missing = self._blocks * IO_BLOCK - sequences
        """Sequences by which the last block is short."""
        self._epoch_blocks = lru_cache(4)(self._make_blocks)
        # A window is used up before the next one begins, so its order is made once, whole.
        self._window_order = lru_cache(2)(self._make_window)

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

    def _make_window(self, epoch: int, window: int) -> tuple[int, Int64]:
        """First position of a window, and its sequence numbers in order: int64 [window]."""
        blocks, short_slot = self._epoch_blocks(epoch)
        first = self._slot_start(window * self._window, short_slot)
        end = self._slot_start(min((window + 1) * self._window, self._blocks), short_slot)
        shuffle = Permutation(end - first, permutation_key(self._seed, self._name, epoch, f"window/{window}"))
        place = first + shuffle(np.arange(end - first, dtype=np.int64))
        # A place after the short block is as far along as if that block were whole.
        place += np.where(place >= self._slot_start(short_slot + 1, short_slot), self._missing, 0)
        slot, inside = np.divmod(place, IO_BLOCK)
        return first, blocks(slot) * IO_BLOCK + inside

    def _make_blocks(self, epoch: int) -> tuple[Permutation, int]:
        """The permutation of the blocks, and the slot where the last, perhaps short, block lands."""
        blocks = Permutation(self._blocks, permutation_key(self._seed, self._name, epoch, "blocks"))
        return blocks, int(blocks.inverse(np.array([self._blocks - 1]))[0])

    def _slot_start(self, slot: int, short_slot: int) -> int:
        """Position of the first sequence of a block slot."""
        return slot * IO_BLOCK - (self._missing if slot > short_slot else 0)

    def _windows_of(self, positions: Int64, short_slot: int) -> Int64:
        after_short = self._slot_start(short_slot + 1, short_slot)
        whole = positions + np.where(positions >= after_short, self._missing, 0)
        windows: Int64 = whole // (IO_BLOCK * self._window)
        return windows


class Places(NamedTuple):
    """Where the sequences of a batch come from: component (index in name order), epoch and sequence number, int64 [B] each."""

    component: Int64
    epoch: Int64
    sequence: Int64


class MixtureLoader:
    """Batches of a mixture.

    Args:
        mixture: folder with `mixture.json`.
        components: name → folders of its parts, those that the mixture was made of.
        global_batch_size: B, sequences of one step over all hosts. Another B keeps the order of the sequences.
        seed: replaces the mixture's seed.
        cache_bytes: memory for decoded chunks, shared by all components.

    Raises:
        ConfigError: if the components are not the mixture's. Parts are opened, and compared with the ledger, when first needed.
    """

    def __init__(
        self,
        mixture: Path,
        components: Mapping[str, Sequence[Path]],
        global_batch_size: int,
        seed: int | None = None,
        cache_bytes: int = CACHE_BYTES,
    ) -> None:
        self.mixture = read_mixture(mixture)
        if global_batch_size < 1:
            raise ConfigError(f"field 'global_batch_size' is {global_batch_size}", advice="Give at least 1.")
        if missing := sorted(self.mixture.components.keys() ^ components.keys()):
            raise ConfigError(
                f"component {missing[0]!r} is not both in the mixture and given",
                advice=f"Give exactly {', '.join(self.mixture.components)}.",
            )
        self.global_batch_size = global_batch_size
        self.sequence_length = self.mixture.sequence_length
        self.seed = self.mixture.seed if seed is None else seed
        self.names = tuple(self.mixture.components)
        context = read_context(cache_bytes)
        self._caches = [TokenCache(components[name], ledger=self.mixture.components[name].parts, context=context) for name in self.names]
        self._sequences = [component.sequences for component in self.mixture.components.values()]
        self._orders = [
            ComponentOrder(name, n, self.mixture.window_blocks, self.seed) if n else None
            for name, n in zip(self.names, self._sequences, strict=True)
        ]
        weights = [component.integer_weight for component in self.mixture.components.values()]
        self._apportionment = Apportionment(weights, self.mixture.block_sequences)
        self._block = lru_cache(4)(self._make_block)

    def batch(self, step: int, host: int = 0, hosts: int = 1) -> Batch:
        """Rows [host·B/hosts, (host + 1)·B/hosts) of the batch of a step; b = B/hosts, S = sequence length.

        Returns:
            int32 [b, S] tokens, int32 [b, S] segment_ids (EOS tokens before the position), float32 [b, S] loss_weight (0 on the last
            position). All hosts together give the one-host batch.

        Raises:
            ConfigError: if hosts don't divide B, or a part is not the one in the mixture.
            DataError: if a part is missing or damaged. Nothing is ever padded or read as zeros.
        """
        places = self.places(step, host, hosts)
        tokens = np.empty((len(places.sequence), self.sequence_length), np.int32)
        request = ts.Batch()
        pending = []
        for component in np.unique(places.component).tolist():
            rows = np.flatnonzero(places.component == component)
            cache = self._caches[component]
            reads = cache.request(places.sequence[rows] * self.sequence_length, self.sequence_length, request)
            pending.append((cache, [read._replace(row=int(rows[read.row])) for read in reads]))
        request.submit()
        for cache, reads in pending:
            cache.collect(reads, tokens)
        ends = tokens == self.mixture.eos_id
        segments = np.cumsum(ends, axis=1, dtype=np.int32) - ends
        loss_weight = np.ones(tokens.shape, np.float32)
        loss_weight[:, -1] = 0.0
        return Batch(tokens, segments.astype(np.int32), loss_weight)

    def places(self, step: int, host: int = 0, hosts: int = 1) -> Places:
        """Where the rows of a batch come from, without reading them."""
        if hosts < 1 or self.global_batch_size % hosts or not 0 <= host < hosts:
            raise ConfigError(
                f"host {host} of {hosts} can't take an equal share of global_batch_size {self.global_batch_size}",
                advice="Choose a batch that the number of hosts divides.",
            )
        if step < 0:
            raise ConfigError(f"step is {step}", advice="Steps count from 0.")
        rows = self.global_batch_size // hosts
        first = step * self.global_batch_size + host * rows
        component, rank = self._ranks(first, rows)
        epoch, sequence = np.zeros_like(rank), np.zeros_like(rank)
        for index in np.unique(component).tolist():
            chosen = np.flatnonzero(component == index)
            order = self._orders[index]
            assert order is not None, "a component without sequences has weight 0"  # noqa: S101
            epochs, positions = np.divmod(rank[chosen], self._sequences[index])
            epoch[chosen] = epochs
            for number in np.unique(epochs).tolist():
                inside = epochs == number
                sequence[chosen[inside]] = order.sequences(number, positions[inside])
        return Places(component, epoch, sequence)

    def consumed(self, step: int) -> dict[str, int]:
        """Sequences of each component in all steps before `step`; divided by its sequences, the epochs so far."""
        block, rest = divmod(step * self.global_batch_size, self.mixture.block_sequences)
        counts = np.array(self._apportionment.counts_before(block), np.int64)
        if rest:
            component, _ = self._ranks(block * self.mixture.block_sequences, rest)
            counts += np.bincount(component, minlength=len(counts))
        return dict(zip(self.names, counts.tolist(), strict=True))

    def prefetch(self, first_step: int, host: int = 0, hosts: int = 1, depth: int = 4) -> "Prefetch":
        """Batches from a step on, at most `depth` of them read ahead by a thread; close it when done."""
        return Prefetch(self, first_step, host, hosts, depth)

    def _ranks(self, first: int, rows: int) -> tuple[Int64, Int64]:
        """Component and running number inside it of the sequences [first, first + rows) of the whole order."""
        size = self.mixture.block_sequences
        pieces = []
        done = 0
        while done < rows:
            block, position = divmod(first + done, size)
            taken = min(rows - done, size - position)
            pieces.append([values[position : position + taken] for values in self._block(block)])
            done += taken
        return np.concatenate([piece[0] for piece in pieces]), np.concatenate([piece[1] for piece in pieces])

    def _make_block(self, block: int) -> tuple[Int64, Int64]:
        """Component and running number inside it of each sequence of a mixture block: int64 [M] each."""
        size = self.mixture.block_sequences
        slots = Permutation(size, permutation_key(self.seed, "mixture", 0, f"order/{block}"))(np.arange(size, dtype=np.int64))
        bounds = self._apportionment.block_bounds(block)
        owner = np.searchsorted(bounds, slots, side="right") - 1
        before = np.array(self._apportionment.counts_before(block), np.int64)
        return owner, before[owner] + slots - bounds[owner]


class Prefetch(Iterator[Batch]):
    """An endless iterator over batches, filled by one thread; an error of the thread is raised at its place in the order.

    Attributes:
        stall_seconds: time that the consumer has waited.
        stalls: how often it had to wait.
    """

    def __init__(self, loader: MixtureLoader, first_step: int, host: int, hosts: int, depth: int) -> None:
        if depth < 1:
            raise ConfigError(f"field 'depth' is {depth}", advice="Read at least one step ahead.")
        self.stall_seconds = 0.0
        self.stalls = 0
        self._stop = threading.Event()
        self._queue: queue.Queue[Batch | BaseException] = queue.Queue(depth)
        self._thread = threading.Thread(target=self._fill, args=(loader, first_step, host, hosts), daemon=True, name="prefetch")
        self._thread.start()

    def __next__(self) -> Batch:
        if self._stop.is_set():
            raise StopIteration
        started = time.monotonic()
        if self._queue.empty():
            self.stalls += 1
        item = self._queue.get()
        self.stall_seconds += time.monotonic() - started
        if isinstance(item, BaseException):
            self._stop.set()
            raise item
        return item

    def close(self) -> None:
        """Stop the thread; safe to call twice."""
        self._stop.set()
        while self._thread.is_alive():
            try:
                self._queue.get_nowait()
            except queue.Empty:
                self._thread.join(0.01)

    def __enter__(self) -> "Prefetch":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _fill(self, loader: MixtureLoader, first_step: int, host: int, hosts: int) -> None:
        for step in count(first_step):
            try:
                item: Batch | BaseException = loader.batch(step, host, hosts)
            except BaseException as error:
                item = error
            while not self._stop.is_set():
                try:
                    self._queue.put(item, timeout=0.1)
                    break
                except queue.Full:
                    continue
            if self._stop.is_set() or isinstance(item, BaseException):
                return
