"""Handles of what exists already, and of tables made from records alone."""

from collections.abc import Sequence
from dataclasses import replace

from marin_core.artifact.step import ArtifactStep, Resources, caller_outside_library
from marin_core.experiment.jobs import AdoptJob, SummaryJob


def adopted(
    name: str, version: str, at: str, *, digest: str | None = None, owner: str = "team:data", description: str = ""
) -> ArtifactStep:
    """Data that lies at a URL outside the store and stays there; its files are its identity, its place is not.

    Args:
        digest: manifest digest that the data must have (any beginning of it); None adopts whatever is there when it is materialized.
    """
    return ArtifactStep(
        name,
        version,
        job="adopt",
        build_config=lambda ctx: AdoptJob(at=at.rstrip("/"), digest=digest),
        owner=owner,
        description=description or f"Adopted from {at}.",
    )


def pinned(step: ArtifactStep, at: str) -> ArtifactStep:
    """The same artifact, but served from the address at which it was committed in another place instead of built.

    Args:
        at: its address there, such as `gs://other-lab/tokenized/web/v1`; of a family, without the partition.
    """
    return replace(step, pin=at.rstrip("/"), declared_at=caller_outside_library())


def summary(name: str, version: str, of: Sequence[ArtifactStep], *, metrics: Sequence[str] = ("*",), description: str = "") -> ArtifactStep:
    """A table with a row for each artifact and a column for each metric whose name matches; made from records in a moment."""
    deps = tuple(of)
    return ArtifactStep(
        name,
        version,
        job="summary",
        build_config=lambda ctx: SummaryJob(of=tuple(url for dep in deps for url in ctx.members(dep)), metrics=tuple(metrics)),
        deps=deps,
        resources=Resources(inline=True),
        kinds=("json",),
        description=description or f"Metrics of {len(deps)} artifacts side by side.",
    )
