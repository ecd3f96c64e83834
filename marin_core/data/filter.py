"""Make one shard of documents: text of its units in normal form, exact dedup inside the shard, cheap rules, and a row for everything that
didn't arrive."""

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path

from marin_core.artifact.canonical import canonical_json
from marin_core.data.accounts import Accounts
from marin_core.data.assignment import shard_units, size_when_new
from marin_core.data.documents import Document, Rejection, UnitReader, sample_of
from marin_core.data.keeping import Keeping
from marin_core.data.measures.interface import Measured
from marin_core.data.rules.decide import Rule, make_rules
from marin_core.data.rules.interface import Edit
from marin_core.data.shard import SCHEMA_VERSION, part_name
from marin_core.data.sorted_documents import SeenIds
from marin_core.data.stages import FilterConfig
from marin_core.data.units import Unit, UnitList, read_units, units_digest_input
from marin_core.data.words import UnicodeWords
from marin_core.errors import DataError, PreemptedError
from marin_core.report import Report, Reporter

STAGE = "filter"


def filter_shard(config: FilterConfig, raw: Path, shard: str, output: Path, reporter: Reporter, older: Sequence[UnitList] = ()) -> Report:
    """Read this shard's units of a raw source and write what is kept, what is dropped and what is rejected.

    Writes `part-NNNNN-of-MMMMM.parquet`, `dropped/….parquet`, `rejected/….jsonl.zst` and `counts.json`. The same input gives the
    same bytes: nothing depends on time, place, order of listing or number of workers. Documents are held in memory up to 256 MiB,
    beyond it in sorted runs on disk.

    Args:
        raw: folder of the raw source artifact.
        shard: partition key `NNNNN`.
        older: units of the sources of `config.older`.

    Raises:
        ConfigError: if there are more shards than units, an unknown domain or shard, or too much text for one shard.
        DataError: if a unit is missing, damaged or cut short, or all of them are empty.
        MarinError: (exit code 70) if rules raise on more than 1 % of the documents.
    """
    source = read_units(raw)
    units = shard_units(config, [*older, source], shard)
    name = part_name(int(shard), size_when_new(config, shard))
    rules = make_rules(config.filters)
    output.mkdir(parents=True, exist_ok=True)
    with Accounts(STAGE, output, name) as accounts, Keeping(accounts, output, config.limits.shard_bytes) as keeping:
        state = _Shard(accounts, keeping)
        with UnitReader(raw, source.name, config.limits, config.on_truncated, accounts.notes, config.format) as reader:
            for done, unit in enumerate(units):
                for record in reader.read(unit):
                    if state.documents_in % 256 == 0 and reporter.stop_requested():
                        raise PreemptedError(f"filtering of shard {shard} was asked to stop", advice="Start it again; it begins anew.")
                    state.take(record, rules)
                reporter.progress(done + 1, len(units), "units")
        accounts.refuse_errors(f"shard {shard}")
        if units and accounts.notes["empty_unit"] == len(units):  # a shard whose units all left the source is empty by right
            raise DataError(f"shard {shard}: all of its {len(units)} units are empty", advice="Check what the raw source ingested.")
        digest = keeping.write(output / f"{name}.parquet", _footer(config, units))
        accounts.write()
    return Report(
        metrics=accounts.metrics(),
        tables=accounts.tables(),
        checks=[accounts.counts_add_up(state.documents_in)],
        content_digest=digest,
    )


class _Shard:
    """What has been read and decided so far."""

    def __init__(self, accounts: Accounts, keeping: Keeping) -> None:
        self.documents_in = 0
        self._accounts = accounts
        self._keeping = keeping
        self._words = UnicodeWords()
        self._seen = SeenIds()

    def take(self, record: Document | Rejection, rules: Sequence[Rule]) -> None:
        """Decide on one record; it ends up in exactly one place."""
        self.documents_in += 1
        if isinstance(record, Rejection):
            self._accounts.reject(record)
        elif self._seen.add(record.id):
            self._decide(record, rules)
        else:
            self._accounts.drop(record, "dup_in_shard")

    def _decide(self, document: Document, rules: Sequence[Rule]) -> None:
        """Ask the rules in their order: the first that gives a reason drops the document; edits of all are made at the end."""
        measured = Measured(document.text, document.metadata, self._words)
        edits: list[Edit] = []
        for rule in rules:
            try:
                outcome = rule.decide(measured)
            except Exception as error:
                self._accounts.reject(_rule_error(document, f"error:{rule.name}:{type(error).__name__}", str(error)))
                return
            if outcome.reason is not None:
                self._accounts.drop(document, outcome.reason, outcome.score)
                return
            edits += outcome.edits
        if edits:
            self._keeping.keep_edited(document, edits)
        else:
            self._keeping.keep(document)


def _rule_error(document: Document, reason: str, detail: str) -> Rejection:
    """A rule raised: the document is set aside with the name of the rule, not dropped as if it were bad."""
    where = json.loads(document.metadata)
    digest = hashlib.sha256(document.text.encode()).hexdigest()[:16]
    return Rejection(reason, sample_of(detail), where["unit"], where["offset"], document.bytes, digest, sample_of(document.text))


def _footer(config: FilterConfig, units: Sequence[Unit]) -> dict[str, str]:
    return {
        "schema": SCHEMA_VERSION,
        "stage": STAGE,
        "fingerprint": hashlib.sha256(canonical_json(config.model_dump(mode="json", exclude={"shards", "older"}))).hexdigest(),
        "input_digest": hashlib.sha256(units_digest_input(units)).hexdigest(),
        "licenses": canonical_json(sorted({unit.license for unit in units})).decode(),
        "policies": canonical_json(sorted({unit.policy for unit in units})).decode(),
    }
