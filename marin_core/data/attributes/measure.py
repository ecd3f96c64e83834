"""Measure the documents of one shard: an attribute file beside the part, and a picture of how the values are spread."""

import hashlib
import json
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from marin_core.artifact.canonical import canonical_json
from marin_core.data.attributes.files import AttributeWriter, read_together
from marin_core.data.measures.interface import Measure, Measured
from marin_core.data.measures.make import make_measures
from marin_core.data.shard import find_part, read_footer, read_part
from marin_core.data.stages import AttributesConfig
from marin_core.data.words import UnicodeWords
from marin_core.errors import DataError, MarinError, PreemptedError
from marin_core.report import Check, Report, Reporter, Scalar

ERROR = "error"
"""Column of each measure with the kind of error that it raised on a document; null if it raised none."""
SHOWN_ROWS = 20_000
"""Rows from which the report's distributions are drawn: the first ones, which are a random sample, as ids are hashes of the texts."""
TOP_VALUES = 5
HISTOGRAMS = 16
BINS = 40


def measure_shard(config: AttributesConfig, documents: Path, resources: Mapping[str, Path], output: Path, reporter: Reporter) -> Report:
    """Write `part-NNNNN-of-MMMMM.parquet` with the columns of all measures, and nothing about what is to be kept.

    Args:
        documents: folder of a shard of documents.
        resources: folders of artifacts that measures name: classifiers, word lists, tokenizers.

    Raises:
        DataError: the shard is damaged.
        MarinError: (exit code 70) measures raise on more than `max_error_share` of the documents.
    """
    part = find_part(documents)
    rows = int(read_footer(part)["rows"])
    shard = _Shard(make_measures(config.measures, resources), UnicodeWords())
    footer = {"stage": "attributes", "measures": canonical_json([each.model_dump(mode="json") for each in config.measures]).decode()}
    with AttributeWriter(output / part.name, shard.columns, footer) as writer:
        for group in read_part(part, ("id", "text", "metadata")):
            values: dict[str, list[Any]] = {name: [] for name in shard.columns}
            for text, metadata in zip(group["text"], group["metadata"], strict=True):
                if reporter.stop_requested():
                    raise PreemptedError("measuring was asked to stop", advice="Start it again; it begins anew.")
                shard.measure(text, metadata, values)
            writer.write(group["id"], values)
            shard.note(group["id"], values)
            reporter.progress(writer.rows, rows, "documents")
    shard.refuse_errors(config.max_error_share, writer.rows)
    return shard.report(writer.rows, output, _complete(part, output / part.name))


def _complete(part: Path, attributes: Path) -> Check:
    """Read both files' ids from disk: the attributes are those of the documents, row by row, or they are out of step."""
    documents = int(read_footer(part)["rows"])
    try:
        rows = sum(len(group["id"]) for group in read_together(part, [attributes], ("id",)))
        said = f"{rows} rows for {documents} documents, in their order"
    except DataError as error:
        rows, said = -1, error.message
    return Check("one_row_a_document", rows == documents, said, {"documents": documents})


