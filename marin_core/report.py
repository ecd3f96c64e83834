"""What a job tells the world: progress while it works, and a report when it is done."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from marin_core.artifact.record import File, Record

Scalar = int | float | str | bool


class Reporter(Protocol):
    """Receives what a long piece of work says about itself. Calls are cheap and may be rate-limited by the receiver."""

    def log(self, message: str) -> None:
        """One line for people."""

    def progress(self, done: int, total: int, unit: str) -> None:
        """Work finished so far; rate and time left are derived by the receiver."""

    def metrics(self, values: Mapping[str, float], step: int) -> None:
        """Numbers at a training step or document count, for live plots."""

    def plots(self, files: Mapping[str, Path], step: int) -> None:
        """Pictures of work that goes on: name → PNG file, drawn after so many steps; a later call replaces them."""

    def alert(self, alert: Mapping[str, Any], *, raised: bool) -> None:
        """Something that people should know now, or that it is over: JSON values, `name`, `route`, `message` and `action` among them."""

    def stop_requested(self) -> bool:
        """True once the job has been asked to stop (SIGTERM); the worker saves and raises `PreemptedError`."""


class SilentReporter:
    """A `Reporter` for notebooks and tests: keeps nothing, never asks to stop."""

    def log(self, message: str) -> None: ...

    def progress(self, done: int, total: int, unit: str) -> None: ...

    def metrics(self, values: Mapping[str, float], step: int) -> None: ...

    def plots(self, files: Mapping[str, Path], step: int) -> None: ...

    def alert(self, alert: Mapping[str, Any], *, raised: bool) -> None: ...

    def stop_requested(self) -> bool:
        return False


@dataclass(frozen=True)
class Check:
    """A claim about an artifact that was tested when it was built."""

    name: str
    passed: bool
    description: str
    values: Mapping[str, Scalar] = field(default_factory=dict)


@dataclass(frozen=True)
class Adopted:
    """Files at a URL outside the store, with the manifest that fixes them."""

    url: str
    files: tuple[File, ...]


@dataclass(frozen=True)
class Report:
    """The closing report of a job; it goes into the record and from there into the Dagster UI.

    Attributes:
        metrics: numbers and short strings, plotted over partitions and materializations.
        tables: name → rows of equal columns.
        plots: name → PNG file inside the artifact.
        checks: results of the checks that the artifact's step declares.
        content_digest: lower-case hex digest of what the artifact *means*, where that is narrower than its bytes
            (token ids rather than compressed chunks); None = the digest of all its files.
        links: name → URL (W&B run, dashboards).
        adopted: a payload that lies elsewhere and stays there, instead of the job's output folder.
        linked: the record of an artifact that was made by the same work: this one is what that is, and nothing was computed.
    """

    metrics: Mapping[str, Scalar] = field(default_factory=dict)
    tables: Mapping[str, Sequence[Mapping[str, Scalar]]] = field(default_factory=dict)
    plots: Mapping[str, Path] = field(default_factory=dict)
    checks: Sequence[Check] = ()
    content_digest: str | None = None
    links: Mapping[str, str] = field(default_factory=dict)
    adopted: Adopted | None = None
    linked: Record | None = None

    def __post_init__(self) -> None:
        """Metrics, tables, plots and links share one page, where one name can stand for one thing only."""
        names = Counter((*self.metrics, *self.tables, *self.plots, *self.links))
        if twice := sorted(name for name, count in names.items() if count > 1):
            raise ValueError(f"{twice[0]!r} names two of a report's metrics, tables, plots and links")
