"""The tutorial in the size of a test, from two domains, with a mix that is published."""

from datetime import UTC, datetime

from marin_core import experiment as lab
from marin_core.evaluate.config import EvaluateConfig, TaskSetConfig

HELD_OUT = 600
raw = lab.raw_source("raw/python", "v1", lab.PythonStdlib(domains=("topics", "docstrings"), unit_bytes=100_000), license="PSF-2.0")
long_enough = lab.MinCharacters(characters=100)
topics = lab.filtered("filtered/topics", "v1", raw, domains=["topics"], filters=[long_enough], shards=1)
docstrings = lab.filtered("filtered/docstrings", "v1", raw, domains=["docstrings"], filters=[long_enough], shards=1)
bpe = lab.tokenizer("tokenizer/python", "v1", [topics], vocab_size=300)
topic_tokens = lab.tokenized("tokenized/topics", "v1", topics, bpe, held_out_per_10000=HELD_OUT)
docstring_tokens = lab.tokenized("tokenized/docstrings", "v1", docstrings, bpe, held_out_per_10000=HELD_OUT)
held_out = {
    "docstrings": lab.tokenized("tokenized/docstrings_held_out", "v1", docstrings, bpe, split="held_out", held_out_per_10000=HELD_OUT)
}
data = lab.mixture("mixtures/python", "v1", {topic_tokens: 0.7, docstring_tokens: 0.3}, sequence_length=64)
mix = lab.published_mix("published/python", data, author="Ada", start=datetime(2026, 3, 2, tzinfo=UTC))

run = lab.train_lm(
    "checkpoints/small",
    "v1",
    data,
    model=lab.moe_tiny(vocab_size=300, layers=2),
    optimizer=lab.AdamW(learning_rate=3e-3, schedule=lab.Wsd(warmup_steps=5)),
    num_steps=40,
    global_batch_size=8,
    checkpoints=lab.CheckpointPolicy(permanent_every_steps=40, temporary_every_steps=20),
)
tasks = TaskSetConfig(tasks=("doc_continuation",), examples_per_task=20, minimum_examples=4)
scores = lab.evaluate(
    "evals/small",
    "v1",
    run,
    held_out=held_out,
    tasks=lab.eval_tasks("eval_tasks/docstrings", "v1", {"prose": docstrings}, held_out_per_10000=HELD_OUT, tasks=tasks),
    baseline=lab.ngram_baseline("baselines/python", "v1", data, held_out=held_out),
    config=EvaluateConfig(tasks=("doc_continuation",), bootstrap_samples=100, window_overlap=0),
)

EXPERIMENT = lab.experiment("published", scores, mix, question="Does all of it work in a bucket?", hypothesis="Yes.")
