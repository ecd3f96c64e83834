"""Handles of evaluation: local tasks, the n-gram baseline, and scores of every checkpoint of a run."""

from collections.abc import Mapping, Sequence

from marin_core.artifact.step import ArtifactStep, CheckDeclaration, StepContext
from marin_core.errors import ConfigError
from marin_core.evaluate.config import EvaluateConfig, NgramConfig, TaskSetConfig
from marin_core.experiment.jobs import EvaluateJob, NgramJob, TasksJob, TokenizeJob
from marin_core.experiment.tokens import HELD_OUT_PER_10000, mixture_components
from marin_core.experiment.training import checkpoint_keys

EVALUATION_TEAM = "team:evaluation"


def eval_tasks(
    name: str,
    version: str,
    documents: Mapping[str, ArtifactStep],
    *,
    tasks: TaskSetConfig | None = None,
    held_out_per_10000: int = HELD_OUT_PER_10000,
    description: str = "",
) -> ArtifactStep:
    """Multiple-choice tasks for lm-evaluation-harness, made from the held-out documents of filtered families: `{domain: family}`."""
    config = tasks or TaskSetConfig()
    families = dict(documents)
    return ArtifactStep(
        name,
        version,
        job="tasks",
        build_config=lambda ctx: TasksJob(
            shards={domain: ctx.members(family) for domain, family in families.items()},
            held_out_per_10000=held_out_per_10000,
            tasks=config,
        ),
        deps=tuple(families.values()),
        kinds=("json",),
        owner=EVALUATION_TEAM,
        description=description or "Multiple-choice tasks from held-out documents.",
    )


def ngram_baseline(
    name: str,
    version: str,
    data: ArtifactStep,
    *,
    held_out: Mapping[str, ArtifactStep],
    ngram: NgramConfig | None = None,
    description: str = "",
) -> ArtifactStep:
    """An n-gram model of a mixture's training tokens, scored on the held-out caches `{domain: cache}`: the bar to clear."""
    config = ngram or NgramConfig()
    components = mixture_components(data)
    held = dict(held_out)
    _refuse_leak(name, [*components.values()], [*held.values()])
    return ArtifactStep(
        name,
        version,
        job="ngram",
        build_config=lambda ctx: NgramJob(
            components={component: ctx.members(cache) for component, cache in components.items()},
            held_out={domain: ctx.address(cache) for domain, cache in held.items()},
            ngram=config,
        ),
        deps=tuple(dict.fromkeys([*components.values(), *held.values()])),
        leaves_out=data.leaves_out,
        kinds=("numpy",),
        owner=EVALUATION_TEAM,
        checks=(CheckDeclaration("finite_scores", "Every score is a finite number."),),
        description=description or f"Interpolated {config.order}-gram model of {data.name}.",
    )


def evaluate(
    name: str,
    version: str,
    run: ArtifactStep,
    *,
    held_out: Mapping[str, ArtifactStep],
    tasks: ArtifactStep,
    baseline: ArtifactStep,
    config: EvaluateConfig | None = None,
    description: str = "",
) -> ArtifactStep:
    """Scores of every permanent checkpoint of a run, one partition a checkpoint: bits per byte on `{domain: cache}`, and tasks."""
    settings = config or EvaluateConfig()
    held = dict(held_out)
    tokenizer = _tokenizer_of(name, held)
    _refuse_other_documents(name, baseline, settings)
    _refuse_leak(name, [dep for dep in run.deps if dep.job == "tokenize"], [*held.values(), tasks])

    def build_config(ctx: StepContext) -> EvaluateJob:
        return EvaluateJob(
            run=ctx.address(run),
            checkpoint=ctx.partition,
            tokenizer=ctx.address(tokenizer),
            held_out={domain: ctx.address(cache) for domain, cache in held.items()},
            baseline=ctx.address(baseline),
            tasks=ctx.address(tasks),
            evaluate=settings,
        )

    return ArtifactStep(
        name,
        version,
        job="evaluate",
        build_config=build_config,
        deps=(run, tokenizer, *held.values(), baseline, tasks),
        partitions=checkpoint_keys(run),
        kinds=("jax", "lm-eval"),
        owner=EVALUATION_TEAM,
        checks=(
            CheckDeclaration("finite_scores", "Every score is a finite number."),
            CheckDeclaration("beats_ngram_baseline", "Fewer bits per byte than the n-gram model on the same documents."),
        ),
        description=description or f"Bits per byte and task accuracy of every checkpoint of {run.name}.",
    )


def _tokenizer_of(name: str, held_out: Mapping[str, ArtifactStep]) -> ArtifactStep:
    """The one tokenizer behind all held-out caches."""
    found: dict[str, ArtifactStep] = {}
    for cache in held_out.values():
        if not isinstance(cache.symbolic_config, TokenizeJob) or cache.partitions:
            raise ConfigError(
                f"{name} scores {cache.id}, which is no held-out token cache", advice="Make it with tokenized(…, split='held_out')."
            )
        found[str(cache.deps[1].id)] = cache.deps[1]
    if len(found) != 1:
        raise ConfigError(
            f"{name} scores held-out caches of {len(found)} tokenizers: {', '.join(found) or 'none given'}",
            advice="Give held-out caches of one tokenizer.",
        )
    return next(iter(found.values()))


def _refuse_other_documents(name: str, baseline: ArtifactStep, settings: EvaluateConfig) -> None:
    """Model and baseline are compared document by document."""
    job = baseline.symbolic_config
    if not isinstance(job, NgramJob):
        raise ConfigError(f"{name}: {baseline.id} is no baseline", advice="Give the handle that ngram_baseline(…) returned.")
    if job.ngram.limit_documents != settings.limit_documents:
        raise ConfigError(
            f"{name}: limit_documents is {settings.limit_documents}, but {job.ngram.limit_documents} for the baseline {baseline.id}",
            advice="Use one limit for both, since they are compared document by document.",
        )


def _refuse_leak(name: str, training: Sequence[ArtifactStep], held_out: Sequence[ArtifactStep]) -> None:
    """All splits must be cut at one share: a document held out at 5 % is trained on by a cache cut at 2 %."""
    shares: dict[int, list[str]] = {}
    for step in [*training, *held_out]:
        job = step.symbolic_config
        if isinstance(job, TokenizeJob) and step in training and job.tokenize.split != "train":
            raise ConfigError(f"{name} scores a model trained on {step.id}, which has held-out documents", advice="Train on split='train'.")
        if isinstance(job, TokenizeJob | TasksJob):
            share = job.tokenize.held_out_per_10000 if isinstance(job, TokenizeJob) else job.held_out_per_10000
            shares.setdefault(share, []).append(str(step.id))
    if len(shares) > 1:
        cuts = "; ".join(f"{share} per 10,000: {', '.join(ids)}" for share, ids in sorted(shares.items()))
        raise ConfigError(f"{name} would score documents that were trained on: {cuts}", advice="Use one held_out_per_10000 everywhere.")
