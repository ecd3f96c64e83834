"""Index of the n-grams of evaluations: exact 64-bit hash → the examples that have it. No Bloom filter (marin #5519, #5656).

A *passage* is what is looked for: a whole example, or its question, a choice or its answer alone where that is long enough. Arrays
beside `index.json`:
    grams [G] uint64, ascending: the distinct n-grams of all passages;
    offsets [G + 1] int64, postings [P] int32: gram g stands in the passages postings[offsets[g]:offsets[g + 1]];
    passage_example [Q] int32, passage_grams [Q] int32: example of a passage, and how many distinct n-grams it has.
`examples.parquet` has all examples with their texts, those that are too short to be looked for too.
"""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from marin_core.artifact.canonical import canonical_json
from marin_core.data.decontaminate.config import ContaminationIndexConfig
from marin_core.data.decontaminate.examples import Example, read_examples
from marin_core.data.dedup.arrays import ArrayFolder, ArrayWriter
from marin_core.data.dedup.word_hashes import Int64, UInt64, hash_words, ngrams
from marin_core.data.documents import sample_of
from marin_core.errors import ConfigError, DataError
from marin_core.report import Report, Reporter, Scalar

LIST_FILE = "index.json"
EXAMPLES_FILE = "examples.parquet"
SCHEMA = "contamination-index/1"
REBUILD = "Build the contamination index anew."
_BATCH_EXAMPLES = 1_000
_SHOWN = 20

EXAMPLES_SCHEMA = pa.schema(
    [
        pa.field("eval", pa.string(), nullable=False),
        pa.field("example", pa.string(), nullable=False),
        pa.field("words", pa.int32(), nullable=False),
        pa.field("too_short", pa.bool_(), nullable=False),
        pa.field("text", pa.large_string(), nullable=False),
    ]
)


class EvalSource(NamedTuple):
    """An evaluation: its folder, and the content digest of the artifact that it is."""

    folder: Path
    digest: str


def build_index(config: ContaminationIndexConfig, evals: Mapping[str, EvalSource], output: Path, reporter: Reporter) -> Report:
    """Write the index of some evaluations.

    Raises:
        ConfigError: fields are named for an evaluation that isn't there.
        DataError: an evaluation has no example, or a record that is none.
    """
    unknown = sorted(set(config.fields) - set(evals))
    if unknown:
        raise ConfigError(f"field 'fields' names {unknown[0]!r}", advice=f"Evaluations of this index are {', '.join(evals)}.")
    output.mkdir(parents=True, exist_ok=True)
    building = _Building(config)
    about: dict[str, dict[str, str | int]] = {}
    for done, name in enumerate(sorted(evals), start=1):
        about[name] = building.add(name, read_examples(evals[name].folder, config.fields.get(name))) | {"source": evals[name].digest}
        reporter.progress(done, len(evals), "evaluations")
    grams = building.write(ArrayWriter(output), output, about)
    tables = {"evals": [{"eval": name, **_shown(values)} for name, values in about.items()], "too_short_examples": building.too_short}
    metrics: dict[str, Scalar] = {
        "grams": grams,
        "examples": sum(int(values["examples"]) for values in about.values()),
        "too_short": sum(int(values["too_short"]) for values in about.values()),
    }
    identity = {"config": config.model_dump(mode="json"), "evals": {name: values["texts"] for name, values in about.items()}}
    return Report(metrics=metrics, tables=tables, content_digest=hashlib.sha256(canonical_json(identity)).hexdigest())


def _shown(values: Mapping[str, str | int]) -> dict[str, Scalar]:
    return {name: value for name, value in values.items() if name != "source"}


