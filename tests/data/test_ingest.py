import gzip
import hashlib
import json
import subprocess
import sys
import sysconfig
from collections import Counter
from pathlib import Path

import pytest

from marin_core.data.files import safe_name
from marin_core.data.ingest import ingest
from marin_core.data.sources import python_stdlib
from marin_core.data.sources.config import IngestConfig, LocalFiles, PythonStdlib
from marin_core.data.units import Unit, assign_units, read_units, shard_index
from marin_core.errors import ConfigError, DataError
from marin_core.report import Report, SilentReporter

SCRIPT = """
import sys
from pathlib import Path
from marin_core.data.sources.config import IngestConfig, PythonStdlib
from marin_core.data.ingest import ingest
from marin_core.report import SilentReporter
source = PythonStdlib(domains=tuple(sys.argv[2].split(",")))
report = ingest(IngestConfig(source=source, license="PSF-2.0", policy="TRAINING_ALLOWED"), Path(sys.argv[1]), SilentReporter())
assert all(check.passed for check in report.checks)
"""


def tree(folder: Path) -> dict[str, str]:
    return {str(p.relative_to(folder)): hashlib.sha256(p.read_bytes()).hexdigest() for p in sorted(folder.rglob("*")) if p.is_file()}


def ingest_stdlib(output: Path, domains: str, hash_seed: str, cwd: Path) -> dict[str, str]:
    environment = {"PYTHONHASHSEED": hash_seed, "HOME": "/nonexistent", "SECRET": "do-not-leak", "PYTHONPATH": str(Path.cwd())}
    subprocess.run([sys.executable, "-c", SCRIPT, str(output), domains], check=True, cwd=cwd, env=environment)
    return tree(output)


def test_the_standard_library_is_the_same_in_two_environments(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    first = ingest_stdlib(tmp_path / "a", "topics", "1", tmp_path)
    assert first == ingest_stdlib(tmp_path / "b", "topics", "2", tmp_path / "elsewhere")
    assert len(first) > 2


@pytest.mark.slow
def test_the_whole_corpus_is_reproducible_and_has_the_expected_size_and_no_host_path(tmp_path: Path) -> None:
    domains = "code,docstrings,topics"
    assert ingest_stdlib(tmp_path / "a", domains, "1", tmp_path) == ingest_stdlib(tmp_path / "b", domains, "2", tmp_path)
    units = read_units(tmp_path / "a").units
    documents = {domain: sum(u.documents or 0 for u in units if u.domain == domain) for domain in domains.split(",")}
    assert 550 < documents["code"] < 700
    assert 450 < documents["docstrings"] < 600
    assert 70 < documents["topics"] < 90
    for unit in units:
        text = gzip.decompress((tmp_path / "a" / unit.path).read_bytes()).decode()
        assert sys.prefix not in text
        assert sysconfig.get_path("stdlib") not in text
        assert "do-not-leak" not in text


def test_docstrings_stand_under_dotted_names_in_source_order(tmp_path: Path) -> None:
    (tmp_path / "pkg").mkdir()
    (tmp_path / "pkg" / "__init__.py").write_text(
        '"""Module."""\nimport nothing_that_exists\nclass A:\n  """Class."""\n'
        '  async def f(self):\n    """Method."""\n    def g(): "Inner."\n'
        'if True:\n  def h():\n    """Under if.\n\n      indented\n    """\n'
    )
    (tmp_path / "latin.py").write_bytes(b"# -*- coding: latin-1 -*-\n'''caf\xe9'''\n")
    (tmp_path / "broken.py").write_bytes(b"\xff\xfe\n")
    (tmp_path / "syntax.py").write_text("def (:\n")
    (tmp_path / "blank.py").write_text("\n")
    (tmp_path / "site-packages").mkdir()
    (tmp_path / "site-packages" / "other.py").write_text("'''Not ours.'''")
    skipped: Counter[str] = Counter()
    documents = list(python_stdlib.documents("docstrings", skipped, tmp_path))
    assert [document["id"] for document in documents] == ["latin.py", "pkg/__init__.py"]
    assert documents[0]["text"] == "latin\n\ncafé"
    assert documents[1]["text"] == (
        "pkg\n\nModule.\n\npkg.A\n\nClass.\n\npkg.A.f\n\nMethod.\n\npkg.A.f.g\n\nInner.\n\npkg.h\n\nUnder if.\n\nindented"
    )
    assert skipped == {"undecodable": 1, "syntax_error": 1, "blank": 1}


def local(root: Path, output: Path, policy: str = "TRAINING_ALLOWED", **source: object) -> Report:
    config = {"source": {"kind": "local_files", "root": str(root), **source}, "license": "CC0-1.0", "policy": policy}
    return ingest(IngestConfig.from_json(config), output, SilentReporter())


def test_files_are_copied_as_found_under_harmless_names(tmp_path: Path) -> None:
    root = tmp_path / "in"
    names = ["a.jsonl", "A.jsonl", "sub dir/..x\n.jsonl", "ü" * 60 + ".jsonl", ".hidden.jsonl"]
    for index, name in enumerate(names):
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({"text": f"text {index}"}))
    local(root, tmp_path / "out", acquired="2026-01-02T03:04:05Z")
    units = read_units(tmp_path / "out").units
    assert len({unit.path.lower() for unit in units}) == len(names)
    for unit in units:
        data = (tmp_path / "out" / unit.path).read_bytes()
        assert (unit.size, unit.sha256) == (len(data), hashlib.sha256(data).hexdigest())
        assert unit.acquired == "2026-01-02T03:04:05Z"
        name = unit.path.removeprefix("units/documents/")
        assert len(name) <= 200
        assert set(name) <= set("abcdefghijklmnopqrstuvwxyz0123456789._-%")
        assert not name.startswith(".")


