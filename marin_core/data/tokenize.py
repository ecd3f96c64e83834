"""Turn filtered shards into one part of a token cache. A document's ids depend on its text and the tokenizer, on nothing else."""

import hashlib
import json
import re
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt

from marin_core.artifact.canonical import canonical_json
from marin_core.data.cache import TokenCache
from marin_core.data.config import TokenizeConfig
from marin_core.data.documents import Rejection, sample_of
from marin_core.data.engine import Encoded, Engine, EngineUnusableError, GigatokenEngine, PlainEngine
from marin_core.data.normal_form import document_id
from marin_core.data.part import PartInfo, PartPolicy, PartTokenizer, PartWriter, list_files, write_info
from marin_core.data.shard import RejectedFile, find_part, read_footer
from marin_core.data.split import documents
from marin_core.data.tokenizer import LIBRARY, Tokenizer, load_tokenizer
from marin_core.errors import DataError, MarinError, PreemptedError
from marin_core.report import Check, Report, Reporter, Scalar

STAGE = "tokenize"
CUT_EVERY = 10_000
"""Characters after which a long document is cut at the next legal place."""
CHECKED_LONG_DOCUMENTS = 100
RENEWED_EVERY = 1_000_000_000
"""Bytes of text after which the library's tokenizer is built anew."""
_LEGAL_CUT = re.compile(r"(?<=[A-Za-z]) (?=[A-Za-z])")


@dataclass
class _Batch:
    """Documents that are encoded together."""

    ids: list[str] = field(default_factory=list)
    shards: list[str] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    bytes: list[int] = field(default_factory=list)
    rows_read: int = 0


@dataclass(frozen=True)
class _Part:
    """A part to be written: from which filtered parts, with which tokenizer, in which folder."""

    config: TokenizeConfig
    parts: tuple[Path, ...]
    tokenizer: Tokenizer
    output: Path
    name: str
    rows: int

    @property
    def rejected(self) -> Path:
        return self.output / "rejected" / f"{self.name}.jsonl.zst"


@dataclass(frozen=True)
class _Written:
    """What was written, and by which engine."""

    writer: PartWriter
    digest: str
    multiset_digest: str
    without_tokens: int
    engine: str


def tokenize_shard(config: TokenizeConfig, shards: Sequence[Path], tokenizer: Path, output: Path, part: str, reporter: Reporter) -> Report:
    """Write one part of a token cache below `output`: `tokens/`, `offsets/`, `ids.parquet`, `rejected/`, and `part.json` last.

    Args:
        shards: folders of filtered shards, read in this order; a held-out part usually reads many.
        tokenizer: folder of the tokenizer artifact.
        part: name of the part, e.g. the shard's key.

    Raises:
        DataError: if a shard is damaged.
        ConfigError: if the tokenizer can't be used.
        MarinError: (exit code 70) if an id is outside the vocabulary.
    """
    loaded = load_tokenizer(tokenizer)
    parts = tuple(find_part(shard) for shard in shards)
    footers = [read_footer(path) for path in parts]
    job = _Part(config, parts, loaded, output, part, sum(int(footer["rows"]) for footer in footers))
    exact = LongTextEncoder(loaded, config.long_document_characters)
    written, fallback = _write(job, exact, reporter)
    writer = written.writer
    info = PartInfo(
        part=part,
        dtype=writer.dtype,
        tokenizer=PartTokenizer(digest=loaded.digest, probe_digest=loaded.probe_digest, vocab_size=loaded.vocab_size, library=LIBRARY),
        bos_id=loaded.bos_id,
        eos_id=loaded.eos_id,
        pad_id=loaded.pad_id,
        policy=PartPolicy(bos=config.bos, eos=config.eos),
        long_document_characters=config.long_document_characters,
        split=config.split,
        held_out_per_10000=config.held_out_per_10000,
        shards=tuple(path.stem for path in parts),
        documents=writer.documents,
        tokens=writer.tokens,
        bytes=writer.bytes,
        min_id=writer.min_id or 0,
        max_id=writer.max_id,
        digest=written.digest,
        multiset_digest=written.multiset_digest,
        licenses=_union(footers, "licenses"),
        policies=_union(footers, "policies"),
        files=list_files(output),
    )
    write_info(output, info)
    return _report(info, job, written, fallback, split_off=exact.split_off)


