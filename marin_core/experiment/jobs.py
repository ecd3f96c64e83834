"""The configuration of each job: settings from the experiment, and addresses that the context fills in."""

from pydantic import Field

from marin_core.config import OPERATIONAL, Config
from marin_core.data.config import FilterConfig, IngestConfig, MixtureConfig, TokenizeConfig, TokenizerConfig
from marin_core.evaluate.config import EvaluateConfig, NgramConfig, TaskSetConfig
from marin_core.train.config import TrainConfig


class IngestJob(Config):
    """Fetch or generate a raw source."""

    ingest: IngestConfig


class FilterJob(Config):
    """Filter one shard of a raw source."""

    raw: str
    shard: str
    filter: FilterConfig


class TokenizerJob(Config):
    """Train a tokenizer on filtered shards."""

    shards: tuple[str, ...]
    tokenizer: TokenizerConfig


class TokenizeJob(Config):
    """Turn filtered shards into one part of a token cache."""

    shards: tuple[str, ...]
    tokenizer: str
    part: str
    tokenize: TokenizeConfig


class MixtureJob(Config):
    """Mix token caches: component name → its parts."""

    components: dict[str, tuple[str, ...]]
    mixture: MixtureConfig


class TrainJob(Config):
    """Train a model on a mixture."""

    mixture: str
    components: dict[str, tuple[str, ...]]
    run_name: str
    earlier_run: str | None = None
    train: TrainConfig


class NgramJob(Config):
    """Fit the n-gram baseline to a mixture's training tokens and score it on held-out caches: domain → part."""

    components: dict[str, tuple[str, ...]]
    held_out: dict[str, str]
    ngram: NgramConfig


class TasksJob(Config):
    """Make multiple-choice tasks from the held-out documents of filtered shards: domain → shards."""

    shards: dict[str, tuple[str, ...]]
    held_out_per_10000: int
    tasks: TaskSetConfig


class EvaluateJob(Config):
    """Evaluate one checkpoint (`step-NNNNNN`) of a run."""

    run: str
    checkpoint: str
    tokenizer: str
    held_out: dict[str, str]
    baseline: str
    tasks: str
    evaluate: EvaluateConfig


class SummaryJob(Config):
    """Put the metrics of other artifacts side by side: names or patterns like `*/acc`."""

    of: tuple[str, ...]
    metrics: tuple[str, ...]


class AdoptJob(Config):
    """Adopt the data at a URL, which is its place and no part of its identity; `digest` is what it must be."""

    at: str = Field(json_schema_extra=OPERATIONAL)
    digest: str | None = None
