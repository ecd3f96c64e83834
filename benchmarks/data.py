"""The whole way from raw records to filtered shards: what each stage costs, beside datatrove's blocks with their defaults.

    python -m benchmarks.data --json data.json

CPU-seconds of one process per MB (10^6 bytes) of text, all stages of a curated corpus on disk. Prose: documents, what Gopher's, C4's and
FineWeb's rules, languages and personal data ask for, MinHash with verification, contamination by an evaluation, consolidation. Code:
documents, its own rules, secrets, licences, exact duplicates, consolidation. The peer runs in an environment of its own, where English
words come from spaCy as datatrove has it, on less text, as it takes seconds a MB; its chain is the same filters, MinHash and writing,
without languages, personal data and decontamination, for which it needs a model or more packages.
Growth: four sizes, each in a process of its own.
"""

import argparse
import ast
import json
import re
import subprocess
import sys
import sysconfig
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from rich.console import Console

from benchmarks import data_peer
from benchmarks.peers import PeerError, peer_environment, run_peer
from benchmarks.report import Machine, Row, installed_versions, parser, publish
from benchmarks.timing import peak_mebibytes, timed
from marin_core.data.attributes.files import attribute_file
from marin_core.data.attributes.measure import measure_shard
from marin_core.data.consolidate import consolidate_shard
from marin_core.data.decontaminate.config import ContaminationIndexConfig, DropContaminated
from marin_core.data.decontaminate.contamination import find_contamination
from marin_core.data.decontaminate.index import ContaminationIndex, EvalSource, build_index
from marin_core.data.dedup.config import DropExactDuplicates, DropNearDuplicates, DuplicatesConfig, NearDuplicates
from marin_core.data.dedup.corpus import Family, ShardFolders
from marin_core.data.dedup.duplicates import find_duplicates
from marin_core.data.dedup.signatures import write_signatures
from marin_core.data.filter import filter_shard
from marin_core.data.ingest import ingest
from marin_core.data.measures.config import (
    C4QualityMeasure,
    CodeQualityMeasure,
    FineWebQualityMeasure,
    GopherQualityMeasure,
    GopherRepetitionMeasure,
    LanguageMeasure,
    LengthMeasure,
    LicenseMeasure,
    MeasureConfig,
    PersonalDataMeasure,
    SecretsMeasure,
)
from marin_core.data.rules.config import (
    AllowLicenses,
    C4Quality,
    CodeQuality,
    DropSecrets,
    FilterRule,
    FineWebQuality,
    GopherQuality,
    GopherRepetition,
    KeepLanguages,
    MaskPersonalData,
    MinCharacters,
)
from marin_core.data.sources import python_stdlib
from marin_core.data.sources.config import IngestConfig, LocalFiles
from marin_core.data.stages import AttributesConfig, ConsolidateConfig, FilterConfig
from marin_core.report import SilentReporter

PEER = ("datatrove==0.10.1", "spacy", "regex", "tokenizers", "numpy", "xxhash", "orjson", "nltk")
PEER_TIMEOUT_SECONDS = 1_800
GOALS = {"prose": 1.2, "code": 0.6}
"""CPU-seconds per MB that a whole chain may take (spec/data.md §9)."""
SHARD = "00000"
EVAL_EXAMPLES = 2_000
GROWTH = (1, 2, 4, 8)

