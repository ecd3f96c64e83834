"""Which text of an evaluation is looked for, and what is done with documents that hold it. Values only: nothing heavy is imported."""

from typing import Annotated, Literal, Self

from pydantic import Field, StringConstraints, model_validator

from marin_core.config import Config

NOTED_OVERLAP = 0.2
"""Smallest share of an example that is noted; what a rule asks for is at least this."""
CONTAMINATED_OVERLAP = 0.5
MIN_GRAMS = 3
"""N-grams of an example that a document has at least, or all of them where the example has fewer."""

EvalName = Annotated[str, StringConstraints(pattern=r"^[a-z0-9_]+$")]


class ExampleFields(Config):
    """Fields of the records of an evaluation."""

    question: str = "question"
    """Text; every record has it."""
    choices: str | None = "choices"
    """A list of texts, or an object with a list `text`; may be missing."""
    answer: str | None = "answer"
    """Text, or the number of a choice (from 0), or its letter; may be missing."""
    id: str | None = "id"
    """What the example is called; without it, file and line."""


class ContaminationIndexConfig(Config):
    """N-grams of examples (GPT-3's decontamination, arXiv 2005.14165 appendix C, takes 13 words too)."""

    words: Literal["folded_words_1"] = "folded_words_1"
    ngram_words: int = Field(default=13, ge=2, le=64)
    min_words: int = Field(default=8, ge=2)
    """An example with fewer words than an n-gram is looked for as a whole; with fewer than this it is listed as too short."""
    fields: dict[EvalName, ExampleFields] = Field(default_factory=dict)
    """Of evaluations whose records use other names."""

    @model_validator(mode="after")
    def _short_is_shorter(self) -> Self:
        if self.min_words > self.ngram_words:
            raise ValueError(f"min_words is {self.min_words}, more than ngram_words = {self.ngram_words}")
        return self


class DropContaminated(Config):
    """Documents that hold an example of an evaluation are dropped (reason `contaminated`), or only marked."""

    name: Literal["contamination"] = "contamination"
    min_overlap: float = Field(default=CONTAMINATED_OVERLAP, ge=NOTED_OVERLAP, le=1)
    """Share of an example's n-grams that the document has."""
    evals: tuple[EvalName, ...] = ()
    """Evaluations that count; empty = all of the index."""
    action: Literal["drop", "mark"] = "drop"

    @property
    def attribute(self) -> str:
        return "contamination"


def clean_check(name: str) -> str:
    """Name of the check that says whether text of an evaluation was found."""
    return f"clean_of_{name}"
