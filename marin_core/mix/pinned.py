"""What a training takes from a commit: the weights of its phases, and whether the caches at hand are those that it describes."""

from collections.abc import Mapping
from pathlib import Path

from marin_core.artifact.canonical import digest
from marin_core.data.part import read_info
from marin_core.errors import DataError
from marin_core.mix.commit import Commit
from marin_core.report import Check, Scalar

AS_PUBLISHED = "as_published"


def phases_of(commit: Commit) -> list[tuple[str | int, dict[str, float]]]:
    """Start and weights of every phase, in order.

    Raises:
        DataError: the commit has no phases, or some that can't be read.
    """
    try:
        phases = [
            (phase["start"], {name: float(weight) for name, weight in phase["weights"].items()}) for phase in commit.content["phases"]
        ]
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise DataError(f"commit {commit.id} has no phases that can be read ({error})", advice="Pin another commit.") from error
    if not phases:
        raise DataError(f"commit {commit.id} has no phases", advice="Pin another commit.")
    return phases


def as_published(commit: Commit, parts: Mapping[str, Mapping[str, Path]]) -> Check:
    """Whether token caches are those that a commit describes, by the digests of their ids.

    Args:
        parts: domain → partition key (empty where the cache is no family) → folder of the part.
    """
    differing: dict[str, Scalar] = {}
    for name, folders in parts.items():
        published = commit.content.get("domains", {}).get(name, {}).get("cache_digest", "none")
        here = digest({key: read_info(folder).digest for key, folder in folders.items()})
        if here != published:
            differing[name] = f"{here} here, {published} published"
    return Check(AS_PUBLISHED, not differing, "the caches have the tokens that the commit describes", differing)
