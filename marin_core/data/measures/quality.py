"""What a trained classifier says of a text."""

from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from marin_core.data.classifier import Classifier
from marin_core.data.measures.interface import Measured


class Quality:
    """The probability of the classifier's positive label."""

    name = "quality"
    columns: Mapping[str, pa.DataType] = {"score": pa.float64()}

    def __init__(self, classifier: Classifier) -> None:
        self._classifier = classifier

    def measure(self, document: Measured) -> Mapping[str, Any]:
        return {"score": self._classifier.score(document.facts)}
