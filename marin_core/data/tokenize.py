"""Turn filtered shards into one part of a token cache. A document's ids depend on its text and the tokenizer, on nothing else."""

import hashlib
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt

from marin_core.artifact.canonical import canonical_json
from marin_core.data.cache import STREAM_TOKENS, TokenCache
from marin_core.data.config import TokenizeConfig
from marin_core.data.normal_form import document_id
from marin_core.data.part import PartInfo, PartPolicy, PartTokenizer, PartWriter, list_files, write_info
from marin_core.data.shard import find_part, read_footer
from marin_core.data.split import documents
from marin_core.data.tokenizer import LIBRARY, Tokenizer, load_tokenizer
from marin_core.errors import DataError, MarinError, PreemptedError
from marin_core.report import Check, Report, Reporter, Scalar

CUT_EVERY = 10_000
"""Characters after which a long document is cut at the next legal place."""
CHECKED_LONG_DOCUMENTS = 8
_LEGAL_CUT = re.compile(r"(?<=[A-Za-z]) (?=[A-Za-z])")


@dataclass(frozen=True)
class _Text:
    id: str
    shard: str
    text: str
    bytes: int


def tokenize_shard(config: TokenizeConfig, shards: Sequence[Path], tokenizer: Path, output: Path, part: str, reporter: Reporter) -> Report:
    """Write one part of a token cache below `output`: `tokens/`, `offsets/`, `ids.parquet`, and `part.json` last.

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
    dtype: Literal["uint16", "uint32"] = "uint16" if loaded.vocab_size <= 65_536 else "uint32"
    writer = PartWriter(output, dtype)
    encoder = LongTextEncoder(loaded, config.long_document_characters)
    parts = [find_part(shard) for shard in shards]
    footers = [read_footer(path) for path in parts]
    total = sum(int(footer["rows"]) for footer in footers)
    without_tokens = _encode_all(config, parts, loaded, encoder, writer, reporter, total)
    if writer.max_id >= loaded.vocab_size:
        raise MarinError(
            f"part {part}: id {writer.max_id} is outside the vocabulary of {loaded.vocab_size}", advice="Report the bug with the tokenizer."
        )
    digest, multiset_digest = writer.finish()
    info = PartInfo(
        part=part,
        dtype=dtype,
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
        digest=digest,
        multiset_digest=multiset_digest,
        licenses=_union(footers, "licenses"),
        policies=_union(footers, "policies"),
        files=list_files(output),
    )
    write_info(output, info)
    return _report(info, output, total, without_tokens, split_off=encoder.split_off)


def _encode_all(
    config: TokenizeConfig,
    parts: Sequence[Path],
    tokenizer: Tokenizer,
    encoder: "LongTextEncoder",
    writer: PartWriter,
    reporter: Reporter,
    total: int,
) -> int:
    """Encode the wanted documents of all parts into the writer; returns how many had no token."""
    head = [tokenizer.bos_id] if config.bos == "prepend" else []
    tail = [tokenizer.eos_id] if config.eos == "append" else []
    without_tokens = 0
    for batch, rows_read in _batches(config, parts):
        if reporter.stop_requested():
            raise PreemptedError("tokenizing was asked to stop", advice="Start it again; the part begins anew.")
        for document, ids in zip(batch, encoder.encode([document.text for document in batch]), strict=True):
            if len(ids):
                writer.add(document.id, document.shard, np.concatenate([head, ids, tail]).astype(np.uint32), document.bytes)
            else:
                without_tokens += 1
        reporter.progress(rows_read, total, "documents")
    return without_tokens


def _union(footers: Sequence[dict[str, str]], key: str) -> tuple[str, ...]:
    return tuple(sorted({value for footer in footers for value in json.loads(footer[key])}))


def _batches(config: TokenizeConfig, parts: Sequence[Path]) -> Iterator[tuple[list[_Text], int]]:
    """Documents of the wanted split in batches of at most `batch_bytes` (or one document), with the rows read so far."""
    batch: list[_Text] = []
    size = rows = 0
    for document in documents(parts, config.split, config.held_out_per_10000):
        if document_id(document.text) != document.id:
            raise DataError(
                f"document {document.id} of {document.part!r} has a text with id {document_id(document.text)}",
                advice="Rebuild the filtered shard.",
            )
        text_bytes = len(document.text.encode())
        if batch and size + text_bytes > config.batch_bytes:
            yield batch, rows
            batch, size = [], 0
        batch.append(_Text(document.id, document.part, document.text, text_bytes))
        size += text_bytes
        rows = document.rows_read
    if batch:
        yield batch, rows


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


def _report(info: PartInfo, output: Path, rows: int, without_tokens: int, *, split_off: bool) -> Report:
    metrics: dict[str, Scalar] = {
        "documents": info.documents,
        "tokens": info.tokens,
        "bytes": info.bytes,
        "bytes_per_token": round(info.bytes / max(1, info.tokens), 6),
        "documents_without_tokens": without_tokens,
        "documents_in_other_split": rows - info.documents - without_tokens,
        "long_documents_cut": not split_off,
    }
    meaning = [info.digest, info.multiset_digest, info.tokenizer.digest, info.documents]
    return Report(metrics=metrics, checks=_read_back(info, output), content_digest=hashlib.sha256(canonical_json(meaning)).hexdigest())


def _read_back(info: PartInfo, output: Path) -> list[Check]:
    """Read the part from disk and test what its readers rely on: ten public sets lacked BOS (marin #5149)."""
    cache = TokenCache([output])
    cache.verify()
    counts = {info.bos_id: 0, info.eos_id: 0}
    for start in range(0, info.tokens, STREAM_TOKENS):
        tokens = cache.read(start, min(start + STREAM_TOKENS, info.tokens))
        for special in counts:
            counts[special] += int((tokens == special).sum())
    firsts = lasts = 0
    for document in cache.documents():
        firsts += int(document.tokens[0] == info.bos_id)
        lasts += int(document.tokens[-1] == info.eos_id)
    bos = info.documents if info.policy.bos == "prepend" else 0
    eos = info.documents if info.policy.eos == "append" else 0
    return [
        Check("reads_back", True, "the stored ids have the digest of the encoded ones", {"digest": info.digest}),
        Check(
            "bos_once_a_document",
            firsts == counts[info.bos_id] == bos,
            f"BOS stands first in {firsts} documents and nowhere else",
            {"documents": info.documents, "bos": counts[info.bos_id]},
        ),
        Check(
            "eos_once_a_document",
            lasts == counts[info.eos_id] == eos,
            f"EOS stands last in {lasts} documents and nowhere else",
            {"documents": info.documents, "eos": counts[info.eos_id]},
        ),
    ]
