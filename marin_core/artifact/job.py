"""The job spec: the one document from which a job process builds one artifact."""

from typing import Any, Literal

from pydantic import Field

from marin_core.artifact.identity import ArtifactId
from marin_core.artifact.record import Input
from marin_core.config import Config

RESUMED_JOBS = ("ingest", "train")
"""Jobs of which a later attempt goes on with what an earlier one left: their modules have a `carry_over`. With a store elsewhere an
attempt's output therefore stays on its machine until a later one has taken it over; that of a module with `MIRRORED` is in the store,
too."""


class JobSpec(Config):
    """What `python -m marin_jobs <spec URI>` reads.

    Attributes:
        job: module of `marin_jobs` to run.
        prefix: store prefix; the artifact is built at `{prefix}/{name}/{version}[/{partition}]`.
        config: the job's configuration at this place.
        identity: the document behind `fingerprint` (see `Record.identity`).
        inputs: committed inputs as the launcher found them; the job refuses inputs that changed since.
        attempt: number of this try, from 1; the fencing number of its lease.
        output_prefix: prefix below which the artifact is built, where that isn't `prefix`: a reproduction at a shadow address.
        lease_seconds: silence after which other builders may take over.
        scratch: folder of this job on the machine that runs it.
        base: version of the family that this one continues; its member of the same key is an input if it is committed.
        keep_days: how long the artifact is kept (see `ArtifactStep`); None = for good.
        processes, devices_per_process: the gang that builds it (see `Resources`).
    """

    schema_version: Literal[1] = 1
    name: str
    version: str
    partition: str | None
    job: str
    prefix: str
    config: dict[str, Any]
    fingerprint: str
    identity: dict[str, Any]
    inputs: tuple[Input, ...]
    attempt: int
    scratch: str
    output_prefix: str | None = None
    lease_seconds: float = 60.0
    dagster_run_id: str | None = None
    keep_days: int | None = None
    base: str | None = None
    processes: int = Field(default=1, ge=1)
    devices_per_process: int | None = Field(default=None, ge=1)

    @property
    def id(self) -> ArtifactId:
        return ArtifactId(self.name, self.version, self.partition)

    @property
    def base_member(self) -> ArtifactId | None:
        """What this artifact may be linked to, whether or not it is committed."""
        return None if self.base is None else ArtifactId(self.name, self.base, self.partition)