class _Building:
    """Passages of all examples so far."""

    def __init__(self, config: ContaminationIndexConfig) -> None:
        self._config = config
        self._grams = [np.empty(0, np.uint64)]
        self._passages = [np.empty(0, np.int32)]
        self._sizes: list[int] = []
        self._examples: list[int] = []
        self._lengths: set[int] = set()
        self._rows: dict[str, list[str | int | bool]] = {name: [] for name in EXAMPLES_SCHEMA.names}
        self.too_short: list[dict[str, Scalar]] = []

    def add(self, name: str, examples: Iterator[Example]) -> dict[str, str | int]:
        """Take the examples of one evaluation; what its list says about it."""
        digest = hashlib.sha256()
        first = len(self._rows["eval"])
        for batch in _batches(examples):
            for example in batch:
                digest.update(canonical_json([example.name, example.parts]) + b"\n")
            self._add(name, batch)
        count = len(self._rows["eval"]) - first
        if not count:
            raise DataError(f"evaluation {name!r} has no example", advice="Check what its artifact holds.")
        return {"examples": count, "too_short": sum(map(bool, self._rows["too_short"][first:])), "texts": digest.hexdigest()}

    def write(self, writer: ArrayWriter, output: Path, evals: Mapping[str, Mapping[str, str | int]]) -> int:
        """Write everything; returns the number of distinct n-grams."""
        grams, passages = np.concatenate(self._grams), np.concatenate(self._passages)
        order = np.lexsort((passages, grams))
        distinct, firsts = np.unique(grams[order], return_index=True)
        writer.write("grams", distinct)
        writer.write("offsets", np.append(firsts, len(grams)).astype(np.int64))
        writer.write("postings", passages[order])
        writer.write("passage_example", np.array(self._examples, np.int32))
        writer.write("passage_grams", np.array(self._sizes, np.int32))
        pq.write_table(pa.table(self._rows, schema=EXAMPLES_SCHEMA), output / EXAMPLES_FILE, compression="zstd", write_page_checksum=True)
        about = {"config": self._config.model_dump(mode="json"), "lengths": sorted(self._lengths), "evals": evals}
        writer.close(LIST_FILE, SCHEMA, about)
        return len(distinct)

    def _add(self, name: str, batch: Sequence[Example]) -> None:
        texts = [text for example in batch for text in (example.text, *example.parts)]
        words = hash_words(texts)
        place = 0
        for example in batch:
            pieces = [words.hashes[words.bounds[at] : words.bounds[at + 1]] for at in range(place, place + 1 + len(example.parts))]
            place += len(pieces)
            count = len(pieces[0])
            short = count < self._config.min_words
            row: tuple[str | int | bool, ...] = (name, example.name, count, short, example.text)
            for column, value in zip(self._rows.values(), row, strict=True):
                column.append(value)
            if short and len(self.too_short) < _SHOWN:
                self.too_short.append({"eval": name, "example": example.name, "words": count, "text": sample_of(example.text)})
            if not short:
                self._passage(pieces[0], min(count, self._config.ngram_words))
                for piece in pieces[1:] if len(example.parts) > 1 else []:
                    if len(piece) >= self._config.ngram_words:
                        self._passage(piece, self._config.ngram_words)

    def _passage(self, words: UInt64, length: int) -> None:
        grams = np.unique(ngrams(words, length))
        self._lengths.add(length)
        self._grams.append(grams)
        self._passages.append(np.full(len(grams), len(self._sizes), np.int32))
        self._sizes.append(len(grams))
        self._examples.append(len(self._rows["eval"]) - 1)


def _batches(examples: Iterator[Example]) -> Iterator[list[Example]]:
    batch: list[Example] = []
    for example in examples:
        batch.append(example)
        if len(batch) == _BATCH_EXAMPLES:
            yield batch
            batch = []
    if batch:
        yield batch


class ContaminationIndex:
    """An index, ready to be asked.

    Attributes:
        lengths: of the n-grams, in words.
        evals: names of the evaluations, sorted.
        example_eval, example_name, example_text: of each example.
        passage_example, passage_grams: as stored.
    """

    def __init__(self, folder: Path) -> None:
        """Read an index into memory: 40 bytes an n-gram, and the texts.

        Raises:
            DataError: a file is missing, cut or changed.
            ConfigError: it was written in another schema.
        """
        arrays = ArrayFolder(folder, LIST_FILE, SCHEMA, REBUILD)
        self._sources = {name: values["source"] for name, values in arrays.about["evals"].items()}
        self.evals = tuple(sorted(self._sources))
        self.lengths = tuple(int(length) for length in arrays.about["lengths"])
        self._grams, self._offsets, self._postings = arrays.read("grams"), arrays.read("offsets"), arrays.read("postings")
        self.passage_example, self.passage_grams = arrays.read("passage_example"), arrays.read("passage_grams")
        try:
            examples = pq.read_table(folder / EXAMPLES_FILE, page_checksum_verification=True)
        except (OSError, pa.ArrowException) as error:
            raise DataError(f"{EXAMPLES_FILE} of {folder.name} can't be read ({error})", advice=REBUILD) from error
        self.example_eval: list[str] = examples["eval"].to_pylist()
        self.example_name: list[str] = examples["example"].to_pylist()
        self.example_text: list[str] = examples["text"].to_pylist()
        # Nearly every n-gram of a document is in no evaluation. A table of their first bits, 1 in 16 of them set, says so at once.
        bits = max(1, len(self._grams)).bit_length() + 3
        self._shift = np.uint64(64 - bits)
        self._possible = np.zeros(1 << bits, bool)
        self._possible[self._grams >> self._shift] = True

    def refuse_stale(self, current: Mapping[str, str]) -> None:
        """Compare with the digests that the evaluations have now.

        Raises:
            ConfigError: the index was made from other texts, or from other evaluations.
        """
        for name in sorted(set(current) | set(self._sources)):
            now, then = current.get(name), self._sources.get(name)
            if now != then:
                raise ConfigError(f"the contamination index is stale: evaluation {name!r} is {now}, the index has {then}", advice=REBUILD)

    def hits(self, grams: UInt64) -> tuple[Int64, Int64]:
        """Which of some n-grams are in the index, and which of its n-grams they are: int64 [H] each."""
        maybe = np.flatnonzero(self._possible[grams >> self._shift])
        candidates = grams[maybe]
        places = np.minimum(np.searchsorted(self._grams, candidates), len(self._grams) - 1)
        found = self._grams[places] == candidates if len(self._grams) else np.zeros(0, bool)
        return maybe[found], places[found]

    def passages(self, gram: Int64) -> tuple[Int64, Int64]:
        """Passages that have some n-grams, and which of these it was for each: int64 [P] each."""
        firsts, lasts = self._offsets[gram], self._offsets[gram + 1]
        counts = lasts - firsts
        which = np.repeat(np.arange(len(gram)), counts)
        within = np.arange(len(which)) - np.repeat(np.cumsum(counts) - counts, counts)
        return self._postings[firsts[which] + within].astype(np.int64), which
