"""`marin resolve` against a hub of this machine."""

import json
from collections.abc import Iterator

import pytest

from marin_assets.cli import main
from marin_core.data.sources.config import HubFiles
from tests.data.sources.hub import Hub, Repository

COMMIT = "fedcba9876543210fedcba9876543210fedcba98"


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    with Hub(repositories={"lab/stories": Repository(COMMIT, {"a.jsonl": b"{}\n"})}) as hub:
        monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", hub.url)
        yield hub


@pytest.mark.parametrize("source", ["hf:lab/stories", "hf:lab/stories@main"])
def test_the_commit_is_printed_as_it_is_to_be_written(hub: Hub, capsys: pytest.CaptureFixture[str], source: str) -> None:
    assert main(["resolve", source]) == 0
    commit, _, written = capsys.readouterr().out.splitlines()
    assert commit == COMMIT
    assert eval(written, {"HubFiles": HubFiles}) == HubFiles(repository="lab/stories", revision=COMMIT)  # noqa: S307 - our own output
    assert main(["resolve", source, "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["revision"] == COMMIT
    assert answer["repository"] == "lab/stories"


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["lab/stories"], 64, "names no repository"),
        (["hf:a/b/c"], 64, "names no repository"),
        (["hf:lab/stories@v9"], 65, "no revision 'v9'"),
        (["hf:lab/other"], 65, "no dataset 'lab/other'"),
    ],
)
def test_what_is_not_there_is_said(hub: Hub, capsys: pytest.CaptureFixture[str], arguments: list[str], code: int, says: str) -> None:
    assert main(["resolve", *arguments]) == code
    said = capsys.readouterr()
    assert said.out == ""
    assert says in said.err
    assert "What to do" in said.err
