import json
from collections import Counter
from collections.abc import Mapping, Sequence
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from marin_core import experiment as lab
from marin_core.artifact import ArtifactStep
from marin_core.data.cache import TokenCache
from marin_core.data.component_order import IO_BLOCK, ComponentOrder
from marin_core.data.config import MixtureConfig, TokenizeConfig, TokenizerConfig
from marin_core.data.filter import filter_shard
from marin_core.data.loader import MixtureLoader
from marin_core.data.mixture import make_mixture, read_mixture
from marin_core.data.run_steps import PlainStage
from marin_core.data.stages import FilterConfig
from marin_core.data.tokenize import tokenize_shard
from marin_core.data.tokenizer import train_tokenizer
from marin_core.errors import ConfigError, DataError
from marin_core.experiment.jobs import MixtureJob
from marin_core.experiment.tokens import Phase
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
        places = loader.order.places(step)
        chosen = places.component == 0
        seen.update(zip(places.epoch[chosen].tolist(), places.sequence[chosen].tolist(), strict=True))
    assert max(seen.values()) == 1
    assert len([place for place in seen if place[0] == 0]) == n
    assert loader.order.consumed(steps)["a"] == len(seen)
    assert loader.order.consumed(0) == {"a": 0, "b": 0}


def test_a_batch_holds_the_stream_with_segments_and_weights(mixture: Path, parts: Parts) -> None:
    loader = MixtureLoader(mixture, parts, 8)
    caches = [TokenCache(parts["a"]), TokenCache(parts["b"])]
    for step in (0, 1, 57, 10_000_000):
        batch, places = loader.batch(step), loader.order.places(step)
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


PHASES: list[dict[str, object]] = [{"start": "0.5", "weights": {"a": 0.25, "b": 0.5, "c": 0.25}}, {"start": 40, "weights": {"c": 1.0}}]


@pytest.fixture(scope="module")
def phased(parts: Parts, corpus: Corpus, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Parts]:
    """A mixture of three phases, and its components."""
    output, components = tmp_path_factory.mktemp("phased"), {**parts, "c": corpus.parts[:1]}
    report = make_mixture(config(phases=PHASES, mask_bos_target=True), components, output, SilentReporter())
    shares = [[row["share"] for row in report.tables["phases"] if row["phase"] == phase] for phase in range(3)]
    assert shares == [[0.75, 0.25, 0.0], [0.25, 0.5, 0.25], [0.0, 0.0, 1.0]]
    assert [row["start"] for row in report.tables["phases"]] == ["0"] * 3 + ["0.5"] * 3 + ["40"] * 3
    assert (report.metrics["share/b"], report.metrics["share_phase_1/b"]) == (0.25, 0.5)
    assert (report.checks[0].passed, report.checks[0].values) == (True, {"0": 2**40, "0.5": 2**40, "40": 2**40})
    return output, components


def test_phases_are_part_of_the_artifact_and_of_its_digest(phased: tuple[Path, Parts], tmp_path: Path) -> None:
    output, components = phased
    mixed = read_mixture(output)
    assert [(phase.start, phase.weights) for phase in mixed.phases] == [
        ("0", {"a": 0.75, "b": 0.25, "c": 0.0}),
        ("0.5", {"a": 0.25, "b": 0.5, "c": 0.25}),
        (40, {"a": 0.0, "b": 0.0, "c": 1.0}),
    ]
    digests = {
        make_mixture(config(phases=phases), components, tmp_path / str(number), SilentReporter()).content_digest
        for number, phases in enumerate(
            [PHASES, PHASES[:1], [{**PHASES[0], "start": "0.25"}, PHASES[1]], [{**PHASES[0], "start": "1/2"}, PHASES[1]]]
        )
    }
    assert len(digests) == 3, "1/2 is 0.5"
    pictures = [(tmp_path / str(number) / "composition.png").read_bytes() for number in range(2)]
    assert pictures[0] != pictures[1]
    with pytest.raises(ConfigError, match="'c' has no tokenized component"):
        make_mixture(config(phases=PHASES), {"a": components["a"], "b": components["b"]}, tmp_path / "x", SilentReporter())
    content = json.loads((output / "mixture.json").read_text())
    content["phases"][1]["integer_weights"]["a"] += 1
    (tmp_path / "mixture.json").write_text(json.dumps(content))
    with pytest.raises(ConfigError, match=r"from 0.5 on must be of all components and sum to 2\^40"):
        read_mixture(tmp_path)


