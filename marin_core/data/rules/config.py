"""The rules that decide whether a document is kept. Values only: this module imports nothing heavy."""

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from marin_core.config import Config
from marin_core.data.decontaminate.config import DropContaminated
from marin_core.data.dedup.config import DropExactDuplicates, DropNearDuplicates, RemoveRepeatedParagraphs
from marin_core.data.limits import MIB
from marin_core.data.measures.config import (
    BadWordsMeasure,
    C4QualityMeasure,
    CodeQualityMeasure,
    FineWebQualityMeasure,
    GopherQualityMeasure,
    GopherRepetitionMeasure,
    LanguageMeasure,
    LengthMeasure,
    LicenseMeasure,
    PersonalDataMeasure,
    QualityMeasure,
    SecretsMeasure,
    UrlListsMeasure,
)


class MeasuredRule(Config):
    """A rule that decides from what one measure says; `measure` is that measure's configuration.

    Attributes:
        reasons: every reason it may give for dropping a document.
    """

    name: str
    measure: Any

    @property
    def attribute(self) -> str:
        """Name of the attribute that it decides from."""
        return str(self.measure.name)

    @property
    def reasons(self) -> tuple[str, ...]:
        raise NotImplementedError


class GopherQuality(MeasuredRule):
    """Gopher's quality rules (arXiv 2112.11446, table A1), as datatrove's block has them; a limit of 0 is none."""

    name: Literal["gopher_quality"] = "gopher_quality"
    measure: GopherQualityMeasure = GopherQualityMeasure()
    min_words: int = Field(default=50, ge=1)
    max_words: int = Field(default=100_000, ge=1)
    min_mean_word_length: float = Field(default=3.0, ge=0)
    max_mean_word_length: float = Field(default=10.0, ge=0)
    max_symbol_word_ratio: float = Field(default=0.1, ge=0)
    max_bullet_lines_ratio: float = Field(default=0.9, ge=0)
    max_ellipsis_lines_ratio: float = Field(default=0.3, ge=0)
    min_alpha_words_ratio: float = Field(default=0.8, ge=0)
    min_stop_words: int = Field(default=2, ge=0)

    @property
    def reasons(self) -> tuple[str, ...]:
        return (
            "gopher_short_doc",
            "gopher_long_doc",
            "gopher_below_avg_threshold",
            "gopher_above_avg_threshold",
            "gopher_too_many_hashes",
            "gopher_too_many_ellipsis",
            "gopher_too_many_bullets",
            "gopher_too_many_end_ellipsis",
            "gopher_below_alpha_threshold",
            "gopher_enough_stop_words",
        )


NGramLimits = tuple[tuple[int, Annotated[float, Field(ge=0)]], ...]


class GopherRepetition(MeasuredRule):
    """Gopher's repetition rules (arXiv 2112.11446, table A1), as datatrove's block has them; limits are shares of the text.

    A limit of 0 for lines and paragraphs is none.
    """

    name: Literal["gopher_repetition"] = "gopher_repetition"
    measure: GopherRepetitionMeasure = GopherRepetitionMeasure()
    max_duplicate_lines: float = Field(default=0.3, ge=0)
    max_duplicate_paragraphs: float = Field(default=0.3, ge=0)
    max_duplicate_line_characters: float = Field(default=0.2, ge=0)
    max_duplicate_paragraph_characters: float = Field(default=0.2, ge=0)
    max_top_n_grams: NGramLimits = ((2, 0.2), (3, 0.18), (4, 0.16))
    max_duplicate_n_grams: NGramLimits = ((5, 0.15), (6, 0.14), (7, 0.13), (8, 0.12), (9, 0.11), (10, 0.10))

    @model_validator(mode="after")
    def _every_size_is_measured(self) -> "GopherRepetition":
        for field, limits, measured in (
            ("max_top_n_grams", self.max_top_n_grams, self.measure.top_n_grams),
            ("max_duplicate_n_grams", self.max_duplicate_n_grams, self.measure.duplicate_n_grams),
        ):
            missing = sorted({size for size, _ in limits} - set(measured))
            if missing:
                raise ValueError(f"{field} limits n-grams of {missing}, its measure counts those of {sorted(measured)}")
        return self

    @property
    def reasons(self) -> tuple[str, ...]:
        return (
            "empty",
            "dup_para_frac",
            "dup_para_char_frac",
            "dup_line_frac",
            "dup_line_char_frac",
            *(f"top_{size}_gram" for size, _ in self.max_top_n_grams),
            *(f"duplicated_{size}_n_grams" for size, _ in self.max_duplicate_n_grams),
        )


class C4Quality(MeasuredRule):
    """C4's rules (Raffel et al., JMLR 21-140), as datatrove's block has them: lines are cut out, pages with too little left are dropped."""

    name: Literal["c4_quality"] = "c4_quality"
    measure: C4QualityMeasure = C4QualityMeasure()
    min_sentences: int = Field(default=5, ge=0)
    """Of the lines that stay."""
    drop_lorem_ipsum: bool = True
    drop_curly_brackets: bool = True
    cut: bool = True
    """Cut out the lines and citations that the measure marked; otherwise only whole pages are dropped."""

    @property
    def reasons(self) -> tuple[str, ...]:
        return ("lorem_ipsum", "curly_bracket", "too_few_sentences")


class FineWebQuality(MeasuredRule):
    """FineWeb's line rules (arXiv 2406.17557), as datatrove's block has them."""

    name: Literal["fineweb_quality"] = "fineweb_quality"
    measure: FineWebQualityMeasure = FineWebQualityMeasure()
    min_line_punctuation: float = Field(default=0.12, ge=0)
    max_short_lines: float = Field(default=0.67, ge=0)
    max_duplicate_characters: float = Field(default=0.01, ge=0)
    max_new_lines_per_word: float = Field(default=0.3, ge=0)

    @property
    def reasons(self) -> tuple[str, ...]:
        return ("empty", "line_punct_ratio", "short_line_ratio", "char_dup_ratio", "list_ratio")


