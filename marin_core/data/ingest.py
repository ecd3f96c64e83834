"""Make a raw source artifact: bytes as found, and `units.json` that says what they are and how they may be used."""

import gzip
import hashlib
import os
import re
import shutil
from collections import Counter
from collections.abc import Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from marin_core.artifact.canonical import canonical_json
from marin_core.artifact.record import file_sha256
from marin_core.data.files import percent_encoded, safe_name
from marin_core.data.sources import python_stdlib
from marin_core.data.sources.config import BucketFiles, FileSource, HttpFiles, HubFiles, IngestConfig, PythonStdlib, Terms
from marin_core.data.sources.content import check_content
from marin_core.data.sources.interface import Fetched, Listed, OpenedSource, Watch
from marin_core.data.sources.journal import Journal
from marin_core.data.sources.local_files import OpenedLocalFiles
from marin_core.data.sources.patterns import Patterns
from marin_core.data.units import Unit, UnitList
from marin_core.errors import ConfigError, DataError, PreemptedError
from marin_core.report import Check, Report, Reporter, Scalar

UNITS_FOLDER = "units"
MAX_UNITS = 10_000_000
EVAL_PARTS = frozenset({"test", "tests", "validation", "valid", "val", "dev", "eval", "evaluation"})
SPLIT_FILE = re.compile(r"([a-z]+)-\d+-of-\d+(-[0-9a-f]{16})?")
"""A file of one split, as `datasets` names them: `test-00000-of-00002.parquet`."""


@dataclass
class _Ingested:
    """What a source gave: its units, documents and bytes per domain, what was left out, facts, and the digest of the contents."""

    units: list[Unit] = field(default_factory=list)
    documents: Counter[str] = field(default_factory=Counter)
    bytes: Counter[str] = field(default_factory=Counter)
    skipped: Counter[str] = field(default_factory=Counter)
    notes: dict[str, Scalar] = field(default_factory=dict)
    content: str = ""


def ingest(config: IngestConfig, output: Path, reporter: Reporter) -> Report:
    """Write `units/<domain>/…` and `units.json` below `output`.

    Raises:
        DataError: if the source has no documents, refuses, gives other bytes than it promises, or changes while it is read.
        ConfigError: if the source's place is wrong or holds an evaluation split that training may not see.
        InfrastructureError: if network or store fail.
    """
    source = config.source
    if isinstance(source, PythonStdlib):
        shutil.rmtree(output / UNITS_FOLDER, ignore_errors=True)  # what a killed run left there belongs to nothing
        made = _write_stdlib(config, source, output, reporter)
    else:
        made = _take_files(config, source, _opened(source), output, reporter)
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
    metrics |= {f"skipped/{reason}": count for reason, count in sorted(made.skipped.items())} | made.notes
    size = sum(path.stat().st_size for path in (output / UNITS_FOLDER).rglob("*") if path.is_file())
    check = Check("units_complete", size == sum(u.size for u in made.units), "units.json lists every byte below units/", {"bytes": size})
    return Report(metrics=metrics, tables={"domains": table}, checks=[check], content_digest=made.content)


def _write_stdlib(config: IngestConfig, source: PythonStdlib, output: Path, reporter: Reporter) -> _Ingested:
    """Generated units: contiguous runs of the sorted documents, as JSONL in gzip without a time stamp."""
    made = _Ingested()
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
            made.units.append(_generated_unit(path, output, config, domain, len(run)))
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


def _opened(source: FileSource) -> OpenedSource:
    """The source, ready to be read; what its protocol needs is imported here."""
    if isinstance(source, HttpFiles):
        from marin_core.data.sources.http_files import OpenedHttpFiles

        return OpenedHttpFiles(source)
    if isinstance(source, HubFiles):
        from marin_core.data.sources.hub_files import OpenedHubFiles

        return OpenedHubFiles(source)
    if isinstance(source, BucketFiles):
        from marin_core.data.sources.bucket_files import OpenedBucketFiles

        return OpenedBucketFiles(source)
    return OpenedLocalFiles(source)


