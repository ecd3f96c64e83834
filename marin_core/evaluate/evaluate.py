"""Evaluate a model, or the n-gram baseline, on held-out documents and local tasks, and write what came out.

Layout of an evaluation:

    results.json         bits per byte of each domain with 95 % intervals, the baseline and the paired difference beside; tasks
    documents.jsonl      {domain, id, nats, tokens, bytes} per document, for paired comparisons of models
    samples/<task>.jsonl one row per example

and of a baseline: `ngram.npz`, `results.json`, `documents.jsonl`. No path and no time enters a file, so that equal inputs
give equal bytes.
"""

import functools
import json
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy.typing as npt

from marin_core.errors import ConfigError, DataError, PreemptedError
from marin_core.evaluate import perplexity
from marin_core.evaluate.config import EvaluateConfig, NgramConfig
from marin_core.evaluate.documents import EncodedDocument, TextCodec
from marin_core.evaluate.language_model import LanguageModel
from marin_core.evaluate.ngram import NgramModel
from marin_core.evaluate.perplexity import Interval
from marin_core.evaluate.results import (
    DOCUMENTS,
    RESULTS,
    SCHEMA,
    Baseline,
    HeldOutScores,
    bits_per_byte_entries,
    differences,
    score_held_out,
    table,
    write_documents,
)
from marin_core.report import Check, Report, Reporter, Scalar

if TYPE_CHECKING:
    from marin_core.evaluate.harness import TaskResults

NGRAM = "ngram.npz"


def evaluate(
    config: EvaluateConfig,
    model: LanguageModel,
    codec: TextCodec,
    held_out: Mapping[str, Iterable[EncodedDocument]],
    baseline: Baseline,
    tasks_dir: Path,
    output: Path,
    reporter: Reporter,
) -> Report:
    """Score held-out documents and run tasks; checks `beats_ngram_baseline` and `finite_scores`.

    Args:
        held_out: domain → its documents as token ids with BOS and EOS, in any order.
        baseline: from `Baseline.load`; of the same documents.
        tasks_dir: what `tasks.make_tasks` wrote; not read where `config.tasks` is empty.
        output: an existing folder.

    Raises:
        ConfigError: the tokenizer has more ids than the model, or a task is unknown.
        DataError: a domain is empty, or the baseline was scored on other documents.
        PreemptedError: the reporter asks to stop.
    """
    if codec.vocab_size > model.vocab_size:
        raise ConfigError(
            f"the tokenizer has {codec.vocab_size} ids, the model only {model.vocab_size}",
            advice="Evaluate the model with the tokenizer it was trained with.",
        )
    scores = score_held_out(
        held_out,
        functools.partial(
            perplexity.score_documents,
            model,
            batch_size=config.batch_size,
            buckets=config.length_buckets,
            window_overlap=config.window_overlap,
            reporter=reporter,
        ),
        limit=config.limit_documents,
        bootstrap_samples=config.bootstrap_samples,
        seed=config.seed,
    )
    _same_documents(scores, baseline)
    tasks = _run_tasks(config, model, codec, tasks_dir, reporter)
    against = differences(scores, baseline, config.bootstrap_samples, config.seed)
    entries = bits_per_byte_entries(scores, baseline, against)
    content = {
        "model": type(model).__name__,
        "config": config.model_dump(mode="json", exclude={"batch_size", "length_buckets"}),
        "held_out_digest": scores.digest,
        "baseline": baseline.name,
        "bits_per_byte": entries,
        "nonfinite_tokens": scores.nonfinite,
        "tasks": _task_entries(tasks),
    }
    _write(output, content, scores)
    if tasks:
        tasks.write_samples(output / "samples")
    return Report(
        metrics=_metrics(scores, baseline, tasks),
        tables={"bits_per_byte": table(entries)} | ({"tasks": _task_rows(tasks)} if tasks else {}),
        checks=[_beats_baseline(scores, baseline, against["total"]), _finite(scores, tasks)],
    )


def ngram_baseline(
    config: NgramConfig,
    tokens: npt.NDArray[Any],
    vocab_size: int,
    eos_id: int,
    held_out: Mapping[str, Iterable[EncodedDocument]],
    output: Path,
    reporter: Reporter,
) -> Report:
    """Fit the n-gram model on training tokens, save it, and score the held-out documents that models will be scored on.

    Args:
        tokens: integers [T], the training tokens, documents one after the other and each ending with EOS.
        held_out: domain → its documents as token ids with BOS and EOS, in any order.
        output: an existing folder.
    """
    reporter.log(f"counting {config.order}-grams of {len(tokens):,} tokens")
    model = NgramModel.fit(tokens, vocab_size, config.order, eos_id=eos_id, discount=config.discount)
    model.save(output / NGRAM)
    scores = score_held_out(
        held_out,
        functools.partial(
            perplexity.score_documents, model, batch_size=16, buckets=(), window_overlap=config.window_overlap, reporter=reporter
        ),
        limit=config.limit_documents,
        bootstrap_samples=config.bootstrap_samples,
        seed=config.seed,
    )
    entries = bits_per_byte_entries(scores)
    grams = {f"{k}": len(order.keys) for k, order in enumerate(model.orders, start=1)}
    content = {
        "model": f"{model.order}-gram",
        "config": config.model_dump(mode="json"),
        "held_out_digest": scores.digest,
        "training_tokens": len(tokens),
        "distinct_ngrams": grams,
        "discounts": list(model.discounts),
        "bits_per_byte": entries,
        "nonfinite_tokens": scores.nonfinite,
    }
    _write(output, content, scores)
    metrics: dict[str, Scalar] = {f"bits_per_byte/{name}": value for name, value in scores.values().items() if math.isfinite(value)}
    return Report(
        metrics=metrics | {"training_tokens": len(tokens)} | {f"distinct_ngrams/{k}": count for k, count in grams.items()},
        tables={"bits_per_byte": table(entries)},
        checks=[_finite(scores, None)],
    )


