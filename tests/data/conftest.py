"""A small real corpus, taken through every step once a session."""

import gzip
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from marin_core.data.config import TokenizeConfig, TokenizerConfig
from marin_core.data.filter import filter_shard
from marin_core.data.ingest import ingest
from marin_core.data.rules.config import MinCharacters
from marin_core.data.sources.config import IngestConfig, LocalFiles
from marin_core.data.stages import FilterConfig
from marin_core.data.tokenize import tokenize_shard
from marin_core.data.tokenizer import train_tokenizer
from marin_core.data.units import shard_names
from marin_core.report import SilentReporter

WORDS = "the model reads tokens and predicts what follows in each document because data is all that it ever sees of us"


def sentences(count: int, seed: int) -> list[str]:
    """Texts that differ, of 5 to 120 words, some with characters outside ASCII."""
    random = np.random.default_rng(seed)
    vocabulary = WORDS.split()
    texts = []
    for index in range(count):
        words = [vocabulary[i] for i in random.integers(0, len(vocabulary), int(random.integers(5, 120)))]
        texts.append(f"Document {seed}-{index}: {' '.join(words)}." + (" Ünïcödé 你好 🙂" if index % 5 == 0 else ""))
    return texts


def write_jsonl(path: Path, texts: Sequence[str]) -> None:
    lines = [json.dumps({"id": str(index), "text": text}, ensure_ascii=False) for index, text in enumerate(texts)]
    data = ("\n".join(lines) + "\n").encode()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(data, mtime=0) if path.suffix == ".gz" else data)


def ingest_texts(folder: Path, files: Mapping[str, Sequence[str]], output: Path, policy: str = "TRAINING_ALLOWED") -> Path:
    for name, texts in files.items():
        write_jsonl(folder / name, texts)
    source = LocalFiles(root=str(folder))
    ingest(IngestConfig.from_json({"source": source, "license": "CC0-1.0", "policy": policy}), output, SilentReporter())
    return output


@dataclass(frozen=True)
class Corpus:
    """Folders of one artifact each; `shards` and `parts` in shard order."""

    raw: Path
    shards: list[Path]
    tokenizer: Path
    parts: list[Path]
    held_out: Path


SHARDS = 3
FILTER = FilterConfig(filters=(MinCharacters(characters=40),), shards=SHARDS)
TOKENIZE = TokenizeConfig(split="train", held_out_per_10000=1_000)


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    base = tmp_path_factory.mktemp("corpus")
    files = {f"{index}.jsonl{'.gz' if index % 2 else ''}": sentences(120, index) for index in range(5)}
    raw = ingest_texts(base / "files", files, base / "raw")
    shards, parts = [], []
    for name in shard_names(SHARDS):
        filter_shard(FILTER, raw, name, base / "filtered" / name, SilentReporter())
        shards.append(base / "filtered" / name)
    tokenizer = base / "tokenizer"
    train_tokenizer(TokenizerConfig(vocab_size=400), shards, tokenizer, SilentReporter())
    for shard in shards:
        parts.append(base / "tokenized" / shard.name)
        tokenize_shard(TOKENIZE, [shard], tokenizer, parts[-1], shard.name, SilentReporter())
    held_out = base / "held_out"
    tokenize_shard(TOKENIZE.changed(split="held_out"), shards, tokenizer, held_out, "held_out", SilentReporter())
    return Corpus(raw, shards, tokenizer, parts, held_out)
