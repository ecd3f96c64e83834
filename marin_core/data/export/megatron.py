"""Megatron's indexed dataset (`MMIDIDX`, version 1), which Megatron-LM, NeMo and GPT-NeoX read: `tokens.bin` and `tokens.idx`.

Layout of the index, all little-endian, as `_IndexWriter` of megatron/core/datasets/indexed_dataset.py writes it: 9 bytes of magic, uint64
version, uint8 code of the type, uint64 sequences, uint64 document borders; then int32 tokens of each sequence, int64 byte at which each
begins, int64 borders: document i is sequences [borders[i], borders[i + 1]). Here each document is one sequence.
"""

import struct
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from marin_core.data.export.layout import Exported, describe, open_for_export, write_tokens

MAGIC = b"MMIDIDX\x00\x00"
VERSION = 1
TYPES = {"uint16": ("uint16", 8), "uint32": ("int32", 4)}
"""Type of the cache → type of the file and its code. Megatron has no uint32; ids of a vocabulary below 2^31 fit int32."""
PREFIX = "tokens"
BORDERS_AT_ONCE = 1 << 20


def export_megatron(parts: Sequence[Path], output: Path) -> Exported:
    """Write `tokens.bin`, `tokens.idx` and `export.json` below `output`; its `--data-path` is `OUTPUT/tokens`.

    BOS and EOS stand in the documents as in the cache; our EOS is what Megatron calls EOD.

    Raises:
        ConfigError: if `output` has something in it, or the parts don't fit together.
        DataError: if a part is missing or damaged.
    """
    cache = open_for_export(parts, output)
    dtype, code = TYPES[cache.info().dtype]
    size = np.dtype(dtype).itemsize
    digest = write_tokens(cache, output / f"{PREFIX}.bin", dtype)
    documents = cache.documents_total
    with (output / f"{PREFIX}.idx").open("wb") as file:
        file.write(MAGIC + struct.pack("<QBQQ", VERSION, code, documents, documents + 1))
        for index in range(len(cache.parts)):
            file.write(np.diff(cache.offsets(index)).astype("<i4").data)
        first = 0
        for index, entry in enumerate(cache.ledger):
            file.write(((cache.offsets(index)[:-1] + first) * size).astype("<i8").data)
            first += entry.tokens
        for start in range(0, documents + 1, BORDERS_AT_ONCE):
            file.write(np.arange(start, min(start + BORDERS_AT_ONCE, documents + 1), dtype="<i8").data)
    exported = Exported(layout="megatron", dtype=dtype, documents=documents, tokens=cache.tokens, digest=digest)
    describe(output, exported, cache, {"prefix": PREFIX})
    return exported
