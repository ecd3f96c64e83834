"""What it costs to turn documents into a token cache: our job beside the bare library, datatrove and Marin, on the same text.

    python -m benchmarks.tokenize --megabytes 64 --json tokenize.json

The text is the running interpreter's standard library, code and prose, repeated under new first lines up to the size; a byte-level BPE of
32,768 entries is trained on it once. Every figure is taken in a process of its own with one thread: CPU-seconds of the work alone, without
imports, per MB (10⁶ bytes) of text, medians over rounds in which all take turns; and the largest memory that the process ever held. The
bare figure is `encode_batch_fast` on texts that are in memory already, in batches of 4 MiB, its ids unused: what no job can go below.
Ours include the start of a part (loading the tokenizer, proving the engine: about a second), which a shard of usual size, 256 MB, hides.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path

from benchmarks import executor_peer, tokenize_worker
from benchmarks.peers import PeerError, peer_environment, run_peer
from benchmarks.report import Machine, Row, installed_versions, parser, publish
from marin_core.data.config import TokenizerConfig
from marin_core.data.documents import Document
from marin_core.data.normal_form import document_id, normal_form
from marin_core.data.shard import SCHEMA_VERSION, write_part
from marin_core.data.sources import python_stdlib
from marin_core.data.sources.config import StdlibDomain
from marin_core.data.tokenizer import train_tokenizer
from marin_core.report import SilentReporter

MARIN_REQUIREMENTS = (*executor_peer.REQUIREMENTS, "marin-dupekit==0.1.1", "marin-dupekit-native==0.1.12.dev39325146809")
"""Marin's step imports its deduplication, which its base install leaves out."""
PEER_TIMEOUT_SECONDS = 3_600
GROWTH = (8, 4, 2, 1)
"""Sizes at which growth is measured, as parts of the whole."""
DOMAINS: tuple[StdlibDomain, ...] = ("code", "docstrings", "topics")
SPECIALS = {"bos_token": "<|bos|>", "eos_token": "<|eos|>", "pad_token": "<|pad|>", "tokenizer_class": "PreTrainedTokenizerFast"}


def main(arguments: Sequence[str] | None = None) -> None:
    made = parser(__doc__ or "")
    made.add_argument("--megabytes", type=float, default=64, help="size of the text (default 64)")
    made.add_argument("--rounds", type=int, default=3, help="rounds, of which medians count (default 3)")
    made.add_argument("--vocab-size", type=int, default=32_768, help="entries of the tokenizer (default 32768)")
    made.add_argument("--no-peer", action="store_true", help="leave out Marin, whose environment takes minutes to make")
    options = made.parse_args(arguments)
    machine = Machine.now()
    with tempfile.TemporaryDirectory(prefix="benchmark-tokenize-") as folder:
        rows = measure(options, Path(folder))
    versions = installed_versions("tokenizers", "gigatoken", "datatrove", "tensorstore") | {
        "marin-core": MARIN_REQUIREMENTS[0].partition("==")[2]
    }
    publish("Tokenizing, one thread", rows, machine=machine, versions=versions, json_file=options.json)


def measure(options: argparse.Namespace, folder: Path) -> list[Row]:
    """All rows; corpora and caches are made below `folder`."""
    texts = standard_library()
    whole = make_corpus(folder / "whole", texts, options.megabytes)
    train_tokenizer(TokenizerConfig(vocab_size=options.vocab_size), [whole], folder / "tokenizer", SilentReporter())
    (folder / "tokenizer" / "tokenizer_config.json").write_text(json.dumps(SPECIALS))
    figures: dict[str, list[Mapping[str, float]]] = {}
    missing: dict[str, str] = {}
    for number in range(options.rounds):
        for what in ("bare", "tokenizers", "gigatoken", "datatrove"):
            figures.setdefault(what, []).append(run(what, whole, folder, f"{what}-{number}"))
        if not options.no_peer and "Marin" not in missing:
            try:
                figures.setdefault("Marin", []).append(run_marin(whole, folder, number))
            except PeerError as error:
                missing["Marin"] = error.message
    if options.no_peer:
        missing["Marin"] = "left out by --no-peer"
    if figures["gigatoken"][0]["fallback"]:
        missing["gigatoken"] = "gigatoken isn't installed, or gives other ids for this tokenizer: the job used tokenizers"
    return [*_cost(figures, missing), *_memory(figures, missing), *_growth(texts, options.megabytes, folder)]


def standard_library() -> list[str]:
    """Texts of the running interpreter's standard library, in normal form."""
    skipped: Counter[str] = Counter()
    return [normal_form(document["text"])[0] for domain in DOMAINS for document in python_stdlib.documents(domain, skipped)]


