"""The part of `marin gc` that is about published mixes: commit objects that were never published, and can't be any more."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from rich.console import Console

from marin_assets.cli.output import add_row, new_table, size, styled
from marin_assets.cli.targets import Declared
from marin_core.artifact import Store
from marin_core.errors import ConfigError, DataError, MarinError
from marin_core.mix.leftovers import KEEP_DAYS, Leftover, delete_leftovers, find_leftovers
from marin_core.mix.place import open_place


@dataclass(frozen=True)
class MixLeftovers:
    """What lies around in one declared mix.

    Attributes:
        problem: why nothing of it may be deleted, or what of it couldn't be.
        deleted: whether they are gone.
    """

    url: str
    leftovers: tuple[Leftover, ...] = ()
    problem: str | None = None
    deleted: bool = False

    @property
    def bytes(self) -> int:
        return sum(each.bytes for each in self.leftovers)

    def document(self) -> dict[str, Any]:
        """For `--json`."""
        commits = [{"path": each.path, "bytes": each.bytes, "written_at": each.written_at.isoformat()} for each in self.leftovers]
        return {"mix": self.url, "commits": commits, "problem": self.problem, "deleted": self.deleted}


def find(known: Declared, store: Store, now: datetime) -> list[MixLeftovers]:
    """Leftovers of every mix that an experiment declares; a damaged one is named and left alone.

    Raises:
        InfrastructureError: a mix's place doesn't answer.
    """
    urls = sorted({mix.url(store.prefix) for experiment in known.experiments.values() for mix in experiment.published})
    found = []
    for url in urls:
        try:
            found.append(MixLeftovers(url, tuple(find_leftovers(open_place(url), now))))
        except (ConfigError, DataError) as error:
            found.append(MixLeftovers(url, problem=error.message))
    return found


def delete(mixes: Sequence[MixLeftovers]) -> list[MixLeftovers]:
    """Delete what was found; what can't be is named and waits for the next cleanup."""
    gone = []
    for mix in mixes:
        try:
            delete_leftovers(open_place(mix.url), mix.leftovers)
            gone.append(replace(mix, deleted=bool(mix.leftovers)))
        except MarinError as error:
            gone.append(replace(mix, problem=error.message))
    return gone


def print_found(out: Console, mixes: Sequence[MixLeftovers]) -> None:
    """A row for each mix that has something to say."""
    telling = [mix for mix in mixes if mix.leftovers or mix.problem]
    if not telling:
        return
    table = new_table("commits that were never published", "mix", "commits", "size", "why")
    for mix in telling:
        reason = f"stays: {mix.problem}" if mix.problem else f"HEAD has passed them, and they are older than {KEEP_DAYS} days"
        add_row(table, mix.url, len(mix.leftovers), size(mix.bytes), reason)
    out.print(table)


def print_deleted(out: Console, mixes: Sequence[MixLeftovers]) -> None:
    """What became of them."""
    for mix in mixes:
        if mix.deleted:
            out.print(f"deleted commits of {mix.url}: {len(mix.leftovers)}, {size(mix.bytes)}")
        elif mix.problem:
            out.print(styled(f"kept commits of {mix.url}: {mix.problem}", "yellow"))
