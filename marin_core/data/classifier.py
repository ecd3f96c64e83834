"""A trainable classifier of documents: logistic regression on hashed n-grams of words. No pickle: an array of weights and a JSON file."""

import hashlib
import heapq
import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from marin_core.artifact.canonical import canonical_json
from marin_core.data.files import write_json
from marin_core.data.measures.config import ClassifierConfig
from marin_core.data.shard import find_part, read_part
from marin_core.data.words import UnicodeWords, WordFacts
from marin_core.errors import ConfigError, DataError, PreemptedError
from marin_core.report import Check, Report, Reporter, Scalar

WEIGHTS_FILE = "weights.npy"
INFO_FILE = "classifier.json"
SCHEMA_VERSION = "classifier/1"
THRESHOLDS = (0.1, 0.25, 0.5, 0.75, 0.9)
MAX_ITERATIONS = 1_000
TOLERANCE = 1e-5

Features = npt.NDArray[np.int64]
_MIX = np.uint64(0xFF51AFD7ED558CCD)
"""A multiplier of MurmurHash3's finalizer; the highest bits of the product depend on all bits of a hash."""
_SEQUENCE_BASE = np.uint64(0xC4CEB9FE1A85EC53)


def features_of(facts: WordFacts, config: ClassifierConfig) -> Features:
    """Numbers of the distinct n-grams of a text, int64 [k] in [0, 2^feature_bits), sorted."""
    words = facts.hashes[: config.max_words]
    shift = np.uint64(64 - config.feature_bits)
    grams, found = words, [words * _MIX >> shift]
    for n in range(2, config.ngram_words + 1):
        grams = grams[:-1] * _SEQUENCE_BASE + words[n - 1 :]
        found.append(grams * _MIX >> shift)
    return np.unique(np.concatenate(found)).astype(np.int64)


@dataclass(frozen=True)
class Classifier:
    """A trained classifier.

    Attributes:
        weights: float32 [2^feature_bits].
        bias: added to the weighted sum.
    """

    config: ClassifierConfig
    weights: npt.NDArray[np.float32]
    bias: float

    def score(self, facts: WordFacts) -> float:
        """Probability of the positive label."""
        return self.score_features(features_of(facts, self.config))

    def score_features(self, features: Features) -> float:
        """σ(Σ w / √k + bias) over the k distinct n-grams, to six decimals."""
        # Rounded, since processors differ in the order in which they sum.
        total = float(self.weights[features].astype(np.float64).sum()) / math.sqrt(max(1, len(features)))
        return round(_sigmoid(total + self.bias), 6)


def _sigmoid(value: float) -> float:
    return 1 / (1 + math.exp(-value)) if value >= 0 else 1 - 1 / (1 + math.exp(value))


def load_classifier(folder: Path) -> Classifier:
    """Load a classifier artifact.

    Raises:
        DataError: a file is missing, broken or of another schema.
    """
    try:
        info = json.loads((folder / INFO_FILE).read_bytes())
        if info["schema"] != SCHEMA_VERSION:
            raise ValueError(f"schema {info['schema']!r}, this reader knows {SCHEMA_VERSION!r}")
        config = ClassifierConfig.from_json(info["config"])
        weights = np.load(folder / WEIGHTS_FILE, allow_pickle=False)
        if weights.dtype != np.float32 or weights.shape != (2**config.feature_bits,):
            raise ValueError(f"weights are {weights.dtype} {weights.shape}, expected float32 ({2**config.feature_bits},)")
        return Classifier(config, weights, float(info["bias"]))
    except (OSError, ValueError, KeyError, TypeError, ConfigError) as error:
        raise DataError(f"{folder.name!r} is no readable classifier ({error})", advice="Rebuild the classifier artifact.") from error


def train_classifier(config: ClassifierConfig, labels: Mapping[str, Sequence[Path]], output: Path, reporter: Reporter) -> Report:
    """Train on shards of documents and judge by documents that were held out; writes `weights.npy` and `classifier.json`.

    Documents that stand under two labels are left out. The same documents give the same weights, in any order of shards.

    Args:
        labels: label → folders of shards.

    Raises:
        ConfigError: there is one label only, or none is the positive one.
        DataError: a shard is damaged, or a label has no document to train on or to be judged by.
    """
    if config.positive not in labels or len(labels) < 2:
        raise ConfigError(
            f"field 'positive' is {config.positive!r}, the labels are {sorted(labels)}",
            advice="Give two labels or more, one of them the positive one.",
        )
    chosen = {label: _chosen(labels[label], config.max_documents) for label in sorted(labels)}
    shared = {identity for identity, count in Counter(chain.from_iterable(chosen.values())).items() if count > 1}
    documents = _read(config, labels, {label: each - shared for label, each in chosen.items()}, reporter)
    held_out = [document for document in documents if document.held_out]
    trained = [document for document in documents if not document.held_out]
    for part in (held_out, trained):
        missing = sorted(set(labels) - {document.label for document in part})
        if missing:
            raise DataError(f"label {missing[0]!r} has too few documents to train on and be judged by", advice="Give it more shards.")
    weights, bias = _fit(config, trained)
    classifier = Classifier(config, weights, bias)
    output.mkdir(parents=True, exist_ok=True)
    np.save(output / WEIGHTS_FILE, weights, allow_pickle=False)
    info = {"schema": SCHEMA_VERSION, "config": config.model_dump(mode="json"), "bias": bias, "labels": sorted(labels)}
    write_json(output / INFO_FILE, info)
    return _report(classifier, trained, held_out, len(shared), output)


