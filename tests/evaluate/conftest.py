"""A closed-form model and a byte tokenizer, whose every score can be computed by hand."""

import socket
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import numpy as np
import numpy.typing as npt
import pytest

from marin_core.evaluate.documents import HeldOutDocument, TextCodec
from marin_core.evaluate.language_model import LanguageModel, Scores

BOS, EOS, VOCAB = 256, 257, 258


class ByteCodec:
    """A token per UTF-8 byte."""

    vocab_size = VOCAB
    bos_id = BOS
    eos_id = EOS

    def encode(self, text: str) -> list[int]:
        return list(text.encode())

    def decode(self, ids: list[int]) -> str:
        return bytes(ids).decode(errors="replace")


class BigramTable:
    """p(w | previous token) is an entry of a table; the first token of a segment is scored 0 and must never be read."""

    vocab_size = VOCAB

    def __init__(self, table: npt.NDArray[np.float64], sequence_length: int) -> None:
        self.logprobs = np.log(table)
        self.sequence_length = sequence_length
        self.shapes: set[tuple[int, ...]] = set()

    def score(self, tokens: npt.NDArray[np.int32], segment_ids: npt.NDArray[np.int32]) -> Scores:
        assert tokens.dtype == segment_ids.dtype == np.int32
        assert tokens.shape[1] <= self.sequence_length
        self.shapes.add(tokens.shape)
        logprobs = np.zeros(tokens.shape, np.float32)
        greedy = np.zeros(tokens.shape, np.bool_)
        same = segment_ids[:, 1:] == segment_ids[:, :-1]
        logprobs[:, 1:] = np.where(same, self.logprobs[tokens[:, :-1], tokens[:, 1:]], 0)
        greedy[:, 1:] = same & (self.logprobs.argmax(axis=1)[tokens[:, :-1]] == tokens[:, 1:])
        return Scores(logprobs, greedy)


@pytest.fixture(scope="session")
def table() -> npt.NDArray[np.float64]:
    """float64 [V, V], rows sum to 1."""
    values: npt.NDArray[np.float64] = np.random.default_rng(7).dirichlet(np.full(VOCAB, 0.5), VOCAB) + 1e-9
    return values / values.sum(axis=1, keepdims=True)


@pytest.fixture
def codec() -> TextCodec:
    return ByteCodec()


@pytest.fixture
def bigram(table: npt.NDArray[np.float64]) -> Callable[[int], LanguageModel]:
    """Make the closed-form model for a sequence length."""
    return lambda sequence_length: BigramTable(table, sequence_length)


def python_source(generator: np.random.Generator, number: int) -> str:
    names = [f"{generator.choice(['total', 'value', 'index', 'length', 'offset', 'buffer'])}_{n}" for n in range(5)]
    lines = ['"""A module."""', "import sys", ""]
    for n in range(12):
        lines.append(f"def function_{number}_{n}(self, {names[n % 5]}):")
        lines += [f"    {generator.choice(names)} = compute_{generator.integers(1000)}({generator.choice(names)}, {k})" for k in range(4)]
        lines += [f"    return {generator.choice(names)}.result_{generator.integers(1000)}()", ""]
    return "\n".join(lines)


def prose(generator: np.random.Generator) -> str:
    words = ["this", "function", "returns", "the", "value", "of", "an", "argument", "which", "must", "be", "given", "before", "opening"]
    return "\n\n".join(" ".join(str(word) for word in generator.choice(words, 45)) + "." for _ in range(5))


@pytest.fixture(scope="session")
def documents() -> list[HeldOutDocument]:
    """20 Python files and 20 pages of prose."""
    generator = np.random.default_rng(3)
    code = [HeldOutDocument(f"{n:032x}", python_source(generator, n), "code", f"module_{n}.py") for n in range(20)]
    pages = [HeldOutDocument(f"{n:032x}", prose(generator), "prose/topics", f"topic {n}") for n in range(100, 120)]
    return code + pages


@pytest.fixture
def task_file(tmp_path: Path) -> Callable[[str, str], Path]:
    """Write a task of a name with the given JSON lines; returns the folder of tasks."""

    def write(name: str, lines: str) -> Path:
        from marin_core.evaluate.tasks import TEMPLATE

        (tmp_path / "tasks" / name).mkdir(parents=True)
        (tmp_path / "tasks" / name / "docs.jsonl").write_text(lines)
        (tmp_path / "tasks" / name / f"{name}.yaml").write_text(TEMPLATE.format(task=name))
        return tmp_path / "tasks"

    return write


@pytest.fixture(autouse=True)
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> NoReturn:
        raise AssertionError("evaluation must not use the network")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
