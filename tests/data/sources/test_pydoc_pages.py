import gzip
import json
import sys
import sysconfig
from collections import Counter
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from marin_core.data.filter import filter_shard
from marin_core.data.formats.config import Jsonl
from marin_core.data.ingest import ingest
from marin_core.data.sources import pydoc_pages
from marin_core.data.sources.config import IngestConfig, PythonStdlib
from marin_core.data.sources.pydoc_pages import PageError, pages
from marin_core.data.stages import FilterConfig
from marin_core.data.units import read_units
from marin_core.errors import DataError
from marin_core.report import SilentReporter

TELLTALE = ["os", "sys", "site", "platform", "argparse", "unittest", "sysconfig", "email.mime.audio"]
"""Modules whose stock pages print the environment, the arguments, folders and addresses."""


def test_pages_show_no_trace_of_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DO_NOT_LEAK", "telltale-value")
    monkeypatch.setenv("PYTHONSTARTUP", "/nonexistent/telltale-value")
    skipped: Counter[str] = Counter()
    found = {page["id"]: page["html"] for page in pages(skipped, TELLTALE)}
    assert set(found) >= {f"pydoc:{name}" for name in TELLTALE}
    assert not skipped
    for text in found.values():
        for trace in (
            "telltale-value",
            "0x7f",
            str(Path.cwd()),
            sys.prefix,
            sys.base_prefix + "/",
            sysconfig.get_path("stdlib"),
            sys.executable,
        ):
            assert trace not in text
    assert "<strong>environ</strong> = _Environ" in found["pydoc:os"]
    assert "<strong>path</strong> = list" in found["pydoc:sys"]


def test_pages_are_the_same_in_two_environments_and_have_the_expected_columns(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PYTHONHASHSEED", "1")
    first = list(pages(Counter(), TELLTALE))
    monkeypatch.setenv("PYTHONHASHSEED", "2")
    monkeypatch.chdir(tmp_path)
    assert list(pages(Counter(), TELLTALE)) == first
    assert [page["id"] for page in first] == sorted(page["id"] for page in first)
    assert set(first[0]) == {"id", "html", "added", "created", "metadata"}


def test_a_module_that_is_not_there_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    skipped: Counter[str] = Counter()
    found = list(pages(skipped, ["keyword", "no_such_module", "msvcrt", "this_one.neither"]))
    assert [page["id"] for page in found] == ["pydoc:keyword"]
    assert skipped == {"not_importable": 3}


def test_a_child_that_ends_early_is_an_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "child.py").write_text("import sys; sys.exit('out of time')")
    monkeypatch.setattr(pydoc_pages, "__file__", str(tmp_path / "child.py"))
    with pytest.raises(PageError, match=r"ended with 1 .* out of time"):
        list(pages(Counter(), ["keyword"]))
    config = IngestConfig(source=PythonStdlib(domains=("html",)), license="PSF-2.0", policy="TRAINING_ALLOWED")
    with pytest.raises(DataError, match="pydoc's pages could not be made"):
        ingest(config, tmp_path / "out", SilentReporter())


def test_which_modules_are_public() -> None:
    names = pydoc_pages._public_names()
    assert {"os", "json", "xml", "asyncio"} <= set(names)
    assert not {"antigravity", "this", "test", "tkinter", "nt", "__future__"} & set(names)


@pytest.mark.slow
@pytest.mark.timeout(900)  # a minute of CPU time, and tests share their machine
def test_the_whole_domain_is_reproducible_and_of_the_expected_size(tmp_path: Path) -> None:
    config = IngestConfig(source=PythonStdlib(domains=("html",)), license="PSF-2.0", policy="TRAINING_ALLOWED")
    first, second = (ingest(config, tmp_path / name, SilentReporter()) for name in "ab")
    assert first.content_digest == second.content_digest
    documents, size = first.metrics["documents/html"], first.metrics["bytes/html"]
    assert isinstance(documents, int)
    assert 400 < documents < 520
    assert isinstance(size, int)
    assert 13e6 < size < 20e6
    for unit in read_units(tmp_path / "a").units:
        for line in gzip.decompress((tmp_path / "a" / unit.path).read_bytes()).splitlines():
            html = json.loads(line)["html"]
            assert sys.prefix not in html
            assert "&nbsp;0x7" not in html
    filter_shard(FilterConfig(shards=1, format=Jsonl(html_field="html")), tmp_path / "a", "00000", tmp_path / "text", SilentReporter())
    counts = json.loads((tmp_path / "text/counts.json").read_bytes())
    assert counts["documents_in"] == documents
    [part] = (tmp_path / "text").glob("part-*.parquet")
    assert pq.read_table(part, columns=["id"]).num_rows > 0.95 * documents
