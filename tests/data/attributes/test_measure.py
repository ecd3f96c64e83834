"""Measuring a shard: a row for each document, whatever a measure does; the same bytes anywhere; no thresholds in it."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from marin_core.data.attributes import measure as measure_module
from marin_core.data.attributes.files import attribute_file, read_together
from marin_core.data.attributes.measure import measure_shard
from marin_core.data.measures.config import CodeQualityMeasure, GopherQualityMeasure, LengthMeasure
from marin_core.data.measures.interface import Measured
from marin_core.data.stages import AttributesConfig
from marin_core.errors import ConfigError, DataError, MarinError
from marin_core.report import Report, SilentReporter
from tests.data.attributes.test_files import write_documents
from tests.data.conftest import sentences

CONFIG = AttributesConfig(measures=(LengthMeasure(), GopherQualityMeasure(), CodeQualityMeasure()))


def measured(folder: Path, output: Path, config: AttributesConfig = CONFIG) -> Report:
    return measure_shard(config, folder, {}, output, SilentReporter())


def test_every_document_has_its_row_and_the_report_says_how_values_are_spread(tmp_path: Path) -> None:
    texts = sentences(200, seed=1)
    part = write_documents(tmp_path / "documents", texts)
    report = measured(part.parent, tmp_path / "out")
    rows = list(read_together(part, [attribute_file(tmp_path / "out")], ("text",)))
    assert [len(text) for text in rows[0]["text"]] == rows[0]["length.characters"]
    assert rows[0]["length.error"] == [None] * 200
    assert report.metrics["documents"] == 200
    assert report.metrics["errors"] == 0
    assert {f"cpu_seconds_per_mb/{name}" for name in ("length", "gopher_quality", "code_quality")} <= set(report.metrics)
    shown = {row["value"]: row for row in report.tables["values"]}
    assert (
        float(shown["length.characters"]["p1"]) <= float(shown["length.characters"]["median"]) <= float(shown["length.characters"]["p99"])
    )
    assert report.plots["distributions"].read_bytes().startswith(b"\x89PNG")
    assert report.plots["distributions"].stat().st_size < 100_000


def test_the_same_documents_give_the_same_file(tmp_path: Path) -> None:
    part = write_documents(tmp_path / "documents", sentences(100, seed=2))
    first, second = measured(part.parent, tmp_path / "a"), measured(part.parent, tmp_path / "b")
    assert attribute_file(tmp_path / "a").read_bytes() == attribute_file(tmp_path / "b").read_bytes()
    assert first.content_digest == second.content_digest


def test_another_value_is_another_content(tmp_path: Path) -> None:
    part = write_documents(tmp_path / "documents", sentences(20, seed=3))
    other = AttributesConfig(measures=(LengthMeasure(), GopherQualityMeasure(stop_words=("model",)), CodeQualityMeasure()))
    assert measured(part.parent, tmp_path / "a").content_digest != measured(part.parent, tmp_path / "b", other).content_digest


class Choosy:
    """Raises on every document whose text contains a word."""

    name = "choosy"
    columns: Mapping[str, pa.DataType] = {"value": pa.int64()}

    def measure(self, document: Measured) -> Mapping[str, Any]:
        if "forbidden" in document.text:
            raise OverflowError("too much")
        return {"value": 1}


def test_a_measure_that_raises_leaves_nulls_and_the_kind_of_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure_module, "make_measures", lambda configs, resources: [Choosy()])
    part = write_documents(tmp_path / "documents", [*(f"text {index}" for index in range(199)), "a forbidden text"])
    report = measured(part.parent, tmp_path / "out")
    assert report.metrics["error:choosy:OverflowError"] == 1
    (rows,) = read_together(part, [attribute_file(tmp_path / "out")], ("text",))
    marked = {text: (value, error) for text, value, error in zip(rows["text"], rows["choosy.value"], rows["choosy.error"], strict=True)}
    assert marked.pop("a forbidden text") == (None, "OverflowError")
    assert set(marked.values()) == {(1, None)}


def test_a_measure_that_raises_often_fails_the_shard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure_module, "make_measures", lambda configs, resources: [Choosy()])
    part = write_documents(tmp_path / "documents", [f"{'forbidden ' if index % 20 == 0 else ''}text {index}" for index in range(100)])
    with pytest.raises(MarinError, match="measures failed on 5 of 100 documents") as error:
        measured(part.parent, tmp_path / "out")
    assert error.value.exit_code == 70


def test_the_check_sees_a_lost_row(tmp_path: Path) -> None:
    part = write_documents(tmp_path / "documents", sentences(30, seed=5))
    report = measured(part.parent, tmp_path / "out")
    assert [check.passed for check in report.checks] == [True]
    fewer = write_documents(tmp_path / "fewer", sentences(29, seed=5))
    assert not measure_module._complete(fewer, attribute_file(tmp_path / "out")).passed


def test_damaged_documents_are_bad_data(tmp_path: Path) -> None:
    part = write_documents(tmp_path / "documents", sentences(50, seed=4))
    data = bytearray(part.read_bytes())
    data[len(data) // 3] ^= 1
    part.write_bytes(data)
    with pytest.raises(DataError):
        measured(part.parent, tmp_path / "out")


def test_a_measure_stands_once() -> None:
    with pytest.raises(ConfigError, match="each measure may stand once"):
        AttributesConfig(measures=(LengthMeasure(), LengthMeasure()))
