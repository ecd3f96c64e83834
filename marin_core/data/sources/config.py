"""Where raw documents come from, and under which terms they may be used. Values only: this module imports nothing heavy."""

import re
from typing import Annotated, Literal, Self
from urllib.parse import urlsplit

from pydantic import Field, field_validator, model_validator

from marin_core.config import OPERATIONAL, Config
from marin_core.data.limits import GIB, KIB
from marin_core.data.sources.urls import checked_http_url, name_of, refuse_credentials

Policy = Literal["TRAINING_ALLOWED", "EVAL_ONLY", "BLOCKED"]
StdlibDomain = Literal["code", "docstrings", "topics", "html"]

DOMAIN_PATTERN = r"^[a-z0-9_]+$"
SHA256_PATTERN = r"^[0-9a-f]{64}$"
COMMIT_PATTERN = r"^[0-9a-f]{40}$"


def checked_pattern(pattern: str) -> str:
    """A glob over paths with `/`: `*` and `?` stay in one folder, `**` spans any number of them.

    Raises:
        ValueError: if it could leave the source.
    """
    if not pattern or pattern.startswith("/") or ".." in pattern.split("/"):
        raise ValueError("must be a relative glob without '..'")
    return pattern


class PythonStdlib(Config):
    """The corpus that is always there: the running interpreter's standard library."""

    kind: Literal["python_stdlib"] = "python_stdlib"
    domains: tuple[StdlibDomain, ...] = Field(default=("code", "docstrings", "topics"), min_length=1)
    """`html` = pydoc's pages of the public modules: 15 MB, and the only domain for which modules are imported (in a child process)."""
    unit_bytes: int = Field(default=256 * KIB, ge=4 * KIB, le=GIB)
    """Uncompressed size at which a unit is closed; a larger document has a unit of its own."""


class _Files(Config):
    """What every source of files says about them."""

    domain: str = Field(default="documents", pattern=DOMAIN_PATTERN)
    acquired: str | None = None
    """RFC 3339 time at which the files were obtained; becomes `added` of every document."""
    allow_eval_split: bool = False
    """Accept, for training, files whose path says test, validation or eval."""


class LocalFiles(_Files):
    """Files of any kind below a folder, taken as they are; what they hold is said where documents are made of them."""

    kind: Literal["local_files"] = "local_files"
    root: str = Field(min_length=1, json_schema_extra=OPERATIONAL)
    """A place, and no part of the identity: the files are, and a folder may move. Other files belong into a new version."""
    pattern: str = "**/*.jsonl*"

    _pattern = field_validator("pattern")(checked_pattern)


class HttpFile(Config):
    """One file of a web server. Its URL holds no user, password or signature: they come from `~/.netrc`."""

    url: str
    sha256: str | None = Field(default=None, pattern=SHA256_PATTERN)
    """What its bytes must be; None = recorded when they are first fetched."""
    name: str | None = Field(default=None, min_length=1)
    """What the file is called in this source; the last part of the URL when not given."""

    @field_validator("url")
    @classmethod
    def _is_public_knowledge(cls, url: str) -> str:
        return checked_http_url(url, "url")

    @model_validator(mode="after")
    def _has_a_name(self) -> Self:
        if not self.name and not name_of(self.url):
            raise ValueError("'name' must be given where the URL ends in a slash")
        return self

    @property
    def path(self) -> str:
        """What the file is called in its source."""
        return self.name or name_of(self.url)


class HttpFiles(_Files):
    """Files of web servers: given one by one, or by an index (a text file, plain or gzip, that names one file a line)."""

    kind: Literal["http_files"] = "http_files"
    files: tuple[HttpFile, ...] = ()
    index: HttpFile | None = None
    """As Common Crawl's `*.paths.gz`. Give its sha256, or another index at the same place makes another artifact."""
    base: str | None = None
    """URL that the lines of the index are relative to."""
    pattern: str = "**"
    """Which lines of the index: a glob over their paths below `base`."""
    allow_private: bool = Field(default=False, json_schema_extra=OPERATIONAL)
    """Talk to private, loopback and link-local addresses too. Otherwise a redirect could read what only this machine may see."""
    connections: int = Field(default=4, ge=1, le=64, json_schema_extra=OPERATIONAL)
    """Files fetched side by side."""

    _pattern = field_validator("pattern")(checked_pattern)

    @field_validator("base")
    @classmethod
    def _is_a_folder(cls, base: str | None) -> str | None:
        if base is not None and not urlsplit(checked_http_url(base, "base")).path.endswith("/"):
            raise ValueError("must end in a slash")
        return base

    @model_validator(mode="after")
    def _has_files_once(self) -> Self:
        if bool(self.files) == (self.index is not None) or (self.index is None) != (self.base is None):
            raise ValueError("give either 'files', or 'index' with 'base'")
        names = [file.path for file in self.files]
        if repeated := next((name for name in names if names.count(name) > 1), None) if len(set(names)) < len(names) else None:
            raise ValueError(f"'files' has two files named {repeated!r}; give one of them another 'name'")
        return self


