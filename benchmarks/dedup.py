"""Finding near duplicates and leaked evaluations: cost beside datatrove's, quality beside the theory, growth with the corpus.

    python -m benchmarks.dedup --json dedup.json

CPU-seconds of one process per MB (10^6 bytes) of prose that is put together from sentences of Python's own documentation. datatrove runs
with its defaults in an environment of its own (its English words come from spaCy), and here with our splitter. Quality: pairs in which
0.5 to 30 % of the words were replaced, strangers, and what 14 bands of 8 rows find in theory. Growth: four sizes, each in a process of its
own, from documents to the attribute files of the search.
"""

import argparse
import json
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from benchmarks import dedup_peer
from benchmarks.peers import PeerError, peer_environment, run_peer
from benchmarks.report import Machine, Row, installed_versions, parser, publish
from benchmarks.timing import peak_mebibytes, timed
from marin_core.data.decontaminate.config import ContaminationIndexConfig
from marin_core.data.decontaminate.contamination import find_matches
from marin_core.data.decontaminate.index import ContaminationIndex, EvalSource, build_index
from marin_core.data.dedup.config import DuplicatesConfig, NearDuplicates
from marin_core.data.dedup.corpus import Family, ShardFolders
from marin_core.data.dedup.duplicates import find_duplicates
from marin_core.data.dedup.minhash import MinHasher
from marin_core.data.dedup.signatures import write_signatures
from marin_core.data.documents import Document
from marin_core.data.ingest import ingest
from marin_core.data.normal_form import document_id
from marin_core.data.shard import SCHEMA_VERSION, find_part, part_name, write_part
from marin_core.data.sources.config import IngestConfig, LocalFiles
from marin_core.data.words import UnicodeWords
from marin_core.report import SilentReporter

