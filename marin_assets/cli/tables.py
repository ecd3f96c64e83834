"""The closing tables of `marin materialize`, read from the records alone."""

import re
from collections.abc import Mapping, Sequence

from rich.console import Console

from marin_assets.cli.output import Sheet, duration, size
from marin_assets.cli.plan import print_differences
from marin_assets.cli.runs import Outcome
from marin_assets.cli.targets import open_store
from marin_core.artifact import ArtifactGraph, ArtifactId, ArtifactStep, Record
from marin_core.artifact.drift import DriftFinder
from marin_core.artifact.plan import by_step

SHOWN_METRICS = {
    "train": re.compile(r"(loss|load_cv)_(start|end)|drop_fraction_end|tokens_per_second"),
    "evaluate": re.compile(r"(baseline_)?bits_per_byte/total|.*/acc(_stderr)?"),
}
"""Metrics worth a line in the terminal, by job; of a family, its first and last partition are shown."""


def print_artifacts(out: Console, graph: ArtifactGraph, chosen: Sequence[ArtifactId], outcomes: Mapping[ArtifactId, Outcome]) -> None:
    """One row for each artifact or family: state, address, fingerprint, size, and the time it took to build; then all drift."""
    store = open_store()
    finder = DriftFinder(graph, store)
    finder.records(chosen)
    sheet = Sheet("artifacts", "artifact", "state", "fingerprint", "size", "build time", "address")
    steps = by_step(graph, chosen)
    for step, members in steps:
        records = [record for record in finder.records(members).values() if record is not None]
        drifted = any(finder.own(record.id) or finder.drifted_inputs(record.id) for record in records)
        sheet.add(
            step.id,
            _state(members, outcomes) + (", drifted" if drifted else ""),
            ", ".join(sorted({record.fingerprint for record in records})) or graph.fingerprint(step),
            size(sum(record.size for record in records)) if records else "-",
            duration(sum(record.usage.wall_seconds for record in records)) if records else "-",
            store.address(step.id),
        )
    out.print(sheet)
    for step, members in steps:
        print_differences(out, str(step.id), list(dict.fromkeys(each for member in members for each in finder.own(member))))


def print_findings(out: Console, graph: ArtifactGraph, chosen: Sequence[ArtifactId]) -> None:
    """What the training runs and evaluations among the artifacts found."""
    store = open_store()
    sheet = Sheet("findings", "artifact", "measure", "value")
    for step, members in by_step(graph, chosen):
        if step.job not in SHOWN_METRICS:
            continue
        records = [record for record in store.records(members).values() if record is not None]
        for record in records[:1] + records[1:][-1:]:
            _add_metrics(sheet, step, record)
    if len(sheet):
        out.print(sheet)


def _add_metrics(sheet: Sheet, step: ArtifactStep, record: Record) -> None:
    for name, value in record.metrics.items():
        if SHOWN_METRICS[step.job].fullmatch(name):
            sheet.add(record.id, name, f"{value:.4f}" if isinstance(value, float) else value)


def _state(members: Sequence[ArtifactId], outcomes: Mapping[ArtifactId, Outcome]) -> str:
    counts: dict[str, int] = {}
    for member in members:
        counts[outcomes[member].state] = counts.get(outcomes[member].state, 0) + 1
    return ", ".join(state if len(members) == 1 else f"{count} {state}" for state, count in counts.items())
