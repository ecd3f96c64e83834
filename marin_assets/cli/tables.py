"""The closing tables of `marin materialize` and `marin status`, read from the records alone."""

import re
from collections.abc import Mapping, Sequence

from rich.console import Console
from rich.table import Table

from marin_assets.cli.materialize import Outcome
from marin_assets.lab import default_prefix
from marin_core.artifact import ArtifactGraph, ArtifactId, ArtifactStep, Record, Store
from marin_core.artifact.drift import Difference, DriftFinder

SHOWN_METRICS = {
    "train": re.compile(r"(loss|load_cv)_(start|end)|drop_fraction_end|tokens_per_second"),
    "evaluate": re.compile(r"(baseline_)?bits_per_byte/total|.*/acc(_stderr)?"),
}
"""Metrics worth a line in the terminal, by job; of a family, its first and last partition are shown."""


def print_artifacts(console: Console, graph: ArtifactGraph, chosen: Sequence[ArtifactId], outcomes: Mapping[ArtifactId, Outcome]) -> None:
    """One row for each artifact or family: state, address, fingerprint, size, and the time it took to build."""
    store = Store(default_prefix())
    finder = DriftFinder(graph, store)
    table = Table(title="artifacts", title_justify="left")
    for column in ("artifact", "state", "fingerprint", "size", "build time", "address"):
        table.add_column(column, overflow="fold")
    drifted: list[tuple[ArtifactStep, Difference]] = []
    for step, members in _families(graph, chosen):
        records = [record for member in members if (record := finder.record(member)) is not None]
        differences = dict.fromkeys(each for record in records for each in finder.of(record.id))
        drifted.extend((step, each) for each in differences)
        table.add_row(
            str(step.id),
            _state(members, records, outcomes) + (", drifted" if differences else ""),
            ", ".join(sorted({record.fingerprint for record in records})) or graph.fingerprint(step),
            _size(sum(record.size for record in records)) if records else "-",
            f"{sum(record.usage.wall_seconds for record in records):.1f} s" if records else "-",
            store.address(step.id),
        )
    console.print(table)
    for step, each in drifted:
        where = "" if each.artifact == str(step.id) else f" of {each.artifact}"
        console.print(
            f"[yellow]drift[/yellow] {step.id}: {each.kind} {each.field}{where}: built with {each.recorded}, now {each.declared}",
            highlight=False,
        )


def print_findings(console: Console, graph: ArtifactGraph, chosen: Sequence[ArtifactId]) -> None:
    """What the training runs and evaluations among the artifacts found."""
    store = Store(default_prefix())
    table = Table("artifact", "measure", "value", title="findings", title_justify="left")
    for step, members in _families(graph, chosen):
        if step.job not in SHOWN_METRICS:
            continue
        records = [record for member in members if (record := store.record(member)) is not None]
        for record in records[:1] + records[1:][-1:]:
            _add_metrics(table, step, record)
    if table.row_count:
        console.print(table)


def _add_metrics(table: Table, step: ArtifactStep, record: Record) -> None:
    for name, value in record.metrics.items():
        if SHOWN_METRICS[step.job].fullmatch(name):
            table.add_row(str(record.id), name, f"{value:.4f}" if isinstance(value, float) else str(value))


def _families(graph: ArtifactGraph, chosen: Sequence[ArtifactId]) -> list[tuple[ArtifactStep, list[ArtifactId]]]:
    members: dict[ArtifactId, list[ArtifactId]] = {}
    for artifact in chosen:
        members.setdefault(artifact.family, []).append(artifact)
    return [(graph[family], artifacts) for family, artifacts in members.items()]


def _state(members: Sequence[ArtifactId], records: Sequence[Record], outcomes: Mapping[ArtifactId, Outcome]) -> str:
    if not outcomes:
        return "built" if len(records) == len(members) else f"{len(records)}/{len(members)} built"
    counts: dict[str, int] = {}
    for member in members:
        counts[outcomes[member].state] = counts.get(outcomes[member].state, 0) + 1
    return ", ".join(state if len(members) == 1 else f"{count} {state}" for state, count in counts.items())


def _size(size: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} TB"
