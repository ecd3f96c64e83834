"""How repeated text is looked for, and what is done about it. Values only: this module imports nothing heavy."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from marin_core.config import Config

MAX_SIGNATURE_HASHES = 1_024


class NearDuplicates(Config):
    """Signatures of documents by MinHash (Broder 1997) with bands (Leskovec et al., Mining of Massive Datasets, §3.4).

    Two documents whose sets of n-grams have Jaccard similarity s share a band, and so are compared, with probability
    1 - (1 - s^rows)^bands: with the defaults 0.56 at 0.70, 0.77 at 0.75, 0.92 at 0.80 and 0.99 at 0.85.
    """

    kind: Literal["near_duplicates"] = "near_duplicates"
    words: Literal["folded_words_1"] = "folded_words_1"
    """Splitter: letters and digits without case; punctuation and layout don't matter."""
    ngram_words: int = Field(default=5, ge=1, le=32)
    """Documents with fewer words have no signature; they are found by their exact text alone."""
    bands: int = Field(default=14, ge=1)
    rows: int = Field(default=8, ge=1)
    seed: int = Field(default=0, ge=0)

    @model_validator(mode="after")
    def _bounded(self) -> Self:
        if self.bands * self.rows > MAX_SIGNATURE_HASHES:
            raise ValueError(f"bands × rows is {self.bands} × {self.rows}, at most {MAX_SIGNATURE_HASHES} hashes are made")
        return self

    def probability(self, similarity: float) -> float:
        """Of two documents with this Jaccard similarity to be compared."""
        return float(1 - (1 - similarity**self.rows) ** self.bands)


class ParagraphHashes(Config):
    """Hashes of paragraphs: what stands between blank lines, long enough to be more than a heading."""

    kind: Literal["paragraphs"] = "paragraphs"
    words: Literal["folded_words_1"] = "folded_words_1"
    min_characters: int = Field(default=200, ge=1)
    """After runs of white space were folded to one blank; shorter paragraphs may repeat."""


Signatures = Annotated[NearDuplicates | ParagraphHashes, Field(discriminator="kind")]


class DuplicatesConfig(Config):
    """One search over all shards of several families."""

    find: Literal["exact_duplicates", "near_duplicates", "repeated_paragraphs"]
    """Also the name of the attribute."""
    verify: bool = True
    """Whether the share of a document's n-grams that its keeper has is measured, by reading both texts (near duplicates only)."""


class DropExactDuplicates(Config):
    """Of equal texts all but one are dropped (reason `dup_of`)."""

    name: Literal["exact_duplicates"] = "exact_duplicates"

    @property
    def attribute(self) -> str:
        return "exact_duplicates"


class DropNearDuplicates(Config):
    """Of documents that are nearly the same all but the keeper are dropped (reason `near_dup`)."""

    name: Literal["near_duplicates"] = "near_duplicates"
    min_containment: float = Field(default=0.6, ge=0, le=1)
    """A document stays if less of it than this stands in its keeper: in a chain A~B~C, C may have little in common with A."""

    @property
    def attribute(self) -> str:
        return "near_duplicates"


class RemoveRepeatedParagraphs(Config):
    """Paragraphs that another document keeps are cut out; a document of which little is left is dropped (reason `paragraph_dup`)."""

    name: Literal["repeated_paragraphs"] = "repeated_paragraphs"
    min_words_left: int = Field(default=50, ge=0)

    @property
    def attribute(self) -> str:
        return "repeated_paragraphs"