class _Shard:
    """Measures at work, what they cost, and what the report shows of their values."""

    def __init__(self, measures: Sequence[Measure], words: UnicodeWords) -> None:
        self._measures = measures
        self._words = words
        self.columns: dict[str, pa.DataType] = {}
        for measure in measures:
            self.columns |= {f"{measure.name}.{name}": kind for name, kind in measure.columns.items()}
            self.columns[f"{measure.name}.{ERROR}"] = pa.string()
        self._seconds: Counter[str] = Counter()
        self._errors: Counter[str] = Counter()
        self._bytes = 0
        self._digest = hashlib.sha256()
        self._shown: dict[str, list[Any]] = {name: [] for name in self.columns}

    def measure(self, text: str, metadata: str, values: Mapping[str, list[Any]]) -> None:
        """Append what all measures say about a document. One that raises leaves nulls and the kind of its error."""
        document = Measured(text, metadata, self._words)
        self._bytes += len(text.encode())
        for measure in self._measures:
            began = time.thread_time()
            found: Mapping[str, Any]
            try:
                found, error = measure.measure(document), None
            except Exception as raised:
                found, error = dict.fromkeys(measure.columns), type(raised).__name__
                self._errors[f"error:{measure.name}:{error}"] += 1
            self._seconds[measure.name] += time.thread_time() - began  # type: ignore[assignment]
            for name in measure.columns:
                values[f"{measure.name}.{name}"].append(found[name])
            values[f"{measure.name}.{ERROR}"].append(error)

    def note(self, ids: Sequence[str], values: Mapping[str, list[Any]]) -> None:
        """Take a row group into the digest of the contents, and its first rows into the report."""
        for row in zip(ids, *values.values(), strict=True):
            self._digest.update(json.dumps(row, ensure_ascii=True, separators=(",", ":")).encode() + b"\n")
        for name, column in values.items():
            self._shown[name] += column[: SHOWN_ROWS - len(self._shown[name])]

    def refuse_errors(self, max_share: float, documents: int) -> None:
        if self._errors.total() > max_share * documents:
            raise MarinError(
                f"measures failed on {self._errors.total()} of {documents} documents ({dict(self._errors)})",
                advice="Report the bug with the kind of error; no document was dropped.",
            )

    def report(self, documents: int, output: Path, complete: Check) -> Report:
        megabytes = max(self._bytes, 1) / 1e6
        metrics: dict[str, Scalar] = {"documents": documents, "bytes": self._bytes, "errors": self._errors.total()}
        metrics |= {f"cpu_seconds_per_mb/{name}": round(seconds / megabytes, 4) for name, seconds in sorted(self._seconds.items())}
        metrics |= dict(sorted(self._errors.items()))
        plots = {}
        numbers = {name: array for name in self.columns if (array := _numbers(self._shown[name])) is not None}
        if numbers:
            plots["distributions"] = _draw(numbers, output / "distributions.png")
        return Report(
            metrics=metrics, tables={"values": self._rows(numbers)}, plots=plots, checks=[complete], content_digest=self._digest.hexdigest()
        )

    def _rows(self, numbers: Mapping[str, np.ndarray[Any, Any]]) -> list[dict[str, Scalar]]:
        """Table: how the values of each column are spread."""
        rows: list[dict[str, Scalar]] = []
        for name, column in self._shown.items():
            known = [value for value in column if value is not None]
            if name.endswith(f".{ERROR}") and not known:
                continue
            row: dict[str, Scalar] = {"value": name, "documents": len(known), "p1": "", "median": "", "p99": "", "most_frequent": ""}
            if name in numbers and len(numbers[name]):
                low, middle, high = np.quantile(numbers[name], (0.01, 0.5, 0.99))
                row |= {"p1": f"{low:.4g}", "median": f"{middle:.4g}", "p99": f"{high:.4g}"}
            elif known and isinstance(known[0], str | bool):
                row["most_frequent"] = ", ".join(f"{value} ({count})" for value, count in Counter(known).most_common(TOP_VALUES))
            elif known and isinstance(known[0], list):
                row["most_frequent"] = f"{sum(bool(value) for value in known)} documents have some"
            rows.append(row)
        return rows


def _numbers(column: Sequence[Any]) -> np.ndarray[Any, Any] | None:
    known = [value for value in column if value is not None]
    if not known or not all(isinstance(value, int | float) and not isinstance(value, bool) for value in known[:100]):
        return None
    return np.asarray(known, np.float64)


def _draw(numbers: Mapping[str, np.ndarray[Any, Any]], path: Path) -> Path:
    """Small histograms of the first columns, cut at their 99th percentile."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    shown = list(numbers.items())[:HISTOGRAMS]
    across = min(4, len(shown))
    down = -(-len(shown) // across)
    figure = Figure(figsize=(2.4 * across, 1.6 * down), dpi=90)  # a layout that is worked out takes eight times as long
    figure.subplots_adjust(left=0.03, right=0.97, bottom=0.2 / down, top=1 - 0.2 / down, hspace=0.6, wspace=0.15)
    FigureCanvasAgg(figure)
    for place, (name, values) in enumerate(shown, 1):
        axes = figure.add_subplot(down, across, place)
        counts, edges = np.histogram(np.minimum(values, np.quantile(values, 0.99)), BINS)
        axes.stairs(counts, edges, fill=True)
        axes.set_xticks([edges[0], edges[-1]], [f"{edges[0]:.3g}", f"{edges[-1]:.3g}"], fontsize=6)
        axes.set_yticks([])
        axes.set_title(name, fontsize=7)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, metadata={"Software": None})
    return path