def _write(job: _Part, exact: "LongTextEncoder", reporter: Reporter) -> tuple[_Written, str | None]:
    """Write with the engine that is asked for; if its ids aren't those of `tokenizers`, begin anew with that, and return why."""
    if job.config.engine == "gigatoken":
        try:
            return _encode_all(job, GigatokenEngine(job.tokenizer, exact), reporter), None
        except EngineUnusableError as error:
            reporter.log(f"part {job.name} is encoded with tokenizers: {error}")
            for name in ("tokens", "offsets", "rejected"):
                shutil.rmtree(job.output / name, ignore_errors=True)
            return _encode_all(job, PlainEngine(exact), reporter), str(error)
    return _encode_all(job, PlainEngine(exact), reporter), None


def _encode_all(job: _Part, engine: Engine, reporter: Reporter) -> _Written:
    """Encode the wanted documents of all parts."""
    config, tokenizer = job.config, job.tokenizer
    bos = tokenizer.bos_id if config.bos == "prepend" else None
    eos = tokenizer.eos_id if config.eos == "append" else None
    dtype: Literal["uint16", "uint32"] = "uint16" if tokenizer.vocab_size <= 65_536 else "uint32"
    since_renewal = without_tokens = 0
    with PartWriter(job.output, dtype) as writer, RejectedFile(job.rejected, STAGE) as rejected:
        for batch in _batches(config, job.parts):
            if reporter.stop_requested():
                raise PreemptedError("tokenizing was asked to stop", advice="Start it again; the part begins anew.")
            encoded = engine.encode(batch.ids, batch.texts)
            if not encoded.lengths.all():
                without_tokens += _reject_empty(batch, encoded, rejected)
                encoded = Encoded(encoded.ids, encoded.lengths[encoded.lengths > 0])
            writer.extend(batch.ids, batch.shards, *with_specials(encoded, bos, eos), batch.bytes)
            if writer.max_id >= tokenizer.vocab_size:
                raise MarinError(
                    f"part {job.name}: id {writer.max_id} is outside the vocabulary of {tokenizer.vocab_size}",
                    advice="Report the bug with the tokenizer.",
                )
            since_renewal += sum(batch.bytes)
            if since_renewal >= RENEWED_EVERY:
                tokenizer.renew()
                since_renewal = 0
            reporter.progress(batch.rows_read, job.rows, "documents")
        digest, multiset_digest = writer.finish()
    return _Written(writer, digest, multiset_digest, without_tokens, engine.name)


def with_specials(encoded: Encoded, bos: int | None, eos: int | None) -> Encoded:
    """The same texts with BOS before and EOS behind each; None = without."""
    lengths = encoded.lengths + (bos is not None) + (eos is not None)
    ends = np.cumsum(lengths)
    ids = np.empty(int(ends[-1]) if len(ends) else 0, np.uint32)
    plain = np.ones(len(ids), bool)
    for special, places in ((bos, ends - lengths), (eos, ends - 1)):
        if special is not None:
            ids[places] = special
            plain[places] = False
    ids[plain] = encoded.ids
    return Encoded(ids, lengths)


def _reject_empty(batch: _Batch, encoded: Encoded, rejected: RejectedFile) -> int:
    """Take the documents without a token out of a batch, with a row for each; returns how many there are."""
    empty = np.flatnonzero(encoded.lengths == 0).tolist()
    for row in reversed(empty):
        raw = batch.texts[row].encode()
        sample, digest = sample_of(batch.texts[row]), hashlib.sha256(raw).hexdigest()[:16]
        rejected.write(Rejection("no_tokens", f"document {batch.ids[row]}", batch.shards[row], 0, len(raw), digest, sample))
        for column in (batch.ids, batch.shards, batch.texts, batch.bytes):
            del column[row]
    return len(empty)


def _union(footers: Sequence[dict[str, str]], key: str) -> tuple[str, ...]:
    return tuple(sorted({value for footer in footers for value in json.loads(footer[key])}))


def _batches(config: TokenizeConfig, parts: Sequence[Path]) -> Iterator[_Batch]:
    """Documents of the wanted split in batches of at most `batch_bytes` (or one document), with the rows read so far."""
    batch, size = _Batch(), 0
    for document in documents(parts, config.split, config.held_out_per_10000):
        if document_id(document.text) != document.id:
            raise DataError(
                f"document {document.id} of {document.part!r} has a text with id {document_id(document.text)}",
                advice="Rebuild the filtered shard.",
            )
        text_bytes = len(document.text) if document.text.isascii() else len(document.text.encode())
        if batch.ids and size + text_bytes > config.batch_bytes:
            yield batch
            batch, size = _Batch(), 0
        batch.ids.append(document.id)
        batch.shards.append(document.part)
        batch.texts.append(document.text)
        batch.bytes.append(text_bytes)
        batch.rows_read = document.rows_read
        size += text_bytes
    if batch.ids:
        yield batch


