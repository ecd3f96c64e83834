"""The tutorial in the size of a test: Python's help topics, a model of some hundred thousand parameters, forty steps."""

from marin_core import experiment as lab
from marin_core.evaluate.config import EvaluateConfig, TaskSetConfig

HELD_OUT = 600
raw = lab.raw_source("raw/topics", "v1", lab.PythonStdlib(domains=("topics", "docstrings"), unit_bytes=100_000), license="PSF-2.0")
topics = lab.filtered("filtered/topics", "v1", raw, filters=[lab.MinCharacters(characters=100)], shards=2)
bpe = lab.tokenizer("tokenizer/topics", "v1", [topics], vocab_size=300)
train_tokens = lab.tokenized("tokenized/topics", "v1", topics, bpe, held_out_per_10000=HELD_OUT)
held_out = {"prose": lab.tokenized("tokenized/topics_held_out", "v1", topics, bpe, split="held_out", held_out_per_10000=HELD_OUT)}
data = lab.mixture("mixtures/topics", "v1", {train_tokens: 1.0}, sequence_length=64)
run = lab.train_lm(
    "checkpoints/small",
    "v1",
    data,
    model=lab.moe_tiny(vocab_size=300),
    optimizer=lab.AdamW(learning_rate=3e-3, schedule=lab.Wsd(warmup_steps=5)),
    num_steps=40,
    global_batch_size=8,
    checkpoints=lab.CheckpointPolicy(permanent_every_steps=20, temporary_every_steps=5),
)
tasks = TaskSetConfig(tasks=("doc_continuation",), examples_per_task=20, minimum_examples=4)
scores = lab.evaluate(
    "evals/small",
    "v1",
    run,
    held_out=held_out,
    tasks=lab.eval_tasks("eval_tasks/topics", "v1", {"prose": topics}, held_out_per_10000=HELD_OUT, tasks=tasks),
    baseline=lab.ngram_baseline("baselines/topics", "v1", data, held_out=held_out),
    config=EvaluateConfig(tasks=("doc_continuation",), bootstrap_samples=100, window_overlap=0),
)

EXPERIMENT = lab.experiment("small", scores, question="Does every part fit the next?", hypothesis="Yes.")
