"""What a researcher gets for a mistake in an experiment: an error where the handle is made, naming field, value and way out."""

import math
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from marin_core import experiment as lab
from marin_core.artifact import ArtifactGraph, ArtifactStep
from marin_core.errors import ConfigError

RAW = lab.raw_source("raw/x", "v1", lab.PythonStdlib(), license="PSF-2.0")
SHARDS = lab.filtered("filtered/x", "v1", RAW, shards=2)
BPE = lab.tokenizer("tokenizer/x", "v1", [SHARDS], vocab_size=300)
TOKENS = lab.tokenized("tokenized/x", "v1", SHARDS, BPE)
HELD_OUT = lab.tokenized("tokenized/x_held_out", "v1", SHARDS, BPE, split="held_out")
MIX = lab.mixture("mixtures/x", "v1", {TOKENS: 1.0}, sequence_length=32)


def training(**changes: object) -> ArtifactStep:
    values: dict[str, object] = {
        "model": lab.moe_tiny(vocab_size=300),
        "optimizer": lab.AdamW(schedule=lab.Wsd(warmup_steps=1)),
        "num_steps": 10,
        "global_batch_size": 2,
        "checkpoints": lab.CheckpointPolicy(permanent_every_steps=4),
    }
    return lab.train_lm("checkpoints/x", "v1", MIX, **(values | changes))  # type: ignore[arg-type]


def mix(weight: float, *more: float) -> Callable[[], ArtifactStep]:
    other = lab.tokenized("tokenized/y", "v1", SHARDS, BPE)
    weights = dict(zip((TOKENS, other), (weight, *more), strict=False))
    return lambda: lab.mixture("mixtures/bad", "v1", weights, sequence_length=32)


@pytest.mark.parametrize(
    ("make", "names"),
    [
        (mix(-1.0, 1.0), ["weights", "'x'", "-1.0"]),
        (mix(math.nan), ["weights", "nan"]),
        (mix(math.inf), ["weights", "inf"]),
        (mix(0.0, 0.0), ["weights", "all weights are zero"]),
        (lambda: lab.mixture("mixtures/bad", "v1", {}, sequence_length=32), ["weights"]),
        (lambda: lab.raw_source("raw/../etc", "v1", lab.PythonStdlib(), license="MIT"), ["raw/../etc", "'..'"]),
        (lambda: lab.raw_source("raw/x", "v 1", lab.PythonStdlib(), license="MIT"), ["version", "v 1"]),
        (lambda: lab.raw_source("raw/x", "v1", lab.PythonStdlib(domains=("novels",)), license="MIT"), ["domains", "novels"]),  # type: ignore[arg-type]
        (lambda: lab.filtered("filtered/x", "v1", RAW, shards=0), ["shards", "0"]),
        (lambda: lab.MinCharacters(charactres=3), ["unknown field 'charactres'", "characters"]),  # type: ignore[call-arg]
        (lambda: lab.AdamW(learning_rate=-1), ["learning_rate", "-1"]),
        (lambda: training(num_steps=0), ["num_steps", "0"]),
        (lambda: training(optimizer=lab.AdamW(schedule=lab.Wsd(warmup_steps=10))), ["warmup_steps = 10", "num_steps = 10"]),
        (lambda: lab.train_lm("checkpoints/x", "v1", TOKENS, **{}), ["tokenized/x@v1", "no mixture"]),
    ],
)
def test_a_mistake_is_named_where_it_was_made(make: Callable[[], object], names: list[str]) -> None:
    with pytest.raises((ConfigError, TypeError)) as error:
        make()
    if isinstance(error.value, ConfigError):
        assert all(name in str(error.value) for name in names), str(error.value)
        assert "What to do" in str(error.value)
    else:
        assert "missing" in str(error.value)


