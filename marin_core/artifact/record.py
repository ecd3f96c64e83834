"""The record of an artifact: written last, once, it *is* the commit."""

import hashlib
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from marin_core.artifact.canonical import digest, flatten
from marin_core.artifact.identity import ArtifactId


class _Document(BaseModel):
    """JSON that outlives the code that wrote it: unknown fields of a newer writer are ignored, never an error."""

    model_config = ConfigDict(frozen=True, extra="ignore")


class File(_Document):
    """One file of the payload; `path` is relative to the artifact's address."""

    path: str
    size: int
    sha256: str


class Input(_Document):
    """An input as it was read: which artifact, built from what, holding what."""

    name: str
    version: str
    partition: str | None = None
    fingerprint: str
    content_digest: str

    @property
    def id(self) -> ArtifactId:
        return ArtifactId(self.name, self.version, self.partition)


class CheckResult(_Document):
    """Result of a check that ran when the artifact was built."""

    name: str
    passed: bool
    description: str
    values: dict[str, int | float | str | bool] = {}


class Code(_Document):
    """The code that built it: git commit (None outside a checkout), whether the tree had changes, package versions."""

    git_commit: str | None = None
    dirty: bool | None = None
    packages: dict[str, str] = {}


class Environment(_Document):
    """Where it was built; says nothing that identifies a person or holds a secret."""

    python: str
    platform: str
    cpus: int


class Usage(_Document):
    """What building it cost, children included."""

    wall_seconds: float
    cpu_seconds: float
    peak_memory_bytes: int


class Record(_Document):
    """Everything that is known about a committed artifact (`.artifact/record.json`).

    `identity` is the document behind `fingerprint`: job, canonical config, dependency → fingerprint.
    """

    schema_version: Literal[1] = 1
    name: str
    version: str
    partition: str | None = None
    fingerprint: str
    identity: dict[str, Any]
    inputs: tuple[Input, ...] = ()
    files: tuple[File, ...]
    manifest_digest: str
    content_digest: str
    attempt: int
    code: Code
    environment: Environment
    started_at: str
    ended_at: str
    usage: Usage
    dagster_run_id: str | None = None
    metrics: dict[str, int | float | str | bool] = {}
    tables: dict[str, list[dict[str, int | float | str | bool]]] = {}
    plots: dict[str, str] = {}
    checks: tuple[CheckResult, ...] = ()
    links: dict[str, str] = {}

    @property
    def id(self) -> ArtifactId:
        return ArtifactId(self.name, self.version, self.partition)

    @property
    def size(self) -> int:
        """Bytes of the payload."""
        return sum(file.size for file in self.files)

    def as_input(self) -> Input:
        return Input(
            name=self.name,
            version=self.version,
            partition=self.partition,
            fingerprint=self.fingerprint,
            content_digest=self.content_digest,
        )


class Attempt(_Document):
    """One try at building an artifact (`.artifact/attempts/N.json`), kept whatever becomes of it.

    `job` is the launcher's name of the job, so that whoever looks next can attach to it.
    """

    number: int
    state: Literal["submitted", "succeeded", "failed", "lost"]
    job: str
    fingerprint: str
    submitted_at: str
    ended_at: str | None = None
    exit_code: int | None = None
    error: str | None = None
    log: str | None = None
    dagster_run_id: str | None = None


def manifest_digest(files: tuple[File, ...]) -> str:
    """Digest over path, size and checksum of every file, in path order."""
    return digest([[file.path, file.size, file.sha256] for file in sorted(files, key=lambda file: file.path)])


def file_sha256(path: Path) -> str:
    """Lower-case hex SHA-256 of a file, read as a stream."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def config_differences(recorded: dict[str, Any], declared: dict[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Dotted field → (recorded, declared) for every field of two identity documents that differs; dependencies excluded."""
    ours = flatten({key: recorded.get(key) for key in ("job", "config")})
    theirs = flatten({key: declared.get(key) for key in ("job", "config")})
    return {
        name.removeprefix("config."): (ours.get(name), theirs.get(name))
        for name in sorted(ours.keys() | theirs.keys())
        if name not in ours or name not in theirs or ours[name] != theirs[name]
    }