class HubFiles(_Files):
    """Files of a repository on the Hugging Face Hub, at one commit; each is checked against the checksum that the Hub keeps."""

    kind: Literal["hub_files"] = "hub_files"
    repository: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*(/[A-Za-z0-9][A-Za-z0-9._-]*)?$")
    revision: str
    """Forty hexadecimal digits. A branch moves: `marin resolve hf:OWNER/NAME@BRANCH` prints its commit."""
    repository_type: Literal["dataset", "model"] = "dataset"
    patterns: tuple[str, ...] = Field(default=("**",), min_length=1)
    endpoint: str | None = Field(default=None, json_schema_extra=OPERATIONAL)
    """Another place that speaks the Hub's protocol, such as a mirror; else `HF_ENDPOINT` or huggingface.co."""
    allow_private: bool = Field(default=False, json_schema_extra=OPERATIONAL)
    """Talk to private, loopback and link-local addresses too, as a mirror in the own network needs."""
    connections: int = Field(default=4, ge=1, le=64, json_schema_extra=OPERATIONAL)
    """Files fetched side by side."""

    @field_validator("revision")
    @classmethod
    def _is_a_commit(cls, revision: str) -> str:
        if len(revision) != 40 or not set(revision) <= set("0123456789abcdef"):
            raise ValueError("must be a commit of 40 hexadecimal digits; `marin resolve hf:OWNER/NAME@BRANCH` prints that of a branch")
        return revision

    @field_validator("patterns")
    @classmethod
    def _stay_below_root(cls, patterns: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(checked_pattern(pattern) for pattern in patterns)

    @field_validator("endpoint")
    @classmethod
    def _is_http(cls, endpoint: str | None) -> str | None:
        return endpoint if endpoint is None else checked_http_url(endpoint, "endpoint").rstrip("/")


class BucketFiles(_Files):
    """Objects below a prefix of Google Cloud Storage or another fsspec store, listed once.

    On Google Cloud Storage the generation of each object is pinned by the listing, and its checksum verified.
    """

    kind: Literal["bucket_files"] = "bucket_files"
    prefix: str
    """`gs://bucket/folder` or another fsspec URL."""
    pattern: str = "**"
    connections: int = Field(default=4, ge=1, le=64, json_schema_extra=OPERATIONAL)
    """Objects fetched side by side."""

    _pattern = field_validator("pattern")(checked_pattern)

    @field_validator("prefix")
    @classmethod
    def _is_a_url(cls, prefix: str) -> str:
        refuse_credentials(prefix, "prefix")
        scheme, _, rest = prefix.partition("://")
        if not re.fullmatch(r"[a-z][a-z0-9+.-]*", scheme) or not rest.strip("/") or "::" in rest:
            raise ValueError("must be one fsspec URL such as gs://bucket/folder")
        if scheme in _OTHER_SOURCES:
            raise ValueError(f"{scheme} has a source of its own, which looks where it goes: use {_OTHER_SOURCES[scheme]}")
        return prefix.rstrip("/")


_OTHER_SOURCES = {"file": "LocalFiles", "local": "LocalFiles", "http": "HttpFiles", "https": "HttpFiles", "hf": "HubFiles"}

FileSource = LocalFiles | HttpFiles | HubFiles | BucketFiles
"""Sources whose units are files as found."""

Source = Annotated[PythonStdlib | FileSource, Field(discriminator="kind")]


class Terms(Config):
    """Other terms for some files of a source than for the rest."""

    pattern: str
    """A glob over the files' paths in the source."""
    license: str = Field(min_length=1)
    policy: Policy

    _pattern = field_validator("pattern")(checked_pattern)


class IngestConfig(Config):
    """One raw source artifact: bytes as found, and under which terms they may be used."""

    source: Source
    license: str = Field(min_length=1)
    policy: Policy
    name: str | None = Field(default=None, pattern=r"^[a-z0-9_]+(/[a-z0-9_]+)*$")
    """First part of every document's `source` column; `raw/<kind>` when not given."""
    terms: tuple[Terms, ...] = ()
    """Exceptions from license and policy; the first whose pattern matches holds. One that matches no file is an error."""

    @model_validator(mode="after")
    def _terms_are_of_files(self) -> Self:
        if self.terms and isinstance(self.source, PythonStdlib):
            raise ValueError("'terms' are of files, which python_stdlib has none of")
        return self
