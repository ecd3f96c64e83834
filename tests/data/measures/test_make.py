"""What all measures promise: typed columns, values of the document alone, no network, no home."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any, get_args

import pyarrow as pa
import pytest

from marin_core.data.measures.config import C4QualityMeasure, MeasureConfig, QualityMeasure, TokenCountMeasure
from marin_core.data.measures.interface import Measured
from marin_core.data.measures.make import make_measures
from marin_core.data.tokenizer import load_tokenizer
from marin_core.data.words import UnicodeWords
from marin_core.errors import ConfigError
from tests.data.conftest import Corpus
from tests.data.measures.corpus import spoilt_texts

CONFIGS: list[Any] = [each() for each in get_args(get_args(MeasureConfig)[0]) if each is not QualityMeasure]
STRANGE = (
    "",
    " ",
    "\n\n",
    "\u2028",
    "\0",
    "x",
    "你",
    "🙂" * 40,
    "-" * 3_000,
    "= " * 500,
    "a@b.c",
    "\ufeff",
    "\u202e",
    "1" * 5_000,
    "{" * 99,
)
METADATA = ("{}", '{"url":"http://[x","lang":"en","license":3}', '{"url":5,"lang":["en"],"license":["MIT",null]}')
SCRIPT = """
import json, socket, sys

def refuse(*args, **kwargs):
    raise OSError("no network here")

socket.socket.connect = socket.getaddrinfo = socket.create_connection = refuse
from typing import get_args
from marin_core.data.measures.config import C4QualityMeasure, MeasureConfig, QualityMeasure, TokenCountMeasure
from marin_core.data.measures.interface import Measured
from marin_core.data.measures.make import make_measures
from marin_core.data.words import UnicodeWords
configs = [each() for each in get_args(get_args(MeasureConfig)[0]) if each not in (QualityMeasure, TokenCountMeasure)]
assert len(configs) == 12
words = UnicodeWords()
measures = make_measures(configs, {})
for text in json.load(sys.stdin):
    for measure in measures:
        print(measure.name, json.dumps(measure.measure(Measured(text, '{"url": "http://www.example.co.uk/a"}', words)), sort_keys=True))
for name in ("torch", "spacy", "jax", "tensorstore", "matplotlib"):
    assert name not in sys.modules, name
"""


def test_all_default_measures_run_without_network_or_home_and_say_the_same_anywhere(tmp_path: Path) -> None:
    texts = [*spoilt_texts(20, 4), *STRANGE]
    outputs = []
    for seed in ("1", "2"):
        environment = {"PYTHONHASHSEED": seed, "HOME": "/nonexistent", "PYTHONPATH": str(Path.cwd())}
        done = subprocess.run(
            [sys.executable, "-c", SCRIPT],
            input=json.dumps(texts),
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        outputs.append(done.stdout)
    assert outputs[0] == outputs[1]
    assert len(outputs[0].splitlines()) == 12 * len(texts)
    assert list(tmp_path.iterdir()) == []


def test_every_value_has_the_type_of_its_column_and_depends_on_the_document_alone(corpus: Corpus) -> None:
    resources = {"tokenizer": corpus.tokenizer}
    measures = make_measures(CONFIGS, resources)
    texts = [*STRANGE, *spoilt_texts(30, 9)]

    def values(order: list[str], words: UnicodeWords) -> dict[tuple[str, str, str], Any]:
        return {
            (measure.name, text, metadata): dict(measure.measure(Measured(text, metadata, words)))
            for text in order
            for metadata in METADATA
            for measure in measures
        }

    found = values(texts, UnicodeWords())
    assert found == values(texts[::-1], UnicodeWords())
    columns = {measure.name: measure.columns for measure in measures}
    for (name, text, _), row in found.items():
        assert list(row) == list(columns[name]), text[:40]
        for column, kind in columns[name].items():
            assert pa.array([row[column]], kind).to_pylist() == [row[column]]
        json.dumps(row, allow_nan=False)


def test_tokens_are_those_of_the_tokenizer(corpus: Corpus) -> None:
    (measure,) = make_measures([TokenCountMeasure()], {"tokenizer": corpus.tokenizer})
    text = "the model reads <|eos|> tokens"
    assert measure.measure(Measured(text, "{}", UnicodeWords())) == {"tokens": len(load_tokenizer(corpus.tokenizer).encode(text))}


def test_a_resource_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"'quality' reads 'good', but the resources are \['tokenizer'\]"):
        make_measures([QualityMeasure(classifier="good")], {"tokenizer": tmp_path})


PATIENCE = 100_000
"""Characters; a step that took quadratic time would meet the time limit of all tests."""
NASTY = {
    "dots": "." * PATIENCE + "x",
    "equal signs": "=" * PATIENCE,
    "at signs": "a@" * (PATIENCE // 2),
    "labels": "x@" + "a." * (PATIENCE // 2),
    "headers of a key": "-----BEGIN " + "PRIVATE KEY-----\n" + "a: b " * (PATIENCE // 5),
    "brackets": "[1" * (PATIENCE // 2),
    "one word": "ab " * (PATIENCE // 3),
    "digits": "1-" * (PATIENCE // 2),
}


@pytest.mark.parametrize("name", NASTY)
def test_no_text_takes_quadratic_time(name: str) -> None:
    configs = [config for config in CONFIGS if config.name != "token_count"] + [C4QualityMeasure(remove_lines=())]
    for measure in make_measures(configs, {}):
        assert measure.measure(Measured(NASTY[name], "{}", UnicodeWords()))
