"""Whole documents in rows of one length: nothing is lost, cut or mixed up, and the same rows come out every time."""

import json
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marin_core.data.cache import TokenCache
from marin_core.data.config import MixtureConfig
from marin_core.data.loader import MixtureLoader
from marin_core.data.mixture import make_mixture, read_mixture
from marin_core.data.packing import MAX_PIECES, Packing, first_fit_decreasing, pack, read_packing
from marin_core.data.run_steps import PlainStage
from marin_core.errors import ConfigError, DataError
from marin_core.report import SilentReporter
from tests.data.conftest import Corpus

LENGTH = 96


def textbook(sizes: Sequence[int], length: int) -> list[int]:
    """Tokens of each row by the textbook: each size into the first row with room, the largest size first."""
    rows: list[list[int]] = []
    for size in sorted(sizes, reverse=True):
        row = next((row for row in rows if sum(row) + size <= length and len(row) < MAX_PIECES), None)
        if row is None:
            rows.append(row := [])
        row.append(size)
    return [sum(row) for row in rows]


@settings(max_examples=100, deadline=None)
@given(sizes=st.lists(st.integers(1, 100), min_size=1, max_size=300), key=st.integers(0, 2**63))
def test_rows_are_those_of_first_fit_decreasing(sizes: list[int], key: int) -> None:
    pieces = [(1_000 * index, size) for index, size in enumerate(sizes)]
    rows = first_fit_decreasing(pieces, 100, key)
    assert sorted(piece for row in rows for piece in row) == pieces
    assert [sum(size for _, size in row) for row in rows] == textbook(sizes, 100)
    assert max(map(len, rows)) <= MAX_PIECES
    assert rows == first_fit_decreasing(pieces, 100, key)


def test_a_row_has_at_most_64_documents() -> None:
    assert [len(row) for row in first_fit_decreasing([(index, 1) for index in range(150)], 100, 0)] == [64, 64, 22]


@pytest.fixture(scope="module")
def mixed(corpus: Corpus, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, list[Path]]]:
    output, parts = tmp_path_factory.mktemp("packed"), {"a": corpus.parts[:2], "b": corpus.parts[2:]}
    config = MixtureConfig(weights={"a": 0.5, "b": 0.5}, sequence_length=LENGTH, block_sequences=8, pack="documents")
    report = make_mixture(config, parts, output, SilentReporter())
    for row in report.tables["components"]:
        assert row["padding_share"] == round(1 - int(row["tokens"]) / (int(row["sequences"]) * LENGTH), 6)
        assert 0 < float(row["padding_share"]) < 0.1
    return output, parts


def test_an_epoch_holds_every_document_once_and_whole(mixed: tuple[Path, dict[str, list[Path]]]) -> None:
    output, parts = mixed
    loader = MixtureLoader(output, parts, 4)
    read: dict[int, list[list[int]]] = {}
    sequences = [component.sequences for component in read_mixture(output).components.values()]
    for step in range(2 * max(sequences) // 4 + 4):
        batch, places = loader.batch(step), loader.order.places(step)
        for row in np.flatnonzero(places.epoch == 0).tolist():
            tokens, segments, weights = (values[row] for values in batch)
            borders = np.flatnonzero(np.diff(segments, prepend=-1, append=segments[-1] + 1))
            for low, high in pairwise(borders.tolist()):
                if tokens[low] == 2:
                    assert (tokens[low:] == 2).all()
                    assert (weights[low:] == 0).all()
                    break
                assert weights[low:high].tolist() == [1.0] * (high - low - 1) + [0.0]
                read.setdefault(int(places.component[row]), []).append(tokens[low:high].tolist())
    for index, folders in enumerate(parts.values()):
        documents = [document.tokens.tolist() for document in TokenCache(folders).documents()]
        expected = [piece for tokens in documents for piece in (tokens[start : start + LENGTH] for start in range(0, len(tokens), LENGTH))]
        assert sorted(read[index]) == sorted(expected)


def test_hosts_read_their_rows_and_other_lengths_are_refused(mixed: tuple[Path, dict[str, list[Path]]]) -> None:
    loader = MixtureLoader(*mixed, 4)
    for values, *pieces in zip(loader.batch(3), *(loader.batch(3, host, 4) for host in range(4)), strict=True):
        assert np.array_equal(np.concatenate(pieces), values)
    with pytest.raises(ConfigError, match=r"packed into sequences of 96"):
        MixtureLoader(*mixed, [PlainStage(4, LENGTH), PlainStage(4, 2 * LENGTH, 5)])


def test_packing_is_deterministic_and_its_damage_an_error(mixed: tuple[Path, dict[str, list[Path]]], tmp_path: Path) -> None:
    output, parts = mixed
    again = pack(parts["a"], LENGTH, "a", 0)
    info = read_mixture(output).components["a"].packing
    assert info is not None
    assert again.info() == info != pack(parts["a"], LENGTH, "a", 1).info()
    damaged = Packing(again.firsts, again.pieces + 1)
    damaged.write(tmp_path, "a")
    with pytest.raises(DataError, match=r"packing of component 'a' .* is damaged"):
        read_packing(tmp_path, "a", info)
    (tmp_path / "a.pieces.npy").write_bytes(b"\x93NUMPY")
    with pytest.raises(DataError, match="can't be read"):
        read_packing(tmp_path, "a", info)
    with pytest.raises(DataError, match="can't be read"):
        read_packing(tmp_path / "nothing", "a", info)
    content = json.loads((output / "mixture.json").read_text())
    assert content["pack"] == "documents"