class CodeQuality(MeasuredRule):
    """Rules for source code: minified and generated files, binaries and data tables are dropped."""

    name: Literal["code_quality"] = "code_quality"
    measure: CodeQualityMeasure = CodeQualityMeasure()
    max_mean_line_characters: float = Field(default=100.0, gt=0)
    max_line_characters: int = Field(default=1_000, ge=1)
    min_alphanumeric_share: float = Field(default=0.25, ge=0, le=1)
    max_bytes: int = Field(default=MIB, ge=1)

    @property
    def reasons(self) -> tuple[str, ...]:
        return ("binary", "minified", "generated", "data_file", "low_alphanumeric")


class MinCharacters(MeasuredRule):
    """Drops documents that are too short to learn from."""

    name: Literal["min_characters"] = "min_characters"
    measure: LengthMeasure = LengthMeasure()
    characters: int = Field(default=200, ge=1)

    @property
    def reasons(self) -> tuple[str, ...]:
        return ("too_short",)


class KeepLanguages(MeasuredRule):
    """Keeps documents in some languages. Short texts and source code pass: a label is all that can be said of them."""

    name: Literal["languages"] = "languages"
    measure: LanguageMeasure = LanguageMeasure()
    languages: tuple[Annotated[str, Field(pattern=r"[a-z]{2}")], ...] = Field(min_length=1)
    """ISO 639-1 codes."""
    min_score: float = Field(default=0.4, ge=0, le=1)
    """0.4 is the library's distance of 1,200, above which it calls results usually false."""
    min_letters: int = Field(default=300, ge=0)

    @property
    def reasons(self) -> tuple[str, ...]:
        return ("lang_other", "lang_low_score")


class MaskPersonalData(MeasuredRule):
    """Puts one fixed placeholder of each kind in the place of personal data, and drops documents that are full of it."""

    name: Literal["personal_data"] = "personal_data"
    measure: PersonalDataMeasure = PersonalDataMeasure()
    max_per_1000_words: float = Field(default=5.0, ge=0)
    """Shorter texts count as 1,000 words, so one address doesn't drop a short page."""

    @property
    def reasons(self) -> tuple[str, ...]:
        return ("pii_dense",)


class DropSecrets(MeasuredRule):
    """Drops files that hold a key, a token, or a random string that something is set to."""

    name: Literal["secrets"] = "secrets"
    measure: SecretsMeasure = SecretsMeasure()
    min_entropy: float = Field(default=4.5, ge=0, le=8)
    """Bits a character from which a string is random; hexadecimal digits have at most 4, base64 at most 6."""

    @property
    def reasons(self) -> tuple[str, ...]:
        return ("secret",)


class BadWords(MeasuredRule):
    """Drops documents in which listed words are dense. Never a random share of them: a decision depends on the document alone."""

    name: Literal["bad_words"] = "bad_words"
    measure: BadWordsMeasure = BadWordsMeasure()
    max_per_1000_words: float = Field(default=5.0, ge=0)

    @property
    def reasons(self) -> tuple[str, ...]:
        return ("bad_words",)


PERMISSIVE_LICENSES = (
    "0BSD",
    "Apache-2.0",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "BSL-1.0",
    "CC-BY-3.0",
    "CC-BY-4.0",
    "CC0-1.0",
    "ISC",
    "MIT",
    "MIT-0",
    "PSF-2.0",
    "Python-2.0",
    "Unlicense",
    "Zlib",
)


class AllowLicenses(MeasuredRule):
    """Keeps files under allowed licences. Of `A OR B` one must be allowed, of `A AND B` both; an exception (`WITH`) takes nothing away."""

    name: Literal["license"] = "license"
    measure: LicenseMeasure = LicenseMeasure()
    allowed: tuple[str, ...] = PERMISSIVE_LICENSES
    """SPDX identifiers, whatever their case."""
    unknown: Literal["drop", "keep"] = "drop"
    """What happens to files that nothing is known of."""

    @property
    def reasons(self) -> tuple[str, ...]:
        return ("license_denied", "license_unknown")


class BlockUrls(MeasuredRule):
    """Drops documents whose URL is listed, or has listed words in it. Documents without a URL pass."""

    name: Literal["urls"] = "urls"
    measure: UrlListsMeasure = UrlListsMeasure()
    max_soft_words: int = Field(default=1, ge=0)
    """Words that may mean something else; it takes more than these."""

    @property
    def reasons(self) -> tuple[str, ...]:
        return ("url_domain", "url_host", "url_exact", "url_words")


class MinQuality(MeasuredRule):
    """Keeps documents to which a classifier gives at least this score."""

    name: Literal["quality"] = "quality"
    measure: QualityMeasure = QualityMeasure()
    threshold: float = Field(default=0.5, ge=0, le=1)

    @property
    def reasons(self) -> tuple[str, ...]:
        return ("quality_below",)


FilterRule = Annotated[
    GopherQuality
    | GopherRepetition
    | C4Quality
    | FineWebQuality
    | CodeQuality
    | MinCharacters
    | KeepLanguages
    | MaskPersonalData
    | DropSecrets
    | BadWords
    | AllowLicenses
    | BlockUrls
    | MinQuality
    | DropExactDuplicates
    | DropNearDuplicates
    | RemoveRepeatedParagraphs
    | DropContaminated,
    Field(discriminator="name"),
]
