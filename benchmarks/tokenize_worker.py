"""One figure of `benchmarks.tokenize`: CPU time and largest memory of one way to tokenize a corpus, in a fresh process.

    python -m benchmarks.tokenize_worker WHAT CORPUS TOKENIZER OUTPUT

prints one JSON object as its last line. WHAT is `bare`, `tokenizers`, `gigatoken` (the engines of our job), `datatrove`, or, inside Marin's
environment and by the script's path, `Marin`. What a way imports is imported before the clock starts.
"""

import json
import os
import resource
import sys
from collections.abc import Callable
from pathlib import Path

BATCH_BYTES = 4 << 20
Work = Callable[[], bool]
"""Does the work; returns whether something else than what was asked for had to be used."""


def main() -> None:
    what, corpus, tokenizer, output = sys.argv[1], *(Path(argument) for argument in sys.argv[2:5])
    make = {"bare": _bare, "tokenizers": _ours, "gigatoken": _ours, "datatrove": _datatrove, "Marin": _marin}[what]
    work = make(what, corpus, tokenizer, output)
    before = _cpu_seconds()
    fallback = work()
    seconds = _cpu_seconds() - before
    with (corpus / "documents.jsonl").open() as lines:
        megabytes = sum(len(json.loads(line)["text"].encode()) for line in lines) / 1e6
    found = {"cpu_seconds": seconds, "cpu_seconds_per_mb": seconds / megabytes, "mb": megabytes, "peak_mib": _peak_mib()}
    print(json.dumps(found | {"fallback": fallback}))


def _cpu_seconds() -> float:
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def _peak_mib() -> float:
    """Of this program and its children. `ru_maxrss` alone would begin with what the parent held when it started this process."""
    status = Path("/proc/self/status")
    lines = status.read_text().splitlines() if status.exists() else []
    own = next((int(line.split()[1]) for line in lines if line.startswith("VmHWM:")), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
    return max(own, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss) / 1024


def _bare(what: str, corpus: Path, tokenizer: Path, output: Path) -> Work:
    from tokenizers import Tokenizer

    with (corpus / "documents.jsonl").open() as lines:
        texts = [json.loads(line)["text"] for line in lines]
    batches: list[list[str]] = [[]]
    size = 0
    for text in texts:
        length = len(text.encode())
        if batches[-1] and size + length > BATCH_BYTES:
            batches.append([])
            size = 0
        batches[-1].append(text)
        size += length
    library = Tokenizer.from_file(str(tokenizer / "tokenizer.json"))
    library.encode_special_tokens = True

    def work() -> bool:
        for batch in batches:
            library.encode_batch_fast(batch, add_special_tokens=False)
        return False

    return work


def _ours(what: str, corpus: Path, tokenizer: Path, output: Path) -> Work:
    from marin_core.data.config import TokenizeConfig
    from marin_core.data.tokenize import tokenize_shard
    from marin_core.report import SilentReporter

    config = TokenizeConfig.from_json({"engine": what})

    def work() -> bool:
        report = tokenize_shard(config, [corpus], tokenizer, output, "00000", SilentReporter())
        return report.metrics["engine"] != what

    return work


def _datatrove(what: str, corpus: Path, tokenizer: Path, output: Path) -> Work:
    from datatrove.data import Document
    from datatrove.pipeline.tokens import DocumentTokenizer

    with (corpus / "documents.jsonl").open() as lines:  # its own reader is no part of the figure
        documents = [Document(**json.loads(line)) for line in lines]
    path = str(tokenizer / "tokenizer.json")
    eos = "<|eos|>"
    step = DocumentTokenizer(str(output), tokenizer_name_or_path=path, eos_token=eos, shuffle_documents=False)

    def work() -> bool:
        step.run(documents, 0, 1)
        return False

    return work


def _marin(what: str, corpus: Path, tokenizer: Path, output: Path) -> Work:
    os.environ |= {"JAX_PLATFORMS": "cpu", "RAYON_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    from marin.processing.tokenize import tokenize as step  # type: ignore[import-not-found]

    paths = [str(corpus / "documents.jsonl")]
    module = sys.modules["marin.processing.tokenize.tokenize"]
    config = module.TokenizeConfig(train_paths=paths, validation_paths=[], cache_path=str(output), tokenizer=str(tokenizer), num_shards=1)

    def work() -> bool:
        step(config)
        return False

    return work


if __name__ == "__main__":
    main()
