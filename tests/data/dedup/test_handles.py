"""Handles of duplicates and contamination: what a mistake is called, and what enters an identity. One real run through the job modules."""

from collections.abc import Callable

import pytest

from marin_core import experiment as lab
from marin_core.artifact import ArtifactStep
from marin_core.data.decontaminate.config import ExampleFields
from marin_core.data.dedup.config import NearDuplicates, ParagraphHashes
from marin_core.errors import ConfigError
from marin_core.experiment.duplicates import (
    contamination,
    contamination_index,
    exact_duplicates,
    near_duplicates,
    repeated_paragraphs,
    signatures,
)

RAW = lab.raw_source("raw/x", "v1", lab.PythonStdlib(), license="PSF-2.0")
EVAL = lab.raw_source("raw/eval", "v1", lab.LocalFiles(root="/nowhere"), license="CC0-1.0", policy="EVAL_ONLY")
WEB = lab.filtered("filtered/web/cc", "v1", RAW, shards=2)
CODE = lab.filtered("filtered/code", "v1", RAW, shards=3)
WEB_SIGNED = signatures("signatures/web", "v1", WEB)
CODE_SIGNED = signatures("signatures/code", "v1", CODE)
WEB_PARAGRAPHS = signatures("paragraphs/web", "v1", WEB, ParagraphHashes())
INDEX = contamination_index("decon/index", "v1", {"exam": EVAL})


def test_signatures_have_the_keys_of_their_documents_and_a_search_has_none() -> None:
    assert WEB_SIGNED.partitions == WEB.partitions
    search = near_duplicates("duplicates/near", "v1", {WEB: WEB_SIGNED, CODE: CODE_SIGNED})
    assert not search.partitions
    assert "global" in search.kinds
    config = search.config("file:///store")
    assert [family["component"] for family in config.model_dump()["families"]] == ["web.cc", "code"]
    assert config.model_dump()["families"][0]["signatures"][1] == "file:///store/signatures/web/v1/00001"


def test_the_order_of_families_is_part_of_the_identity() -> None:
    one = near_duplicates("duplicates/near", "v1", {WEB: WEB_SIGNED, CODE: CODE_SIGNED})
    two = near_duplicates("duplicates/near", "v1", {CODE: CODE_SIGNED, WEB: WEB_SIGNED})
    assert one.own_identity != two.own_identity
    assert sorted(one.own_identity["deps"]) == sorted(two.own_identity["deps"])
    context = near_duplicates("duplicates/near", "v1", {WEB: WEB_SIGNED}, context={CODE: CODE_SIGNED})
    assert [family["context"] for family in context.own_identity["config"]["families"]] == [True, False]


def test_contamination_reads_the_evaluations_to_see_whether_the_index_is_stale() -> None:
    found = contamination("decon/web", "v1", WEB, INDEX, blocking=("exam",))
    assert set(found.deps) == {WEB, INDEX, EVAL}
    assert [(check.name, check.blocking) for check in found.checks] == [("clean_of_exam", True)]
    assert found.config("file:///s", "00001").model_dump() == {
        "documents": "file:///s/filtered/web/cc/v1/00001",
        "index": "file:///s/decon/index/v1",
        "evals": {"exam": "file:///s/raw/eval/v1"},
    }


@pytest.mark.parametrize(
    ("make", "names"),
    [
        (lambda: near_duplicates("d/x", "v1", {}), ["d/x@v1", "compares no documents"]),
        (lambda: near_duplicates("d/x", "v1", {WEB: CODE_SIGNED}), ["signatures/code@v1", "no signatures of filtered/web/cc@v1"]),
        (lambda: near_duplicates("d/x", "v1", {WEB: WEB_PARAGRAPHS}), ["near_duplicates", "paragraphs/web@v1", "'paragraphs'"]),
        (lambda: repeated_paragraphs("d/x", "v1", {WEB: WEB_SIGNED}), ["repeated_paragraphs", "signatures/web@v1", "'near_duplicates'"]),
        (lambda: near_duplicates("d/x", "v1", {WEB: WEB}), ["filtered/web/cc@v1", "no signatures"]),
        (lambda: exact_duplicates("d/x", "v1", [RAW]), ["raw/x@v1", "no family of shards"]),
        (lambda: exact_duplicates("d/x", "v1", [WEB], context=[WEB]), ["one family twice", "web.cc"]),
        (lambda: exact_duplicates("d/x", "v1", [WEB, lab.filtered("filtered/web/cc", "v2", RAW, shards=2)]), ["one family twice"]),
        (lambda: contamination("d/x", "v1", WEB, WEB), ["filtered/web/cc@v1", "no contamination index"]),
        (lambda: contamination("d/x", "v1", WEB, INDEX, blocking=("test",)), ["decon/index@v1", "'test'", "exam"]),
        (lambda: contamination_index("d/x", "v1", {}), ["no evaluation"]),
        (lambda: contamination_index("d/x", "v1", {"Big Bench": EVAL}), ["evals", "Big Bench"]),
        (lambda: contamination_index("d/x", "v1", {"exam": EVAL}, fields={"other": ExampleFields()}), ["fields of 'other'"]),
        (lambda: signatures("s/x", "v1", WEB, NearDuplicates(rows=0)), ["rows", "0"]),
    ],
)
def test_a_mistake_is_named_where_it_was_made(make: Callable[[], ArtifactStep], names: list[str]) -> None:
    with pytest.raises(ConfigError) as error:
        make()
    for name in names:
        assert name in str(error.value)
