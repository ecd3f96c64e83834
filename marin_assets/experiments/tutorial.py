"""The whole life of a model in miniature: Python's own standard library, a mixture-of-experts model, a few minutes on two cores."""

from marin_core.experiment import (
    CodeQuality,
    GopherRepetition,
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

V = "v1"

stdlib = raw_source("raw/python_stdlib", V, PythonStdlib(), license="PSF-2.0")
code = filtered("filtered/python_code", V, stdlib, domains=["code"], filters=[MinCharacters(), CodeQuality()], shards=8)
docs = filtered(
    "filtered/python_docs", V, stdlib, domains=["docstrings", "topics"], filters=[MinCharacters(), GopherRepetition()], shards=2
)
bpe = tokenizer("tokenizer/python_512", V, [code, docs], vocab_size=512)

code_train = tokenized("tokenized/python_code", V, code, bpe)
docs_train = tokenized("tokenized/python_docs", V, docs, bpe)
held_out = {
    "code": tokenized("tokenized/python_code_held_out", V, code, bpe, split="held_out"),
    "prose": tokenized("tokenized/python_docs_held_out", V, docs, bpe, split="held_out"),
}
data = mixture("mixtures/python", V, {code_train: 0.7, docs_train: 0.3}, sequence_length=128)

run = train_lm(
    "checkpoints/tutorial/moe_tiny",
    V,
    data,
    model=moe_tiny(vocab_size=512),
    optimizer=OptimizerConfig(learning_rate=4e-3, warmup_steps=50),
    num_steps=600,
    global_batch_size=32,
    checkpoint_every_steps=150,
    temporary_checkpoint_every_steps=50,
)
scores = evaluate(
    "evals/tutorial/moe_tiny",
    V,
    run,
    held_out=held_out,
    tasks=eval_tasks("eval_tasks/python", V, {"code": code, "prose": docs}),
    baseline=ngram_baseline("baselines/python_trigram", V, data, held_out=held_out),
)

EXPERIMENT = experiment(
    "tutorial",
    scores,
    question="Does a 1.4 M parameter mixture of experts, balanced by quantiles, learn Python's library better than trigrams do?",
    hypothesis="Fewer bits per byte than the trigram baseline after 600 steps, with an expert load spread under 30 %.",
)
