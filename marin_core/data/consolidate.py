"""Make a filtered shard of documents and what is known about them: one streaming join, in which the rules decide."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from marin_core.artifact.canonical import canonical_json
from marin_core.data.accounts import Accounts
from marin_core.data.attributes.files import columns_of, read_together
from marin_core.data.attributes.measure import ERROR
from marin_core.data.documents import Document, Rejection, sample_of
from marin_core.data.keeping import Keeping
from marin_core.data.rules.config import FilterRule
from marin_core.data.rules.decide import make_decision
from marin_core.data.rules.interface import Decide, Edit
from marin_core.data.shard import SCHEMA, SCHEMA_VERSION, find_part, read_footer
from marin_core.data.stages import ConsolidateConfig
from marin_core.errors import ConfigError, PreemptedError
from marin_core.report import Report, Reporter

STAGE = "consolidate"
TOKENS = "token_count.tokens"
"""Where it was measured, tables are weighted by it too."""
EDITED_SCHEMA = pa.schema(
    [
        pa.field("id", pa.string(), nullable=False),
        pa.field("new_id", pa.string(), nullable=False),
        pa.field("edits", pa.int32(), nullable=False),
        pa.field("rules", pa.string(), nullable=False),
    ]
)


@dataclass(frozen=True)
class BoundRule:
    """A rule and where its values stand."""

    name: str
    attribute: str
    columns: Mapping[str, str]
    decide: Decide


def consolidate_shard(config: ConsolidateConfig, documents: Path, attributes: Sequence[Path], output: Path, reporter: Reporter) -> Report:
    """Apply the rules to one shard: writes the part of what is kept, and a row for everything that isn't and for every edited text.

    Rules are asked in their order; the first that gives a reason drops the document. Edits of all rules are made at the end; the text
    is brought into normal form and gets a new id, and `edited/….parquet` says which one it had.

    Args:
        documents: folder of a shard of documents.
        attributes: attribute files of that shard.

    Raises:
        ConfigError: a rule has no attribute file, or two; or the shard is too large.
        DataError: a file is damaged, or belongs to other documents.
        MarinError: (exit code 70) rules raise on more than 1 % of the documents.
    """
    part = find_part(documents)
    footer = read_footer(part)
    rules = bound_rules(config.rules, attributes)
    measured = {name for path in attributes for name in columns_of(path)}
    output.mkdir(parents=True, exist_ok=True)
    with (
        Accounts(STAGE, output, part.stem, tokens=TOKENS in measured) as accounts,
        Keeping(accounts, output, config.shard_bytes) as keeping,
    ):
        deciding = Deciding(rules, accounts, keeping)
        for group in read_together(part, attributes, SCHEMA.names):
            if reporter.stop_requested():
                raise PreemptedError("consolidation was asked to stop", advice="Start it again; it begins anew.")
            for index in range(len(group["id"])):
                deciding.take({name: column[index] for name, column in group.items()})
            reporter.progress(accounts.documents_in, int(footer["rows"]), "documents")
        accounts.refuse_errors(part.stem)
        digest = keeping.write(output / part.name, _footer(config, footer))
        _write_edited(deciding.edited, output / "edited" / part.name)
        accounts.write()
    return Report(
        metrics=accounts.metrics(),
        tables=accounts.tables(),
        plots=accounts.plots(),
        checks=[accounts.counts_add_up(int(footer["rows"]))],
        content_digest=digest,
    )


class Deciding:
    """Asks the rules about one document after the other.

    Attributes:
        edited: old id, new id, number of edits and their rules, of each document that was edited.
    """

    def __init__(self, rules: Sequence[BoundRule], accounts: Accounts, keeping: Keeping) -> None:
        self._rules = rules
        self._accounts = accounts
        self._keeping = keeping
        self.edited: list[tuple[str, str, int, str]] = []

    def take(self, row: Mapping[str, Any]) -> None:
        """Decide on one document; it ends up in exactly one place."""
        document = Document(**{name: row[name] for name in SCHEMA.names}, bytes=len(row["text"].encode()))
        tokens = row.get(TOKENS) or 0
        edits: list[Edit] = []
        editors = []
        for rule in self._rules:
            error = row.get(f"{rule.attribute}.{ERROR}")
            if error is not None:
                self._accounts.reject(_failed(document, rule, error, "its values could not be measured"))
                return
            try:
                outcome = rule.decide({name: row[column] for name, column in rule.columns.items()})
            except Exception as raised:
                self._accounts.reject(_failed(document, rule, type(raised).__name__, str(raised)))
                return
            if outcome.reason is not None:
                self._accounts.drop(document, outcome.reason, outcome.score, tokens)
                return
            if outcome.edits:
                edits += outcome.edits
                editors.append(rule.name)
        if not edits:
            self._keeping.keep(document, tokens)
        elif (new := self._keeping.keep_edited(document, edits, tokens)) is not None:
            self.edited.append((document.id, new.id, len(edits), ",".join(editors)))


def bound_rules(configs: Sequence[FilterRule], attributes: Sequence[Path]) -> list[BoundRule]:
    """The rules with the columns that they read."""
    found: dict[str, list[Path]] = {}
    for path in attributes:
        for column in columns_of(path):
            found.setdefault(column, []).append(path)
    twice = sorted(column for column, paths in found.items() if len(paths) > 1)
    if twice:
        raise ConfigError(f"{twice[0]} was measured twice", advice="Give each attribute once.")
    rules = []
    for config in configs:
        prefix = f"{config.attribute}."
        columns = {column.removeprefix(prefix): column for column in found if column.startswith(prefix)}
        if not columns:
            measured = sorted({column.partition(".")[0] for column in found})
            raise ConfigError(
                f"rule {config.name!r} decides from {config.attribute!r}, which was not measured",
                advice=f"Measured are {', '.join(measured) or 'nothing'}; add an attribute artifact.",
            )
        rules.append(BoundRule(config.name, config.attribute, columns, make_decision(config)))
    return rules


def _failed(document: Document, rule: BoundRule, error: str, detail: str) -> Rejection:
    """A rule can't decide: the document is set aside under the rule's name, not dropped as if it were bad."""
    digest = hashlib.sha256(document.text.encode()).hexdigest()[:16]
    return Rejection(f"error:{rule.name}:{error}", sample_of(detail), document.id, 0, document.bytes, digest, sample_of(document.text))


def _footer(config: ConsolidateConfig, documents: Mapping[str, str]) -> dict[str, str]:
    """What the part says about itself; terms of use are those of the documents."""
    return {
        "schema": SCHEMA_VERSION,
        "stage": STAGE,
        "fingerprint": hashlib.sha256(canonical_json(config.model_dump(mode="json"))).hexdigest(),
        "input_digest": documents["input_digest"],
        "licenses": documents["licenses"],
        "policies": documents["policies"],
    }


def _write_edited(rows: Sequence[tuple[str, str, int, str]], path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    columns = list(zip(*sorted(rows), strict=True)) or [()] * len(EDITED_SCHEMA)
    table = pa.table([pa.array(column, field.type) for column, field in zip(columns, EDITED_SCHEMA, strict=True)], schema=EDITED_SCHEMA)
    pq.write_table(table, path, compression="zstd", compression_level=3, write_page_checksum=True)
