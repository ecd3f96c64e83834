"""TinyStories (arXiv 2305.07759) from the Hub to a scored model: does a tiny model write sentences that hang together?

`declare` takes the source, so that the same experiment runs on a folder of stories of your own.
"""

from marin_assets.catalog import CatalogSource, tiny_stories
from marin_core import experiment as lab
from marin_core.evaluate.config import DOC_CONTINUATION, TaskSetConfig
from marin_core.experiment import Experiment

V = "v1"
REVISION = "f54c09fd23315a6f9c86f9dc80f725de7d8f9c64"
"""Of roneneldan/TinyStories; `marin resolve hf:roneneldan/TinyStories@main` prints what it is today."""


def declare(
    source: CatalogSource,
    *,
    name: str = "tinystories",
    shards: int = 4,
    vocab_size: int = 4_096,
    num_steps: int = 5_000,
    global_batch_size: int = 32,
    examples: int = 200,
) -> Experiment:
    """The whole experiment on the stories of a source.

    Args:
        name: of the experiment, and in the names of its artifacts.
        shards: of the documents; at most the files of the source.
        examples: of the multiple-choice task; a quarter of them at least must be found.
    """
    stories = lab.filtered(
        f"filtered/{name}", V, source.raw, format=source.format, filters=[lab.MinCharacters(characters=100)], shards=shards
    )
    bpe = lab.tokenizer(f"tokenizer/{name}", V, [stories], vocab_size=vocab_size)
    tokens = lab.tokenized(f"tokenized/{name}", V, stories, bpe)
    held_out = {"prose": lab.tokenized(f"tokenized/{name}_held_out", V, stories, bpe, split="held_out")}
    length = 128
    budget = num_steps * global_batch_size * length
    data = lab.mixture(f"mixtures/{name}", V, {tokens: 1.0}, planned_tokens=[budget], sequence_length=length, max_epochs=64)
    run = lab.train_lm(
        f"checkpoints/{name}/moe_tiny",
        V,
        data,
        model=lab.moe_tiny(vocab_size=vocab_size),
        optimizer=lab.AdamW(learning_rate=3e-3, schedule=lab.Cosine(warmup_steps=num_steps // 20)),
        num_steps=num_steps,
        global_batch_size=global_batch_size,
        checkpoints=lab.CheckpointPolicy(permanent_every_steps=num_steps // 2, temporary_every_steps=max(1, num_steps // 20)),
    )
    tasks = TaskSetConfig(tasks=(DOC_CONTINUATION,), examples_per_task=examples, minimum_examples=examples // 4)
    scores = lab.evaluate(
        f"evals/{name}/moe_tiny",
        V,
        run,
        held_out=held_out,
        tasks=lab.eval_tasks(f"eval_tasks/{name}", V, {"prose": stories}, tasks=tasks),
        baseline=lab.ngram_baseline(f"baselines/{name}_trigram", V, data, held_out=held_out),
        config=lab.EvaluateConfig(tasks=(DOC_CONTINUATION,)),
    )
    return lab.experiment(
        name,
        scores,
        question="Does a model of a few million parameters learn to tell stories in a small child's words?",
        hypothesis="Far fewer bits per byte than trigrams, and the true continuation of a story chosen more often than by chance.",
    )


EXPERIMENT = declare(tiny_stories(V, revision=REVISION))