def test_a_link_that_leaves_the_root_is_refused(tmp_path: Path) -> None:
    (tmp_path / "secret.jsonl").write_text("{}")
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.jsonl").symlink_to(tmp_path / "secret.jsonl")
    with pytest.raises(DataError, match="symbolic link"):
        local(tmp_path / "in", tmp_path / "out")


def test_an_empty_match_and_a_missing_root_are_errors(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no file"):
        local(tmp_path, tmp_path / "out")
    with pytest.raises(ConfigError, match="root"):
        local(tmp_path / "missing", tmp_path / "out")


def test_an_evaluation_split_is_refused_for_training_only(tmp_path: Path) -> None:
    (tmp_path / "in" / "validation").mkdir(parents=True)
    (tmp_path / "in" / "validation" / "x.jsonl").write_text('{"text": "x"}')
    with pytest.raises(ConfigError, match="evaluation split"):
        local(tmp_path / "in", tmp_path / "out")
    local(tmp_path / "in", tmp_path / "out", policy="EVAL_ONLY")
    local(tmp_path / "in", tmp_path / "out2", allow_eval_split=True)


def units_of(*sizes: int) -> list[Unit]:
    return [Unit(f"units/d/{i:03d}", size, "", None, "x", "BLOCKED", None, "d") for i, size in enumerate(sizes)]


@pytest.mark.parametrize(
    ("sizes", "shards", "expected"),
    [
        ((1, 1, 1, 1), 2, [2, 2]),
        ((9, 1, 1, 1), 2, [1, 3]),
        ((1, 1, 1, 9), 2, [3, 1]),
        ((5, 5, 5), 3, [1, 1, 1]),
        ((0, 0, 0), 2, [1, 2]),
        ((100, 1, 1), 3, [1, 1, 1]),
    ],
)
def test_units_are_cut_into_contiguous_runs_and_no_shard_is_empty(sizes: tuple[int, ...], shards: int, expected: list[int]) -> None:
    units = units_of(*sizes)
    runs = assign_units(units, shards)
    assert [len(run) for run in runs] == expected
    assert [unit for run in runs for unit in run] == units


def test_more_shards_than_units_names_both_numbers() -> None:
    with pytest.raises(ConfigError, match=r"'shards' is 5, but the source has only 2 units"):
        assign_units(units_of(1, 1), 5)


@pytest.mark.parametrize("shard", ["3", "00003", "-0001", "0000²", "../00"])
def test_an_unknown_shard_is_refused(shard: str) -> None:
    with pytest.raises(ConfigError, match="shard"):
        shard_index(shard, 3)


def test_units_that_leave_the_artifact_are_refused(tmp_path: Path) -> None:
    unit = {"path": "../x", "size": 1, "sha256": "", "license": "x", "policy": "BLOCKED", "domain": "d"}
    (tmp_path / "units.json").write_text(json.dumps({"schema": "units/1", "name": "raw/x", "units": [unit]}))
    with pytest.raises(DataError, match="leaves the artifact"):
        read_units(tmp_path)


def test_a_plain_source_configuration_is_the_default_one() -> None:
    assert LocalFiles(root="x").kind == "local_files"
    assert PythonStdlib().domains == ("code", "docstrings", "topics")


def test_a_long_name_is_cut_but_keeps_its_extension_and_stays_distinct() -> None:
    first, second = (safe_name(f"{'Ä' * 400}{index}.jsonl.gz") for index in range(2))
    assert first != second
    assert first.endswith(".gz")
    assert len(first) <= 200
