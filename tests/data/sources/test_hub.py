import hashlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from marin_core.data.ingest import ingest
from marin_core.data.sources.config import HubFiles, IngestConfig
from marin_core.data.sources.hub_files import git_blob_id, resolve_revision
from marin_core.data.units import read_units
from marin_core.errors import ConfigError, DataError, InfrastructureError, MarinError
from marin_core.report import Report, SilentReporter
from tests.data.sources.hub import Hub, Repository
from tests.data.sources.web import cut, status

COMMIT = "0123456789abcdef0123456789abcdef01234567"
FILES = {
    "README.md": b"# A data set\n",
    "data/train-00000-of-00002.jsonl": b'{"text": "one"}\n',
    "data/train-00001-of-00002.jsonl": b'{"text": "two"}\n' * 50_000,
    "data/test-00000-of-00001.jsonl": b'{"text": "held out"}\n',
    "extra/with spaces & ü.jsonl": b'{"text": "three"}\n',
}
LFS = "data/train-00001-of-00002.jsonl"


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Hub]:
    monkeypatch.setattr("huggingface_hub.constants.HF_TOKEN_PATH", str(tmp_path / "no-token"))
    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    with Hub(repositories={"lab/stories": Repository(COMMIT, FILES, frozenset({LFS}))}) as hub:
        yield hub


def take(hub: Hub, output: Path, **source: object) -> Report:
    fields = {"kind": "hub_files", "repository": "lab/stories", "revision": COMMIT, "patterns": ["data/train-*.jsonl"], **source}
    config = {"source": {**fields, "endpoint": hub.url, "allow_private": True}, "license": "CC0-1.0", "policy": "TRAINING_ALLOWED"}
    return ingest(IngestConfig.from_json(config), output, SilentReporter())


def test_the_files_of_a_commit_come_with_its_name_and_their_checksums(hub: Hub, tmp_path: Path) -> None:
    report = take(hub, tmp_path, patterns=["data/train-*", "extra/**"])
    units = read_units(tmp_path).units
    wanted = [path for path in FILES if path.startswith(("data/train", "extra"))]
    assert sorted((tmp_path / unit.path).read_bytes() for unit in units) == sorted(FILES[path] for path in wanted)
    assert {unit.revision for unit in units} == {COMMIT}
    assert report.metrics["skipped/other_pattern"] == 2
    assert all(check.passed for check in report.checks)
    trees = [request for request in hub.requests if "/tree/" in request.target]
    assert len(trees) > 1  # the listing was paged, and taken once
    assert len({request.target for request in trees}) == len(trees)


@pytest.mark.parametrize("path", [LFS, "data/train-00000-of-00002.jsonl"])
def test_other_bytes_than_the_hub_lists_are_an_error(hub: Hub, tmp_path: Path, path: str) -> None:
    hub.corrupted[path] = FILES[path][:-2] + b"!\n"
    with pytest.raises(DataError, match=f"{path.rpartition('/')[2]} has .* but the Hub lists"):
        take(hub, tmp_path)
    assert not (tmp_path / "units.json").exists()


def test_a_pointer_instead_of_the_file_is_named(hub: Hub, tmp_path: Path) -> None:
    hub.corrupted[LFS] = b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n"
    with pytest.raises(DataError, match="is a Git LFS pointer"):
        take(hub, tmp_path)


def test_gits_name_of_a_file(tmp_path: Path) -> None:
    """As `printf 'hello\\n' | git hash-object --stdin` prints it."""
    (tmp_path / "x").write_bytes(b"hello\n")
    assert git_blob_id(tmp_path / "x") == "ce013625030ba8dba906f756967f9e9ca394464a"


@pytest.mark.parametrize("revision", ["main", "v1.0", COMMIT[:7], COMMIT.upper(), "0" * 39 + "g"])
def test_a_branch_is_no_revision(revision: str) -> None:
    with pytest.raises(ConfigError, match="marin resolve"):
        HubFiles(repository="lab/stories", revision=revision)


def test_a_branch_is_resolved_once(hub: Hub) -> None:
    assert resolve_revision("lab/stories", "main", endpoint=hub.url) == COMMIT
    assert resolve_revision("lab/stories", None, endpoint=hub.url) == COMMIT
    with pytest.raises(DataError, match="no revision 'gone'"):
        resolve_revision("lab/stories", "gone", endpoint=hub.url)


def test_a_deleted_revision_and_an_unknown_repository_are_named(hub: Hub, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=f"no revision '{'1' * 40}'; it may have been deleted"):
        take(hub, tmp_path, revision="1" * 40)
    with pytest.raises(DataError, match="no dataset 'lab/nothing'"):
        take(hub, tmp_path, repository="lab/nothing")
    with pytest.raises(DataError, match=r"matches nothing/\*\*"):
        take(hub, tmp_path, patterns=["nothing/**"])


def test_a_gated_repository_names_the_page_to_agree_at(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.repositories["lab/stories"].gated = True
    with pytest.raises(DataError, match="gated") as error:
        take(hub, tmp_path)
    assert f"{hub.url}/datasets/lab/stories" in error.value.advice
    monkeypatch.setenv("HF_TOKEN", hub.repositories["lab/stories"].token)
    take(hub, tmp_path)
    for request in hub.requests:
        if request.path.startswith("/lfs/"):  # signed addresses lie elsewhere
            assert "Authorization" not in request.headers
    written = "".join(path.read_text(errors="replace") for path in tmp_path.rglob("*") if path.is_file())
    assert "hf_secret_token" not in written
    assert "signed-secret" not in written


def test_the_token_is_in_no_error(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secret_token")
    hub.script[f"/lfs/lab/stories/{LFS}"] = [status(403)]
    with pytest.raises(MarinError) as error:
        take(hub, tmp_path)
    assert "secret" not in str(error.value)


def test_a_cut_file_behind_a_signed_address_goes_on(hub: Hub, tmp_path: Path) -> None:
    hub.files[f"/lfs/lab/stories/{LFS}"] = FILES[LFS]
    hub.script[f"/lfs/lab/stories/{LFS}"] = [cut(100_000)]
    take(hub, tmp_path)
    asked = [request.headers.get("Range") for request in hub.of(f"/lfs/lab/stories/{LFS}")]
    assert asked == [None, "bytes=100000-"]
    unit = max(read_units(tmp_path).units, key=lambda each: each.size)
    assert unit.sha256 == hashlib.sha256(FILES[LFS]).hexdigest()


def test_offline_means_offline(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(ConfigError, match="HF_HUB_OFFLINE"):
        take(hub, tmp_path)
    assert not hub.requests


def test_a_hub_that_does_not_answer_is_for_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import time

    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    config = {"kind": "hub_files", "repository": "lab/stories", "revision": COMMIT, "endpoint": "http://127.0.0.1:1"}
    with pytest.raises(InfrastructureError, match="doesn't answer"):
        ingest(IngestConfig.from_json({"source": config, "license": "x", "policy": "BLOCKED"}), tmp_path, SilentReporter())


def test_the_split_that_is_for_evaluation_is_refused_for_training(hub: Hub, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"test-00000-of-00001.jsonl' looks like an evaluation split \('test'\)"):
        take(hub, tmp_path, patterns=["data/**"])
    take(hub, tmp_path, patterns=["data/**"], allow_eval_split=True)
