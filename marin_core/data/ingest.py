"""Make a raw source artifact: bytes as found, and `units.json` that says what they are and how they may be used."""

import gzip
import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from marin_core.artifact.canonical import canonical_json
from marin_core.artifact.record import file_sha256
from marin_core.data.config import IngestConfig, LocalFiles, PythonStdlib
from marin_core.data.files import percent_encoded, safe_name
from marin_core.data.sources import local_files, python_stdlib
from marin_core.data.units import Unit, UnitList
from marin_core.errors import ConfigError, PreemptedError
from marin_core.report import Check, Report, Reporter, Scalar

UNITS_FOLDER = "units"
EVAL_PARTS = frozenset({"test", "tests", "validation", "valid", "val", "dev", "eval", "evaluation"})


@dataclass
class _Ingested:
    """What a source gave: its units, documents and bytes per domain, what was left out, and the digest of the contents."""

    units: list[Unit]
    documents: Counter[str]
    bytes: Counter[str]
    skipped: Counter[str]
    content: str


def ingest(config: IngestConfig, output: Path, reporter: Reporter) -> Report:
    """Write `units/<domain>/…` and `units.json` below `output`.

    Raises:
        DataError: if the source has no documents, or a file changes while it is read.
        ConfigError: if the source's place is wrong or holds an evaluation split that training may not see.
    """
    source = config.source
    if isinstance(source, PythonStdlib):
        made = _write_stdlib(config, source, output, reporter)
    else:
        made = _copy_files(config, source, output, reporter)
    UnitList(config.name or f"raw/{source.kind}", tuple(made.units)).write(output)
    domains = sorted({unit.domain for unit in made.units})
    table: list[dict[str, Scalar]] = [
        {
            "domain": domain,
            "units": sum(unit.domain == domain for unit in made.units),
            "documents": made.documents[domain],
            "bytes": made.bytes[domain],
        }
        for domain in domains
    ]
    metrics: dict[str, Scalar] = {"units": len(made.units), "bytes": sum(made.bytes.values())}
    for domain in domains:
        metrics[f"bytes/{domain}"] = made.bytes[domain]
        if isinstance(source, PythonStdlib):
            metrics[f"documents/{domain}"] = made.documents[domain]
    metrics |= {f"skipped/{reason}": count for reason, count in sorted(made.skipped.items())}
    size = sum(path.stat().st_size for path in (output / UNITS_FOLDER).rglob("*") if path.is_file())
    check = Check("units_complete", size == sum(u.size for u in made.units), "units.json lists every byte below units/", {"bytes": size})
    return Report(metrics=metrics, tables={"domains": table}, checks=[check], content_digest=made.content)


def _write_stdlib(config: IngestConfig, source: PythonStdlib, output: Path, reporter: Reporter) -> _Ingested:
    """Generated units: contiguous runs of the sorted documents, as JSONL in gzip without a time stamp."""
    made = _Ingested([], Counter(), Counter(), Counter(), "")
    content = hashlib.sha256()
    for domain in source.domains:
        documents = python_stdlib.documents(domain, made.skipped)
        lines = (canonical_json(document) + b"\n" for document in documents)
        for number, run in enumerate(_runs(lines, source.unit_bytes)):
            if reporter.stop_requested():
                raise PreemptedError("ingestion was asked to stop", advice="Start it again; it begins anew.")
            name = f"unit-{number:05d}.jsonl.gz"
            path = output / UNITS_FOLDER / domain / name
            path.parent.mkdir(parents=True, exist_ok=True)
            data = b"".join(run)
            with path.open("wb") as file, gzip.GzipFile("", "wb", 6, file, mtime=0) as stream:
                stream.write(data)
            content.update(canonical_json([domain, name, hashlib.sha256(data).hexdigest()]))
            made.documents[domain] += len(run)
            made.bytes[domain] += len(data)
            made.units.append(_unit(path, output, config, domain, documents=len(run)))
        reporter.log(f"{domain}: {made.documents[domain]} documents, {made.bytes[domain]} bytes")
    # Compressed bytes differ between builds of zlib; what the artifact means is the text.
    made.content = content.hexdigest()
    return made


def _runs(lines: Iterable[bytes], unit_bytes: int) -> Iterator[list[bytes]]:
    """Contiguous runs of lines, closed before they would exceed `unit_bytes`."""
    run: list[bytes] = []
    size = 0
    for line in lines:
        if run and size + len(line) > unit_bytes:
            yield run
            run, size = [], 0
        run.append(line)
        size += len(line)
    if run:
        yield run


def _copy_files(config: IngestConfig, source: LocalFiles, output: Path, reporter: Reporter) -> _Ingested:
    """Copied units: the matched files' bytes, under encoded names."""
    found = local_files.matching_files(Path(source.root), source.pattern)
    made = _Ingested([], Counter(), Counter(), Counter(), "")
    folder = output / UNITS_FOLDER / source.domain
    folder.mkdir(parents=True, exist_ok=True)
    for number, relative in enumerate(found):
        if reporter.stop_requested():
            raise PreemptedError("ingestion was asked to stop", advice="Start it again; it begins anew.")
        if config.policy == "TRAINING_ALLOWED" and not source.allow_eval_split:
            _refuse_eval_split(relative)
        target = folder / safe_name(relative)
        local_files.copy_unchanged(Path(source.root) / relative, target)
        unit = _unit(target, output, config, source.domain, acquired=source.acquired, origin=percent_encoded(relative))
        made.units.append(unit)
        made.bytes[source.domain] += unit.size
        reporter.progress(number + 1, len(found), "files")
    made.units.sort(key=lambda unit: unit.path.encode())
    made.content = hashlib.sha256(canonical_json([[u.path, u.size, u.sha256] for u in made.units])).hexdigest()
    return made


def _refuse_eval_split(relative: str) -> None:
    parts = {part.lower().split(".")[0] for part in Path(relative).parts}
    if named := sorted(parts & EVAL_PARTS):
        raise ConfigError(
            f"file {relative!r} looks like an evaluation split ({named[0]!r}), but the policy is TRAINING_ALLOWED",
            advice="Narrow 'pattern', set policy EVAL_ONLY, or set allow_eval_split if it really is training text.",
        )


def _unit(
    path: Path,
    output: Path,
    config: IngestConfig,
    domain: str,
    *,
    documents: int | None = None,
    acquired: str | None = None,
    origin: str | None = None,
) -> Unit:
    return Unit(
        path=path.relative_to(output).as_posix(),
        size=path.stat().st_size,
        sha256=file_sha256(path),
        acquired=acquired,
        license=config.license,
        policy=config.policy,
        documents=documents,
        domain=domain,
        origin=origin,
    )