def make_corpus(folder: Path, texts: Sequence[str], megabytes: float) -> Path:
    """A shard of so much text, and the same documents as JSON lines for programs that read those."""
    documents: dict[str, Document] = {}
    size, copy = 0, 0
    while size < megabytes * 1e6:
        for text in texts:
            named = f"Copy {copy}.\n{text}"
            identity, length = document_id(named), len(named.encode())
            documents[identity] = Document(identity, named, "raw/python_stdlib/all", None, None, '{"unit":"x"}', length)
            size += length
            if size >= megabytes * 1e6:
                break
        copy += 1
    footer = {"schema": SCHEMA_VERSION, "stage": "filter", "fingerprint": "", "input_digest": "", "licenses": "[]", "policies": "[]"}
    folder.mkdir(parents=True)
    write_part(folder / "part-00000-of-00001.parquet", list(documents.values()), footer)
    lines = (json.dumps({"id": document.id, "text": document.text}, ensure_ascii=False) for document in documents.values())
    (folder / "documents.jsonl").write_text("\n".join(lines) + "\n")
    return folder


def run(what: str, corpus: Path, folder: Path, output: str) -> Mapping[str, float]:
    """One figure, in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.tokenize_worker", what, str(corpus), str(folder / "tokenizer"), str(folder / output)]
    environment = os.environ | {"RAYON_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
    found: Mapping[str, float] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def run_marin(corpus: Path, folder: Path, number: int) -> Mapping[str, float]:
    """Marin's step on the same documents, in its own environment."""
    python = peer_environment("marin-tokenize", MARIN_REQUIREMENTS)
    arguments = ["Marin", str(corpus), str(folder / "tokenizer"), str(folder / f"marin-{number}")]
    return run_peer(python, Path(tokenize_worker.__file__), arguments, timeout_seconds=PEER_TIMEOUT_SECONDS)


def _median(figures: Mapping[str, list[Mapping[str, float]]], what: str, key: str) -> float | None:
    return statistics.median(each[key] for each in figures[what]) if what in figures else None


def _cost(figures: Mapping[str, list[Mapping[str, float]]], missing: Mapping[str, str]) -> list[Row]:
    def row(measure: str, ours: str, peer: str, name: str) -> Row:
        reason = missing.get(ours) or missing.get(peer)
        mine = None if ours in missing else _median(figures, ours, "cpu_seconds_per_mb")
        theirs = None if peer in missing else _median(figures, peer, "cpu_seconds_per_mb")
        return Row(measure, mine, theirs, name, "CPU-s/MB", reason=reason)

    return [
        row("tokenize job", "tokenizers", "bare", "bare encode_batch_fast"),
        row("tokenize job", "tokenizers", "datatrove", "datatrove's DocumentTokenizer"),
        row("tokenize job", "tokenizers", "Marin", "Marin's tokenize step"),
        row("tokenize job, engine gigatoken", "gigatoken", "bare", "bare encode_batch_fast"),
        row("tokenize job, engine gigatoken", "gigatoken", "Marin", "Marin's tokenize step"),
    ]


def _memory(figures: Mapping[str, list[Mapping[str, float]]], missing: Mapping[str, str]) -> list[Row]:
    rows = []
    for peer, name in (
        ("bare", "bare encode_batch_fast"),
        ("datatrove", "datatrove's DocumentTokenizer"),
        ("Marin", "Marin's tokenize step"),
    ):
        theirs = None if peer in missing else _median(figures, peer, "peak_mib")
        rows.append(
            Row("largest memory of the job", _median(figures, "tokenizers", "peak_mib"), theirs, name, "MiB", reason=missing.get(peer))
        )
    return rows


def _growth(texts: Sequence[str], megabytes: float, folder: Path) -> list[Row]:
    """What each further MB costs between four sizes, beside the first step between two; as dear everywhere is linear growth. And memory.

    With the fast engine, next to whose encoding everything else shows; the difference of two sizes is free of the start of a process.
    """
    found = []
    for part in GROWTH:
        corpus = make_corpus(folder / f"part-{part}", texts, megabytes / part)
        found.append(run("gigatoken", corpus, folder, f"growth-{part}"))
    slopes = [(after["cpu_seconds"] - before["cpu_seconds"]) / (after["mb"] - before["mb"]) for before, after in pairwise(found)]
    steps = [f"from {before['mb']:.3g} to {after['mb']:.3g} MB" for before, after in pairwise(found)]
    rows = [
        Row(f"fast job, each further MB {step}", slope, slopes[0], f"the same {steps[0]}", "CPU-s/MB")
        for step, slope in zip(steps[1:], slopes[1:], strict=True)
    ]
    smallest = found[0]
    name = f"the same at {smallest['mb']:.3g} MB"
    return rows + [
        Row(f"fast job, memory at {each['mb']:.3g} MB", each["peak_mib"], smallest["peak_mib"], name, "MiB") for each in found[1:]
    ]


if __name__ == "__main__":
    main()
