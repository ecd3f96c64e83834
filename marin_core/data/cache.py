"""Read token caches: one logical stream over parts that stay where they are. Damage is an error; nothing ever reads as zeros."""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
import tensorstore as ts
import xxhash

from marin_core.data.part import IDS_FILE, PartInfo, open_array, read_info, same_tokens
from marin_core.errors import ConfigError, DataError

CACHE_BYTES = 256 << 20
STREAM_TOKENS = 1 << 20
"""Tokens read at a time when a whole part is walked."""

Int32 = npt.NDArray[np.int32]


@dataclass(frozen=True)
class LedgerPart:
    """What a mixture remembers of a part, so that the part needs no opening before its first use."""

    part: str
    digest: str
    tokens: int
    documents: int
    bytes: int


@dataclass(frozen=True)
class TokenizedDocument:
    """One document of a cache: its id, int32 [tokens] with BOS and EOS as stored, and the UTF-8 bytes of its text."""

    id: str
    tokens: Int32
    bytes: int


class PendingRead(NamedTuple):
    """A piece of a window that has been asked for."""

    row: int
    column: int
    part: int
    length: int
    future: Any


def ledger_of(info: PartInfo) -> LedgerPart:
    """The ledger entry of a part."""
    return LedgerPart(info.part, info.digest, info.tokens, info.documents, info.bytes)


def read_context(cache_bytes: int = CACHE_BYTES) -> Any:
    """A tensorstore context; the caches that share it share one pool of decoded chunks."""
    return ts.Context({"cache_pool": {"total_bytes_limit": cache_bytes}})


