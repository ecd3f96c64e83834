"""Looking at artifacts by turns: so many at a tick, the next ones at the next, so that a tick takes as long in a lab of any size."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from marin_core.artifact import ArtifactId, Store

SCANNED = 10_000
"""Artifacts at a tick whose records are looked for."""

SCANNED_REMOTE = 2_000
"""The same where each look is a request to a bucket: Dagster gives up a tick after a minute."""

LOOKED_AT = 200
"""Artifacts at a tick whose attempts are read."""


@dataclass(frozen=True)
class Turn:
    """The artifacts whose turn it is.

    Attributes:
        artifacts: in order, beginning where the last turn ended.
        following: where the next turn begins, if everything in this one was dealt with.
    """

    artifacts: tuple[ArtifactId, ...]
    following: str

    @classmethod
    def of(cls, store: Store, members: Sequence[ArtifactId], begin: str | None) -> Self:
        """So many of the members as one tick can look at.

        Args:
            begin: where this turn begins, as text; one that is no member any more, or none, means the first.
        """
        start = next((position for position, artifact in enumerate(members) if str(artifact) == begin), 0) if begin else 0
        size = min(SCANNED if store.is_local else SCANNED_REMOTE, len(members))
        turned = [*members[start : start + size], *members[: max(0, start + size - len(members))]]
        return cls(tuple(turned), str(members[(start + size) % len(members)]) if members else "")
