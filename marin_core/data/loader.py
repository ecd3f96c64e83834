"""The loader: a pure function from (mixture, run, step) to a batch. No cursor is saved; resuming is calling with the next step."""

import queue
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorstore as ts

from marin_core.data.batch import Batch
from marin_core.data.cache import CACHE_BYTES, PendingRead, TokenCache, read_context
from marin_core.data.mixture import PACKING_FOLDER, read_mixture
from marin_core.data.order import DataOrder
from marin_core.data.packing import read_packing
from marin_core.data.permutation import Int64
from marin_core.data.run_steps import PlainStage, Stage
from marin_core.errors import ConfigError


class MixtureLoader:
    """Batches of a mixture.

    Args:
        mixture: folder with `mixture.json`.
        components: name → folders of its parts, those that the mixture was made of.
        batches: stages of the run (`marin_core.train.schedules.BatchSchedule.stages`), or the sequences of every step over all hosts, then
            of the mixture's length.
        num_steps: steps of the run, which decide where phases begin; without it only a mixture of one phase can be read.
        seed: replaces the mixture's seed.
        cache_bytes: memory for decoded chunks, shared by all components.

    Attributes:
        order: where every sequence of every batch comes from.

    Raises:
        ConfigError: if the components are not the mixture's, or the run doesn't fit it (`marin_core.data.order`). Parts are opened, and
            compared with the ledger, when first needed.
        DataError: if the packing of documents is missing or damaged.
    """

    def __init__(
        self,
        mixture: Path,
        components: Mapping[str, Sequence[Path]],
        batches: int | Sequence[Stage],
        num_steps: int | None = None,
        *,
        seed: int | None = None,
        cache_bytes: int = CACHE_BYTES,
    ) -> None:
        self.mixture = read_mixture(mixture)
        if missing := sorted(self.mixture.components.keys() ^ components.keys()):
            raise ConfigError(
                f"component {missing[0]!r} is not both in the mixture and given",
                advice=f"Give exactly {', '.join(self.mixture.components)}.",
            )
        stages = [PlainStage(batches, self.mixture.sequence_length)] if isinstance(batches, int) else batches
        self.order = DataOrder(self.mixture, stages, num_steps, seed)
        context = read_context(cache_bytes)
        self._caches = [
            TokenCache(components[name], ledger=component.parts, context=context) for name, component in self.mixture.components.items()
        ]
        self._packings = {
            index: read_packing(mixture / PACKING_FOLDER, name, component.packing)
            for index, (name, component) in enumerate(self.mixture.components.items())
            if component.packing is not None
        }

    def batch(self, step: int, host: int = 0, hosts: int = 1) -> Batch:
        """Rows [host·B/hosts, (host + 1)·B/hosts) of the batch of a step; b = B/hosts, S = sequence length.

        Returns:
            int32 [b, S] tokens, int32 [b, S] segment_ids (EOS tokens before the position; in packed documents, documents), float32 [b, S]
            loss_weight (0 on the last position of a sequence or packed document, on padding, and before BOS if the mixture says so). All
            hosts together give the one-host batch.

        Raises:
            ConfigError: if hosts don't divide B, the data has ended, or a part is not the one in the mixture.
            DataError: if a part is missing or damaged. Nothing that is missing is ever padded or read as zeros.
        """
        places, length = self.order.places(step, host, hosts), self.order.stage(step).sequence_length
        tokens = np.full((len(places.sequence), length), self.mixture.pad_id, np.int32)
        packed_ends = np.zeros(tokens.shape, bool)
        request = ts.Batch()
        pending = []
        for component in np.unique(places.component).tolist():
            rows = np.flatnonzero(places.component == component)
            if component in self._packings:
                reads = self._packed_reads(component, rows, places.sequence[rows], request, packed_ends)
            else:
                reads = self._caches[component].request(places.sequence[rows] * length, length, request)
                reads = [read._replace(row=int(rows[read.row])) for read in reads]
            pending.append((component, reads))
        request.submit()
        for component, reads in pending:
            self._caches[component].collect(reads, tokens)
        return self._with_masks(tokens, packed_ends if self._packings else None)

    def _packed_reads(self, component: int, rows: Int64, sequences: Int64, request: Any, ends: npt.NDArray[np.bool_]) -> list[PendingRead]:
        """Ask for the documents of packed sequences, and mark in `ends` where each of them ends."""
        firsts, pieces = self._packings[component]
        reads = []
        for row, sequence in zip(rows.tolist(), sequences.tolist(), strict=True):
            column = 0
            for start, size in pieces[firsts[sequence] : firsts[sequence + 1]].tolist():
                asked = self._caches[component].request(np.array([start]), size, request)
                reads += [read._replace(row=row, column=column + read.column) for read in asked]
                column += size
                ends[row, column - 1] = True
        return reads

    def _with_masks(self, tokens: npt.NDArray[np.int32], packed_ends: npt.NDArray[np.bool_] | None) -> Batch:
        """A batch of tokens; `packed_ends`, bool [b, S], says where packed documents end, behind the last of which is padding."""
        if packed_ends is None:
            ends = tokens == self.mixture.eos_id
            loss_weight = np.ones(tokens.shape, np.float32)
        else:
            ends = packed_ends
            still_to_end = np.cumsum(ends[:, ::-1], axis=1)[:, ::-1] > 0
            loss_weight = (still_to_end & ~ends).astype(np.float32)
        if self.mixture.mask_bos_target:
            loss_weight[:, :-1][tokens[:, 1:] == self.mixture.bos_id] = 0.0
        loss_weight[:, -1] = 0.0
        segments = np.cumsum(ends, axis=1, dtype=np.int32) - ends
        return Batch(tokens, segments.astype(np.int32), loss_weight)

    def prefetch(self, first_step: int, host: int = 0, hosts: int = 1, depth: int = 4) -> "Prefetch":
        """Batches from a step on, at most `depth` of them read ahead by a thread; close it when done."""
        return Prefetch(lambda step: self.batch(step, host, hosts), first_step, depth)


class Prefetch(Iterator[Batch]):
    """The batches from a step on, filled by one thread; an error of the thread is raised at its place in the order.

    Args:
        read: the batch of a step.
        depth: so many are read ahead.
        last_step: where it ends, exclusive; None = never.

    Attributes:
        stall_seconds: time that the consumer has waited.
        stalls: how often it had to wait.
    """

    def __init__(self, read: Callable[[int], Batch], first_step: int, depth: int, last_step: int | None = None) -> None:
        if depth < 1:
            raise ConfigError(f"field 'depth' is {depth}", advice="Read at least one step ahead.")
        self.stall_seconds = 0.0
        self.stalls = 0
        self._stop = threading.Event()
        self._queue: queue.Queue[Batch | BaseException] = queue.Queue(depth)
        self._thread = threading.Thread(target=self._fill, args=(read, first_step, last_step), daemon=True, name="prefetch")
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

    def _fill(self, read: Callable[[int], Batch], first_step: int, last_step: int | None) -> None:
        for step in count(first_step):
            try:
                item: Batch | BaseException = read(step) if step != last_step else StopIteration()
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
