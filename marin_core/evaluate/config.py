"""What to evaluate and how. Imports nothing heavy, so that handles can be made without NumPy or lm-eval."""

from typing import Annotated, Final, Literal, Self

from pydantic import Field, StringConstraints, model_validator

from marin_core.config import OPERATIONAL, Config

TaskName = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9_]*$")]

PYTHON_NEXT_LINE: Final = "python_next_line"
DOC_CONTINUATION: Final = "doc_continuation"


class EvaluateConfig(Config):
    """Settings of one evaluation of one checkpoint.

    Attributes:
        tasks: names of the task set's lm-eval tasks to run; empty = bits per byte only.
        limit_documents: most held-out documents per domain, the first by id; None = all.
        limit_examples: most examples per task, the first of docs.jsonl; None = all.
        window_overlap: share of a window that re-reads the end of the previous one as context, for documents longer than
            the model's sequence length. 0 is fastest; a larger share gives each token more context.
        bootstrap_samples: resamples of the documents behind each confidence interval.
        seed: seed of the bootstrap and of the harness.
        batch_size: sequences in a batch; every batch has exactly so many rows.
        length_buckets: sequence lengths that batches are padded to; empty = powers of two up to the model's sequence length.
    """

    tasks: tuple[TaskName, ...] = (PYTHON_NEXT_LINE, DOC_CONTINUATION)
    limit_documents: int | None = Field(default=None, ge=1)
    limit_examples: int | None = Field(default=None, ge=2)
    window_overlap: float = Field(default=0.5, ge=0, le=0.9)
    bootstrap_samples: int = Field(default=1000, ge=100, le=100_000)
    seed: int = Field(default=0, ge=0, lt=2**32)
    batch_size: int = Field(default=16, ge=1, le=65_536, json_schema_extra={**OPERATIONAL})
    length_buckets: tuple[Annotated[int, Field(ge=2)], ...] = Field(default=(), json_schema_extra={**OPERATIONAL})

    @model_validator(mode="after")
    def _names_and_buckets_are_distinct(self) -> Self:
        if len(set(self.tasks)) != len(self.tasks):
            raise ValueError("a task is listed twice")
        if sorted(set(self.length_buckets)) != list(self.length_buckets):
            raise ValueError("length_buckets must rise")
        return self


class NgramConfig(Config):
    """Settings of the n-gram baseline; see `ngram.NgramModel` for the formula.

    Attributes:
        order: longest n-gram, in tokens. `order` × bits of a token id must not exceed 63.
        discount: absolute discount of every order; None = estimated per order from the training counts.
        limit_documents, window_overlap, bootstrap_samples, seed: as in `EvaluateConfig`; use the same values for both.
    """

    order: int = Field(default=3, ge=1, le=6)
    discount: float | None = Field(default=None, gt=0, lt=1)
    limit_documents: int | None = Field(default=None, ge=1)
    window_overlap: float = Field(default=0.5, ge=0, le=0.9)
    bootstrap_samples: int = Field(default=1000, ge=100, le=100_000)
    seed: int = Field(default=0, ge=0, lt=2**32)


class TaskSetConfig(Config):
    """Settings of the local multiple-choice tasks that are made from held-out documents.

    Attributes:
        tasks: which tasks to make.
        examples_per_task: most examples of a task.
        minimum_examples: fewer than this is an error, since the accuracy would say nothing.
        choices: answers per example, one of them true.
        context_characters: most characters of context before the answer.
        code_domains, prose_domains: domains (or first parts of them) that the two tasks draw from.
        seed: seed of every choice that is made.
    """

    tasks: tuple[Literal["python_next_line", "doc_continuation"], ...] = Field(default=(PYTHON_NEXT_LINE, DOC_CONTINUATION), min_length=1)
    examples_per_task: int = Field(default=200, ge=4, le=10_000)
    minimum_examples: int = Field(default=32, ge=2)
    choices: int = Field(default=4, ge=2, le=10)
    context_characters: int = Field(default=800, ge=100, le=100_000)
    code_domains: tuple[str, ...] = ("code",)
    prose_domains: tuple[str, ...] = ("prose",)
    seed: int = Field(default=0, ge=0, lt=2**32)

    @model_validator(mode="after")
    def _minimum_can_be_met(self) -> Self:
        if self.minimum_examples > self.examples_per_task:
            raise ValueError(f"minimum_examples {self.minimum_examples} is above examples_per_task {self.examples_per_task}")
        return self
