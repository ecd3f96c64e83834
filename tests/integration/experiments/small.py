"""The tutorial in the size of a test: Python's help topics, a model of some thousand parameters, twenty steps."""

from marin_core.evaluate.config import EvaluateConfig, TaskSetConfig
from marin_core.experiment import (
    MinCharacters,
    OptimizerConfig,
    PythonStdlib,
    eval_tasks,
    evaluate,
    experiment,
    filtered,
    mixture,
    moe_tiny,
    ngram_baseline,
    raw_source,
    tokenized,
    tokenizer,
    train_lm,
)

raw = raw_source("raw/topics", "v1", PythonStdlib(domains=("topics", "docstrings"), unit_bytes=100_000), license="PSF-2.0")
topics = filtered("filtered/topics", "v1", raw, filters=[MinCharacters(characters=100)], shards=2)
bpe = tokenizer("tokenizer/topics", "v1", [topics], vocab_size=300)
train_tokens = tokenized("tokenized/topics", "v1", topics, bpe, held_out_per_10000=2000)
held_out = {"prose": tokenized("tokenized/topics_held_out", "v1", topics, bpe, split="held_out", held_out_per_10000=2000)}
data = mixture("mixtures/topics", "v1", {train_tokens: 1.0}, sequence_length=32)
run = train_lm(
    "checkpoints/small",
    "v1",
    data,
    model=moe_tiny(vocab_size=300),
    optimizer=OptimizerConfig(learning_rate=3e-3, warmup_steps=5),
    num_steps=40,
    global_batch_size=8,
    checkpoint_every_steps=20,
    temporary_checkpoint_every_steps=5,
)
scores = evaluate(
    "evals/small",
    "v1",
    run,
    held_out=held_out,
    tasks=eval_tasks(
        "eval_tasks/topics", "v1", {"prose": topics}, held_out_per_10000=2000, tasks=TaskSetConfig(examples_per_task=20, minimum_examples=8)
    ),
    baseline=ngram_baseline("baselines/topics", "v1", data, held_out=held_out),
    config=EvaluateConfig(tasks=("doc_continuation",), limit_documents=20, bootstrap_samples=100),
)

EXPERIMENT = experiment("small", scores, question="Does every part fit the next?", hypothesis="Yes.")
