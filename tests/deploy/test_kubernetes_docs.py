"""Pages about the cluster: what they point at exists, and commands in them are real."""

import ast
import re
from pathlib import Path

import pytest

from marin_assets.launch.kubernetes import names
from tests.deploy.cluster import OVERLAYS, PROJECT, TREE

TABLE = PROJECT / "docs" / "reference" / "iris.md"
PAGES = [
    TABLE,
    PROJECT / "docs" / "explanation" / "kubernetes.md",
    *(PROJECT / "docs" / "how-to" / f"{name}.md" for name in ("add-a-cluster", "read-the-queue", "drain-a-rack", "lose-a-node")),
    TREE / "README.md",
    PROJECT / "deploy" / "docker" / "README.md",
]


def rows() -> list[list[str]]:
    lines = [line for line in TABLE.read_text().splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


@pytest.mark.parametrize("row", rows(), ids=lambda row: row[0])
def test_whatever_is_said_to_be_here_has_a_test(row: list[str]) -> None:
    feature, where, by, test = row
    assert where in ("here", "elsewhere", "not"), feature
    assert by or where == "not", feature
    assert test or where != "here", feature
    if test:
        match = re.fullmatch(r"`(tests/[\w/]+\.py)::(test_\w+)`", test)
        assert match, test
        functions = {node.name for node in ast.walk(ast.parse((PROJECT / match[1]).read_text())) if isinstance(node, ast.FunctionDef)}
        assert match[2] in functions, f"{match[1]} has no {match[2]}"


@pytest.mark.parametrize(
    "word",
    [
        "job tree",
        "gang",
        "constraints",
        "alternatives",
        "priority",
        "budgets",
        "retries",
        "autoscaling",
        "pending",
        "profiles",
        "logs",
        "exec",
    ],
)
def test_the_table_has_every_feature_that_was_asked_for(word: str) -> None:
    assert any(word in row[0] for row in rows())


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text()):
        assert target.startswith("https://") or (page.parent / target).exists(), target


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_files_that_are_named_exist(page: Path) -> None:
    for path in re.findall(r"(?<![\w/.-])((?:deploy|tests|docs|marin_\w+)/[\w./-]*\w)", re.sub(r"\]\([^)]*\)", "", page.read_text())):
        assert "MINE" in path or (PROJECT / path.split("::")[0]).exists(), path


def test_what_the_pages_call_things_is_what_they_are_called() -> None:
    text = "".join(page.read_text() for page in PAGES)
    assert names.MANAGED_LABEL in text
    assert set(re.findall(r"overlays/([\w-]+)", text)) - {"MINE"} <= set(OVERLAYS)
    for option in re.findall(r"marin queue --(\w+)", text):
        assert f'"--{option}"' in (PROJECT / "marin_assets" / "cli" / "queue.py").read_text()
    for name in re.findall(r"m-train-[\w-]+", text):
        assert len(name) <= 36