class TokenCache:
    """The tokens of several parts as one stream, in the order given.

    Args:
        parts: folders of the parts.
        ledger: what the parts should be, from a mixture; then a part's `part.json` is read only when the part is first needed, and
            must agree. Without it every `part.json` is read at once, and parts that don't fit together are refused.
        context: shared tensorstore context.

    Raises:
        ConfigError: if tokenizer, special ids or policy differ between parts, or a part isn't the one in the ledger.
        DataError: if a part is missing, cut or damaged.
    """

    def __init__(self, parts: Sequence[Path], *, ledger: Sequence[LedgerPart] | None = None, context: Any = None) -> None:
        if not parts:
            raise ConfigError("a token cache needs at least one part", advice="Give the folders of the tokenized parts.")
        self.parts = tuple(parts)
        self._infos: dict[int, PartInfo] = {}
        if ledger is None:
            self._infos = {index: read_info(part) for index, part in enumerate(self.parts)}
            same_tokens({str(self.parts[index]): info for index, info in self._infos.items()})
            ledger = [ledger_of(info) for info in self._infos.values()]
        if len(ledger) != len(self.parts):
            raise ConfigError(
                f"the mixture lists {len(ledger)} parts, {len(self.parts)} are given", advice="Give the parts that the mixture was made of."
            )
        self.ledger = tuple(ledger)
        self._ends = list(accumulate(entry.tokens for entry in self.ledger))
        self._arrays: dict[int, Any] = {}
        self._context = context if context is not None else read_context()

    @property
    def tokens(self) -> int:
        """Length of the stream."""
        return self._ends[-1]

    @property
    def documents_total(self) -> int:
        """Documents of all parts."""
        return sum(entry.documents for entry in self.ledger)

    def info(self, index: int = 0) -> PartInfo:
        """What a part says about itself: tokenizer, special ids, policy.

        Raises:
            ConfigError: if it isn't the part in the ledger.
        """
        if index not in self._infos:
            info = read_info(self.parts[index])
            if ledger_of(info) != self.ledger[index]:
                raise ConfigError(
                    f"part {str(self.parts[index])!r} has digest {info.digest}, the mixture was made with {self.ledger[index].digest}",
                    advice="Give the parts that the mixture was made of, in its order, or make the mixture again.",
                )
            self._infos[index] = info
        return self._infos[index]

    def read(self, start: int, stop: int) -> Int32:
        """Tokens [start, stop) of the stream: int32 [stop − start].

        Raises:
            IndexError: if the range leaves the stream.
            DataError: naming the part, if a chunk is missing or damaged.
        """
        window: Int32 = self.read_windows(np.array([start]), stop - start)[0]
        return window

    def read_windows(self, starts: npt.NDArray[np.int64], length: int) -> Int32:
        """Windows [start, start + length) for each start, in one batch of requests: int32 [windows, length]."""
        out = np.empty((len(starts), length), np.int32)
        batch = ts.Batch()
        pending = self.request(starts, length, batch)
        batch.submit()
        self.collect(pending, out)
        return out

    def request(self, starts: npt.NDArray[np.int64], length: int, batch: Any) -> list[PendingRead]:
        """Ask for windows as part of a tensorstore batch; `collect` after the batch is submitted."""
        pending = []
        for row, start in enumerate(starts.tolist()):
            if start < 0 or length < 0 or start + length > self.tokens:
                raise IndexError(f"tokens [{start}, {start + length}) are not inside the stream of {self.tokens}")
            column = 0
            while column < length:
                position = start + column
                part = bisect_right(self._ends, position)
                first = self._ends[part] - self.ledger[part].tokens
                taken = min(length - column, self._ends[part] - position)
                future = self._array(part)[position - first : position - first + taken].read(batch=batch)
                pending.append(PendingRead(row, column, part, taken, future))
                column += taken
        return pending

    def collect(self, pending: Sequence[PendingRead], out: Int32) -> None:
        """Wait for requested windows and write them into the rows of `out`, int32 [windows, length]."""
        for piece in pending:
            try:
                out[piece.row, piece.column : piece.column + piece.length] = piece.future.result()
            except (ValueError, OSError, RuntimeError, IndexError) as error:
                raise self._damaged(piece.part, error) from error

    def documents(self) -> Iterator[TokenizedDocument]:
        """All documents in stream order, in bounded memory."""
        for index in range(len(self.parts)):
            yield from self._documents_of(index)

    def _documents_of(self, index: int) -> Iterator[TokenizedDocument]:
        first = self._ends[index] - self.ledger[index].tokens
        offsets = self.offsets(index)
        document = 0
        for identities, sizes in self.rows(index):
            last = document + len(identities)
            begin = document
            while begin < last:
                end = int(np.searchsorted(offsets, offsets[begin] + STREAM_TOKENS, side="right")) - 1
                end = min(max(begin + 1, end), last)
                tokens = self.read(first + int(offsets[begin]), first + int(offsets[end]))
                for row in range(begin, end):
                    low, high = offsets[row] - offsets[begin], offsets[row + 1] - offsets[begin]
                    yield TokenizedDocument(identities[row - document], tokens[low:high], sizes[row - document])
                begin = end
            document = last

    def rows(self, index: int) -> Iterator[tuple[list[str], list[int]]]:
        """Ids and UTF-8 bytes of a part's documents, in order, some thousands at a time.

        Raises:
            DataError: naming the part, if a row is missing or damaged.
        """
        documents = 0
        try:
            with pq.ParquetFile(self.parts[index] / IDS_FILE, page_checksum_verification=True) as file:
                if file.metadata.num_rows != self.ledger[index].documents:
                    raise ValueError(f"{file.metadata.num_rows} ids of {self.ledger[index].documents} documents")
                for group in file.iter_batches(columns=["id", "bytes"]):
                    documents += group.num_rows
                    yield group.column("id").to_pylist(), group.column("bytes").to_pylist()
            if documents != self.ledger[index].documents:
                raise ValueError(f"{documents} ids of {self.ledger[index].documents} documents")
        except (OSError, ValueError, pa.ArrowException) as error:
            raise self._damaged(index, error) from error

    def verify(self) -> None:
        """Read everything and compare with the digests in `part.json`.

        Raises:
            DataError: naming the part, at the first difference.
        """
        for index in range(len(self.parts)):
            for _ in self.verified(index):
                pass

    def verified(self, index: int) -> Iterator[Int32]:
        """All tokens of a part in order, int32, about a million at a time.

        Raises:
            DataError: naming the part, after the last token, if they are not those of `part.json`.
        """
        info, digest = self.info(index), xxhash.xxh3_128()
        end = self._ends[index]
        for start in range(end - self.ledger[index].tokens, end, STREAM_TOKENS):
            tokens = self.read(start, min(start + STREAM_TOKENS, end))
            digest.update(tokens.astype("<u4").data)
            yield tokens
        if digest.hexdigest() != info.digest:
            raise self._damaged(index, ValueError(f"digest is {digest.hexdigest()}, part.json says {info.digest}"))

    def offsets(self, index: int) -> npt.NDArray[np.int64]:
        """Where each document of a part begins in it, and the part's length: int64 [documents + 1].

        Raises:
            DataError: naming the part, if they are damaged or don't cover its documents and tokens.
        """
        try:
            offsets: npt.NDArray[np.int64] = open_array(self.parts[index] / "offsets", self._context).read().result()
        except (ValueError, OSError, RuntimeError) as error:
            raise self._damaged(index, error) from error
        entry = self.ledger[index]
        if len(offsets) != entry.documents + 1 or offsets[0] != 0 or offsets[-1] != entry.tokens or (np.diff(offsets) <= 0).any():
            raise self._damaged(index, ValueError("offsets don't cover the tokens"))
        return offsets

    def _array(self, index: int) -> Any:
        """The token array of a part, opened on first use after its files have been compared with `part.json`."""
        if index not in self._arrays:
            info, part = self.info(index), self.parts[index]
            for file in info.files:
                path = part / file.path
                size = path.stat().st_size if path.is_file() else None
                if size != file.size:
                    found = "is missing" if size is None else f"has {size} bytes, not {file.size}"
                    raise self._damaged(index, ValueError(f"file {file.path!r} {found}"))
            try:
                array = open_array(part / "tokens", self._context)
            except (ValueError, OSError, RuntimeError) as error:
                raise self._damaged(index, error) from error
            if array.shape != (info.tokens,) or array.dtype.name != info.dtype:
                raise self._damaged(index, ValueError(f"tokens are {array.dtype.name} {array.shape}, not {info.dtype} ({info.tokens},)"))
            self._arrays[index] = array
        return self._arrays[index]

    def _damaged(self, index: int, error: Exception) -> DataError:
        return DataError(f"cache part {str(self.parts[index])!r} is damaged: {error}", advice="Rebuild this part; the others stay valid.")
