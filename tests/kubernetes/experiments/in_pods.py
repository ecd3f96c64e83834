"""From raw text to an evaluated model, which two pods train together."""

from marin_core import experiment as lab
from marin_core.artifact.step import Resources
from marin_core.evaluate.config import EvaluateConfig, TaskSetConfig
from marin_core.model.config import MoEConfig
from marin_core.train.config import MeshConfig

STEPS = 100
"""Enough that a queue has time to interrupt it."""
HELD_OUT = 600

raw = lab.raw_source("raw/topics", "v1", lab.PythonStdlib(domains=("topics", "docstrings"), unit_bytes=100_000), license="PSF-2.0")
documents = lab.filtered("filtered/topics", "v1", raw, filters=[lab.MinCharacters(characters=100)], shards=1)
bpe = lab.tokenizer("tokenizer/topics", "v1", [documents], vocab_size=300)
tokens = lab.tokenized("tokenized/topics", "v1", documents, bpe, held_out_per_10000=HELD_OUT)
held_out = {"prose": lab.tokenized("tokenized/topics_held_out", "v1", documents, bpe, split="held_out", held_out_per_10000=HELD_OUT)}
data = lab.mixture("mixtures/topics", "v1", {tokens: 1.0}, sequence_length=64)
tasks = TaskSetConfig(tasks=("doc_continuation",), examples_per_task=20, minimum_examples=4)
run = lab.train_lm(
    "checkpoints/in_pods",
    "v1",
    data,
    model=lab.moe_tiny(
        300,
        moe=MoEConfig(experts=8, experts_per_token=2, latent_dim=16, expert_width=16, capacity_factor=4.0),
        d_model=32,
        head_dim=8,
        layers=1,
        window=16,
        gated_norm_rank=0,
        short_conv_kernel=2,
    ),
    optimizer=lab.AdamW(schedule=lab.Wsd(warmup_steps=2)),
    num_steps=STEPS,
    global_batch_size=8,
    checkpoints=lab.CheckpointPolicy(permanent_every_steps=STEPS, temporary_every_steps=10),
    mesh=MeshConfig(racks=2, devices_per_rack=2),
    resources=Resources(cpus=2, processes=2, devices_per_process=2, save_seconds=30),
)
scores = lab.evaluate(
    "evals/in_pods",
    "v1",
    run,
    held_out=held_out,
    tasks=lab.eval_tasks("eval_tasks/topics", "v1", {"prose": documents}, held_out_per_10000=HELD_OUT, tasks=tasks),
    baseline=lab.ngram_baseline("baselines/topics", "v1", data, held_out=held_out),
    config=EvaluateConfig(tasks=("doc_continuation",), bootstrap_samples=100, window_overlap=0),
)

EXPERIMENT = lab.experiment("in_pods", scores, question="Does a cluster build what one machine builds?", hypothesis="Yes, to the bit.")
