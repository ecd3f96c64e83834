"""The tutorials that fetch data, in the size of a test, on local files of the same layout; and the one on DNA, which ships its own."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from marin_assets.catalog import CatalogSource
from marin_assets.experiments import dclm_1b, dna, tinystories
from marin_core import experiment as marin
from marin_core.artifact import ArtifactGraph, ArtifactStep
from marin_core.config import Config
from marin_core.data.cache import TokenCache
from marin_core.data.filter import filter_shard
from marin_core.data.ingest import ingest
from marin_core.data.kmer import make_kmer_tokenizer
from marin_core.data.mixture import make_mixture, read_mixture
from marin_core.data.tokenize import tokenize_shard
from marin_core.data.tokenizer import load_tokenizer
from marin_core.experiment.jobs import FilterJob, IngestJob, KmerTokenizerJob, MixtureJob, TokenizeJob, TrainJob
from marin_core.report import SilentReporter
from tests.assets.conftest import LabUnderTest, checks

NAMES = ("Lily", "Tom", "Mia", "Ben", "Sam", "Anna")
THINGS = ("a red ball", "a small dog", "a big tree", "an old hat", "a blue bird", "a sweet cake")


def story(number: int) -> str:
    name, friend = NAMES[number % 6], NAMES[(number // 6) % 6]
    thing, other = THINGS[(number // 5) % 6], THINGS[(number // 7) % 6]
    return (
        f"Once upon a time {name} found {thing} in the garden, and it was number {number} of all the things there.\n\n"
        f"{name} ran to {friend} and said that they could play with {thing} until the sun went down over the hill.\n\n"
        f"But {friend} had lost {other} that day and was very sad, so they looked for it together behind the house.\n\n"
        f"At last they saw {other} under the bench, and {friend} gave {name} a hug, and both went home to eat."
    )


def materialize(lab_under_test: LabUnderTest, *targets: ArtifactStep) -> None:
    """Everything upstream of the targets, and them."""
    for step in ArtifactGraph(targets):
        for partition in step.partitions or (None,):
            result = lab_under_test.materialize(step, partition)
            assert result.success, step.id
            failed = {name for name, check in checks(result).items() if not check.passed}
            assert failed <= {"vocab_size_reached", "beats_ngram_baseline"}, step.id


@pytest.mark.slow
@pytest.mark.long
def test_tinystories_runs_on_stories_of_the_same_layout(lab: LabUnderTest, tmp_path: Path) -> None:
    folder = tmp_path / "stories" / "data"
    folder.mkdir(parents=True)
    for part in range(2):
        texts = [story(number) for number in range(part * 150, part * 150 + 150)]
        pq.write_table(pa.table({"text": texts}), folder / f"train-0000{part}-of-00002.parquet")
    experiment = tinystories.declare(
        local_stories(folder.parent), name="stories", shards=2, vocab_size=320, num_steps=8, global_batch_size=8, examples=8
    )
    materialize(lab, *experiment.targets)


def local_stories(root: Path) -> CatalogSource:
    raw = marin.raw_source("raw/stories", "v1", marin.LocalFiles(root=str(root), pattern="data/train-*.parquet"), license="CC0-1.0")
    return CatalogSource(raw, marin.ParquetRows())


@pytest.mark.slow
def test_dna_becomes_a_mixture_of_single_bases(tmp_path: Path) -> None:
    """The declared configurations, one library call each."""
    quiet = SilentReporter()
    make_kmer_tokenizer(job(dna.bases, KmerTokenizerJob).tokenizer, tmp_path / "tokenizer", quiet)
    tokenizer = load_tokenizer(tmp_path / "tokenizer")
    parts = {}
    for name, documents, cache, bases in (
        ("dna.escherichia_coli", dna.coli, dna.coli_tokens, 400_000),
        ("dna.lambda_phage", dna.phage, dna.phage_tokens, 48_502),
    ):
        folder = tmp_path / name
        ingest(job(documents.deps[0], IngestJob).ingest, folder / "raw", quiet)
        filtered = filter_shard(job(documents, FilterJob).filter, folder / "raw", "00000", folder / "documents", quiet)
        assert all(check.passed for check in filtered.checks)
        config = job(cache, TokenizeJob).tokenize.changed(split="all")
        report = tokenize_shard(config, [folder / "documents"], tmp_path / "tokenizer", folder / "part", "00000", quiet)
        assert all(check.passed for check in report.checks)
        texts = [tokenizer.decode(document.tokens[1:-1].tolist()) for document in TokenCache([folder / "part"]).documents()]
        assert sum(len(text) for text in texts) == bases
        assert set("".join(texts)) == set("ACGT")
        assert max(len(text) for text in texts) == dna.BASES_A_DOCUMENT
        parts[name] = [folder / "part"]
    report = make_mixture(job(dna.data, MixtureJob).mixture, parts, tmp_path / "mixture", quiet)
    assert all(check.passed for check in report.checks)
    large, small = read_mixture(tmp_path / "mixture").phases[0].weights.values()
    assert large / small == pytest.approx((400_000 / 48_502) ** 0.5, rel=0.01)
    epochs = {row["component"]: row["epochs"] for row in report.tables["budgets"]}
    assert 3 < float(epochs["dna.lambda_phage"]) < 4 > 1.2 > float(epochs["dna.escherichia_coli"]) > 0.9


def job[J: Config](step: ArtifactStep, kind: type[J]) -> J:
    """What a handle would hand to its job."""
    config = step.symbolic_config
    assert isinstance(config, kind)
    return config


def test_declarations_construct_without_a_network() -> None:
    graph = ArtifactGraph([*tinystories.EXPERIMENT.targets, *dclm_1b.EXPERIMENT.targets, *dna.EXPERIMENT.targets])
    assert {"raw/tiny_stories", "raw/dclm_baseline", "raw/starcoderdata", "raw/llama3_tokenizer", "raw/dna/lambda_phage"} <= {
        step.name for step in graph
    }
    train = dclm_1b.run.symbolic_config
    assert isinstance(train, TrainJob)
    assert train.train.num_steps * train.train.global_batch_size * dclm_1b.SEQUENCE == pytest.approx(dclm_1b.TOKENS, rel=1e-4)
    tokenize = dclm_1b.web_tokens.symbolic_config
    assert isinstance(tokenize, TokenizeJob)
    assert tokenize.tokenize.engine == "gigatoken"
