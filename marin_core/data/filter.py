"""Make one filtered shard: normal form, exact dedup inside the shard, the rules, and a row for everything that didn't arrive."""

import hashlib
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow.parquet as pq

from marin_core.artifact.canonical import canonical_json
from marin_core.data.config import FilterConfig
from marin_core.data.documents import Document, Rejection, UnitReader, sample_of
from marin_core.data.files import write_json
from marin_core.data.rules import Rule, make_rules
from marin_core.data.shard import (
    SCHEMA_VERSION,
    DroppedRows,
    RejectedFile,
    count_rejected,
    part_name,
    write_part,
)
from marin_core.data.units import Unit, assign_units, read_units, shard_index, units_digest_input
from marin_core.errors import ConfigError, DataError, MarinError, PreemptedError
from marin_core.report import Check, Report, Reporter, Scalar

STAGE = "filter"
MAX_ERROR_SHARE = 0.01
REPORT_SAMPLES = 3


@dataclass
class _Shard:
    """What has been read and decided so far."""

    kept: dict[str, Document] = field(default_factory=dict)
    seen: set[str] = field(default_factory=set)
    documents_in: int = 0
    bytes_in: int = 0
    kept_bytes: int = 0
    errors: Counter[str] = field(default_factory=Counter)


def filter_shard(config: FilterConfig, raw: Path, shard: str, output: Path, reporter: Reporter) -> Report:
    """Read this shard's units of a raw source and write what is kept, what is dropped and what is rejected.

    Writes `part-NNNNN-of-MMMMM.parquet`, `dropped/….parquet`, `rejected/….jsonl.zst` and `counts.json`. The same input gives the
    same bytes: nothing depends on time, place, order of listing or number of workers.

    Args:
        raw: folder of the raw source artifact.
        shard: partition key `NNNNN`.

    Raises:
        ConfigError: if there are more shards than units, an unknown domain or shard, or too much text for one shard.
        DataError: if a unit is missing, damaged or cut short, or all of them are empty.
        MarinError: (exit code 70) if rules raise on more than 1 % of the documents.
    """
    source = read_units(raw)
    units = assign_units(source.in_domains(config.domains), config.shards)[shard_index(shard, config.shards)]
    name = part_name(int(shard), config.shards)
    notes: Counter[str] = Counter()
    reader = UnitReader(raw, source.name, config.limits, config.on_truncated, notes)
    rules = make_rules(config.filters)
    state = _Shard()
    dropped = DroppedRows(STAGE)
    output.mkdir(parents=True, exist_ok=True)
    with RejectedFile(output / "rejected" / f"{name}.jsonl.zst", STAGE) as rejected:
        for done, unit in enumerate(units):
            if reporter.stop_requested():
                raise PreemptedError(f"filtering of shard {shard} was asked to stop", advice="Start it again; it begins anew.")
            for record in reader.read(unit):
                _take(record, rules, state, dropped, rejected, config)
            reporter.progress(done + 1, len(units), "units")
    _refuse_failure(state, notes, units, shard)
    documents = list(state.kept.values())
    write_part(output / f"{name}.parquet", documents, _footer(config, units))
    dropped.write(output / "dropped" / f"{name}.parquet")
    counts = {
        "documents_in": state.documents_in,
        "bytes_in": state.bytes_in,
        "units": len(units),
        "kept": len(documents),
        "kept_bytes": state.kept_bytes,
        "dropped": dict(dropped.counts),
        "rejected": dict(rejected.counts),
        "notes": dict(notes),
    }
    write_json(output / "counts.json", counts)
    return Report(
        metrics=_metrics(state, dropped, rejected, notes),
        tables={"reasons": _reasons(state, dropped, rejected), "samples": _samples(documents, dropped)},
        checks=[_counts_add_up(output, name, state.documents_in)],
        content_digest=_content_digest(documents),
    )


def _take(
    record: Document | Rejection,
    rules: Sequence[Rule],
    state: _Shard,
    dropped: DroppedRows,
    rejected: RejectedFile,
    config: FilterConfig,
) -> None:
    """Decide on one record; it ends up in exactly one place."""
    state.documents_in += 1
    if isinstance(record, Rejection):
        rejected.write(record)
        return
    state.bytes_in += record.bytes
    if record.id in state.seen:
        dropped.add(record, "dup_in_shard")
        return
    state.seen.add(record.id)
    for rule in rules:
        try:
            reason = rule.decide(record.text)
        except Exception as error:
            rejection = _rule_error(record, f"error:{rule.name}:{type(error).__name__}", str(error))
            state.errors[rejection.reason] += 1
            rejected.write(rejection)
            return
        if reason is not None:
            dropped.add(record, reason)
            return
    state.kept[record.id] = record
    state.kept_bytes += record.bytes
    if state.kept_bytes > config.limits.shard_bytes:
        raise ConfigError(
            f"field 'shards' is {config.shards}, which puts more than {config.limits.shard_bytes} bytes of text into one shard",
            advice="Ask for more shards, or ingest into smaller units.",
        )