@dataclass(frozen=True)
class _Labelled:
    """A document as the classifier sees it."""

    id: str
    label: str
    features: Features
    held_out: bool


def _chosen(shards: Sequence[Path], count: int) -> set[str]:
    """The smallest ids of several shards."""
    ids = {identity for shard in shards for columns in read_part(find_part(shard), ("id",)) for identity in columns["id"][:count]}
    return set(heapq.nsmallest(count, ids))


def _read(
    config: ClassifierConfig, labels: Mapping[str, Sequence[Path]], chosen: Mapping[str, set[str]], reporter: Reporter
) -> list[_Labelled]:
    """The chosen documents, each once, in the order of their ids."""
    words = UnicodeWords()
    found: dict[str, _Labelled] = {}
    shards = [(label, shard) for label in sorted(labels) for shard in labels[label]]
    for done, (label, shard) in enumerate(shards):
        if reporter.stop_requested():
            raise PreemptedError("training of the classifier was asked to stop", advice="Start it again; it begins anew.")
        for identity, text in _texts(shard, chosen[label]):
            # The last digits, since the first ones decided which documents were chosen.
            held_out = int(identity[-8:], 16) % 100 < config.held_out_percent
            facts = words.facts(words.word_tokenize(text))
            found[identity] = _Labelled(identity, label, features_of(facts, config), held_out)
        reporter.progress(done + 1, len(shards), "shards")
    return [found[identity] for identity in sorted(found)]


def _texts(shard: Path, chosen: set[str]) -> Iterator[tuple[str, str]]:
    last = max(chosen, default="")
    for columns in read_part(find_part(shard)):
        if columns["id"][0] > last:
            return
        yield from ((identity, text) for identity, text in zip(columns["id"], columns["text"], strict=True) if identity in chosen)


def _fit(config: ClassifierConfig, documents: Sequence[_Labelled]) -> tuple[npt.NDArray[np.float32], float]:
    """Weights and bias by liblinear, which works in one thread, so that the sums are always the same."""
    from scipy.sparse import csr_matrix
    from sklearn.linear_model import LogisticRegression

    sizes = [len(document.features) for document in documents]
    values = np.concatenate([np.full(size, 1 / math.sqrt(size)) for size in sizes if size])
    columns = np.concatenate([document.features for document in documents])
    rows = np.concatenate((np.zeros(1, np.int64), np.cumsum(sizes)))
    matrix: Any = csr_matrix((values, columns, rows), shape=(len(documents), 2**config.feature_bits))
    model: Any = LogisticRegression(
        C=config.inverse_regularization,
        class_weight="balanced",
        solver="liblinear",
        random_state=0,
        tol=TOLERANCE,
        max_iter=MAX_ITERATIONS,
    )
    model.fit(matrix, [document.label == config.positive for document in documents])
    return model.coef_[0].astype(np.float32), float(model.intercept_[0])


def _report(classifier: Classifier, trained: Sequence[_Labelled], held_out: Sequence[_Labelled], shared: int, output: Path) -> Report:
    from sklearn.metrics import roc_auc_score

    positive = classifier.config.positive
    scores = np.array([classifier.score_features(document.features) for document in held_out])
    truth = np.array([document.label == positive for document in held_out])
    auc = float(roc_auc_score(truth, scores))
    labels = sorted({document.label for document in held_out})
    metrics: dict[str, Scalar] = {
        "held_out_auc": round(auc, 6),
        "held_out_accuracy": round(float(((scores >= 0.5) == truth).mean()), 6),
        "documents_under_two_labels": shared,
    }
    rows: list[dict[str, Scalar]] = []
    for label in labels:
        own = scores[[document.label == label for document in held_out]]
        metrics[f"documents/{label}"] = sum(document.label == label for document in trained) + len(own)
        kept: dict[str, Scalar] = {f"at_least_{limit}": round(float((own >= limit).mean()), 4) for limit in THRESHOLDS}
        rows.append({"label": label, "held_out": len(own), "mean_score": round(float(own.mean()), 4), **kept})
    digest = hashlib.sha256(classifier.weights.tobytes())
    digest.update(canonical_json([classifier.config.model_dump(mode="json"), repr(classifier.bias)]))
    return Report(
        metrics=metrics,
        tables={"scores": rows},
        plots={"score_histogram": _draw(scores, [document.label for document in held_out], output / "scores.png")},
        checks=[Check("tells_labels_apart", auc > 0.5, f"area under the ROC curve of held-out documents is {auc:.4f}", {"auc": auc})],
        content_digest=digest.hexdigest(),
    )


def _draw(scores: npt.NDArray[np.float64], labels: Sequence[str], path: Path) -> Path:
    """Histograms of the held-out documents' scores, one for each label."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5, 3), dpi=100, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    for label in sorted(set(labels)):
        own = scores[[each == label for each in labels]]
        axes.hist(own, bins=40, range=(0, 1), alpha=0.6, density=True, label=f"{label} ({len(own)})")
    axes.set_xlabel("score")
    axes.set_ylabel("density")
    axes.legend(fontsize="small", loc="upper center")
    figure.savefig(path, metadata={"Software": None})
    return path
