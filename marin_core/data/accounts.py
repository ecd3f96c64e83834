"""The accounts of a shard: what came in, what was kept, and for everything else why not. Nothing leaves a stage without standing here."""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Literal, Self

import pyarrow.parquet as pq

from marin_core.data.documents import Document, Rejection, sample_of
from marin_core.data.files import write_json
from marin_core.data.shard import DroppedRows, RejectedFile, count_rejected
from marin_core.errors import MarinError
from marin_core.report import Check, Scalar

MAX_ERROR_SHARE = 0.01
"""Share of documents on which a step may raise; more is a defect, and fails the shard."""
REPORT_SAMPLES = 10
"""Beginnings of kept documents, and of dropped ones of each reason, that the report shows."""

Fate = Literal["kept", "dropped", "rejected"]


@dataclass
class _Weight:
    """How much met one fate."""

    documents: int = 0
    bytes: int = 0
    tokens: int = 0

    def add(self, size: int, tokens: int) -> None:
        self.documents += 1
        self.bytes += size
        self.tokens += tokens


class Accounts:
    """Side files and tables of one shard; a context manager, as the file of rejections is written as they come.

    Args:
        stage: name of the stage in the side files.
        output: folder of the shard.
        name: of the part, without extension.
        tokens: whether documents come with a number of tokens, so that tables can be weighted by it.
    """

    def __init__(self, stage: str, output: Path, name: str, *, tokens: bool = False) -> None:
        self._output = output
        self._name = name
        self._tokens = tokens
        self._dropped = DroppedRows(stage)
        self._rejected = RejectedFile(output / "rejected" / f"{name}.jsonl.zst", stage)
        self._weights: dict[tuple[Fate, str], _Weight] = defaultdict(_Weight)
        self._sources: dict[str, dict[Fate, _Weight]] = defaultdict(lambda: defaultdict(_Weight))
        self._kept: list[tuple[str, str]] = []
        self._errors: Counter[str] = Counter()
        self.notes: Counter[str] = Counter()

    def keep(self, document: Document, tokens: int = 0) -> None:
        """A document stays."""
        self._note("kept", "", document, tokens)
        self._kept.append((document.id, document.text))
        if len(self._kept) >= 100 * REPORT_SAMPLES:
            self._kept = sorted(self._kept)[:REPORT_SAMPLES]

    def drop(self, document: Document, reason: str, score: float | None = None, tokens: int = 0) -> None:
        """A valid document is filtered out."""
        self._note("dropped", reason, document, tokens)
        self._dropped.add(document, reason, score)

    def reject(self, rejection: Rejection) -> None:
        """A record can't be a document, or a step raised on it."""
        self._weights["rejected", rejection.reason].add(rejection.length, 0)
        if rejection.reason.startswith("error:"):
            self._errors[rejection.reason] += 1
        self._rejected.write(rejection)

    def _note(self, fate: Fate, reason: str, document: Document, tokens: int) -> None:
        self._weights[fate, reason].add(document.bytes, tokens)
        self._sources[document.source][fate].add(document.bytes, tokens)

    @property
    def documents_in(self) -> int:
        return sum(weight.documents for weight in self._weights.values())

    def of(self, fate: Fate) -> _Weight:
        """All that met one fate."""
        found = [weight for (each, _), weight in self._weights.items() if each == fate]
        return _Weight(*(sum(getattr(weight, name) for weight in found) for name in ("documents", "bytes", "tokens")))

    def refuse_errors(self, what: str) -> None:
        """Raise MarinError (exit code 70) if steps raised on more than 1 % of the documents of a shard (named as errors say it)."""
        if self._errors.total() > MAX_ERROR_SHARE * self.documents_in:
            raise MarinError(
                f"{what}: steps failed on {self._errors.total()} of {self.documents_in} documents ({dict(self._errors)})",
                advice="Report the bug with the kind of error; no document was dropped silently.",
            )

    def write(self) -> None:
        """Write `dropped/…` and `counts.json`, and end the file of rejections."""
        self._rejected.close()
        self._dropped.write(self._output / "dropped" / f"{self._name}.parquet")
        reasons = {fate: self._reasons_of(fate) for fate in ("dropped", "rejected")}
        kept = self.of("kept")
        counts = {
            "documents_in": self.documents_in,
            "bytes_in": kept.bytes + self.of("dropped").bytes,
            "kept": kept.documents,
            "kept_bytes": kept.bytes,
            "notes": dict(self.notes),
            **reasons,
        }
        write_json(self._output / "counts.json", counts | ({"kept_tokens": kept.tokens} if self._tokens else {}))

    def _reasons_of(self, fate: Fate) -> dict[str, int]:
        return {reason: weight.documents for (each, reason), weight in self._weights.items() if each == fate}

    def counts_add_up(self, documents_in: int) -> Check:
        """Compare what was read with what stands in the three files, counted from disk."""
        kept = pq.read_metadata(self._output / f"{self._name}.parquet").num_rows
        dropped = pq.read_metadata(self._output / "dropped" / f"{self._name}.parquet").num_rows
        rejected = count_rejected(self._output / "rejected" / f"{self._name}.jsonl.zst")
        return Check(
            "counts_add_up",
            documents_in == kept + dropped + rejected,
            f"{documents_in} records in = {kept} kept + {dropped} dropped + {rejected} rejected",
            {"documents_in": documents_in, "kept": kept, "dropped": dropped, "rejected": rejected},
        )

    def metrics(self) -> dict[str, Scalar]:
        """Numbers that are plotted over shards and versions."""
        kept, dropped, rejected = self.of("kept"), self.of("dropped"), self.of("rejected")
        metrics: dict[str, Scalar] = {
            "documents_in": self.documents_in,
            "bytes_in": kept.bytes + dropped.bytes,
            "documents_kept": kept.documents,
            "bytes_kept": kept.bytes,
            "kept_share": kept.documents / max(1, self.documents_in),
            "documents_dropped": dropped.documents,
            "documents_rejected": rejected.documents,
        }
        if self._tokens:
            metrics |= {"tokens_in": kept.tokens + dropped.tokens, "tokens_kept": kept.tokens}
        return metrics | {f"notes/{name}": count for name, count in sorted(self.notes.items())}

    def tables(self) -> dict[str, list[dict[str, Scalar]]]:
        """What happened to how much, most frequent first; samples that are harmless to show; and what was kept of each source."""
        return {"reasons": self._reason_rows(), "samples": self._sample_rows(), "sources": self._source_rows()}

    def _reason_rows(self) -> list[dict[str, Scalar]]:
        ordered = sorted(self._weights.items(), key=lambda item: (-item[1].documents, item[0]))
        documents = max(1, self.documents_in)
        weights = [weight for _, weight in ordered]
        size, tokens = max(1, sum(weight.bytes for weight in weights)), max(1, sum(weight.tokens for weight in weights))
        return [
            {
                "outcome": fate,
                "reason": reason,
                "documents": weight.documents,
                "share": round(weight.documents / documents, 6),
                "bytes": weight.bytes,
                "share_of_bytes": round(weight.bytes / size, 6),
                **({"tokens": weight.tokens, "share_of_tokens": round(weight.tokens / tokens, 6)} if self._tokens else {}),
            }
            for (fate, reason), weight in ordered
        ]

    def _sample_rows(self) -> list[dict[str, Scalar]]:
        rows: list[dict[str, Scalar]] = [
            {"outcome": "kept", "reason": "", "id": identity, "text": sample_of(text)}
            for identity, text in sorted(self._kept)[:REPORT_SAMPLES]
        ]
        for reason in sorted(self._dropped.counts):
            rows += [
                {"outcome": "dropped", "reason": reason, "id": identity, "text": sample_of(text)}
                for identity, text in self._dropped.sampled(reason)[:REPORT_SAMPLES]
            ]
        return rows

    def _source_rows(self) -> list[dict[str, Scalar]]:
        rows: list[dict[str, Scalar]] = []
        for source, fates in sorted(self._sources.items()):
            kept, dropped = fates["kept"], fates["dropped"]
            documents, size = kept.documents + dropped.documents, kept.bytes + dropped.bytes
            rows.append(
                {
                    "source": source,
                    "documents": documents,
                    "kept_share": round(kept.documents / max(1, documents), 6),
                    "bytes": size,
                    "kept_share_of_bytes": round(kept.bytes / max(1, size), 6),
                }
            )
        return rows

    def plots(self) -> dict[str, Path]:
        """A bar for each fate and reason, by documents and by bytes; written into the shard's folder."""
        path = self._output / "shares.png"
        draw_reasons(self._reason_rows(), path)
        return {"shares": path}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._rejected.close()


def draw_reasons(rows: Sequence[Mapping[str, Scalar]], path: Path) -> None:
    """Draw a table `reasons` as bars, its first 20 rows."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    rows = rows[:20]
    weights = [name for name in ("share", "share_of_bytes", "share_of_tokens") if rows and name in rows[0]]
    labels = [f"{row['outcome']} {row['reason']}".strip() for row in rows][::-1]
    figure = Figure(figsize=(6.5, 1.0 + 0.32 * len(labels)), dpi=100, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    height = 0.8 / max(1, len(weights))
    for index, weight in enumerate(weights):
        values = [float(row[weight]) for row in rows][::-1]
        places = [place + 0.4 - height * (index + 0.5) for place in range(len(labels))]
        axes.barh(places, values, height=height, label={"share": "of documents"}.get(weight, weight.replace("share_of_", "of ")))
    axes.set_yticks(range(len(labels)), labels)
    axes.set_xlim(0, 1)
    axes.set_xlabel("share")
    axes.legend(fontsize="small")
    figure.savefig(path, metadata={"Software": None})
