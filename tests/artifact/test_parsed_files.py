"""Parsed files kept between processes say what the files say, and nothing kept is believed that wasn't made from the same bytes."""

from pathlib import Path

import pytest

from marin_core.artifact import parsed_files, syntax
from marin_core.artifact.source import Source

PROJECT = Path(__file__).parents[2]
PARTS = ("file", "module", "is_package", "definitions", "bindings", "imports", "run_at_import")
MODULE = "marin_core.data.filter"


@pytest.fixture(autouse=True)
def caches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "caches"))
    forget(monkeypatch)
    return tmp_path / "caches"


def forget(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a new process."""
    monkeypatch.setattr(syntax, "_parsed", {})


def read(root: Path, module: str) -> dict[str, object]:
    source = syntax.read_source(root, module)
    assert source is not None
    return {name: getattr(source, name) for name in PARTS}


def test_what_is_kept_is_what_was_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    modules = [
        str(path.relative_to(PROJECT).with_suffix("")).replace("/", ".").removesuffix(".__init__")
        for path in sorted(PROJECT.glob("marin_core/data/**/*.py"))
    ]
    parsed = {module: read(PROJECT, module) for module in modules}
    forget(monkeypatch)
    monkeypatch.setattr(syntax, "_parse", lambda data, source: pytest.fail(f"{source.file} was parsed again"))
    assert {module: read(PROJECT, module) for module in modules} == parsed


def test_other_bytes_are_parsed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "one.py"
    file.write_text("def f(): return 1\n")
    before = read(tmp_path, "one")
    file.write_text("def f(): return 2\n")
    forget(monkeypatch)
    assert read(tmp_path, "one")["definitions"] != before["definitions"]


@pytest.mark.parametrize("damage", [b"", b"{", b"[]", b'{"of": 1}', b'{"of": "x", "definitions": 3}', b"\xff"])
def test_damage_is_parsed_anew(tmp_path: Path, caches: Path, monkeypatch: pytest.MonkeyPatch, damage: bytes) -> None:
    (tmp_path / "one.py").write_text("def f(): return 1\n")
    before = read(tmp_path, "one")
    (kept,) = caches.rglob("*.json")
    kept.write_bytes(damage)
    forget(monkeypatch)
    assert read(tmp_path, "one") == before


def test_a_damaged_part_of_a_true_file_is_parsed_anew(tmp_path: Path, caches: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "one.py").write_text("import os\ndef f(): return os\n")
    before = read(tmp_path, "one")
    (kept,) = caches.rglob("*.json")
    kept.write_text(kept.read_text().replace('"imports":[["os"', '"imports":[["os",1,1,1,1,1,1,1'))
    forget(monkeypatch)
    assert read(tmp_path, "one") == before


def test_without_a_place_everything_is_parsed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "one.py").write_text("def f(): return 1\n")
    (tmp_path / "a_file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "a_file"))
    assert read(tmp_path, "one")["file"] == "one.py"
    assert parsed_files.load(Source("one.py", "one", is_package=False), b"def f(): return 1\n") is None
