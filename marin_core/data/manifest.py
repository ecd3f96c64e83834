"""The manifest of a family: which shards it has, what they hold, and the accounts of all of them together (spec: data §5).

Everything comes from records and from the shards' `counts.json`; no shard is read. Merged figures are exact: tables of shards hold whole
numbers, and the samples with the smallest ids of all shards are among those with the smallest ids of each.
"""

import hashlib
import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from marin_core.artifact.canonical import canonical_json
from marin_core.artifact.link import LINKED
from marin_core.artifact.record import Record
from marin_core.data.accounts import REPORT_SAMPLES, draw_reasons
from marin_core.data.files import write_json
from marin_core.data.units import Unit
from marin_core.errors import DataError
from marin_core.report import Check, Report, Scalar

SHARDS_FILE = "shards.json"
SHARDS_SCHEMA = "shards/1"
COUNTS_FILE = "counts.json"
SUMMED = ("documents", "tokens", "bytes", "documents_without_tokens", "documents_in_other_split")
"""Metrics of parts of a token cache, which have no accounts."""


@dataclass(frozen=True)
class Shard:
    """A shard that is there.

    Attributes:
        counts: content of its `counts.json`; None where shards have none.
        units: paths of the units that it was made from; None where the family isn't cut from a raw source.
    """

    key: str
    record: Record
    counts: Mapping[str, Any] | None = None
    units: Sequence[Unit] | None = None

    def entry(self) -> dict[str, Any]:
        """As `shards.json` has it. Addresses are relative to the store's prefix: a manifest says nothing about its place."""
        linked = {LINKED: self.record.metrics[LINKED]} if LINKED in self.record.metrics else {}
        return linked | {
            "shard": self.key,
            "address": self.record.id.path,
            "content_digest": self.record.content_digest,
            "size_bytes": self.record.size,
            "units": None if self.units is None else [unit.path for unit in self.units],
            "counts": dict(_summed(self.record)) if self.counts is None else self.counts,
        }


@dataclass
class _Accounts:
    """The accounts of all shards.

    Attributes:
        in_and_kept: `documents_in`, `bytes_in`, `kept`, `kept_bytes`.
        documents: by fate and reason; `bytes` and `tokens` likewise.
        wrong: what doesn't add up, one sentence a shard.
    """

    in_and_kept: Counter[str] = field(default_factory=Counter)
    notes: Counter[str] = field(default_factory=Counter)
    documents: Counter[tuple[str, str]] = field(default_factory=Counter)
    bytes: Counter[tuple[str, str]] = field(default_factory=Counter)
    tokens: Counter[tuple[str, str]] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)


def write_manifest(shards: Sequence[Shard], missing: Sequence[str], output: Path) -> Report:
    """Write `shards.json`, and where shards account for their documents `shares.png`.

    Args:
        shards: in the order of their keys.
        missing: keys of shards that are left out.

    Raises:
        DataError: the counts of a shard can't be read, or contradict its record.
    """
    counted = bool(shards) and all(shard.counts is not None for shard in shards)
    accounts = _merged(shards) if counted else None
    totals = dict(accounts.in_and_kept) if accounts else dict(sum((_summed(shard.record) for shard in shards), Counter()))
    entries = [shard.entry() for shard in shards]
    write_json(output / SHARDS_FILE, {"schema": SHARDS_SCHEMA, "missing": list(missing), "totals": totals, "shards": entries})
    linked = sum(LINKED in shard.record.metrics for shard in shards)
    metrics: dict[str, Scalar] = {"shards": len(shards), "shards_missing": len(missing), "shards_linked": linked}
    metrics |= {"bytes_stored": sum(shard.record.size for shard in shards), **totals}
    checks = [_all_shards(len(shards), missing)]
    tables: dict[str, list[dict[str, Scalar]]] = {}
    plots: dict[str, Path] = {}
    if accounts:
        metrics |= {"kept_share": totals["kept"] / max(1, totals["documents_in"])}
        metrics |= {f"notes/{name}": count for name, count in sorted(accounts.notes.items())}
        tables = {"reasons": _reasons(accounts), "samples": _samples(shards)}
        plots = {"shares": output / "shares.png"}
        draw_reasons(tables["reasons"], plots["shares"])
        checks.append(_counts_add_up(accounts))
    content = [[shard.key, shard.record.content_digest] for shard in shards]
    digest = hashlib.sha256(canonical_json([content, list(missing)])).hexdigest()
    return Report(metrics=metrics, tables=tables, plots=plots, checks=checks, content_digest=digest)


def parse_counts(content: bytes, shard: str) -> dict[str, Any]:
    """What a shard's `counts.json` says.

    Raises:
        DataError: it is no such file.
    """
    try:
        counts = json.loads(content)
        for name in ("documents_in", "bytes_in", "kept", "kept_bytes"):
            _whole(counts[name])
        for name in ("dropped", "rejected", "notes"):
            for value in counts[name].values():
                _whole(value)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataError(f"shard {shard}: {COUNTS_FILE} is broken ({error!r})", advice="Build the shard anew.") from error
    assert isinstance(counts, dict)  # noqa: S101 - it has keys
    return counts