PROSE_MEASURES: tuple[MeasureConfig, ...] = (
    LengthMeasure(),
    GopherQualityMeasure(),
    GopherRepetitionMeasure(),
    C4QualityMeasure(),
    FineWebQualityMeasure(),
    LanguageMeasure(),
    PersonalDataMeasure(),
)
PROSE_RULES: tuple[FilterRule, ...] = (
    KeepLanguages(languages=("en",)),
    GopherRepetition(),
    GopherQuality(),
    C4Quality(),
    FineWebQuality(),
    DropNearDuplicates(),
    DropContaminated(),
    MaskPersonalData(),
)
CODE_MEASURES: tuple[MeasureConfig, ...] = (LengthMeasure(), CodeQualityMeasure(), SecretsMeasure(), LicenseMeasure())
CODE_RULES: tuple[FilterRule, ...] = (
    MinCharacters(),
    CodeQuality(),
    DropSecrets(),
    AllowLicenses(unknown="keep"),
    DropExactDuplicates(),
)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print the table, and write the rows."""
    options = _options(arguments)
    if options.child:
        print(json.dumps(run_chain("prose", Path(options.folder), options.child)))
        return
    machine, progress = Machine.now(), Console(stderr=True)
    with tempfile.TemporaryDirectory(prefix="benchmark-data-") as name:
        folder = Path(name)
        run_chain("prose", folder / "warm-prose", 0.2)
        run_chain("code", folder / "warm-code", 0.2)
        progress.print("our chains")
        chains = {kind: run_chain(kind, folder / kind, options.megabytes) for kind in GOALS}
        progress.print("datatrove's chain")
        peer, reason = run_default_peer(folder, options.peer_megabytes)
        rows = chain_rows(chains, peer, reason)
        progress.print("growth")
        rows += growth_rows(folder, options.megabytes)
    versions = installed_versions("datatrove", "pyarrow", "numpy", "resiliparse")
    publish("From raw records to filtered shards", rows, machine=machine, versions=versions, json_file=options.json)


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    made = parser(__doc__ or "")
    made.add_argument("--megabytes", type=float, default=8.0, help="of text in each of our chains (default 8)")
    made.add_argument("--peer-megabytes", type=float, default=1.0, help="of prose for datatrove's defaults, which take 20 s/MB (default 1)")
    made.add_argument("--child", type=float, default=0.0, help=argparse.SUPPRESS)
    made.add_argument("--folder", default="", help=argparse.SUPPRESS)
    return made.parse_args(arguments)


# Texts --------------------------------------------------------------------------------------------------------------


def prose(megabytes: float, seed: int = 0) -> list[str]:
    """Documents of about 3 kB: paragraphs of sentences drawn from Python's documentation; one in ten is nearly a copy of another."""
    random = np.random.default_rng(seed)
    source = (Path(sysconfig.get_path("stdlib")) / "pydoc_data" / "topics.py").read_bytes()
    assigned = next(node for node in ast.parse(source).body if isinstance(node, ast.Assign))
    text = " ".join(" ".join(ast.literal_eval(assigned.value).values()).split())
    plain = re.compile(r"[A-Za-z][A-Za-z ,'-]{60,400}")  # without markup and code, or rules about prose drop all of it
    sentences = [each for each in text.split(". ") if plain.fullmatch(each)]
    texts: list[str] = []
    size = 0
    while size < megabytes * 1e6:
        if texts and random.random() < 0.1:
            made = f"{texts[int(random.integers(0, len(texts)))]}\n\nThis is one more sentence, and it says very little."
        else:
            drawn = [sentences[place] for place in random.integers(0, len(sentences), int(random.integers(12, 40)))]
            made = "\n\n".join(". ".join(drawn[first : first + 5]) + "." for first in range(0, len(drawn), 5))
        texts.append(made)
        size += len(made.encode())
    return texts


def code(megabytes: float, seed: int = 0) -> list[str]:
    """Python's own modules, again under another first line until there is enough of them."""
    skipped: Counter[str] = Counter()
    modules = [document["text"] for document in python_stdlib.documents("code", skipped)]
    texts: list[str] = []
    size = 0
    while size < megabytes * 1e6:
        text = modules[(len(texts) + seed) % len(modules)]
        texts.append(text if len(texts) < len(modules) else f"# Copy {len(texts) // len(modules)}.\n{text}")
        size += len(texts[-1].encode())
    return texts


