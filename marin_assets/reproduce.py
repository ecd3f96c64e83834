"""Reproducing an artifact: build it again from its recorded inputs at a shadow address, and keep the comparison."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime

from marin_assets.builder import Builder, BuildEvents, QuietEvents
from marin_assets.lab import Lab
from marin_core.artifact import ArtifactGraph, ArtifactId, Record, Store
from marin_core.artifact.drift import DriftFinder
from marin_core.artifact.record import config_differences
from marin_core.artifact.reproduction import Reproduction, compare, keep
from marin_core.errors import ConfigError

SHADOWS = ".reproductions"
"""Folder of shadow stores below the prefix."""


def reproduce(
    lab: Lab,
    graph: ArtifactGraph,
    artifact: ArtifactId,
    *,
    prefix: str | None = None,
    keep_shadow: bool = False,
    events: BuildEvents | None = None,
    dagster_run_id: str | None = None,
) -> Reproduction:
    """Rebuild a committed artifact with today's code and compare; the result is kept beside the artifact's record.

    Args:
        prefix: where to build the shadow, any folder or fsspec URL; None = a folder of its own below the store's prefix.
        keep_shadow: leave the shadow for inspection; else it is deleted after the comparison.

    Raises:
        ConfigError: it isn't committed, or was built with another configuration or other inputs than are there today.
        BuildError: the rebuild failed.
    """
    store = lab.store()
    step = graph[artifact]
    committed = store.record(artifact)
    if committed is None:
        raise ConfigError(f"{artifact} is not committed, so there is nothing to reproduce", advice="Materialize it first.")
    _refuse_changed_conditions(graph, store, committed)
    with _shadow(store, prefix, keep_shadow) as shadow:
        if shadow.record(artifact) is not None:
            raise ConfigError(f"{shadow.address(artifact)} holds an artifact already", advice="Choose an empty prefix for the shadow.")
        began = time.monotonic()
        builder = Builder(
            graph=graph,
            store=store,
            target=shadow,
            launcher=lab.open_launcher(shadow, inline=step.resources.inline),
            events=events or QuietEvents(),
            retries=lab.retries(),
            lease_seconds=lab.lease(),
            dagster_run_id=dagster_run_id,
        )
        rebuilt, _ = builder.build(step, artifact)
        code = [each.field for each in DriftFinder(graph, store).of(artifact) if each.kind == "code" and each.artifact == str(step.id)]
        result = compare(
            store,
            committed,
            shadow,
            rebuilt,
            code_changes=tuple(code),
            at=datetime.now(UTC).isoformat(),
            shadow_address=shadow.address(artifact),
            wall_seconds=round(time.monotonic() - began, 3),
            dagster_run_id=dagster_run_id,
        )
    keep(store, result)
    return result


@contextmanager
def _shadow(store: Store, prefix: str | None, keep_shadow: bool) -> Iterator[Store]:
    own = f"{SHADOWS}/{time.time_ns():x}"
    shadow = Store(prefix or f"{store.prefix}/{own}")
    try:
        yield shadow
    finally:
        if prefix is None and not keep_shadow:
            store.objects.delete_tree(own)


def _refuse_changed_conditions(graph: ArtifactGraph, store: Store, committed: Record) -> None:
    """A rebuild proves something only if configuration and inputs are the recorded ones; changed code is what it puts to the test.

    Raises:
        ConfigError: naming what was changed.
    """
    step = graph[committed.id]
    fields = config_differences(committed.identity, graph.identity(step), step.field_notes)
    changed = [f"{name}: {old} → {new}" for name, (old, new) in fields.items()]
    inputs = store.records([read.id for read in committed.inputs])
    for read in committed.inputs:
        found = inputs[read.id]
        if found is None:
            changed.append(f"input {read.id} is not committed any more")
        elif found.content_digest != read.content_digest:
            changed.append(f"input {read.id} holds {found.content_digest[:16]}, was read as {read.content_digest[:16]}")
    if changed:
        raise ConfigError(
            f"{committed.id} can't be reproduced as it was built: {'; '.join(changed)}",
            advice="Reproduce it from the experiment and the inputs of the time: check out commit "
            f"{committed.code.git_commit or '(not recorded)'}, or restore the inputs.",
        )