class LongTextEncoder:
    """Encodes texts; a long one in pieces, since the library takes about 180 bytes of memory per input byte.

    A cut stands only before a single space between two ASCII letters, where a byte-level pre-tokenizer begins a new word anyway
    (cutting before any whitespace changed 100 of 401 documents). The first long documents are encoded both ways, and cutting is
    turned off if one differs.
    """

    def __init__(self, tokenizer: Tokenizer, long_characters: int) -> None:
        self._tokenizer = tokenizer
        self._long_characters = long_characters
        self._unchecked = CHECKED_LONG_DOCUMENTS
        self.split_off = not tokenizer.splittable

    def encode(self, texts: Sequence[str]) -> list[npt.NDArray[np.uint32]]:
        """Ids of each text: uint32 [tokens], without BOS and EOS."""
        pieces: list[str] = []
        ends: list[int] = []
        for text in texts:
            pieces += self._pieces(text)
            ends.append(len(pieces))
        encoded = self._tokenizer.encode_batch(pieces)
        result = []
        for text, start, end in zip(texts, [0, *ends], ends, strict=False):
            ids = [np.array(piece, np.uint32) for piece in encoded[start:end]]
            joined = ids[0] if len(ids) == 1 else np.concatenate(ids)
            result.append(joined if len(ids) == 1 else self._checked(text, joined))
        return result

    def _pieces(self, text: str) -> list[str]:
        return [text] if self.split_off or len(text) <= self._long_characters else cut(text)

    def _checked(self, text: str, joined: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint32]:
        if self._unchecked == 0:
            return joined
        self._unchecked -= 1
        whole = np.array(self._tokenizer.encode(text), np.uint32)
        self.split_off = self.split_off or not np.array_equal(whole, joined)
        return whole


def cut(text: str) -> list[str]:
    """Pieces of a text of at least 10,000 characters, cut before single spaces between ASCII letters; linear in the length."""
    pieces = []
    start = 0
    while match := _LEGAL_CUT.search(text, start + CUT_EVERY):
        pieces.append(text[start : match.start()])
        start = match.start()
    pieces.append(text[start:])
    return pieces


def _report(info: PartInfo, job: _Part, written: _Written, fallback: str | None, *, split_off: bool) -> Report:
    other_split = job.rows - info.documents - written.without_tokens
    metrics: dict[str, Scalar] = {
        "documents": info.documents,
        "tokens": info.tokens,
        "bytes": info.bytes,
        "bytes_per_token": round(info.bytes / max(1, info.tokens), 6),
        "documents_without_tokens": written.without_tokens,
        "documents_in_other_split": other_split,
        "long_documents_cut": not split_off,
        "engine": written.engine,
    }
    if fallback:
        metrics["engine_fallback"] = fallback
    checks = [
        *_read_back(info, job.output),
        Check("engine_as_asked", fallback is None, fallback or f"encoded with {written.engine}", {"engine": written.engine}),
    ]
    meaning = [info.digest, info.multiset_digest, info.tokenizer.digest, info.documents]
    return Report(metrics=metrics, checks=checks, content_digest=hashlib.sha256(canonical_json(meaning)).hexdigest())


def _read_back(info: PartInfo, output: Path) -> list[Check]:
    """Read the part from disk and test what its readers rely on: ten public sets lacked BOS (marin #5149)."""
    cache = TokenCache([output])
    offsets = cache.offsets(0)
    bos_total = eos_total = bos_first = eos_last = start = 0
    for tokens in cache.verified(0):
        stop = start + len(tokens)
        low, high = np.searchsorted(offsets, [start, stop])
        bos_total += int((tokens == info.bos_id).sum())
        eos_total += int((tokens == info.eos_id).sum())
        bos_first += int((tokens[offsets[low:high] - start] == info.bos_id).sum())
        low, high = np.searchsorted(offsets, [start + 1, stop + 1])
        eos_last += int((tokens[offsets[low:high] - 1 - start] == info.eos_id).sum())
        start = stop
    text_bytes = sum(sum(sizes) for _, sizes in cache.rows(0))
    bos = info.documents if info.policy.bos == "prepend" else 0
    eos = info.documents if info.policy.eos == "append" else 0
    return [
        Check("reads_back", text_bytes == info.bytes, "the stored ids have the digest of the encoded ones", {"digest": info.digest}),
        Check(
            "bos_once_a_document",
            bos_first == bos_total == bos,
            f"BOS stands first in {bos_first} documents and nowhere else",
            {"documents": info.documents, "bos": bos_total},
        ),
        Check(
            "eos_once_a_document",
            eos_last == eos_total == eos,
            f"EOS stands last in {eos_last} documents and nowhere else",
            {"documents": info.documents, "eos": eos_total},
        ),
    ]
