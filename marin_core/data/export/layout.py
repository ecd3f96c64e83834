"""What every exported layout has: a folder of its own, little-endian ids, and a description that is written last."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import xxhash

from marin_core.config import Config
from marin_core.data.cache import TokenCache
from marin_core.data.files import write_json
from marin_core.errors import ConfigError

EXPORT_FILE = "export.json"


class Exported(Config):
    """What was written.

    Attributes:
        dtype: of the ids in the file.
        digest: xxh3-128 of all ids as little-endian uint32, in stream order.
    """

    layout: str
    dtype: str
    documents: int
    tokens: int
    digest: str


def open_for_export(parts: Sequence[Path], output: Path) -> TokenCache:
    """Open the parts as one stream, and make the empty folder that an export is written to.

    Raises:
        ConfigError: if `output` has something in it, or the parts don't fit together.
        DataError: if a part is missing or damaged.
    """
    if output.exists() and (not output.is_dir() or any(output.iterdir())):
        raise ConfigError(f"{str(output)!r} is not an empty folder", advice="Export to a new folder.")
    cache = TokenCache(parts)
    output.mkdir(parents=True, exist_ok=True)
    return cache


def write_tokens(cache: TokenCache, path: Path, dtype: npt.DTypeLike) -> str:
    """Write all ids of the stream to one flat file, verified against the parts' digests; returns the digest of all.

    Raises:
        DataError: naming the part, if its tokens aren't those of its `part.json`.
    """
    digest = xxhash.xxh3_128()
    stored = np.dtype(dtype).newbyteorder("<")
    with path.open("wb") as file:
        for index in range(len(cache.parts)):
            for tokens in cache.verified(index):
                digest.update(tokens.astype("<u4").data)
                file.write(tokens.astype(stored).data)
    return digest.hexdigest()


def describe(output: Path, exported: Exported, cache: TokenCache, more: Mapping[str, Any]) -> None:
    """Write `export.json`: what was written, and what a reader must know of the tokenizer."""
    info = cache.info()
    said = {"tokenizer": info.tokenizer.model_dump(), "bos_id": info.bos_id, "eos_id": info.eos_id, "pad_id": info.pad_id}
    write_json(output / EXPORT_FILE, {**exported.model_dump(), **said, "policy": info.policy.model_dump(), **more})
