"""A record as Dagster metadata and check results. Everything shown comes from the record, so a served artifact looks like a built one."""

import base64
import html
import math
import re
from collections.abc import Sequence

import dagster as dg

from marin_assets.keys import asset_key
from marin_core.artifact import ArtifactId, ArtifactStep, Record, Store
from marin_core.artifact.canonical import FINGERPRINT_DIGITS, digest
from marin_core.artifact.drift import Difference
from marin_core.artifact.reproduction import Reproduction
from marin_core.report import Scalar

DRIFT = "drift"
REPRODUCED = "reproduced"
DATA_VERSION_DIGITS = 16
TABLE_ROWS = 500
"""Rows of a list that may be long; its count is shown beside it."""

PLOT_LIMIT_BYTES = 100_000
"""A plot lies in the event-log row; a larger one stays in the artifact and only its path is shown."""


def data_version(record: Record) -> dg.DataVersion:
    """The content, so that a rebuild with equal content leaves everything downstream in sync."""
    return dg.DataVersion(record.content_digest[:DATA_VERSION_DIGITS])


def materialization_metadata(record: Record, store: Store, *, reused: bool) -> dict[str, dg.MetadataValue]:
    """What the asset's page shows of a materialization."""
    shown: dict[str, dg.MetadataValue] = {
        "artifact": dg.MetadataValue.text(str(record.id)),
        "address": dg.MetadataValue.path(store.address(record.id)),
        "payload": dg.MetadataValue.path(store.payload_url(record)),
        "fingerprint": dg.MetadataValue.text(record.fingerprint),
        "content_digest": dg.MetadataValue.text(record.content_digest),
        "reused": dg.MetadataValue.bool(reused),
        "size_bytes": dg.MetadataValue.int(record.size),
        "files": dg.MetadataValue.int(len(record.files)),
        "attempt": dg.MetadataValue.int(record.attempt),
        "wall_seconds": dg.MetadataValue.float(record.usage.wall_seconds),
        "cpu_seconds": dg.MetadataValue.float(record.usage.cpu_seconds),
        "peak_memory_bytes": dg.MetadataValue.int(record.usage.peak_memory_bytes),
        "git_commit": dg.MetadataValue.text(f"{record.code.git_commit}{' with changes' if record.code.dirty else ''}"),
    }
    if record.dagster_run_id:
        shown["built_by_run"] = dg.MetadataValue.dagster_run(record.dagster_run_id)
    for name, value in record.metrics.items():
        shown[name] = scalar(value)
    for name, rows in record.tables.items():
        if rows:
            shown[name] = table(rows)
    for name, path in record.plots.items():
        shown[name] = _plot(store.read_payload(record, path), name, f"{store.payload_url(record)}/{path}")
    for name, url in record.links.items():
        shown[name] = dg.MetadataValue.url(url)
    return shown


def provenance(record: Record, step: ArtifactStep, drift: Sequence[Difference], code_version: str) -> dict[str, str]:
    """Dagster's own record of what a materialization came from, as it was when the artifact was built and not as it is while it is served.

    So an artifact in drift stays "unsynced" however often it is served, and one that isn't becomes synced. That tags of a result
    win over Dagster's is no documented behaviour; a test holds it.

    Args:
        code_version: today's.
    """
    changed = {each.kind for each in drift}
    built_with = f"built-{digest([record.fingerprint, record.code.digest])[:FINGERPRINT_DIGITS]}"
    tags = {"dagster/code_version": built_with if changed & {"config", "code"} else code_version}
    stale = {ArtifactId.parse(each.field).family for each in drift if each.kind == "data" and each.artifact == str(record.id)}
    for read in record.inputs:
        key = asset_key(read.id.family).to_user_string()
        if read.partition is None:
            tags[f"dagster/input_data_version/{key}"] = read.content_digest[:DATA_VERSION_DIGITS]
        elif read.id.family in stale:  # of partitions Dagster compares no versions but positions in its event log: this one is too old
            tags[f"dagster/input_event_pointer/{key}"] = "-1"
    return tags


def check_results(
    step: ArtifactStep, record: Record, drift: Sequence[Difference], reproduction: Reproduction | None
) -> list[dg.AssetCheckResult]:
    """The drift check, every check that the step declares, of which one that the build did not report has failed, and the newest proof of
    reproduction, if there is one."""
    results = [_drift_result(step, drift)]
    if reproduction is not None:
        results.append(reproduction_result(reproduction))
    reported = {check.name: check for check in record.checks}
    for declared in step.checks:
        severity = dg.AssetCheckSeverity.ERROR if declared.blocking else dg.AssetCheckSeverity.WARN
        found = reported.get(declared.name)
        if found is None:
            results.append(dg.AssetCheckResult(check_name=declared.name, passed=False, severity=severity, description="not reported"))
            continue
        results.append(
            dg.AssetCheckResult(
                check_name=found.name,
                passed=found.passed,
                severity=severity,
                description=html.escape(found.description),
                metadata={name: scalar(value) for name, value in found.values.items()},
            )
        )
    return results


