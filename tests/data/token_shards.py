"""Filtered shards for tests of tokens, written straight from texts."""

import hashlib
from collections.abc import Iterable
from pathlib import Path

from marin_core.data.documents import Document
from marin_core.data.normal_form import document_id
from marin_core.data.shard import SCHEMA_VERSION, write_part

FOOTER = {
    "schema": SCHEMA_VERSION,
    "stage": "filter",
    "fingerprint": "0" * 64,
    "input_digest": "0" * 64,
    "licenses": '["CC0-1.0"]',
    "policies": '["TRAINING_ALLOWED"]',
}


def write_shard(folder: Path, texts: Iterable[str]) -> Path:
    """A shard with the distinct texts, as they are: also such as no normal form has."""
    documents = {
        (identity := document_id(text)): Document(identity, text, "raw/x/documents", None, None, '{"unit":"x"}', len(text.encode()))
        for text in texts
    }
    folder.mkdir(parents=True, exist_ok=True)
    write_part(folder / "part-00000-of-00001.parquet", list(documents.values()), FOOTER)
    return folder


def digests(folder: Path) -> dict[str, str]:
    """Relative path → sha256 of every file below a folder."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}