def test_batches_follow_phases_sizes_and_lengths(phased: tuple[Path, Parts]) -> None:
    output, components = phased
    stages = [PlainStage(8, LENGTH), PlainStage(4, 4 * LENGTH, 30)]
    loader = MixtureLoader(output, components, stages, 60)
    assert loader.order.first_steps == (0, 30, 40)
    caches = [TokenCache(parts) for parts in components.values()]
    for step in (0, 29, 30, 39, 40, 59):
        batch, places = loader.batch(step), loader.order.places(step)
        length = LENGTH if step < 30 else 4 * LENGTH
        assert batch.tokens.shape == (len(places.sequence), length)
        for row, (component, _, sequence) in enumerate(zip(*places, strict=True)):
            assert np.array_equal(batch.tokens[row], caches[component].read(sequence * length, (sequence + 1) * length))
        for hosts in (2, 4):
            pieces = [loader.batch(step, host, hosts).tokens for host in range(hosts)]
            assert np.array_equal(np.concatenate(pieces), batch.tokens)
        masked = np.zeros(batch.tokens.shape, bool)
        masked[:, -1], masked[:, :-1] = True, batch.tokens[:, 1:] == 0
        assert np.array_equal(batch.loss_weight, np.where(masked, 0, 1))
    assert set(loader.order.places(59).component.tolist()) == {2}


def test_a_run_that_the_mixture_does_not_fit_is_refused_before_it_reads(phased: tuple[Path, Parts], mixture: Path, parts: Parts) -> None:
    output, components = phased
    with pytest.raises(ConfigError, match="num_steps is not given"):
        MixtureLoader(output, components, 8)
    with pytest.raises(ConfigError, match=r"'b' would be read .* times in 100000 steps"):
        MixtureLoader(mixture, parts, 8, 100_000)


def test_a_handle_takes_later_phases_by_their_caches() -> None:
    raw = lab.raw_source("raw/x", "v1", lab.PythonStdlib(), license="PSF-2.0")
    shards = lab.filtered("filtered/x", "v1", raw, shards=2)
    bpe = lab.tokenizer("tokenizer/x", "v1", [shards], vocab_size=300)
    web, code = (lab.tokenized(f"tokenized/{name}", "v1", shards, bpe) for name in ("web", "code"))

    def mix(*phases: Phase) -> ArtifactStep:
        return lab.mixture("mixtures/x", "v1", {web: 1.0}, phases=phases, sequence_length=32)

    cooldown = mix(Phase("0.8", {code: 0.5, web: 0.5}))
    assert cooldown.deps == (web, code)
    made = cooldown.symbolic_config
    assert isinstance(made, MixtureJob)
    assert (made.mixture.phases[0].start, made.mixture.phases[0].weights) == ("0.8", {"code": 0.5, "web": 0.5})
    same = mix(Phase(Fraction(4, 5), {code: 0.5, web: 0.5})).symbolic_config
    assert same == made
    assert len({str(mix(*phases).symbolic_config) for phases in ([], [Phase(48, {code: 1.0})], [Phase("0.8", {code: 1.0})])}) == 3
    with pytest.raises(ConfigError, match=r"from 0.8 on sum to 0.75; in a mixture of several phases"):
        mix(Phase("0.8", {code: 0.25, web: 0.5}))


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
