"""The configuration of each job: settings from the experiment, and addresses that the context fills in."""

from pydantic import Field

from marin_core.config import OPERATIONAL, Config
from marin_core.data.config import KmerConfig, MixtureConfig, PublishedMixtureConfig, TokenizeConfig, TokenizerConfig, TokenizerFile
from marin_core.data.decontaminate.config import ContaminationIndexConfig, EvalName
from marin_core.data.dedup.config import DuplicatesConfig, Signatures
from marin_core.data.measures.config import ClassifierConfig
from marin_core.data.sources.config import IngestConfig
from marin_core.data.stages import AttributesConfig, ConsolidateConfig, FilterConfig
from marin_core.evaluate.config import EvaluateConfig, NgramConfig, TaskSetConfig
from marin_core.train.config import TrainConfig


class IngestJob(Config):
    """Fetch or generate a raw source."""

    ingest: IngestConfig


class FilterJob(Config):
    """Filter one shard of a raw source; `older` are the sources of the versions that the family continues, oldest first."""

    raw: str
    older: tuple[str, ...] = ()
    shard: str
    filter: FilterConfig


class ClassifierJob(Config):
    """Train a classifier on labelled shards of documents: label → shards."""

    labels: dict[str, tuple[str, ...]]
    classifier: ClassifierConfig


class AttributesJob(Config):
    """Measure one shard of documents; `resources` are artifacts that measures name."""

    documents: str
    resources: dict[str, str]
    attributes: AttributesConfig


class AttributeInput(Config):
    """Where the attributes of one shard stand: an artifact of its own, or a folder of one that is about whole families."""

    address: str
    below: str = ""


class ConsolidateJob(Config):
    """Decide on one shard of documents by what is known about them."""

    documents: str
    attributes: tuple[AttributeInput, ...]
    consolidate: ConsolidateConfig


class SignaturesJob(Config):
    """Make the signatures of one shard of documents."""

    documents: str
    find: Signatures


class DuplicatesFamily(Config):
    """Documents of one family, shard by shard, with their signatures where the search needs some; `context` is never called duplicate."""

    component: str
    documents: tuple[str, ...]
    signatures: tuple[str, ...] = ()
    context: bool = False


class DuplicatesJob(Config):
    """Look for repeated text in all shards of several families, the first of which has priority."""

    families: tuple[DuplicatesFamily, ...]
    duplicates: DuplicatesConfig


class ContaminationIndexJob(Config):
    """Index the examples of evaluations: name → artifact."""

    evals: dict[EvalName, str]
    index: ContaminationIndexConfig


class ContaminationJob(Config):
    """Find text of evaluations in one shard of documents; `evals` are the artifacts that the index was made from."""

    documents: str
    index: str
    evals: dict[EvalName, str]


class ManifestJob(Config):
    """List the shards of a family and put their accounts together.

    Attributes:
        shards: keys of those that it lists.
        allow_missing_shards: keys of those that it leaves out.
        counted: whether its shards account for every document.
        cut, sources: how the family, or what it is made from shard by shard, was cut from which raw sources, oldest first.
    """

    family: str
    shards: tuple[str, ...]
    allow_missing_shards: tuple[str, ...]
    counted: bool
    cut: FilterConfig | None = None
    sources: tuple[str, ...] = ()


class TokenizerJob(Config):
    """Train a tokenizer on filtered shards."""

    shards: tuple[str, ...]
    tokenizer: TokenizerConfig


class TokenizerFileJob(Config):
    """Adopt a tokenizer that a raw source holds."""

    raw: str
    tokenizer: TokenizerFile


class KmerTokenizerJob(Config):
    """Make a tokenizer of k-mers or single characters."""

    tokenizer: KmerConfig


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


class PublishedMixtureJob(MixtureJob):
    """Mix token caches as a commit of a published mix weighs them."""

    mixture: PublishedMixtureConfig


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