def reproduction_result(reproduction: Reproduction) -> dg.AssetCheckResult:
    """What a rebuild showed, as a check on the artifact."""
    shown: dict[str, dg.MetadataValue] = {
        "verdict": dg.MetadataValue.text(reproduction.verdict),
        "files": dg.MetadataValue.int(reproduction.files),
        "files_equal": dg.MetadataValue.int(reproduction.files - len(reproduction.differing_files)),
        "recorded_digest": dg.MetadataValue.text(reproduction.recorded_digest),
        "reproduced_digest": dg.MetadataValue.text(reproduction.reproduced_digest),
        "tried_at": dg.MetadataValue.text(reproduction.at),
        "wall_seconds": dg.MetadataValue.float(reproduction.wall_seconds),
    }
    if reproduction.curve_rows is not None:
        shown["curve_rows"] = dg.MetadataValue.int(reproduction.curve_rows)
    lists = {
        "differing_files": reproduction.differing_files,
        "differing_tables": reproduction.differing_tables,
        "code_changes": reproduction.code_changes,
        "environment_changes": reproduction.environment_changes,
    }
    shown |= {name: table([{"name": each} for each in values[:TABLE_ROWS]]) for name, values in lists.items() if values}
    return dg.AssetCheckResult(
        check_name=REPRODUCED,
        passed=reproduction.passed,
        severity=dg.AssetCheckSeverity.WARN,
        description=html.escape(reproduction.summary),
        metadata=shown,
    )


def _drift_result(step: ArtifactStep, drift: Sequence[Difference]) -> dg.AssetCheckResult:
    if not drift:
        return dg.AssetCheckResult(check_name=DRIFT, passed=True, description="built as declared")
    fields = ", ".join(f"{each.artifact} {each.field}" for each in drift[:5])
    rows: list[dict[str, Scalar]] = [
        {"kind": each.kind, "artifact": each.artifact, "field": each.field, "recorded": each.recorded, "declared": each.declared}
        for each in drift[:TABLE_ROWS]
    ]
    return dg.AssetCheckResult(
        check_name=DRIFT,
        passed=False,
        severity=dg.AssetCheckSeverity.ERROR if step.on_drift == "fail" else dg.AssetCheckSeverity.WARN,
        description=html.escape(f"served as it was built; since then changed: {fields}"),
        metadata={"differences": table(rows), "difference_count": dg.MetadataValue.int(len(drift))},
    )


def table(rows: Sequence[dict[str, Scalar]]) -> dg.TableMetadataValue:
    """Rows of text and numbers as an inline table; text is escaped, since it may come from data.

    Columns of text come first, as they say what a row is about; records keep no order of names.
    """
    named = list(dict.fromkeys(name for row in rows for name in row))
    columns = sorted(named, key=lambda name: _column_type(rows, name) != "string")
    escaped = [{name: _cell(row.get(name, "")) for name in columns} for row in rows]
    return dg.MetadataValue.table(
        records=[dg.TableRecord(row) for row in escaped],
        schema=dg.TableSchema(columns=[dg.TableColumn(name, _column_type(rows, name)) for name in columns]),
    )


def _cell(value: Scalar) -> Scalar:
    return html.escape(value) if isinstance(value, str) else value


def _column_type(rows: Sequence[dict[str, Scalar]], name: str) -> str:
    kinds = {type(row[name]) for row in rows if name in row}
    return {bool: "bool", int: "int", float: "float"}.get(kinds.pop(), "string") if len(kinds) == 1 else "string"


def scalar(value: Scalar) -> dg.MetadataValue:
    """A number, which the UI plots, or text. A number that isn't finite is text: GraphQL has none, and the whole page would fail."""
    if isinstance(value, bool):
        return dg.MetadataValue.bool(value)
    if isinstance(value, int):
        return dg.MetadataValue.int(value)
    if isinstance(value, float) and math.isfinite(value):
        return dg.MetadataValue.float(value)
    return dg.MetadataValue.text(str(value))


def picture(png: bytes, name: str) -> str:
    """Markdown that holds a picture itself. Its name comes from a job, so nothing in it may be Markdown or HTML."""
    return f"![{re.sub(r'[^A-Za-z0-9_ .-]', '_', name)}](data:image/png;base64,{base64.b64encode(png).decode()})"


def _plot(png: bytes, name: str, address: str) -> dg.MetadataValue:
    return dg.MetadataValue.path(address) if len(png) > PLOT_LIMIT_BYTES else dg.MetadataValue.md(picture(png, name))