def test_an_experiment_is_lazy(tmp_path: Path) -> None:
    """Making the tutorial's handles starts no process, opens no connection and writes nothing."""
    script = """
import sys
import marin_assets.experiments, marin_core.experiment
def refuse(event, arguments):
    writes = event == "open" and arguments[1] is not None and set(arguments[1]) & set("wax+")
    assert not writes and event not in ("socket.connect", "subprocess.Popen", "os.mkdir", "os.fork"), (event, arguments)
sys.dont_write_bytecode = True
sys.addaudithook(refuse)
import marin_assets.experiments.tutorial as tutorial
assert tutorial.EXPERIMENT.targets
"""
    subprocess.run([sys.executable, "-c", script], check=True, cwd=tmp_path)


def test_changing_the_learning_rate_changes_the_training_and_what_is_downstream_only() -> None:
    def graph(learning_rate: float) -> dict[str, str]:
        run = training(optimizer=lab.AdamW(learning_rate=learning_rate, schedule=lab.Wsd(warmup_steps=1)))
        baseline = lab.ngram_baseline("baselines/x", "v1", MIX, held_out={"code": HELD_OUT})
        tasks = lab.eval_tasks("eval_tasks/x", "v1", {"code": SHARDS})
        scores = lab.evaluate("evals/x", "v1", run, held_out={"code": HELD_OUT}, tasks=tasks, baseline=baseline)
        steps = ArtifactGraph([scores])
        return {str(step.id): steps.fingerprint(step) for step in steps}

    before, after = graph(1e-3), graph(2e-3)
    assert {name for name in before if before[name] != after[name]} == {"checkpoints/x@v1", "evals/x@v1"}


def test_a_model_is_never_scored_on_what_it_was_trained_on() -> None:
    baseline = lab.ngram_baseline("baselines/x", "v1", MIX, held_out={"code": HELD_OUT})
    tasks = lab.eval_tasks("eval_tasks/x", "v1", {"code": SHARDS}, held_out_per_10000=700)
    with pytest.raises(ConfigError, match=r"trained on: 500 per 10,000: .*; 700 per 10,000: eval_tasks/x@v1"):
        lab.evaluate("evals/x", "v1", training(), held_out={"code": HELD_OUT}, tasks=tasks, baseline=baseline)
    wider = lab.tokenized("tokenized/wide", "v1", SHARDS, BPE, split="held_out", held_out_per_10000=900)
    with pytest.raises(ConfigError, match="would score documents"):
        lab.ngram_baseline("baselines/x", "v1", MIX, held_out={"code": wider})
    everything = lab.mixture(
        "mixtures/all", "v1", {lab.tokenized("tokenized/all", "v1", SHARDS, BPE, split="all"): 1.0}, sequence_length=32
    )
    with pytest.raises(ConfigError, match="which has held-out documents"):
        lab.ngram_baseline("baselines/x", "v1", everything, held_out={"code": HELD_OUT})


def test_held_out_caches_of_two_tokenizers_are_refused() -> None:
    other = lab.tokenizer("tokenizer/y", "v1", [SHARDS], vocab_size=400)
    foreign = lab.tokenized("tokenized/y_held_out", "v1", SHARDS, other, split="held_out")
    baseline = lab.ngram_baseline("baselines/x", "v1", MIX, held_out={"code": HELD_OUT})
    tasks = lab.eval_tasks("eval_tasks/x", "v1", {"code": SHARDS})
    with pytest.raises(ConfigError, match="2 tokenizers: tokenizer/x@v1, tokenizer/y@v1"):
        lab.evaluate("evals/x", "v1", training(), held_out={"a": HELD_OUT, "b": foreign}, tasks=tasks, baseline=baseline)


def test_every_permanent_checkpoint_has_a_partition() -> None:
    baseline = lab.ngram_baseline("baselines/x", "v1", MIX, held_out={"code": HELD_OUT})
    tasks = lab.eval_tasks("eval_tasks/x", "v1", {"code": SHARDS})
    scores = lab.evaluate("evals/x", "v1", training(), held_out={"code": HELD_OUT}, tasks=tasks, baseline=baseline)
    assert scores.partitions == ("step-000004", "step-000008", "step-000010")
