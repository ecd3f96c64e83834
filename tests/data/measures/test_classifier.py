import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from marin_core.data.classifier import features_of, load_classifier, train_classifier
from marin_core.data.documents import Document
from marin_core.data.measures.config import ClassifierConfig, QualityMeasure
from marin_core.data.measures.interface import Measured
from marin_core.data.measures.make import make_measures
from marin_core.data.normal_form import document_id
from marin_core.data.rules.config import MinQuality
from marin_core.data.rules.decide import make_rules
from marin_core.data.shard import SCHEMA_VERSION, write_part
from marin_core.data.words import UnicodeWords
from marin_core.errors import ConfigError, DataError
from marin_core.report import Report, SilentReporter
from tests.data.measures.corpus import real_texts

WORDS = UnicodeWords()
CONFIG = ClassifierConfig(positive="prose", feature_bits=14)


def shard(folder: Path, texts: Sequence[str]) -> Path:
    """A shard of documents with these texts."""
    folder.mkdir(parents=True)
    documents = {
        document_id(text): Document(document_id(text), text, "raw/x", None, None, "{}", len(text.encode())) for text in texts if text
    }
    footer = {"schema": SCHEMA_VERSION, "stage": "filter", "fingerprint": "", "input_digest": "", "licenses": "[]", "policies": "[]"}
    write_part(folder / "part-00000-of-00001.parquet", list(documents.values()), footer)
    return folder


def train(labels: Mapping[str, Sequence[Path]], output: Path, config: ClassifierConfig = CONFIG) -> Report:
    return train_classifier(config, labels, output, SilentReporter())


@pytest.fixture(scope="module")
def labelled(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Path]]:
    """Source code of the standard library against its documentation, in two shards each."""
    base = tmp_path_factory.mktemp("labelled")
    code = [text for text in real_texts() if "import " in text and "def " in text][:100]
    prose = [text for text in real_texts() if "def " not in text and len(text) > 300][:300]
    return {
        name: [shard(base / f"{name}{index}", texts[index::2]) for index in range(2)] for name, texts in (("code", code), ("prose", prose))
    }


@pytest.fixture(scope="module")
def trained(labelled: dict[str, list[Path]], tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Report]:
    output = tmp_path_factory.mktemp("trained") / "classifier"
    return output, train(labelled, output)


def test_code_and_prose_are_told_apart_on_documents_it_has_not_seen(trained: tuple[Path, Report]) -> None:
    _, report = trained
    assert report.metrics["held_out_auc"] > 0.98  # type: ignore[operator]
    assert [check.passed for check in report.checks] == [True]
    rows = {row["label"]: row for row in report.tables["scores"]}
    assert rows["prose"]["mean_score"] > 0.8 > 0.2 > rows["code"]["mean_score"]  # type: ignore[operator]


def test_the_order_of_shards_and_labels_does_not_matter(
    labelled: dict[str, list[Path]], trained: tuple[Path, Report], tmp_path: Path
) -> None:
    output, report = trained
    again = train({name: labelled[name][::-1] for name in reversed(labelled)}, tmp_path / "again")
    assert again.content_digest == report.content_digest
    assert (tmp_path / "again" / "weights.npy").read_bytes() == (output / "weights.npy").read_bytes()
    assert (tmp_path / "again" / "classifier.json").read_bytes() == (output / "classifier.json").read_bytes()


def test_the_score_is_that_of_logistic_regression_in_plain_arithmetic(trained: tuple[Path, Report]) -> None:
    classifier = load_classifier(trained[0])
    for text in real_texts()[:20]:
        facts = WORDS.facts(WORDS.word_tokenize(text))
        features = features_of(facts, classifier.config)
        total = sum(float(classifier.weights[feature]) for feature in features) / len(features) ** 0.5 + classifier.bias
        assert classifier.score(facts) == pytest.approx(1 / (1 + np.exp(-total)), abs=1e-6)


def test_the_measure_and_the_rule_use_the_trained_classifier(trained: tuple[Path, Report]) -> None:
    (rule,) = make_rules([MinQuality(threshold=0.5)], {"classifier": trained[0]})
    prose = Measured("The statement is executed once for each item, and what it returns is given to the caller. " * 5, "{}", WORDS)
    code = Measured("def run(self, name):\n    import os\n    return os.path.join(self.root, name)\n" * 5, "{}", WORDS)
    assert rule.decide(prose).reason is None
    assert rule.decide(code).reason == "quality_below"
    (measure,) = make_measures([QualityMeasure()], {"classifier": trained[0]})
    assert measure.measure(Measured("", "{}", WORDS))["score"] == pytest.approx(
        load_classifier(trained[0]).score_features(np.array([], int))
    )


def test_features_are_distinct_n_grams_of_the_first_words() -> None:
    def features(text: str, **options: Any) -> set[int]:
        config = ClassifierConfig(positive="x", feature_bits=26, **options)
        return set(features_of(WORDS.facts(text.split()), config).tolist())

    assert len(features("a b a b")) == 4  # a, b, a b, b a
    assert features("a b c d", ngram_words=1, max_words=2) == features("b a", ngram_words=1)
    assert features("a b") != features("b a")
    assert features("a b a b") == features("b a b a")


def test_documents_under_two_labels_teach_nothing(tmp_path: Path) -> None:
    texts = [f"{word} number {index} of many" for index in range(120) for word in ("apples", "pears")]
    labels = {"a": [shard(tmp_path / "a", [*texts[::2], "both"])], "b": [shard(tmp_path / "b", [*texts[1::2], "both"])]}
    report = train(labels, tmp_path / "out", ClassifierConfig(positive="a", feature_bits=12))
    assert report.metrics["documents_under_two_labels"] == 1
    assert (report.metrics["documents/a"], report.metrics["documents/b"]) == (120, 120)
    fewer = train(labels, tmp_path / "fewer", ClassifierConfig(positive="a", feature_bits=12, max_documents=50))
    assert int(fewer.metrics["documents/a"]) + int(fewer.metrics["documents_under_two_labels"]) in (50, 51)


def test_labels_that_can_not_be_learnt_are_refused(tmp_path: Path) -> None:
    some = [shard(tmp_path / "some", [f"text {index}" for index in range(100)])]
    one = [shard(tmp_path / "one", ["a single text"])]
    with pytest.raises(ConfigError, match="'positive' is 'prose'"):
        train({"a": some, "b": one}, tmp_path / "out")
    with pytest.raises(ConfigError, match="two labels"):
        train({"prose": some}, tmp_path / "out")
    with pytest.raises(DataError, match="'other' has too few documents"):
        train({"prose": some, "other": one}, tmp_path / "out")


def test_a_damaged_classifier_is_refused(trained: tuple[Path, Report], tmp_path: Path) -> None:
    info = json.loads((trained[0] / "classifier.json").read_bytes())
    weights = np.load(trained[0] / "weights.npy")
    damages: list[tuple[str, Any]] = [
        ("missing", None),
        ("schema", info | {"schema": "classifier/0"}),
        ("shape", info | {"config": info["config"] | {"feature_bits": 15}}),
        ("config", info | {"config": {}}),
        ("bias", info | {"bias": None}),
    ]
    for name, content in damages:
        folder = tmp_path / name
        folder.mkdir()
        np.save(folder / "weights.npy", weights)
        if content is not None:
            (folder / "classifier.json").write_text(json.dumps(content))
        with pytest.raises(DataError, match=f"'{name}' is no readable classifier"):
            load_classifier(folder)