def _rule_error(document: Document, reason: str, detail: str) -> Rejection:
    """A rule raised: the document is set aside with the name of the rule, not dropped as if it were bad."""
    where = json.loads(document.metadata)
    digest = hashlib.sha256(document.text.encode()).hexdigest()[:16]
    return Rejection(reason, sample_of(detail), where["unit"], where["offset"], document.bytes, digest, sample_of(document.text))


def _refuse_failure(state: _Shard, notes: Counter[str], units: Sequence[Unit], shard: str) -> None:
    errors = state.errors.total()
    if errors > MAX_ERROR_SHARE * state.documents_in:
        raise MarinError(
            f"shard {shard}: rules failed on {errors} of {state.documents_in} documents ({dict(state.errors)})",
            advice="Report the bug with the kind of error; no document was dropped silently.",
        )
    if notes["empty_unit"] == len(units):
        raise DataError(f"shard {shard}: all of its {len(units)} units are empty", advice="Check what the raw source ingested.")


def _footer(config: FilterConfig, units: Sequence[Unit]) -> dict[str, str]:
    return {
        "schema": SCHEMA_VERSION,
        "stage": STAGE,
        "fingerprint": hashlib.sha256(canonical_json(config.model_dump(mode="json"))).hexdigest(),
        "input_digest": hashlib.sha256(units_digest_input(units)).hexdigest(),
        "licenses": canonical_json(sorted({unit.license for unit in units})).decode(),
        "policies": canonical_json(sorted({unit.policy for unit in units})).decode(),
    }


def _counts_add_up(output: Path, name: str, documents_in: int) -> Check:
    """Compare what was read with what stands in the three files, counted from disk."""
    kept = pq.read_metadata(output / f"{name}.parquet").num_rows
    dropped = pq.read_metadata(output / "dropped" / f"{name}.parquet").num_rows
    rejected = count_rejected(output / "rejected" / f"{name}.jsonl.zst")
    return Check(
        "counts_add_up",
        documents_in == kept + dropped + rejected,
        f"{documents_in} records in = {kept} kept + {dropped} dropped + {rejected} rejected",
        {"documents_in": documents_in, "kept": kept, "dropped": dropped, "rejected": rejected},
    )


def _metrics(state: _Shard, dropped: DroppedRows, rejected: RejectedFile, notes: Counter[str]) -> dict[str, Scalar]:
    metrics: dict[str, Scalar] = {
        "documents_in": state.documents_in,
        "bytes_in": state.bytes_in,
        "documents_kept": len(state.kept),
        "bytes_kept": state.kept_bytes,
        "kept_share": len(state.kept) / max(1, state.documents_in),
        "documents_dropped": dropped.counts.total(),
        "documents_rejected": rejected.counts.total(),
    }
    return metrics | {f"notes/{name}": count for name, count in sorted(notes.items())}


def _reasons(state: _Shard, dropped: DroppedRows, rejected: RejectedFile) -> list[dict[str, Scalar]]:
    """Table: what happened to how many documents, most frequent first."""
    rows = [("kept", "", len(state.kept))]
    rows += [("dropped", reason, count) for reason, count in dropped.counts.items()]
    rows += [("rejected", reason, count) for reason, count in rejected.counts.items()]
    rows.sort(key=lambda row: (-row[2], row[0], row[1]))
    total = max(1, state.documents_in)
    return [{"outcome": outcome, "reason": reason, "documents": n, "share": round(n / total, 6)} for outcome, reason, n in rows]


def _samples(documents: Sequence[Document], dropped: DroppedRows) -> list[dict[str, Scalar]]:
    """Table: the beginnings of a few kept and dropped documents, harmless to show."""
    kept = sorted(documents, key=lambda document: document.id)[:REPORT_SAMPLES]
    rows: list[dict[str, Scalar]] = [{"outcome": "kept", "reason": "", "text": sample_of(document.text)} for document in kept]
    for reason in sorted(dropped.counts):
        rows += [{"outcome": "dropped", "reason": reason, "text": sample_of(text)} for text in dropped.samples(reason)[:REPORT_SAMPLES]]
    return rows


def _content_digest(documents: Sequence[Document]) -> str:
    """sha256 over all columns but the text (its digest is the id), in id order."""
    digest = hashlib.sha256()
    for document in sorted(documents, key=lambda document: document.id):
        digest.update(canonical_json([document.id, document.source, document.added, document.created, document.metadata]) + b"\n")
    return digest.hexdigest()
