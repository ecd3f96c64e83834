"""The benchmarks of the data path run: small, without peers, and what they measure is whole."""

import json
from pathlib import Path

import pytest

from benchmarks import data
from benchmarks.report import Row


@pytest.mark.parametrize("kind", ["prose", "code"])
def test_a_chain_costs_what_its_stages_cost_and_keeps_most_of_its_documents(tmp_path: Path, kind: str) -> None:
    chain = data.run_chain(kind, tmp_path / "chain", 0.1)
    stages = [cost for stage, cost in chain.items() if stage not in ("total", "peak_mebibytes", "kept")]
    assert chain["total"] == pytest.approx(sum(stages))
    assert 0.5 < chain["kept"] <= 1
    counts = json.loads((tmp_path / "chain" / "filtered" / "counts.json").read_text())
    assert counts["documents_in"] == counts["kept"] + sum(counts["dropped"].values()) + sum(counts["rejected"].values())


def test_without_the_peer_its_rows_say_why() -> None:
    chain = {"documents": 0.1, "attributes": 0.5, "signatures": 0.05, "total": 0.65, "peak_mebibytes": 300.0, "kept": 0.9}
    rows = data.chain_rows({"prose": chain, "code": chain}, None, "it can't be installed")
    theirs = [row for row in rows if row.peer_name.startswith("datatrove")]
    assert len(theirs) == 3
    assert all(row.peer is None and row.reason == "it can't be installed" for row in theirs)
    assert rows[0] == Row("prose, the whole chain", 0.65, 1.2, "goal", "CPU-s/MB")


def test_the_same_texts_come_each_time() -> None:
    assert data.prose(0.05) == data.prose(0.05)
    assert data.code(0.05) == data.code(0.05)
    assert data.prose(0.05) != data.prose(0.05, seed=1)
