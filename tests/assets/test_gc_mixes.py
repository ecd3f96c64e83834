"""`marin gc` and the commits of a declared mix that were never published."""

import json
import os
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from marin_assets.cli import gc, main
from marin_assets.cli.targets import Declared
from marin_core import experiment as lab
from marin_core.artifact import ArtifactGraph
from marin_core.mix.place import HEAD_FILE, LocalPlace, open_place
from tests.mix.chains import chain_of, content, put

OLD = (datetime.now(UTC) - timedelta(days=31)).timestamp()


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LocalPlace:
    """A mix below the store's prefix, with two published commits and an old one that lost the race for the second's place."""
    monkeypatch.setenv("MARIN_PREFIX", str(tmp_path / "lab"))
    documents = lab.filtered("filtered/x", "v1", lab.raw_source("raw/x", "v1", lab.PythonStdlib(), license="MIT"), shards=1)
    cache = lab.tokenized("tokenized/x", "v1", documents, lab.tokenizer("tokenizer/x", "v1", [documents], vocab_size=512))
    mix = lab.published_mix("published/small", lab.mixture("mixtures/small", "v1", {cache: 1.0}, sequence_length=128), message="wanted")
    question = lab.experiment("small", mix, question="?", hypothesis="!")
    monkeypatch.setattr(gc, "declared", lambda: Declared({"small": question}, ArtifactGraph(question.targets)))
    made = open_place(mix.url(f"file://{tmp_path}/lab"))
    assert isinstance(made, LocalPlace)
    for number in range(2):
        put(made, number, content(tokens=1_000 + number))
    lost = chain_of([content(), content(tokens=7)])[1]
    assert made.create(lost.path, lost.bytes())
    for path in (made.root / "commits").iterdir():
        os.utime(path, (OLD, OLD))
    return made


def commits(place: LocalPlace) -> int:
    return len(place.names("commits"))


def test_without_delete_it_names_them_and_with_it_they_go(place: LocalPlace, capsys: pytest.CaptureFixture[str]) -> None:
    head = place.read(HEAD_FILE)
    assert main(["gc", "--json"]) == 0
    (mix,) = json.loads(capsys.readouterr().out)["mixes"]
    assert (mix["mix"], len(mix["commits"]), mix["deleted"], mix["problem"]) == (place.url, 1, False, None)
    assert main(["gc"]) == 0
    assert "commits that were never published" in capsys.readouterr().out
    assert commits(place) == 3

    assert main(["gc", "--delete", "--yes"]) == 0
    assert f"deleted commits of {place.url}: 1" in " ".join(capsys.readouterr().out.split())
    assert commits(place) == 2
    assert place.read(HEAD_FILE) == head
    assert main(["gc", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["mixes"] == [{"mix": place.url, "commits": [], "problem": None, "deleted": False}]


def test_a_damaged_mix_is_named_and_left_alone(place: LocalPlace, capsys: pytest.CaptureFixture[str]) -> None:
    newest = place.names("commits")[-1]
    for name in place.names("commits"):
        if name.startswith("00000001"):
            place.replace(f"commits/{name}", b"{}")
    assert newest.startswith("00000001")
    assert main(["gc", "--delete", "--yes", "--json"]) == 0
    (mix,) = json.loads(capsys.readouterr().out)["mixes"]
    assert mix["problem"]
    assert not mix["deleted"]
    assert commits(place) == 3
