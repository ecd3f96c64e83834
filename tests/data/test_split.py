"""The held-out split: by content, by group, complete and disjoint."""

from pathlib import Path

from marin_core.data.filter import filter_shard
from marin_core.data.ingest import ingest
from marin_core.data.normal_form import document_id
from marin_core.data.sources.config import IngestConfig, PythonStdlib
from marin_core.data.split import documents, group_of, held_out
from marin_core.data.stages import FilterConfig
from marin_core.report import SilentReporter


def test_the_held_out_share_is_near_the_one_asked_for() -> None:
    chosen = sum(held_out(document_id(str(index)), 500) for index in range(20_000))
    assert 850 < chosen < 1150
    assert not held_out(document_id("x"), 0)
    assert held_out(document_id("x"), 10_000)


def test_a_document_without_a_group_is_its_own() -> None:
    assert group_of("abc", "{}") == "abc"
    assert group_of("abc", '{"group": ""}') == "abc"
    assert group_of("abc", '{"group": "json.decoder"}') == "json.decoder"


def test_a_module_and_its_docstrings_are_held_out_together(tmp_path: Path) -> None:
    config = IngestConfig(source=PythonStdlib(domains=("code", "docstrings")), license="PSF-2.0", policy="TRAINING_ALLOWED")
    ingest(config, tmp_path / "raw", SilentReporter())
    groups: dict[str, dict[str, set[str]]] = {}
    for domain in ("code", "docstrings"):
        filter_shard(FilterConfig(domains=(domain,), shards=1), tmp_path / "raw", "00000", tmp_path / domain, SilentReporter())
        groups[domain] = {
            split: {group_of(document.id, document.metadata) for document in documents([tmp_path / domain], split, 1_000)}
            for split in ("train", "held_out")
        }
    assert groups["docstrings"]["held_out"]
    for domain in groups:
        for other in groups:
            assert not groups[domain]["train"] & groups[other]["held_out"]