TEXTS: dict[str, Callable[[float], list[str]]] = {"prose": prose, "code": code}


# Chains -------------------------------------------------------------------------------------------------------------


def run_chain(kind: str, folder: Path, megabytes: float) -> dict[str, float]:
    """One chain from JSON lines to a filtered shard; CPU-seconds per MB of each stage, the peak memory in MiB, and the share kept."""
    texts = TEXTS[kind](megabytes)
    size = sum(len(text.encode()) for text in texts) / 1e6
    lines = folder / "files"
    lines.mkdir(parents=True)
    with (lines / "texts.jsonl").open("w", encoding="utf-8") as file:
        for number, text in enumerate(texts):
            file.write(json.dumps({"id": str(number), "text": text}, ensure_ascii=False) + "\n")
    del texts
    source = {"source": LocalFiles(root=str(lines)), "license": "PSF-2.0", "policy": "TRAINING_ALLOWED", "name": "raw/benchmark"}
    ingest(IngestConfig.from_json(source), folder / "raw", SilentReporter())
    stages = _prose_stages(folder) if kind == "prose" else _code_stages(folder)
    for output in ("documents", "values", "signed", "near", "copies", "leaks", "filtered"):
        (folder / output).mkdir()
    costs = {}
    for stage, work in stages:
        _, took = timed(work)
        costs[stage] = took.cpu_seconds / size
    counts = json.loads((folder / "filtered" / "counts.json").read_text())
    return costs | {"total": sum(costs.values()), "peak_mebibytes": peak_mebibytes(), "kept": counts["kept"] / counts["documents_in"]}


def _prose_stages(folder: Path) -> list[tuple[str, Callable[[], object]]]:
    silent = SilentReporter()
    documents, values = folder / "documents", folder / "values"
    near, leaks = folder / "near", folder / "leaks"
    index = _eval_index(folder)
    family = Family("x", (ShardFolders(SHARD, documents, folder / "signed"),))
    measured = AttributesConfig(measures=PROSE_MEASURES)
    rules = ConsolidateConfig(rules=PROSE_RULES)

    def consolidate() -> object:
        files = [attribute_file(place) for place in (values, near / "x" / SHARD, leaks)]
        return consolidate_shard(rules, documents, files, folder / "filtered", silent)

    return [
        ("documents", lambda: filter_shard(FilterConfig(shards=1), folder / "raw", SHARD, documents, silent)),
        ("attributes", lambda: measure_shard(measured, documents, {}, values, silent)),
        ("signatures", lambda: write_signatures(NearDuplicates(), documents, folder / "signed", silent)),
        ("near duplicates", lambda: find_duplicates(DuplicatesConfig(find="near_duplicates"), [family], near, silent)),
        ("contamination", lambda: find_contamination(ContaminationIndex(index), documents, leaks, silent)),
        ("consolidation", consolidate),
    ]


def _code_stages(folder: Path) -> list[tuple[str, Callable[[], object]]]:
    silent = SilentReporter()
    documents, values, copies = folder / "documents", folder / "values", folder / "copies"
    family = Family("x", (ShardFolders(SHARD, documents, None),))
    measured = AttributesConfig(measures=CODE_MEASURES)
    rules = ConsolidateConfig(rules=CODE_RULES)

    def consolidate() -> object:
        files = [attribute_file(place) for place in (values, copies / "x" / SHARD)]
        return consolidate_shard(rules, documents, files, folder / "filtered", silent)

    return [
        ("documents", lambda: filter_shard(FilterConfig(shards=1), folder / "raw", SHARD, documents, silent)),
        ("attributes", lambda: measure_shard(measured, documents, {}, values, silent)),
        ("exact duplicates", lambda: find_duplicates(DuplicatesConfig(find="exact_duplicates"), [family], copies, silent)),
        ("consolidation", consolidate),
    ]


