"""The record of an artifact: written last, once, it *is* the commit."""

import hashlib
import secrets
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from marin_core.artifact.canonical import FieldNotes, digest, value_differences
from marin_core.artifact.identity import ArtifactId


class _Document(BaseModel):
    """JSON that outlives the code that wrote it: unknown fields of a newer writer are ignored, never an error."""

    model_config = ConfigDict(frozen=True, extra="ignore")


class File(_Document):
    """One file of the payload; `path` is relative to the payload's folder.

    `stamp` is what the store knew about the file when it was committed (`FileState.stamp`): while it stays, the content does.
    It is no part of the manifest digest.
    """

    path: str
    size: int
    sha256: str
    stamp: str = ""


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
    """The code that built it: git commit (None outside a checkout), whether the tree had changes, package versions.

    `digest` is that of the code table (`CodeTable.digest`), which lies beside the claim of the attempt that built it; "" in records
    from before code was part of identity.
    """

    git_commit: str | None = None
    dirty: bool | None = None
    packages: dict[str, str] = {}
    digest: str = ""


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

    `identity` is the document behind `fingerprint`: job, canonical config, dependency → fingerprint. `payload` is the folder of
    the files: a path relative to the address ("" in records of before attempts had folders of their own), or the URL of a place
    outside the store from which it was adopted. `keep_days` is that of the step when it was built; None = for good.
    """

    schema_version: Literal[1] = 1
    name: str
    version: str
    partition: str | None = None
    fingerprint: str
    identity: dict[str, Any]
    inputs: tuple[Input, ...] = ()
    payload: str = ""
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
    keep_days: int | None = None
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


FailureClass = Literal["config", "data", "bug", "infrastructure", "preempted"]
"""Why an attempt ended without a commit; retries have a budget for each class."""


def failure_class(exit_code: int | None) -> FailureClass:
    """The class of an exit code; a process that was killed without a word is infrastructure."""
    known: dict[int | None, FailureClass] = {64: "config", 65: "data", 75: "infrastructure", 143: "preempted", -15: "preempted"}
    if exit_code is None or exit_code < 0:
        return known.get(exit_code, "infrastructure")
    return known.get(exit_code, "bug")


class Claim(_Document):
    """The beginning of an attempt (`.artifact/attempts/N/claim.json`), created by whoever was first.

    Its number is the fencing number: a higher one is claimed only after this attempt was closed, and a closed attempt can't commit.

    Attributes:
        job: the launcher's name of the job, so that whoever looks next can attach to it.
        host: machine whose launcher can see the job; elsewhere only the heartbeat tells whether it lives.
        token: differs between any two claims, so that a writer whose answer was lost can tell its own.
        reads: inputs (`str` of their ids), or the address of a pinned artifact; while the attempt is open, nobody may delete them.
    """

    number: int
    job: str
    fingerprint: str
    submitted_at: str
    host: str = ""
    token: str = Field(default_factory=lambda: secrets.token_hex(8))
    dagster_run_id: str | None = None
    reads: tuple[str, ...] = ()


class End(_Document):
    """The end of an attempt (`.artifact/attempts/N/end.json`), created once: by its job, or by whoever found the job dead.

    A success carries the record; publishing it is all that remains to be done, and anyone can do it.
    """

    state: Literal["succeeded", "failed", "lost"]
    ended_at: str
    failure: FailureClass | None = None
    exit_code: int | None = None
    error: str | None = None
    log: str | None = None
    usage: Usage | None = None
    record: Record | None = None


class Attempt(_Document):
    """One try at building an artifact, kept whatever becomes of it: its claim and, once it is over, its end."""

    claim: Claim
    end: End | None = None

    @property
    def number(self) -> int:
        return self.claim.number

    @property
    def state(self) -> Literal["open", "succeeded", "failed", "lost"]:
        return self.end.state if self.end else "open"

    @property
    def error(self) -> str | None:
        return self.end.error if self.end else None

    @property
    def exit_code(self) -> int | None:
        return self.end.exit_code if self.end else None


class FormerAttempt(_Document):
    """An attempt as it was kept before attempts had folders (`.artifact/attempts/N.json`). None of them is under way any more."""

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

    def as_attempt(self) -> Attempt:
        """The same, closed: its number is taken, and whoever builds next takes a higher one."""
        claim = Claim(
            number=self.number,
            job=self.job,
            fingerprint=self.fingerprint,
            submitted_at=self.submitted_at,
            token="",
            dagster_run_id=self.dagster_run_id,
        )
        open_then = self.state == "submitted"
        end = End(
            state="lost" if self.state == "submitted" else self.state,
            ended_at=self.ended_at or self.submitted_at,
            failure=None if self.state == "succeeded" else failure_class(self.exit_code),
            exit_code=self.exit_code,
            error="it was under way when attempts were kept in another form" if open_then else self.error,
            log=self.log,
        )
        return Attempt(claim=claim, end=end)


def manifest_digest(files: tuple[File, ...]) -> str:
    """Digest over path, size and checksum of every file, in path order."""
    return digest([[file.path, file.size, file.sha256] for file in sorted(files, key=lambda file: file.path)])


def file_sha256(path: Path) -> str:
    """Lower-case hex SHA-256 of a file, read as a stream."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def config_differences(recorded: dict[str, Any], declared: dict[str, Any], notes: FieldNotes) -> dict[str, tuple[str, str]]:
    """Dotted field → (recorded, declared) for every field of two identity documents that makes a difference; dependencies excluded."""
    found = value_differences(recorded.get("config"), declared.get("config"), notes)
    if recorded.get("job") != declared.get("job"):
        found["job"] = str(recorded.get("job")), str(declared.get("job"))
    return found
