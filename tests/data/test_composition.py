"""What a mixture comes to: weights by tokens, epochs at a budget, and what runs out when; held against the order that is trained in."""

from collections.abc import Mapping, Sequence
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from marin_core.artifact import ArtifactStep
from marin_core.data.composition import NEVER, Budget, budget_rows, enough_data, weights_by_tokens
from marin_core.data.config import MixtureConfig, TokenizeConfig
from marin_core.data.loader import MixtureLoader
from marin_core.data.mixture import make_mixture, read_mixture
from marin_core.data.tokenize import tokenize_shard
from marin_core.errors import ConfigError
from marin_core.experiment.jobs import MixtureJob
from marin_core.experiment.tokens import mixture
from marin_core.report import Report, SilentReporter
from tests.data.conftest import Corpus
from tests.data.token_shards import write_shard

LENGTH = 16
SIZES = {"large": 4_000, "middle": 1_000, "small": 250}
Parts = Mapping[str, Sequence[Path]]


@pytest.fixture(scope="module")
def parts(corpus: Corpus, tmp_path_factory: pytest.TempPathFactory) -> Parts:
    """Three components of a few thousand, hundred and dozen tokens."""
    base = tmp_path_factory.mktemp("components")
    for name, words in SIZES.items():
        shard = write_shard(base / name / "shard", [f"{name} {number} reads tokens and predicts" for number in range(words // 10)])
        tokenize_shard(TokenizeConfig(), [shard], corpus.tokenizer, base / name / "part", "00000", SilentReporter())
    return {name: [base / name / "part"] for name in SIZES}


def made(parts: Parts, output: Path, **changes: object) -> Report:
    values = {"weights": {"large": 0.5, "middle": 0.3, "small": 0.2}, "sequence_length": LENGTH, "block_sequences": 40, "window_blocks": 2}
    return make_mixture(MixtureConfig.from_json(values | changes), parts, output, SilentReporter())


@given(st.dictionaries(st.text("abc", min_size=1), st.integers(1, 10**14), min_size=1, max_size=20), st.floats(1, 100))
def test_weights_follow_the_tokens(tokens: Mapping[str, int], temperature: float) -> None:
    weights = weights_by_tokens(tokens, temperature)
    powers = np.array(list(tokens.values()), np.float64) ** (1 / temperature)
    assert np.allclose(list(weights.values()), powers / powers.sum(), rtol=1e-9, atol=1e-12)
    assert abs(sum(weights.values()) - 1) < 1e-9


def test_a_temperature_of_one_is_proportional_a_high_one_is_even_and_nothing_stays_nothing() -> None:
    assert weights_by_tokens({"a": 750, "b": 250}, 1) == {"a": 0.75, "b": 0.25}
    assert weights_by_tokens({"a": 900, "b": 100}, 2) == {"a": 0.75, "b": 0.25}
    assert weights_by_tokens({"a": 10**12, "b": 1}, 1e6)["b"] == pytest.approx(0.5, abs=1e-5)
    assert weights_by_tokens({"a": 5, "b": 0}, 3) == {"a": 1.0, "b": 0.0}
    assert weights_by_tokens({"a": 1, "b": 2, "c": 4}, 1.7) == {"a": 0.209923582285, "b": 0.315600510408, "c": 0.474475907308}


def test_a_mixture_weighs_by_its_tokens_once_they_are_counted(parts: Parts, tmp_path: Path) -> None:
    made(parts, tmp_path / "one", weights=None, temperature=2.0)
    mixed = read_mixture(tmp_path / "one")
    tokens = {name: component.tokens for name, component in mixed.components.items()}
    assert mixed.phases[0].weights == weights_by_tokens(tokens, 2.0)
    again = made(dict(reversed(list(parts.items()))), tmp_path / "two", weights=None, temperature=2.0)
    assert (tmp_path / "one" / "mixture.json").read_bytes() == (tmp_path / "two" / "mixture.json").read_bytes()
    given_weights = made(parts, tmp_path / "three", weights=dict(mixed.phases[0].weights))
    assert given_weights.content_digest == again.content_digest, "written out, the same weights are the same mixture"
    assert [row["share"] for row in again.tables["components"]] == [round(weight, 6) for weight in mixed.phases[0].weights.values()]


PHASES = [{"start": "0.5", "weights": {"middle": 0.25, "small": 0.75}}, {"start": "0.8", "weights": {"large": 0.9, "small": 0.1}}]


def budget(parts: Parts, output: Path, tokens: int, **changes: object) -> Budget:
    made(parts, output, **changes)
    return Budget(read_mixture(output), tokens)


@pytest.mark.parametrize("phases", [[], PHASES[:1], PHASES])
def test_epochs_at_a_budget_are_those_of_the_run(parts: Parts, tmp_path: Path, phases: list[object]) -> None:
    steps = 1_000
    planned = budget(parts, tmp_path, steps * 8 * LENGTH, phases=phases, max_epochs=1e6)
    run = MixtureLoader(tmp_path, parts, 8, steps).order.epochs(steps)
    for name, component in planned.mixture.components.items():
        block = Fraction(40 * (1 + len(phases)), component.sequences)
        assert abs(planned.epochs(name) - run[name]) <= block, "a phase is rounded down to a block, and a block counts whole sequences"
        assert planned.epochs(name) == planned.read(name) / (component.sequences * LENGTH)


def test_simulated_epochs_are_those_of_the_full_run(parts: Parts, tmp_path: Path) -> None:
    steps, target = 1_000, 400_000
    full = budget(parts, tmp_path / "full", target)
    short = budget(parts, tmp_path / "short", steps * 8 * LENGTH, target_tokens=target, max_epochs=1e6)
    run = MixtureLoader(tmp_path / "short", parts, 8, steps).order.epochs(steps)
    for name in SIZES:
        cut = short.available(name) // LENGTH
        assert abs(short.epochs(name) - run[name]) <= Fraction(40, cut)
        assert float(short.epochs(name)) == pytest.approx(float(full.epochs(name)), rel=1 / cut), "whole sequences are cut off"
    report = made(parts, tmp_path / "default", target_tokens=400_000)
    assert {row["planned_tokens"] for row in report.tables["budgets"]} == {400_000}
    assert report.metrics["planned_tokens"] == 400_000


@pytest.mark.parametrize("phases", [[], PHASES])
def test_what_runs_out_is_named_with_the_place(parts: Parts, tmp_path: Path, phases: list[object]) -> None:
    """The place agrees with the order of a run, to a mixture block."""
    batch, steps = 8, 800
    planned = budget(parts, tmp_path, steps * batch * LENGTH, phases=phases, max_epochs=5.0)
    (at, name), *_ = planned.shortages()
    order = MixtureLoader(tmp_path, parts, batch, 40).order if not phases else None
    assert name == "small"
    step = at // (batch * LENGTH)
    if order is not None:
        assert abs(order.epochs(step)[name] - 5) <= Fraction(2 * 40, planned.mixture.components[name].sequences)
    check = enough_data([planned])
    assert not check.passed
    assert check.description == f"of {planned.tokens} tokens 'small' runs out after {at}"
    row = next(row for row in budget_rows([planned]) if row["component"] == "small")
    assert row["runs_out_after_tokens"] == at > int(row["repeats_after_tokens"]) > 0
    just_enough = Budget(planned.mixture, at)
    assert phases or enough_data([just_enough]).passed, "a run that ends there has enough"


def test_where_the_data_ends_depends_on_how_the_mixture_stops(parts: Parts, tmp_path: Path) -> None:
    def ends(stop: str, **changes: object) -> list[tuple[int, str]]:
        return budget(parts, tmp_path / f"{stop}-{len(changes)}", 200_000, stop=stop, **changes).shortages()

    one = budget(parts, tmp_path / "restart", 200_000, max_epochs=1e6)
    assert one.shortages() == []
    (first, *_) = ends("first_exhausted", max_epochs=1e6)
    assert first == (one.reaches("small", Fraction(1)), "small")
    assert ends("all_exhausted", max_epochs=1e6) == [(one.reaches("large", Fraction(1)), "large")]
    weights = {"large": 0.0, "middle": 0.5, "small": 0.5}
    assert {name for _, name in ends("all_exhausted", weights=weights)} == {"small", "middle"}, "one that is never read doesn't count"
    assert Budget(one.mixture, 100).reaches("large", Fraction(1)) == NEVER


def test_the_report_warns_and_a_mixture_without_a_budget_does_not(parts: Parts, tmp_path: Path) -> None:
    report = made(parts, tmp_path / "planned", planned_tokens=[10_000, 1_000_000])
    checks = {check.name: check for check in report.checks}
    assert not checks["enough_data"].passed
    assert "of 1000000 tokens 'small' runs out after" in checks["enough_data"].description
    assert "of 10000 " not in checks["enough_data"].description
    assert len(report.tables["budgets"]) == 6
    assert report.metrics["epochs/small"] == max(row["epochs"] for row in report.tables["budgets"])
    silent = made(parts, tmp_path / "silent")
    assert {check.name: check.passed for check in silent.checks} == {"weights_sum_to_one": True, "enough_data": True}
    assert silent.content_digest == report.content_digest, "budgets are no part of a mixture"
    assert "budgets" not in silent.tables


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({}, "give one of both"),
        ({"weights": {"a": 1.0}, "temperature": 2.0}, "give one of both"),
        ({"temperature": 0.5}, "temperature"),
        ({"temperature": 1.0, "phases": [{"start": "0.5", "weights": {"a": 1.0}}]}, "phases need weights"),
        ({"weights": {"a": 1.0}, "phases": [{"start": 8, "weights": {"a": 1.0}}], "planned_tokens": [5]}, "phase from step 8 on"),
        ({"weights": {"a": 1.0}, "planned_tokens": [0]}, "planned_tokens"),
    ],
)
def test_a_mixture_is_weighed_in_one_way(values: dict[str, object], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        MixtureConfig.from_json({"sequence_length": 8} | values)


def test_a_handle_takes_caches_alone(small_lab_caches: tuple[ArtifactStep, ArtifactStep]) -> None:
    step = mixture("mixtures/x", "v1", small_lab_caches, temperature=3.0, planned_tokens=[10**9], sequence_length=32)
    job = step.symbolic_config
    assert isinstance(job, MixtureJob)
    assert (job.mixture.weights, job.mixture.temperature, job.mixture.planned_tokens) == (None, 3.0, (10**9,))
    assert sorted(job.components) == ["code", "web"]
    assert step.deps == small_lab_caches
    with pytest.raises(ConfigError, match="give one of both"):
        _ = mixture("mixtures/x", "v1", small_lab_caches, sequence_length=32)


@pytest.fixture
def small_lab_caches() -> tuple[ArtifactStep, ArtifactStep]:
    from marin_core import experiment as lab

    raw = lab.raw_source("raw/x", "v1", lab.PythonStdlib(), license="PSF-2.0")
    shards = lab.filtered("filtered/x", "v1", raw, shards=2)
    bpe = lab.tokenizer("tokenizer/x", "v1", [shards], vocab_size=300)
    return lab.tokenized("tokenized/web", "v1", shards, bpe), lab.tokenized("tokenized/code", "v1", shards, bpe)
