"""The whole life of a model in miniature: Python's own library, a mixture-of-experts model, a few minutes on two cores."""

from marin_core import experiment as lab

V = "v1"

stdlib = lab.raw_source("raw/python_stdlib", V, lab.PythonStdlib(), license="PSF-2.0")
short = lab.MinCharacters(characters=200)
code = lab.filtered("filtered/python_code", V, stdlib, domains=["code"], filters=[short, lab.CodeQuality()], shards=4)
prose_domains = ["docstrings", "topics"]
prose = lab.filtered("filtered/python_prose", V, stdlib, domains=prose_domains, filters=[short, lab.GopherRepetition()], shards=2)

bpe = lab.tokenizer("tokenizer/python_512", V, [code, prose], vocab_size=512)
code_tokens = lab.tokenized("tokenized/python_code", V, code, bpe)
prose_tokens = lab.tokenized("tokenized/python_prose", V, prose, bpe)
held_out = {
    "code": lab.tokenized("tokenized/python_code_held_out", V, code, bpe, split="held_out"),
    "prose": lab.tokenized("tokenized/python_prose_held_out", V, prose, bpe, split="held_out"),
}
data = lab.mixture("mixtures/python", V, {code_tokens: 0.7, prose_tokens: 0.3}, sequence_length=128)

run = lab.train_lm(
    "checkpoints/tutorial/moe_tiny",
    V,
    data,
    model=lab.moe_tiny(vocab_size=512),
    optimizer=lab.AdamW(learning_rate=4e-3, schedule=lab.Wsd(warmup_steps=50)),
    num_steps=500,
    global_batch_size=16,
    checkpoints=lab.CheckpointPolicy(permanent_every_steps=125, temporary_every_steps=25),
)
tasks = lab.eval_tasks("eval_tasks/python", V, {"code": code, "prose": prose})
scores = lab.evaluate(
    "evals/tutorial/moe_tiny",
    V,
    run,
    held_out=held_out,
    tasks=tasks,
    baseline=lab.ngram_baseline("baselines/python_trigram", V, data, held_out=held_out),
    config=lab.EvaluateConfig(window_overlap=0.25),
)

EXPERIMENT = lab.experiment(
    "tutorial",
    scores,
    question="Does a 1.4 M parameter mixture of experts, balanced by quantiles, learn Python's library better than trigrams do?",
    hypothesis="Fewer bits per byte than the trigram baseline after 500 steps, with an expert load spread under 30 %.",
)