def read_shards(folder: Path) -> dict[str, dict[str, Any]]:
    """The shards that a manifest lists, by key.

    Raises:
        DataError: it can't be read, or is of another schema.
    """
    path = folder / SHARDS_FILE
    try:
        content = json.loads(path.read_bytes())
        if content["schema"] != SHARDS_SCHEMA:
            raise ValueError(f"schema {content['schema']!r}, expected {SHARDS_SCHEMA!r}")
        return {shard["shard"]: shard for shard in content["shards"]}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(f"{path}: not a readable manifest ({error})", advice="Build the manifest anew.") from error


def _merged(shards: Sequence[Shard]) -> _Accounts:
    merged = _Accounts()
    for shard in shards:
        counts = shard.counts or {}
        for name in ("documents_in", "bytes_in", "kept", "kept_bytes"):
            merged.in_and_kept[name] += counts[name]
        merged.notes.update(counts["notes"])
        fates = {("kept", ""): counts["kept"]}
        fates |= {(fate, reason): count for fate in ("dropped", "rejected") for reason, count in counts[fate].items()}
        fates = {key: count for key, count in fates.items() if count}
        merged.documents.update(fates)
        if counts["documents_in"] != sum(fates.values()):
            merged.wrong.append(f"shard {shard.key} has {counts['documents_in']} documents in, and accounts for {sum(fates.values())}")
        _add_weights(merged, shard, fates)
    return merged


def _add_weights(merged: _Accounts, shard: Shard, fates: Mapping[tuple[str, str], int]) -> None:
    """Bytes and tokens stand in the record's table, whose documents must be those of the file."""
    rows = {(str(row["outcome"]), str(row["reason"])): row for row in shard.record.tables.get("reasons", ()) if row["documents"]}
    if {key: row["documents"] for key, row in rows.items()} != fates:
        raise DataError(
            f"shard {shard.key}: {COUNTS_FILE} and the record's table of reasons differ",
            advice=f"Check it with `marin verify {shard.record.id}`, and build it anew.",
        )
    for key, row in rows.items():
        merged.bytes[key] += _whole(row.get("bytes", 0))
        merged.tokens[key] += _whole(row.get("tokens", 0))


def _reasons(accounts: _Accounts) -> list[dict[str, Scalar]]:
    """Table: what happened to how much, most documents first."""
    documents, size, tokens = (max(1, each.total()) for each in (accounts.documents, accounts.bytes, accounts.tokens))
    weighted = accounts.tokens.total() > 0
    return [
        {
            "outcome": fate,
            "reason": reason,
            "documents": count,
            "share": round(count / documents, 6),
            "bytes": accounts.bytes[fate, reason],
            "share_of_bytes": round(accounts.bytes[fate, reason] / size, 6),
            **(
                {"tokens": accounts.tokens[fate, reason], "share_of_tokens": round(accounts.tokens[fate, reason] / tokens, 6)}
                if weighted
                else {}
            ),
        }
        for (fate, reason), count in sorted(accounts.documents.items(), key=lambda item: (-item[1], item[0]))
    ]


def _samples(shards: Iterable[Shard]) -> list[dict[str, Scalar]]:
    """Table: of what was kept and of each reason, the documents with the smallest ids; escaped and masked when the shards were made."""
    found: dict[tuple[str, str], dict[str, Mapping[str, Scalar]]] = defaultdict(dict)
    for shard in shards:
        for row in shard.record.tables.get("samples", ()):
            found[str(row["outcome"]), str(row["reason"])].setdefault(str(row["id"]), row)
    groups = sorted(found.items(), key=lambda item: (item[0][0] != "kept", item[0]))
    return [dict(rows[identity]) for _, rows in groups for identity in sorted(rows)[:REPORT_SAMPLES]]


def _counts_add_up(accounts: _Accounts) -> Check:
    by_fate: Counter[str] = Counter()
    for (fate, _), count in accounts.documents.items():
        by_fate[fate] += count
    came = accounts.in_and_kept["documents_in"]
    said = f"{came} records in = {by_fate['kept']} kept + {by_fate['dropped']} dropped + {by_fate['rejected']} rejected"
    if accounts.wrong:
        said = f"{'; '.join(accounts.wrong[:5])}{f'; and {len(accounts.wrong) - 5} shards more' if len(accounts.wrong) > 5 else ''}"
    values = {"documents_in": came, **{fate: by_fate[fate] for fate in ("kept", "dropped", "rejected")}}
    return Check("counts_add_up", not accounts.wrong and came == by_fate.total(), said, values)


def _all_shards(there: int, missing: Sequence[str]) -> Check:
    total = there + len(missing)
    said = f"all {total} shards are there" if not missing else f"{len(missing)} of {total} shards are missing: {', '.join(missing[:20])}"
    return Check("all_shards", not missing, said, {"shards": there, "missing": len(missing)})


def _summed(record: Record) -> Counter[str]:
    return Counter({name: _whole(record.metrics[name]) for name in SUMMED if name in record.metrics})


def _whole(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise TypeError(f"{value!r} is no whole number from 0")
    return value
