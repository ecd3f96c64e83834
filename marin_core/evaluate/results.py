"""What an evaluation writes: bits per byte per domain, in a form that a later evaluation of the same documents can be held against."""

import hashlib
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Self

import numpy as np

from marin_core.errors import DataError
from marin_core.evaluate.documents import EncodedDocument
from marin_core.evaluate.perplexity import BitsPerByte, DocumentScore, Interval, interval, summarize
from marin_core.report import Scalar

SCHEMA = 1
RESULTS = "results.json"
DOCUMENTS = "documents.jsonl"


@dataclass(frozen=True)
class HeldOutScores:
    """Bits per byte of every domain.

    Attributes:
        domains: domain → its result, sorted by name.
        total: all documents together; domains weigh as many bytes as they have.
        macro: the mean of the domains; each weighs the same. Its interval resamples documents within domains.
        digest: of the ids and sizes of the documents: equal digests, same documents.
    """

    domains: Mapping[str, BitsPerByte]
    total: BitsPerByte
    macro: Interval
    digest: str

    @property
    def nonfinite(self) -> int:
        return self.total.nonfinite

    def values(self) -> dict[str, float]:
        """Bits per byte of `total`, `macro` and each domain."""
        domains = {domain: result.bits_per_byte.value for domain, result in self.domains.items()}
        return {"total": self.total.bits_per_byte.value, "macro": self.macro.value} | domains


@dataclass(frozen=True)
class Baseline:
    """The baseline's bits per byte, to stand beside a model's.

    Attributes:
        name: like `3-gram`.
        bits_per_byte: `total`, `macro` and each domain.
        nats: `domain/id` of each document → its nats.
        digest: of the documents; see `HeldOutScores`.
    """

    name: str
    bits_per_byte: Mapping[str, float]
    nats: Mapping[str, float]
    digest: str

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Read the folder that `evaluate.ngram_baseline` wrote.

        Raises:
            DataError: its results are missing, damaged or not finite.
        """
        try:
            content = json.loads((folder / RESULTS).read_text(encoding="utf-8"))
            values = {name: float(entry["bits_per_byte"]) for name, entry in content["bits_per_byte"].items()}
            rows = [json.loads(line) for line in (folder / DOCUMENTS).read_text(encoding="utf-8").split("\n") if line]
            nats = {f"{row['domain']}/{row['id']}": float(row["nats"]) for row in rows}
            return cls(str(content["model"]), values, nats, str(content["held_out_digest"]))
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise DataError(
                f"the baseline's {RESULTS} and {DOCUMENTS} can't be read: {error!r}", advice="Build the n-gram baseline again."
            ) from error


def score_held_out(
    held_out: Mapping[str, Iterable[EncodedDocument]],
    score: Callable[[Iterable[EncodedDocument]], Iterator[DocumentScore]],
    *,
    limit: int | None,
    bootstrap_samples: int,
    seed: int,
) -> HeldOutScores:
    """Score every domain's documents; with a limit, the first by id (this alone holds a domain's tokens in memory).

    Raises:
        DataError: there is no domain, or one has no documents.
    """
    if not held_out:
        raise DataError("there are no held-out domains", advice="Pass at least one domain with documents.")
    domains = {}
    for number, domain in enumerate(sorted(held_out)):
        documents = held_out[domain] if limit is None else islice(sorted(held_out[domain], key=lambda document: document.id), limit)
        scores = list(score(documents))
        if not scores:
            raise DataError(f"held-out domain {domain!r} has no documents", advice="Hold out more documents, or leave the domain out.")
        # A seed of its own: domains of equal size would be resampled in step, and the macro interval come out too wide.
        domains[domain] = summarize(scores, bootstrap_samples, (seed, number))
    everything = [document._replace(id=f"{domain}/{document.id}") for domain, result in domains.items() for document in result.documents]
    means = np.mean([result.resamples for result in domains.values()], axis=0)
    macro = interval(float(np.mean([result.bits_per_byte.value for result in domains.values()])), means)
    total = summarize(everything, bootstrap_samples, seed)
    digest = hashlib.sha256("".join(f"{document.id}\0{document.bytes}\n" for document in total.documents).encode()).hexdigest()
    return HeldOutScores(domains, total, macro, digest)


def differences(scores: HeldOutScores, baseline: Baseline, bootstrap_samples: int, seed: int) -> dict[str, Interval]:
    """Bits per byte minus the baseline's, of `total`, `macro` and each domain, with paired 95 % intervals over documents.

    Documents differ far more from each other than two models do on one document, so that the paired interval is the one
    that says whether a difference is real. Negative: better than the baseline.
    """
    domains = {}
    for number, (domain, result) in enumerate(scores.domains.items()):
        documents = [document._replace(nats=document.nats - baseline.nats[f"{domain}/{document.id}"]) for document in result.documents]
        domains[domain] = summarize(documents, bootstrap_samples, (seed, number))
    everything = [document._replace(nats=document.nats - baseline.nats[document.id]) for document in scores.total.documents]
    macro = float(np.mean([result.bits_per_byte.value for result in domains.values()]))
    return {
        "total": summarize(everything, bootstrap_samples, seed).bits_per_byte,
        "macro": interval(macro, np.mean([result.resamples for result in domains.values()], axis=0)),
    } | {domain: result.bits_per_byte for domain, result in domains.items()}


def write_documents(scores: HeldOutScores, path: Path) -> None:
    """One JSON object per document: `{domain, id, nats, tokens, bytes}`; nats is null where it isn't finite."""
    with path.open("w", encoding="utf-8", newline="\n") as file:
        for domain, result in scores.domains.items():
            for document in result.documents:
                row = {
                    "domain": domain,
                    "id": document.id,
                    "nats": finite(document.nats),
                    "tokens": document.tokens,
                    "bytes": document.bytes,
                }
                file.write(json.dumps(row, ensure_ascii=False) + "\n")


