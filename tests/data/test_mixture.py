import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest

from marin_core.data.cache import TokenCache
from marin_core.data.config import FilterConfig, MixtureConfig, TokenizeConfig, TokenizerConfig
from marin_core.data.filter import filter_shard
from marin_core.data.loader import IO_BLOCK, ComponentOrder, MixtureLoader
from marin_core.data.mixture import make_mixture, read_mixture
from marin_core.data.tokenize import tokenize_shard
from marin_core.data.tokenizer import train_tokenizer
from marin_core.errors import ConfigError, DataError
from marin_core.report import SilentReporter
from tests.data.conftest import Corpus, ingest_texts, sentences

LENGTH = 16
Parts = Mapping[str, Sequence[Path]]


def config(**changes: object) -> MixtureConfig:
    values = {"weights": {"a": 0.75, "b": 0.25}, "sequence_length": LENGTH, "block_sequences": 40, "window_blocks": 2, "seed": 3}
    return MixtureConfig.from_json(values | changes)


@pytest.fixture(scope="module")
def parts(corpus: Corpus) -> Parts:
    return {"a": corpus.parts[:2], "b": corpus.parts[2:]}


@pytest.fixture(scope="module")
def mixture(parts: Parts, tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("mixture")
    report = make_mixture(config(), parts, output, SilentReporter())
    assert report.checks[0].passed
    assert report.plots["composition"].read_bytes().startswith(b"\x89PNG")
    assert [row["share"] for row in report.tables["components"]] == [0.75, 0.25]
    return output


@pytest.mark.parametrize(("n", "window"), [(1, 1), (255, 8), (256, 2), (257, 1), (1_000, 2), (5_000, 8), (5_121, 3)])
def test_each_sequence_comes_once_an_epoch_and_epochs_differ(n: int, window: int) -> None:
    order = ComponentOrder("web", n, window, seed=5)
    first = order.sequences(0, np.arange(n))
    assert np.array_equal(np.sort(first), np.arange(n))
    second = order.sequences(1, np.arange(n))
    assert np.array_equal(np.sort(second), np.arange(n))
    if n > 10:
        assert not np.array_equal(first, second)
        assert not np.array_equal(first, ComponentOrder("web", n, window, seed=6).sequences(0, np.arange(n)))
    shuffled = np.random.default_rng(0).permutation(n)
    assert np.array_equal(ComponentOrder("web", n, window, seed=5).sequences(0, shuffled), first[shuffled])


def test_a_window_reads_few_blocks() -> None:
    order = ComponentOrder("web", 100 * IO_BLOCK - 17, 4, seed=0)
    for start in range(0, 20_000, 1_024):
        blocks = order.sequences(0, np.arange(start, start + 256)) // IO_BLOCK
        assert len(set(blocks.tolist())) <= 8


def test_the_loader_serves_each_sequence_once_an_epoch(mixture: Path, parts: Parts) -> None:
    loader = MixtureLoader(mixture, parts, 10)
    n = loader.mixture.components["a"].sequences
    seen: Counter[tuple[int, int]] = Counter()
    steps = 3 * n // 10
    for step in range(steps):
        places = loader.places(step)
        chosen = places.component == 0
        seen.update(zip(places.epoch[chosen].tolist(), places.sequence[chosen].tolist(), strict=True))
    assert max(seen.values()) == 1
    assert len([place for place in seen if place[0] == 0]) == n
    assert loader.consumed(steps)["a"] == len(seen)
    assert loader.consumed(0) == {"a": 0, "b": 0}


def test_a_batch_holds_the_stream_with_segments_and_weights(mixture: Path, parts: Parts) -> None:
    loader = MixtureLoader(mixture, parts, 8)
    caches = [TokenCache(parts["a"]), TokenCache(parts["b"])]
    for step in (0, 1, 57, 10_000_000):
        batch, places = loader.batch(step), loader.places(step)
        assert [values.dtype.name for values in batch] == ["int32", "int32", "float32"]
        assert batch.tokens.shape == batch.segment_ids.shape == batch.loss_weight.shape == (8, LENGTH)
        for row in range(8):
            start = int(places.sequence[row]) * LENGTH
            assert np.array_equal(batch.tokens[row], caches[places.component[row]].read(start, start + LENGTH))
            expected = [int((batch.tokens[row, :s] == 1).sum()) for s in range(LENGTH)]
            assert batch.segment_ids[row].tolist() == expected
        assert (batch.loss_weight[:, :-1] == 1).all()
        assert (batch.loss_weight[:, -1] == 0).all()


@pytest.mark.parametrize("hosts", [1, 2, 4, 11])
def test_all_hosts_together_give_the_batch_of_one(mixture: Path, parts: Parts, hosts: int) -> None:
    loader = MixtureLoader(mixture, parts, 44)
    for step in (0, 9):
        whole = loader.batch(step)
        pieces = [MixtureLoader(mixture, parts, 44).batch(step, host, hosts) for host in range(hosts)]
        for name in ("tokens", "segment_ids", "loss_weight"):
            assert np.array_equal(np.concatenate([getattr(piece, name) for piece in pieces]), getattr(whole, name))


def test_another_batch_size_keeps_the_order_of_the_sequences(mixture: Path, parts: Parts) -> None:
    small, large = MixtureLoader(mixture, parts, 6), MixtureLoader(mixture, parts, 42)
    stitched = np.concatenate([small.batch(step).tokens for step in range(14)])
    assert np.array_equal(stitched, np.concatenate([large.batch(step).tokens for step in range(2)]))


def test_resuming_at_any_step_gives_the_same_batches_and_seeds_differ(mixture: Path, parts: Parts) -> None:
    loader = MixtureLoader(mixture, parts, 8)
    before = [loader.batch(step).tokens for step in range(12)]
    resumed = MixtureLoader(mixture, parts, 8)
    with resumed.prefetch(5) as batches:
        for step in range(5, 12):
            assert np.array_equal(next(batches).tokens, before[step])
        assert batches.stalls <= 7
    assert not np.array_equal(MixtureLoader(mixture, parts, 8, seed=4).batch(0).tokens, before[0])


def test_a_resharded_cache_gives_the_same_batches(corpus: Corpus, tmp_path: Path) -> None:
    one = tokenized(corpus, corpus.shards, tmp_path / "one")
    many = [tokenized(corpus, [shard], tmp_path / shard.name) for shard in corpus.shards]
    loaders = []
    for name, folders in (("one", [one]), ("many", many)):
        make_mixture(config(weights={"a": 1.0}), {"a": folders}, tmp_path / f"mix-{name}", SilentReporter())
        loaders.append(MixtureLoader(tmp_path / f"mix-{name}", {"a": folders}, 16))
    for step in range(20):
        assert np.array_equal(loaders[0].batch(step).tokens, loaders[1].batch(step).tokens)


def tokenized(corpus: Corpus, shards: Sequence[Path], output: Path, tokenizer: Path | None = None, **changes: object) -> Path:
    tokenize_shard(TokenizeConfig.from_json(changes), shards, tokenizer or corpus.tokenizer, output, output.name, SilentReporter())
    return output


def test_a_damaged_part_raises_in_the_loader_and_in_its_prefetch(corpus: Corpus, tmp_path: Path) -> None:
    part = tokenized(corpus, corpus.shards[:1], tmp_path / "p")
    make_mixture(config(weights={"a": 1.0}), {"a": [part]}, tmp_path / "mix", SilentReporter())
    path = part / "tokens" / "c" / "0"
    data = bytearray(path.read_bytes())
    data[200] ^= 1
    path.write_bytes(data)
    loader = MixtureLoader(tmp_path / "mix", {"a": [part]}, 8)
    with pytest.raises(DataError, match="damaged"):
        loader.batch(0)
    with loader.prefetch(0) as batches:
        with pytest.raises(DataError, match="damaged"):
            next(batches)
        with pytest.raises(StopIteration):
            next(batches)


def test_making_a_mixture_is_deterministic(mixture: Path, parts: Parts, tmp_path: Path) -> None:
    make_mixture(config(weights={"b": 0.25, "a": 0.75}), dict(reversed(list(parts.items()))), tmp_path, SilentReporter())
    for name in ("mixture.json", "composition.png"):
        assert (tmp_path / name).read_bytes() == (mixture / name).read_bytes()


def test_what_cannot_be_mixed_is_refused_by_name(corpus: Corpus, parts: Parts, tmp_path: Path) -> None:
    def refused(match: str, components: Parts, **changes: object) -> None:
        with pytest.raises(ConfigError, match=match):
            make_mixture(config(**changes), components, tmp_path / "out", SilentReporter())

    refused("'b' has no tokenized component", {"a": parts["a"]})
    refused("'c' has no weight", {**parts, "c": parts["a"]})
    refused("'b' has .* fewer than one sequence", parts, sequence_length=TokenCache(parts["b"]).tokens + 1, weights={"a": 0.0, "b": 1.0})
    refused("held-out split", {**parts, "b": [corpus.held_out]})
    train_tokenizer(TokenizerConfig(vocab_size=300), corpus.shards, tmp_path / "tok", SilentReporter())
    refused("tokenizer digest differs", {**parts, "b": [tokenized(corpus, corpus.shards[:1], tmp_path / "other", tmp_path / "tok")]})
    refused("policy differs", {**parts, "b": [tokenized(corpus, corpus.shards[:1], tmp_path / "nobos", bos="none")]})
    raw = ingest_texts(tmp_path / "in", {"a.jsonl": sentences(30, 9)}, tmp_path / "raw", policy="EVAL_ONLY")
    filter_shard(FilterConfig(shards=1), raw, "00000", tmp_path / "f", SilentReporter())
    refused("policy EVAL_ONLY", {**parts, "b": [tokenized(corpus, [tmp_path / "f"], tmp_path / "eval")]})


def test_a_loader_refuses_wrong_components_hosts_and_schemas(mixture: Path, parts: Parts, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="'b' is not both"):
        MixtureLoader(mixture, {"a": parts["a"]}, 8)
    with pytest.raises(ConfigError, match="lists 2 parts, 1 are given"):
        MixtureLoader(mixture, {**parts, "a": parts["a"][:1]}, 8)
    with pytest.raises(ConfigError, match="global_batch_size"):
        MixtureLoader(mixture, parts, 0)
    loader = MixtureLoader(mixture, parts, 8)
    for host, hosts in ((0, 3), (2, 2), (-1, 2), (0, 0)):
        with pytest.raises(ConfigError, match="equal share"):
            loader.batch(0, host, hosts)
    with pytest.raises(ConfigError, match="step is -1"):
        loader.batch(-1)
    swapped = MixtureLoader(mixture, {**parts, "a": parts["a"][::-1]}, 8)
    with pytest.raises(ConfigError, match="the mixture was made with"):
        swapped.batch(0)
    content = json.loads((mixture / "mixture.json").read_text())
    (tmp_path / "mixture.json").write_text(json.dumps(content | {"schema": "mixture/7"}))
    with pytest.raises(ConfigError, match="mixture/7"):
        read_mixture(tmp_path)
    (tmp_path / "mixture.json").write_text("nonsense")
    with pytest.raises(DataError, match="readable mixture"):
        read_mixture(tmp_path)
