"""From handles through the job modules to consolidated documents: every address is found, and every document is accounted for."""

import importlib
import json
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from marin_core import experiment as lab
from marin_core.artifact import ArtifactStep
from marin_core.data.attributes.files import attribute_file
from marin_core.data.consolidate import consolidate_shard
from marin_core.data.decontaminate.config import DropContaminated
from marin_core.data.dedup.config import DropExactDuplicates, DropNearDuplicates, ParagraphHashes, RemoveRepeatedParagraphs
from marin_core.data.shard import find_part
from marin_core.data.stages import ConsolidateConfig
from marin_core.errors import ConfigError
from marin_core.experiment.duplicates import (
    contamination,
    contamination_index,
    exact_duplicates,
    near_duplicates,
    repeated_paragraphs,
    signatures,
)
from marin_core.experiment.names import component_name
from marin_core.report import Report, SilentReporter
from tests.data.decontaminate.conftest import arithmetic, raw
from tests.data.dedup.conftest import document, edited, words, write_shards

SOURCE = lab.raw_source("raw/x", "v1", lab.PythonStdlib(), license="PSF-2.0")
EVAL = lab.raw_source("raw/exam", "v1", lab.LocalFiles(root="/nowhere"), license="CC0-1.0", policy="EVAL_ONLY")
ONE = lab.filtered("filtered/one", "v1", SOURCE, shards=2)
TWO = lab.filtered("filtered/two", "v1", SOURCE, shards=1)
SIGNED = {documents: signatures(f"signatures/{component_name(documents)}", "v1", documents) for documents in (ONE, TWO)}
PARAGRAPHS = {
    documents: signatures(f"paragraphs/{component_name(documents)}", "v1", documents, ParagraphHashes()) for documents in (ONE, TWO)
}
INDEX = contamination_index("decon/index", "v1", {"exam": EVAL})


def build(step: ArtifactStep, prefix: Path, digests: Mapping[str, str]) -> dict[str, Report]:
    """Run a step's job module for each of its partitions, as a job does: from JSON, reading declared inputs alone."""
    reports = {}
    for key in step.partitions or ("",):
        config = json.loads(step.config(str(prefix), key or None).model_dump_json())
        output = prefix / step.id.path / key
        output.mkdir(parents=True)
        job = SimpleNamespace(
            config=lambda cls, config=config: cls.from_json(config),
            local=lambda address: Path(address),
            record=lambda address: SimpleNamespace(content_digest=digests[address]),
            output=output,
            reporter=SilentReporter(),
        )
        reports[key] = importlib.import_module(f"marin_jobs.{step.job}").run(job)
    return reports


def documents_on_disk(prefix: Path) -> int:
    """Two families with copies, near copies, repeated paragraphs and leaks; returns how many documents they have."""
    random = np.random.default_rng(0)
    originals = [words(random, 120) for _ in range(40)]
    shared = " ".join(words(random, 60))
    leak = arithmetic()[2]["question"]
    texts = [" ".join(each) for each in originals]
    near = [" ".join(edited(random, each, 0.01)) for each in originals[:10]]
    mixed = [f"{shared}\n\n{' '.join(words(random, 80))}" for _ in range(5)]
    leaks = [f"{' '.join(words(random, 90))} {leak}" for _ in range(3)]
    write_shards(prefix / ONE.id.path, [[document(text) for text in texts[:25] + near], [document(text) for text in texts[25:] + leaks]])
    write_shards(prefix / TWO.id.path, [[document(text) for text in texts[:8] + mixed]])
    return 25 + 10 + 15 + 3 + 8 + 5


def test_duplicates_and_leaks_are_found_by_the_jobs_and_dropped_by_the_rules(tmp_path: Path) -> None:
    total = documents_on_disk(tmp_path)
    exam = tmp_path / EVAL.id.path
    exam.parent.mkdir(parents=True)
    raw(tmp_path / "made", "exam", arithmetic()).rename(exam)
    digests = {str(exam): "digest"}
    for step in (*SIGNED.values(), *PARAGRAPHS.values(), INDEX):
        build(step, tmp_path, digests)
    searches = (
        exact_duplicates("duplicates/exact", "v1", [ONE, TWO]),
        near_duplicates("duplicates/near", "v1", SIGNED),
        repeated_paragraphs("duplicates/paragraphs", "v1", PARAGRAPHS),
    )
    for step in searches:
        build(step, tmp_path, digests)
    leaks = {documents: contamination(f"decon/{component_name(documents)}", "v1", documents, INDEX) for documents in (ONE, TWO)}
    reports = [build(step, tmp_path, digests) for step in leaks.values()]
    assert [check.passed for each in reports for report in each.values() for check in report.checks] == [True, False, True]

    rules = (DropExactDuplicates(), DropNearDuplicates(), DropContaminated(), RemoveRepeatedParagraphs())
    kept, dropped = 0, dict.fromkeys(("dup_of", "near_dup", "contaminated"), 0)
    for documents in (ONE, TWO):
        for key in documents.partitions:
            attributes = [
                *(attribute_file(tmp_path / step.id.path / component_name(documents) / key) for step in searches),
                attribute_file(tmp_path / leaks[documents].id.path / key),
            ]
            output = tmp_path / "consolidated" / component_name(documents) / key
            report = consolidate_shard(
                ConsolidateConfig(rules=rules), tmp_path / documents.id.path / key, attributes, output, SilentReporter()
            )
            assert all(check.passed for check in report.checks)
            kept += pq.read_metadata(find_part(output)).num_rows
            (side,) = (output / "dropped").glob("*.parquet")
            for reason in pq.read_table(side)["reason"].to_pylist():
                dropped[reason] += 1
            if documents is TWO:
                assert pq.read_table(output / "edited" / side.name).num_rows == 4
    assert dropped == {"dup_of": 8, "near_dup": 10, "contaminated": 3}
    assert kept == total - 21

    digests[str(exam)] = "another"
    with pytest.raises(ConfigError, match="the contamination index is stale: evaluation 'exam' is another, the index has digest"):
        build(contamination("decon/again", "v1", ONE, INDEX), tmp_path, digests)


def test_attributes_of_other_documents_are_refused(tmp_path: Path) -> None:
    documents_on_disk(tmp_path)
    search = exact_duplicates("duplicates/exact", "v1", [ONE, TWO])
    build(search, tmp_path, {})
    found = attribute_file(tmp_path / search.id.path / "one" / "00001")
    config: dict[str, Any] = {"rules": (DropExactDuplicates(),)}
    with pytest.raises(Exception, match=r"out of step with part-00000-of-00002\.parquet") as error:
        consolidate_shard(ConsolidateConfig(**config), tmp_path / ONE.id.path / "00000", [found], tmp_path / "output", SilentReporter())
    assert getattr(error.value, "exit_code", None) == 65