def _eval_index(folder: Path) -> Path:
    """An index of questions of random words: the cost of looking is that of a real one, and none is found."""
    random = np.random.default_rng(5)
    letters = str.maketrans("0123456789", "abcdefghij")
    words = [f"x{number}".translate(letters) for number in range(20_000)]
    source = folder / "eval-files"
    source.mkdir()
    (folder / "index").mkdir()
    with (source / "eval.jsonl").open("w", encoding="utf-8") as file:
        for _ in range(EVAL_EXAMPLES):
            file.write(json.dumps({"question": " ".join(words[place] for place in random.integers(0, len(words), 60))}) + "\n")
    config = {"source": LocalFiles(root=str(source)), "license": "CC0-1.0", "policy": "EVAL_ONLY", "name": "raw/eval"}
    ingest(IngestConfig.from_json(config), folder / "eval", SilentReporter())
    build_index(ContaminationIndexConfig(), {"eval": EvalSource(folder / "eval", "")}, folder / "index", SilentReporter())
    return folder / "index"


def run_default_peer(folder: Path, megabytes: float) -> tuple[dict[str, float] | None, str | None]:
    """datatrove's chain with its defaults, CPU-seconds per MB; or why there is none."""
    texts = prose(megabytes)
    path = folder / "peer.jsonl"
    path.write_text("".join(json.dumps({"id": str(i), "text": text}) + "\n" for i, text in enumerate(texts)), encoding="utf-8")
    try:
        python = peer_environment("datatrove-chain", PEER)
        told = run_peer(python, Path(data_peer.__file__), [str(path)], timeout_seconds=PEER_TIMEOUT_SECONDS)
    except PeerError as error:
        return None, error.message
    size = sum(len(text.encode()) for text in texts) / 1e6
    return {name: seconds / size for name, seconds in told.items()}, None


# Rows ---------------------------------------------------------------------------------------------------------------


def chain_rows(chains: dict[str, dict[str, float]], peer: dict[str, float] | None, reason: str | None) -> list[Row]:
    """The chains beside their goals and the peer, then every stage by itself."""
    unit = "CPU-s/MB"
    rows = [Row(f"{kind}, the whole chain", chain["total"], GOALS[kind], "goal", unit) for kind, chain in chains.items()]
    total = None if peer is None else peer["total"]
    rows.append(Row("prose, the whole chain", chains["prose"]["total"], total, "datatrove, its defaults", unit, reason=reason))
    signatures = None if peer is None else peer["signatures"]
    rows.append(Row("prose, signatures", chains["prose"]["signatures"], signatures, "datatrove, its defaults", unit, reason=reason))
    filters = None if peer is None else peer["filters"]
    rows.append(Row("prose, attributes", chains["prose"]["attributes"], filters, "datatrove, four filters", unit, reason=reason))
    for kind, chain in chains.items():
        for stage in chain:
            if stage not in ("total", "peak_mebibytes", "kept"):
                rows.append(Row(f"{kind}, {stage}", chain[stage], chain["total"], "share of its chain", unit))
    return rows


def growth_rows(folder: Path, megabytes: float) -> list[Row]:
    """Cost and peak memory of four sizes, each doubled, against the smallest."""
    figures = []
    for factor in GROWTH:
        size = megabytes * factor / 4
        command = [sys.executable, "-m", "benchmarks.data", "--child", str(size), "--folder", str(folder / f"growth-{factor}")]
        told = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()[-1])
        figures.append((size, told["total"], told["peak_mebibytes"]))
    (first, cost, peak), *others = figures
    rows = []
    for size, larger, more in others:
        rows.append(Row(f"prose, the whole chain, {size:g} MB", larger, cost, f"ours, {first:g} MB", "CPU-s/MB"))
        rows.append(Row(f"peak memory, {size:g} MB in one shard", more, peak, f"ours, {first:g} MB", "MiB"))
    return rows


if __name__ == "__main__":
    main()