PEER = ("datatrove==0.10.1", "spacy", "regex", "tokenizers", "numpy", "xxhash")
LEVELS = (0.005, 0.01, 0.02, 0.03, 0.05, 0.1, 0.2, 0.3)
PAIRS = 150
SHARD_DOCUMENTS = 2_000
FOOTER = {"schema": SCHEMA_VERSION, "stage": "benchmark", "fingerprint": "", "input_digest": "", "licenses": "[]", "policies": "[]"}


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print the table, and write the rows."""
    options = _options(arguments)
    if options.child:
        print(json.dumps(grow(options.child, Path(options.folder))))
        return
    machine, progress = Machine.now(), Console(stderr=True)
    texts = prose(options.megabytes)
    progress.print(f"{len(texts)} documents, {_megabytes(texts):.1f} MB")
    with tempfile.TemporaryDirectory(prefix="benchmark-dedup-") as name:
        folder = Path(name)
        rows = cost_rows(texts, folder, options.spacy_megabytes)
        progress.print("quality")
        rows += quality_rows(folder)
        progress.print("decontamination")
        rows += contamination_rows(texts, folder, options.grams)
        progress.print("growth")
        rows += growth_rows(options.megabytes, folder)
    versions = installed_versions("datatrove", "numpy", "scipy", "pyarrow")
    publish("duplicates and leaked evaluations", rows, machine=machine, versions=versions, json_file=options.json)


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    made = parser(__doc__ or "")
    made.add_argument("--megabytes", type=float, default=8.0, help="of prose")
    made.add_argument("--spacy-megabytes", type=float, default=2.0, help="of prose for datatrove's default words, which take 4 s/MB")
    made.add_argument("--grams", type=int, default=2_000_000, help="n-grams in the index of evaluations")
    made.add_argument("--child", type=int, default=0, help=argparse.SUPPRESS)
    made.add_argument("--folder", default="", help=argparse.SUPPRESS)
    return made.parse_args(arguments)


def prose(megabytes: float, seed: int = 0) -> list[str]:
    """Documents of about 3 kB, each of sentences drawn from the documentation that ships with Python."""
    random = np.random.default_rng(seed)
    source = (Path(sysconfig.get_path("stdlib")) / "pydoc_data" / "topics.py").read_text(encoding="utf-8")
    text = source.replace("\\n", " ").replace("'\n", " ").replace("  ", " ")
    sentences = np.array([each.strip() for each in text.split(". ") if 40 < len(each) < 400])
    texts: list[str] = []
    size = 0
    while size < megabytes * 1e6:
        texts.append(". ".join(random.choice(sentences, int(random.integers(10, 40))).tolist()) + ".")
        size += len(texts[-1].encode())
    return texts


def cost_rows(texts: Sequence[str], folder: Path, spacy_megabytes: float) -> list[Row]:
    """Signatures and the whole search, beside datatrove with its words and with ours."""
    megabytes = _megabytes(texts)
    hasher = MinHasher(NearDuplicates())
    _warm_up(folder)
    batches = [texts[first : first + 300] for first in range(0, len(texts), 300)]
    _, bare = timed(lambda: [hasher.keys(batch) for batch in batches])
    (shard,) = write_shards(folder / "documents", [texts])
    _, signing = timed(lambda: write_signatures(NearDuplicates(), shard, folder / "signed", SilentReporter()))
    _, searching = timed(lambda: _search([shard], [folder / "signed"], folder / "found"))
    ours = dedup_peer.minhash(texts, UnicodeWords())
    few = prose(spacy_megabytes)
    default, reason = _default_peer(few, folder)
    per_mb = None if default is None else default["signatures"] / _megabytes(few)
    rest = None if default is None else (default["signatures"] + default["rest"]) / _megabytes(few)
    unit, total = "CPU-s/MB", (signing.cpu_seconds + searching.cpu_seconds) / megabytes
    return [
        Row("MinHash signatures", bare.cpu_seconds / megabytes, per_mb, "datatrove, its defaults", unit, reason=reason),
        Row("MinHash signatures", bare.cpu_seconds / megabytes, ours["signatures"] / megabytes, "datatrove, our words", unit),
        Row("documents → duplicates, verified", total, rest, "datatrove, its defaults, not verified", unit, reason=reason),
        Row(
            "documents → duplicates, verified",
            total,
            (ours["signatures"] + ours["rest"]) / megabytes,
            "datatrove, our words, not verified",
            unit,
        ),
    ]


def _default_peer(texts: Sequence[str], folder: Path) -> tuple[dict[str, Any] | None, str | None]:
    path = folder / "texts.jsonl"
    path.write_text("".join(json.dumps(text) + "\n" for text in texts), encoding="utf-8")
    try:
        python = peer_environment("datatrove-spacy", PEER)
        return dict(run_peer(python, Path(dedup_peer.__file__), [str(path)], timeout_seconds=600)), None
    except PeerError as error:
        return None, error.message


def quality_rows(folder: Path) -> list[Row]:
    """Recall on planted pairs by the share of edited words, and strangers that were merged."""
    random = np.random.default_rng(1)
    vocabulary = _vocabulary(20_000)
    pairs = []
    for level in LEVELS:
        for _ in range(PAIRS):
            original = vocabulary[random.integers(0, len(vocabulary), 300)]
            copy = original.copy()
            places = random.choice(300, round(level * 300), replace=False)
            copy[places] = vocabulary[random.integers(0, len(vocabulary), len(places))]
            pairs.append((level, original.tolist(), copy.tolist()))
    strangers = [" ".join(vocabulary[random.integers(0, len(vocabulary), 300)]) for _ in range(4_000)]
    texts = [" ".join(each) for _, *pair in pairs for each in pair] + strangers
    shards = write_shards(folder / "planted", [texts])
    write_signatures(NearDuplicates(), shards[0], folder / "planted-signed", SilentReporter())
    rows = _search(shards, [folder / "planted-signed"], folder / "planted-found")
    removed = {index for index, text in enumerate(texts) if rows[document_id(text)]}
    theirs = set(dedup_peer.minhash(texts, UnicodeWords())["removed"])
    table = []
    for number, level in enumerate(LEVELS):
        inside = range(number * PAIRS, (number + 1) * PAIRS)
        expected = float(np.mean([NearDuplicates().probability(_jaccard(*pairs[index][1:])) for index in inside]))
        found, peer = (sum(bool({2 * index, 2 * index + 1} & each) for index in inside) / PAIRS for each in (removed, theirs))
        measure = f"recall, {level:.1%} of the words replaced (theory {expected:.3f})"
        table.append(Row(measure, found, peer, "datatrove, our words", "share", "higher"))
    wrong, peer_wrong = (sum(index >= 2 * len(pairs) for index in each) for each in (removed, theirs))
    precision, peer_precision = (1 - bad / max(1, len(each)) for bad, each in ((wrong, removed), (peer_wrong, theirs)))
    return [
        *table,
        Row(f"precision among {len(strangers)} strangers", precision, peer_precision, "datatrove, our words", "share", "higher"),
    ]


def _vocabulary(count: int) -> Any:
    """Words without digits, which datatrove would make one and the same."""
    letters = str.maketrans("0123456789", "abcdefghij")
    return np.array([f"x{index}".translate(letters) for index in range(count)])


def _jaccard(left: Sequence[str], right: Sequence[str]) -> float:
    sets = [{tuple(each[place : place + 5]) for place in range(len(each) - 4)} for each in (left, right)]
    return len(sets[0] & sets[1]) / len(sets[0] | sets[1])


def contamination_rows(texts: Sequence[str], folder: Path, grams: int) -> list[Row]:
    """A scan of the prose against an index of so many n-grams of random words."""
    random = np.random.default_rng(2)
    vocabulary = _vocabulary(50_000)
    source = folder / "eval-files"
    source.mkdir()
    with (source / "eval.jsonl").open("w", encoding="utf-8") as file:
        for _ in range(grams // 400):
            file.write(json.dumps({"question": " ".join(vocabulary[random.integers(0, len(vocabulary), 412)])}) + "\n")
    config = IngestConfig.from_json(
        {"source": LocalFiles(root=str(source)), "license": "CC0-1.0", "policy": "EVAL_ONLY", "name": "raw/eval"}
    )
    ingest(config, folder / "eval", SilentReporter())
    build_index(ContaminationIndexConfig(), {"eval": EvalSource(folder / "eval", "")}, folder / "index", SilentReporter())
    index = ContaminationIndex(folder / "index")
    list(find_matches(index, texts[:10]))
    _, took = timed(lambda: list(find_matches(index, texts)))
    hashes = random.integers(0, 1 << 63, grams).astype(np.uint64)
    theirs = dedup_peer.decontamination(texts, hashes, UnicodeWords())
    megabytes = _megabytes(texts)
    measure = f"decontamination against {grams:,} 13-grams"
    return [Row(measure, took.cpu_seconds / megabytes, theirs / megabytes, "datatrove (12-grams), our words", "CPU-s/MB")]


def growth_rows(megabytes: float, folder: Path) -> list[Row]:
    """Cost and peak memory of four sizes, each doubled, against the smallest."""
    figures = []
    for factor in (1, 2, 4, 8):
        place = folder / f"growth-{factor}"
        size = max(1, round(megabytes * factor / 2))
        command = [sys.executable, "-m", "benchmarks.dedup", "--child", str(size), "--folder", str(place)]
        told = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()[-1])
        figures.append((size, told["cpu_seconds_per_megabyte"], told["peak_mebibytes"]))
    first = figures[0]
    rows = []
    for size, cost, peak in figures[1:]:
        rows.append(Row(f"documents → duplicates, {size} MB", cost, first[1], f"ours, {first[0]} MB", "CPU-s/MB"))
        rows.append(Row(f"peak memory, {size} MB", peak, first[2], f"ours, {first[0]} MB", "MiB"))
    return rows


def grow(megabytes: int, folder: Path) -> dict[str, float]:
    """Signatures of every shard and the search over all of them; a tenth of the documents has a near copy in another shard."""
    texts = prose(megabytes, seed=3)
    copies = [f"{text} And this is one more sentence." for text in texts[::10]]
    every = texts + copies
    shards = write_shards(folder / "documents", [every[first : first + SHARD_DOCUMENTS] for first in range(0, len(every), SHARD_DOCUMENTS)])
    size = _megabytes(every)
    del texts, copies, every
    _warm_up(folder)

    def work() -> None:
        signed = [folder / "signed" / shard.name for shard in shards]
        for shard, output in zip(shards, signed, strict=True):
            write_signatures(NearDuplicates(), shard, output, SilentReporter())
        _search(shards, signed, folder / "found")

    _, took = timed(work)
    return {"cpu_seconds_per_megabyte": took.cpu_seconds / size, "peak_mebibytes": peak_mebibytes()}


def _warm_up(folder: Path) -> None:
    """Load libraries and tables, which one job pays once, before the clock starts."""
    (shard,) = write_shards(folder / "warm", [["one two three four five six"]])
    write_signatures(NearDuplicates(), shard, folder / "warm-signed", SilentReporter())
    _search([shard], [folder / "warm-signed"], folder / "warm-found")


def write_shards(folder: Path, shards: Sequence[Sequence[str]]) -> list[Path]:
    """A family of documents on disk."""
    made = []
    for index, texts in enumerate(shards):
        made.append(folder / f"{index:05d}")
        made[-1].mkdir(parents=True)
        documents = {text: Document(document_id(text), text, "raw/benchmark/x", None, None, "{}", len(text.encode())) for text in texts}
        write_part(made[-1] / f"{part_name(index, len(shards))}.parquet", list(documents.values()), FOOTER)
    return made


def _search(shards: Sequence[Path], signed: Sequence[Path], output: Path) -> dict[str, bool]:
    """Near duplicates of some shards: whether each id would be dropped."""
    output.mkdir()
    folders = tuple(ShardFolders(shard.name, shard, signatures) for shard, signatures in zip(shards, signed, strict=True))
    find_duplicates(DuplicatesConfig(find="near_duplicates"), [Family("a", folders)], output, SilentReporter())
    return {identity: share for shard in shards for identity, share in _dropped(output / "a" / shard.name / find_part(shard).name)}


def _dropped(path: Path) -> list[tuple[str, bool]]:
    import pyarrow.parquet as pq

    table = pq.read_table(path, columns=["id", "near_duplicates.loser", "near_duplicates.containment"])
    return [
        (identity, loser and share >= 0.6) for identity, loser, share in zip(*(column.to_pylist() for column in table.columns), strict=True)
    ]


def _megabytes(texts: Sequence[str]) -> float:
    return sum(len(text.encode()) for text in texts) / 1e6


if __name__ == "__main__":
    main()
