"""Planted corpora: documents whose copies, near copies and strangers are known."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from marin_core.data.dedup.config import DuplicatesConfig, NearDuplicates, Signatures
from marin_core.data.dedup.corpus import Family, ShardFolders
from marin_core.data.dedup.duplicates import find_duplicates
from marin_core.data.dedup.exact import ROWS_AT_ONCE
from marin_core.data.dedup.signatures import write_signatures
from marin_core.data.documents import Document
from marin_core.data.normal_form import document_id
from marin_core.data.shard import SCHEMA_VERSION, part_name, write_part
from marin_core.report import Report, SilentReporter

FOOTER = {"schema": SCHEMA_VERSION, "stage": "filter", "fingerprint": "", "input_digest": "", "licenses": "[]", "policies": "[]"}
VOCABULARY = np.array([f"w{index:x}" for index in range(20_000)])


def words(random: np.random.Generator, count: int) -> list[str]:
    return [str(word) for word in VOCABULARY[random.integers(0, len(VOCABULARY), count)]]


def edited(random: np.random.Generator, original: Sequence[str], share: float) -> list[str]:
    """A copy in which a share of the words was replaced."""
    copy = list(original)
    for place in random.choice(len(copy), round(share * len(copy)), replace=False):
        copy[place] = str(VOCABULARY[random.integers(0, len(VOCABULARY))])
    return copy


def jaccard(left: Sequence[str], right: Sequence[str], n: int = 5) -> float:
    sets = [{tuple(each[place : place + n]) for place in range(len(each) - n + 1)} for each in (left, right)]
    return len(sets[0] & sets[1]) / len(sets[0] | sets[1])


def document(text: str, unit: str = "units/a/0", offset: int = 0, source: str = "raw/x/a") -> Document:
    metadata = json.dumps({"offset": offset, "unit": unit}, sort_keys=True, separators=(",", ":"))
    return Document(document_id(text), text, source, None, None, metadata, len(text.encode()))


def write_shards(folder: Path, shards: Sequence[Sequence[Document]]) -> list[Path]:
    """A family of documents; ids within a shard must differ, as they do after filtering."""
    made = []
    for index, documents in enumerate(shards):
        made.append(folder / f"{index:05d}")
        made[-1].mkdir(parents=True)
        write_part(made[-1] / f"{part_name(index, len(shards))}.parquet", documents, FOOTER)
    return made


def family(
    folder: Path, name: str, shards: Sequence[Sequence[Document]], signatures: Signatures | None = None, *, context: bool = False
) -> Family:
    """Documents on disk, with signatures where they are wanted."""
    folders = []
    for shard in write_shards(folder / name, shards):
        signed = None
        if signatures is not None:
            signed = folder / f"{name}-signatures" / shard.name
            write_signatures(signatures, shard, signed, SilentReporter())
        folders.append(ShardFolders(shard.name, shard, signed))
    return Family(name, tuple(folders), context)


def search(
    config: DuplicatesConfig, families: Sequence[Family], output: Path, rows_at_once: int = ROWS_AT_ONCE
) -> tuple[Report, dict[str, list[dict[str, Any]]]]:
    """Run a search; its report, and the rows of each family over all its shards."""
    output.mkdir(parents=True, exist_ok=True)
    report = find_duplicates(config, families, output, SilentReporter(), rows_at_once)
    return report, {each.component: read_rows(output / each.component) for each in families if not each.context}


def read_rows(folder: Path) -> list[dict[str, Any]]:
    rows = []
    for path in sorted(folder.glob("*/*.parquet")):
        for row in pq.read_table(path).to_pylist():
            rows.append({name.partition(".")[2] or name: value for name, value in row.items()} | {"shard": path.parent.name})
    return rows


def near(folder: Path, corpora: Mapping[str, Sequence[Sequence[str]]], rows_at_once: int = ROWS_AT_ONCE) -> dict[str, dict[str, Any]]:
    """Near duplicates of texts given by family and shard: text → its row."""
    families = [
        family(folder, name, [[document(text) for text in shard] for shard in shards], NearDuplicates()) for name, shards in corpora.items()
    ]
    _, rows = search(DuplicatesConfig(find="near_duplicates"), families, folder / "found", rows_at_once)
    by_id = {row["id"]: row for found in rows.values() for row in found}
    return {text: by_id[document_id(text)] for shards in corpora.values() for shard in shards for text in shard}
