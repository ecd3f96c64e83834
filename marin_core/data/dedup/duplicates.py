"""Look for repeated text in all shards of several families, and write what was found beside each: attributes, nothing is deleted."""

import hashlib
import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from marin_core.artifact.canonical import canonical_json
from marin_core.data.attributes.files import AttributeWriter
from marin_core.data.dedup.config import DuplicatesConfig
from marin_core.data.dedup.corpus import Corpus, Family
from marin_core.data.dedup.exact import ROWS_AT_ONCE, Progress, find_copies
from marin_core.data.dedup.findings import ExactFindings, Findings, NearFindings, ParagraphFindings
from marin_core.data.dedup.near import find_clusters
from marin_core.data.dedup.repeated_paragraphs import find_repeated_paragraphs
from marin_core.data.files import write_json
from marin_core.data.shard import read_part
from marin_core.errors import ConfigError, PreemptedError
from marin_core.report import Report, Reporter

SUMMARY_FILE = "summary.json"


def find_duplicates(
    config: DuplicatesConfig, families: Sequence[Family], output: Path, reporter: Reporter, rows_at_once: int = ROWS_AT_ONCE
) -> Report:
    """Write an attribute part beside each shard's, at `<component>/<shard key>/`, and `summary.json`.

    The outcome doesn't depend on how documents are cut into shards, on the order of shards or on `rows_at_once`.

    Args:
        families: by priority; of equal or nearly equal documents that of an earlier family stays.
        rows_at_once: documents whose keys lie in memory together.

    Raises:
        ConfigError: signatures of several kinds, or of a kind that this search can't use.
        DataError: a part or a signature is damaged, or signatures belong to other documents.
    """
    with tempfile.TemporaryDirectory(dir=output, prefix=".scratch-") as name:
        scratch = Path(name)
        corpus = Corpus(families, scratch)
        settings = _one_config(config, corpus)
        progress = _progress(reporter)
        copies = find_copies(corpus, progress, rows_at_once)
        findings: Findings
        match config.find:
            case "exact_duplicates":
                findings = ExactFindings(corpus, copies)
            case "near_duplicates":
                words = int(settings["ngram_words"])
                clusters = find_clusters(
                    corpus, copies, words, verify=config.verify, scratch=scratch, progress=progress, rows_at_once=rows_at_once
                )
                findings = NearFindings(corpus, clusters, output)
            case "repeated_paragraphs":
                findings = ParagraphFindings(corpus, find_repeated_paragraphs(corpus, copies, scratch, progress, rows_at_once))
        digest = _write(config, corpus, findings, output, reporter)
        report = findings.report(corpus)
    write_json(output / SUMMARY_FILE, {"metrics": report.metrics, "tables": report.tables})
    return Report(metrics=report.metrics, tables=report.tables, plots=report.plots, content_digest=digest)


def _one_config(config: DuplicatesConfig, corpus: Corpus) -> dict[str, Any]:
    """The configuration that all signatures were made with; empty if none are used.

    Raises:
        ConfigError: there are several, or it is of another kind.
    """
    if config.find == "exact_duplicates":
        return {}
    found = {canonical_json(shard.signatures.about["config"] if shard.signatures else {}) for shard in corpus.shards}
    settings: dict[str, Any] = json.loads(min(found, default=b"{}"))
    wanted = "near_duplicates" if config.find == "near_duplicates" else "paragraphs"
    if len(found) > 1 or settings.get("kind") != wanted:
        raise ConfigError(
            f"{config.find} needs signatures of kind {wanted!r} made with one configuration, "
            f"got {' and '.join(each.decode() for each in sorted(found)) or 'none'}",
            advice="Give signatures of that kind, made with the same settings, for every family.",
        )
    return settings


def _progress(reporter: Reporter) -> Progress:
    def progress(done: int, total: int, unit: str) -> None:
        if reporter.stop_requested():
            raise PreemptedError("the search for duplicates was asked to stop", advice="Start it again; it begins anew.")
        reporter.progress(done, total, unit)

    return progress


def _write(config: DuplicatesConfig, corpus: Corpus, findings: Findings, output: Path, reporter: Reporter) -> str:
    """Write the attribute parts; returns a digest of all values with the ids that they belong to."""
    digest = hashlib.sha256()
    prefixed = {name: f"{config.find}.{name}" for name in findings.columns}
    columns = {prefixed[name]: kind for name, kind in findings.columns.items()}
    for done, shard in enumerate(corpus.shards, start=1):
        family = corpus.families[shard.family]
        if not family.context:
            found = findings.open(shard)
            digest.update(f"{family.component}/{shard.key}\n".encode())
            with AttributeWriter(output / family.component / shard.key / shard.part.name, columns, {"stage": config.find}) as writer:
                for group in read_part(shard.part, ("id",)):
                    values = found.values(group["id"], writer.rows)
                    digest.update(json.dumps([group["id"], values], sort_keys=True).encode())
                    writer.write(group["id"], {prefixed[name]: column for name, column in values.items()})
        reporter.progress(done, len(corpus.shards), "shards")
    return digest.hexdigest()