def _same_documents(scores: HeldOutScores, baseline: Baseline) -> None:
    if scores.digest != baseline.digest:
        raise DataError(
            f"the baseline {baseline.name} was scored on other held-out documents (digest {baseline.digest[:12]}) than the model "
            f"({scores.digest[:12]}, {len(scores.total.documents)} documents of {', '.join(scores.domains)})",
            advice="Use the same held-out artifact and limit_documents for both, and build the baseline again.",
        )


def _run_tasks(config: EvaluateConfig, model: LanguageModel, codec: TextCodec, tasks_dir: Path, reporter: Reporter) -> "TaskResults | None":
    if not config.tasks:
        return None
    if reporter.stop_requested():
        raise PreemptedError("asked to stop before the tasks", advice="Start the evaluation again.")
    from marin_core.evaluate.harness import run_tasks  # lm-eval takes seconds to import

    reporter.log(f"running {', '.join(config.tasks)}")
    return run_tasks(
        model,
        codec,
        tasks_dir,
        config.tasks,
        config.limit_examples,
        config.seed,
        batch_size=config.batch_size,
        buckets=config.length_buckets,
        window_overlap=config.window_overlap,
    )


def _write(output: Path, content: Mapping[str, Any], scores: HeldOutScores) -> None:
    text = json.dumps({"schema": SCHEMA, **content}, indent=2, sort_keys=True, ensure_ascii=False, allow_nan=False)
    (output / RESULTS).write_text(text + "\n", encoding="utf-8")
    write_documents(scores, output / DOCUMENTS)


def _metrics(scores: HeldOutScores, baseline: Baseline, tasks: "TaskResults | None") -> dict[str, Scalar]:
    """Numbers to plot over checkpoints; what isn't finite is left out, and the check `finite_scores` says so."""
    metrics: dict[str, Scalar] = {}
    for name, value in scores.values().items():
        metrics[f"bits_per_byte/{name}"] = value
        metrics[f"baseline_bits_per_byte/{name}"] = baseline.bits_per_byte[name]
    for row in _task_rows(tasks) if tasks else []:
        metrics[f"{row['task']}/{row['metric']}"] = row["value"]
        metrics[f"{row['task']}/{row['metric']}_stderr"] = row["stderr"]
    return {name: value for name, value in metrics.items() if isinstance(value, float) and math.isfinite(value)}


def _task_entries(tasks: "TaskResults | None") -> dict[str, Any]:
    if tasks is None:
        return {}
    return {
        task: {
            "examples": tasks.examples[task],
            "metrics": {
                name: {"value": metric.value, "stderr": metric.stderr, "higher_is_better": metric.higher_is_better}
                for name, metric in metrics.items()
            },
        }
        for task, metrics in tasks.metrics.items()
    }


def _task_rows(tasks: "TaskResults") -> list[dict[str, Scalar]]:
    return [
        {
            "task": task,
            "metric": name,
            "value": metric.value,
            "stderr": "–" if metric.stderr is None else metric.stderr,
            "examples": tasks.examples[task],
        }
        for task, metrics in tasks.metrics.items()
        for name, metric in metrics.items()
    ]


def _beats_baseline(scores: HeldOutScores, baseline: Baseline, against: Interval) -> Check:
    ours = scores.values()
    names = ("difference", "difference_low_95", "difference_high_95")
    values: dict[str, Scalar] = {name: value for name, value in zip(names, against, strict=True) if math.isfinite(value)}
    for name, value in ours.items():
        values |= {name: value if math.isfinite(value) else "not finite", f"{name}_{baseline.name}": baseline.bits_per_byte[name]}
    return Check(
        "beats_ngram_baseline",
        ours["total"] < baseline.bits_per_byte["total"],
        f"The model needs fewer bits per byte of all held-out text than the {baseline.name} model of the same training tokens.",
        values,
    )


def _finite(scores: HeldOutScores, tasks: "TaskResults | None") -> Check:
    continuations = tasks.nonfinite if tasks else 0
    return Check(
        "finite_scores",
        scores.nonfinite == 0 and continuations == 0,
        "No log probability of a held-out token or an answer is NaN or infinite.",
        {"nonfinite_tokens": scores.nonfinite, "tokens": scores.total.tokens, "nonfinite_continuations": continuations},
    )