def _take_files(config: IngestConfig, source: FileSource, opened: OpenedSource, output: Path, reporter: Reporter) -> _Ingested:
    """Units that are the source's files, byte for byte, under encoded names."""
    watch = Watch(reporter)
    listed = sorted(opened.files(watch), key=lambda each: os.fsencode(each.name))
    if len(listed) > MAX_UNITS:
        raise ConfigError(f"the source has {len(listed)} files, more than {MAX_UNITS}", advice="Narrow its pattern, or pack the files.")
    terms = _terms(config, listed)
    if not source.allow_eval_split:
        for each, term in zip(listed, terms, strict=True):
            if term.policy == "TRAINING_ALLOWED":
                _refuse_eval_split(each.name)
    watch.expect(sum(each.size or 0 for each in listed))
    (output / UNITS_FOLDER / source.domain).mkdir(parents=True, exist_ok=True)
    paths = [f"{UNITS_FOLDER}/{source.domain}/{safe_name(each.name)}" for each in listed]
    fetching = _Fetching(opened, output, watch, Journal(output), dict(zip(paths, listed, strict=True)))
    made = _Ingested(skipped=opened.skipped, notes=dict(opened.notes))
    with closing(fetching.all(opened.connections)) as arrivals:
        for index, fetched in arrivals:
            unit = _file_unit(source, paths[index], listed[index], terms[index], fetched)
            made.units.append(unit)
            made.bytes[source.domain] += unit.size
            if not check_content(output / unit.path, listed[index].name, served=False):
                made.notes["extension_mismatch"] = int(made.notes.get("extension_mismatch", 0)) + 1
    fetching.journal.end()
    if fetching.kept:
        watch.log(f"{len(fetching.kept)} files were there from an earlier try")
    made.units.sort(key=lambda unit: unit.path.encode())
    made.content = hashlib.sha256(canonical_json([[u.path, u.size, u.sha256] for u in made.units])).hexdigest()
    return made


def _file_unit(source: FileSource, path: str, listed: Listed, terms: Terms, fetched: Fetched) -> Unit:
    return Unit(
        path=path,
        size=fetched.size,
        sha256=fetched.sha256,
        acquired=source.acquired,
        license=terms.license,
        policy=terms.policy,
        documents=None,
        domain=source.domain,
        origin=percent_encoded(listed.name),
        etag=fetched.etag,
        generation=fetched.generation,
        revision=fetched.revision,
        crc32c=fetched.crc32c,
    )


@dataclass
class _Fetching:
    """All files of a source on their way to the output.

    Attributes:
        files: path below the output → file.
        kept: paths of files that an earlier try had fetched.
    """

    opened: OpenedSource
    output: Path
    watch: Watch
    journal: Journal
    files: dict[str, Listed]
    kept: list[str] = field(default_factory=list)

    def all(self, connections: int) -> Generator[tuple[int, Fetched]]:
        """(index, what came) of every file, as they finish. The first failure ends the others at their next block."""
        self.journal.clear(UNITS_FOLDER, set(self.files))
        if connections == 1:
            for index, path in enumerate(self.files):
                yield index, self._one(path)
            return
        with ThreadPoolExecutor(min(connections, len(self.files)), thread_name_prefix="fetch") as pool:
            futures: dict[Future[Fetched], int] = {pool.submit(self._one, path): index for index, path in enumerate(self.files)}
            try:
                for future in as_completed(futures):
                    yield futures[future], future.result()
            except BaseException:
                self.watch.end()
                pool.shutdown(wait=True, cancel_futures=True)
                raise

    def _one(self, path: str) -> Fetched:
        self.watch.check()
        listed, earlier = self.files[path], self.journal.claimed(path)
        if earlier is not None and self.journal.intact(path) and self.opened.still(listed, earlier, self.watch):
            self.kept.append(path)
            self.watch.advance(earlier.size)
            return earlier
        target = self.output / path
        target.unlink(missing_ok=True)  # it may be a hard link to what an earlier attempt has
        fetched = self.opened.fetch(listed, target, self.watch)
        self.journal.note(path, fetched)
        return fetched


def _terms(config: IngestConfig, listed: list[Listed]) -> list[Terms]:
    """The terms of each file: the first exception that matches it, else those of the source.

    Raises:
        DataError: if an exception matches no file, so that what was meant by it would go unprotected.
    """
    rest = Terms(pattern="**", license=config.license, policy=config.policy)
    exceptions = [(each, Patterns([each.pattern])) for each in config.terms]
    found = [next((term for term, patterns in exceptions if each.name in patterns), rest) for each in listed]
    for term, patterns in exceptions:
        if not any(each.name in patterns for each in listed):
            raise DataError(
                f"field 'terms': no file of the source matches {term.pattern!r}", advice="Correct the pattern, or leave these terms out."
            )
    return found


def _refuse_eval_split(name: str) -> None:
    parts = {part.lower().split(".")[0] for part in PurePosixPath(name).parts}
    if split := SPLIT_FILE.fullmatch(PurePosixPath(name).name.lower().split(".")[0]):
        parts.add(split[1])
    if named := sorted(parts & EVAL_PARTS):
        raise ConfigError(
            f"file {name!r} looks like an evaluation split ({named[0]!r}), but the policy is TRAINING_ALLOWED",
            advice="Narrow 'pattern', give it EVAL_ONLY by 'terms', or set allow_eval_split if it really is training text.",
        )


def _generated_unit(path: Path, output: Path, config: IngestConfig, domain: str, documents: int) -> Unit:
    return Unit(
        path=path.relative_to(output).as_posix(),
        size=path.stat().st_size,
        sha256=file_sha256(path),
        acquired=None,
        license=config.license,
        policy=config.policy,
        documents=documents,
        domain=domain,
    )
