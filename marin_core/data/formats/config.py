"""What the units of a raw source hold, and how documents are made of it. Values only: this module imports nothing heavy."""

from typing import Annotated, Literal, Self

from pydantic import Field, field_validator, model_validator

from marin_core.config import Config
from marin_core.data.limits import GIB, MIB

METADATA_KEYS = ("url", "lang", "license", "origin_id", "title", "group")
"""What a record may say about itself in `metadata`; `unit` and `offset` are added by the reader (spec: data §1.1)."""
RECORD_KEYS = (*METADATA_KEYS, "created", "added")


class TextFormat(Config):
    """What may be done to a text before it gets its normal form. Never for code."""

    repair_mojibake: bool = False
    """Undo wrong decodings ("Ã¤" for "ä") with ftfy, in texts that aren't ASCII and show marks of it."""
    unicode: Literal["as_is", "nfc", "nfkc"] = "as_is"
    """Unicode normalisation; NFKC also folds compatibility characters, and with them meaning ("x²" becomes "x2")."""


class FromHtml(Config):
    """How a page becomes text."""

    to: Literal["text", "markdown"] = "text"
    main_content: bool = False
    """Leave out navigation, headers and footers; by rules, with resiliparse."""
    links: bool = False
    """Write the URL of a link behind its text."""
    cpu_seconds: float = Field(default=5.0, gt=0, le=600)
    """CPU time for one page; more is `extract_timeout`."""

    @model_validator(mode="after")
    def _main_content_is_text(self) -> Self:
        if self.main_content and self.to == "markdown":
            raise ValueError("main_content is only there for to='text': its result has no tables and no code blocks left")
        return self


class Archived(Config):
    """Units may be archives (tar, also compressed, and zip), recognised by their first bytes."""

    members: str = Field(default="*", min_length=1)
    """Glob over the names of members that are read; `*` also matches `/`."""
    max_members: int = Field(default=1_000_000, ge=1)
    max_expanded_bytes: int = Field(default=50 * GIB, ge=MIB)
    """An archive that exceeds either is an `archive_bomb`; so is one that expands beyond `Limits.bomb_ratio`, or holds archives that
    hold archives."""


class Jsonl(TextFormat, Archived):
    """JSON lines, one document a line, Dolma's field names by default: plain, gzip, zstd, bzip2 or xz."""

    kind: Literal["jsonl"] = "jsonl"
    text_field: str = Field(default="text", min_length=1)
    html_field: str | None = None
    """Field that holds a page; it is read instead of `text_field`."""
    html: FromHtml = FromHtml()
    fields: dict[str, str] = Field(default_factory=dict)
    """Metadata key → field of the record, for records that keep it beside the text: `{"url": "source_url"}`."""

    @field_validator("fields")
    @classmethod
    def _known_keys(cls, fields: dict[str, str]) -> dict[str, str]:
        return _known(fields)


class ParquetRows(TextFormat):
    """Parquet files, one document a row, read in pieces whatever the size of their row groups."""

    kind: Literal["parquet"] = "parquet"
    text_column: str = Field(default="text", min_length=1)
    html_column: str | None = None
    """Column that holds a page; it is read instead of `text_column`."""
    html: FromHtml = FromHtml()
    columns: dict[str, str] = Field(default_factory=dict)
    """Metadata key → column: `{"origin_id": "id", "url": "url"}`."""

    @field_validator("columns")
    @classmethod
    def _known_keys(cls, columns: dict[str, str]) -> dict[str, str]:
        return _known(columns)


class Warc(TextFormat):
    """WARC archives: pages (`response` records with status 200 and HTML)."""

    kind: Literal["warc"] = "warc"
    html: FromHtml = FromHtml()


class Wet(TextFormat):
    """WET archives: text that someone else took from pages (`conversion` records)."""

    kind: Literal["wet"] = "wet"


class WikipediaDump(TextFormat):
    """Dumps of a MediaWiki (`pages-articles`, XML, multistream bzip2 or plain): articles, without their markup."""

    kind: Literal["wikipedia"] = "wikipedia"
    cpu_seconds: float = Field(default=5.0, gt=0, le=600)
    """CPU time for parsing the markup of one page; beyond it the markup is stripped by simple patterns, which is counted."""


class HtmlFiles(TextFormat, Archived):
    """HTML files, one document a file."""

    kind: Literal["html"] = "html"
    html: FromHtml = FromHtml()


class PdfFiles(TextFormat, Archived):
    """PDF files with text in them, one document a file; scanned pages have none and are rejected."""

    kind: Literal["pdf"] = "pdf"
    members: str = "*.pdf"
    max_pages: int = Field(default=2_000, ge=1)
    min_characters_per_page: int = Field(default=20, ge=0)
    """A file with less text a page has no text layer worth reading (`pdf_no_text`)."""
    cpu_seconds: float = Field(default=20.0, gt=0, le=3_600)


class PlainText(TextFormat, Archived):
    """Text files in UTF-8, one document a file."""

    kind: Literal["plain_text"] = "plain_text"


class CodeTree(Archived):
    """Source code, one document a file: a checkout, or an archive of one. Only files of a known language are documents."""

    kind: Literal["code"] = "code"
    repository: str | None = None
    commit: str | None = Field(default=None, pattern=r"^[0-9a-f]{40}$")
    """With `repository` it makes `origin_id`: repository@commit:path."""
    skipped_folders: tuple[str, ...] = (
        ".git",
        ".hg",
        ".svn",
        ".tox",
        ".venv",
        "__pycache__",
        "bower_components",
        "build",
        "deps",
        "dist",
        "generated",
        "node_modules",
        "site-packages",
        "target",
        "third_party",
        "vendor",
        "vendored",
    )
    """Names of folders with vendored or generated files, at any depth."""

    @model_validator(mode="after")
    def _commit_of_a_repository(self) -> Self:
        if (self.repository is None) != (self.commit is None):
            raise ValueError("repository and commit say together where a file comes from: give both or none")
        return self


class Fasta(Archived):
    """FASTA: sequences of DNA, RNA or proteins, one document a window of a sequence."""

    kind: Literal["fasta"] = "fasta"
    window: int = Field(default=65_536, ge=16)
    """Residues of a document at most; a longer sequence is cut into windows, which follow each other without overlap."""
    uppercase: bool = False
    """Soft-masked residues (lower case: repeats) become upper case, as words of bases need it."""


Format = Annotated[
    Jsonl | ParquetRows | Warc | Wet | WikipediaDump | HtmlFiles | PdfFiles | PlainText | CodeTree | Fasta,
    Field(discriminator="kind"),
]


def _known(fields: dict[str, str]) -> dict[str, str]:
    if unknown := sorted(set(fields) - set(RECORD_KEYS)):
        raise ValueError(f"{unknown[0]!r} is not kept; metadata keys are {', '.join(RECORD_KEYS)}")
    return fields
