"""The plainest layout: all ids in one file, which a program maps into memory, and where each document begins in another."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from marin_core.data.export.layout import Exported, describe, open_for_export, write_tokens

TOKENS_FILE = "tokens.bin"
OFFSETS_FILE = "offsets.bin"


def export_flat(parts: Sequence[Path], output: Path) -> Exported:
    """Write `tokens.bin`, `offsets.bin` and `export.json` below `output`.

    `tokens.bin` is little-endian uint16 or uint32 [tokens], as the cache has them, BOS and EOS included; `offsets.bin` is int64
    [documents + 1]: document i is tokens [offsets[i], offsets[i + 1]).

    Raises:
        ConfigError: if `output` has something in it, or the parts don't fit together.
        DataError: if a part is missing or damaged.
    """
    cache = open_for_export(parts, output)
    dtype = cache.info().dtype
    digest = write_tokens(cache, output / TOKENS_FILE, dtype)
    first = 0
    with (output / OFFSETS_FILE).open("wb") as file:
        for index, entry in enumerate(cache.ledger):
            file.write((cache.offsets(index)[:-1] + first).astype("<i8").data)
            first += entry.tokens
        file.write(np.array([first], "<i8").data)
    exported = Exported(layout="flat", dtype=dtype, documents=cache.documents_total, tokens=cache.tokens, digest=digest)
    describe(output, exported, cache, {"files": {TOKENS_FILE: dtype, OFFSETS_FILE: "int64"}})
    return exported