def bits_per_byte_entries(
    scores: HeldOutScores, baseline: Baseline | None = None, against: Mapping[str, Interval] | None = None
) -> dict[str, dict[str, Any]]:
    """The `bits_per_byte` part of results.json: `total`, `macro` and each domain; `against` is what `differences` returned."""
    entries: dict[str, dict[str, Any]] = {}
    for name, result in {"total": scores.total, "macro": None, **scores.domains}.items():
        value, low, high = result.bits_per_byte if result else scores.macro
        entries[name] = {"bits_per_byte": finite(value), "low_95": finite(low), "high_95": finite(high)}
        if result:
            entries[name] |= {
                "nats": finite(result.nats),
                "tokens": result.tokens,
                "bytes": result.bytes,
                "documents": len(result.documents),
            }
        if baseline:
            entries[name]["baseline"] = baseline.bits_per_byte[name]
        if against:
            columns = ("difference", "difference_low_95", "difference_high_95")
            entries[name] |= dict(zip(columns, map(finite, against[name]), strict=True))
    return entries


def table(entries: Mapping[str, Mapping[str, Any]]) -> list[dict[str, Scalar]]:
    """Rows for the UI, of equal columns; what isn't finite or doesn't apply reads `–`."""
    columns = list(dict.fromkeys(column for entry in entries.values() for column in entry))
    rows = []
    for name, entry in entries.items():
        row: dict[str, Scalar] = {"domain": name}
        row |= {column: "–" if entry.get(column) is None else _rounded(entry[column]) for column in columns}
        rows.append(row)
    return rows


def finite(value: float) -> float | None:
    """The value, or None (JSON null) where it is NaN or infinite."""
    return value if math.isfinite(value) else None


def _rounded(value: Scalar) -> Scalar:
    return round(value, 4) if isinstance(value, float) else value
