import json
import os
import socket
from pathlib import Path

import pytest

from marin_core.data.config import MixtureConfig
from marin_core.data.filter import filter_shard
from marin_core.data.ingest import ingest
from marin_core.data.mixture import make_mixture
from marin_core.data.sources.config import IngestConfig, LocalFiles, PythonStdlib, Terms
from marin_core.data.sources.interface import Watch
from marin_core.data.sources.local_files import OpenedLocalFiles
from marin_core.data.stages import FilterConfig
from marin_core.data.tokenize import tokenize_shard
from marin_core.data.units import read_units
from marin_core.errors import ConfigError, DataError
from marin_core.report import Report, SilentReporter
from tests.data.conftest import TOKENIZE, Corpus, sentences, write_jsonl


def take(root: Path, output: Path, policy: str = "TRAINING_ALLOWED", terms: object = (), **source: object) -> Report:
    config = {"source": {"kind": "local_files", "root": str(root), **source}, "license": "CC0-1.0", "policy": policy, "terms": terms}
    return ingest(IngestConfig.from_json(config), output, SilentReporter())


def test_files_of_any_kind_and_name_are_taken_under_harmless_names(tmp_path: Path) -> None:
    root = os.fsencode(tmp_path / "in")
    deep = b"/".join([b"d" * 200] * 19)
    names = [
        b"new\nline.pdf",
        b"..two dots.html",
        b"not utf-8 \xff\xfe.txt",
        b"Case.gz",
        b"case.gz",
        b"sp ace/\x01.tar",
        deep + b"/x.jsonl",
    ]
    for name in names:
        path = root + b"/" + name
        os.makedirs(path.rpartition(b"/")[0], exist_ok=True)  # noqa: PTH103 - pathlib has no bytes
        with open(path, "wb") as file:  # noqa: PTH123
            file.write(name)
    assert len(root + b"/" + names[-1]) > 3_800
    report = take(tmp_path / "in", tmp_path / "out", pattern="**/*", allow_eval_split=True)
    units = read_units(tmp_path / "out").units
    assert {(tmp_path / "out" / unit.path).read_bytes() for unit in units} == set(names)
    assert len({unit.path.lower() for unit in units}) == len(names)
    assert {_decoded(unit.origin or "") for unit in units} == set(names)
    assert report.metrics["units"] == len(names)


def _decoded(origin: str) -> bytes:
    from urllib.parse import unquote_to_bytes

    return unquote_to_bytes(origin)


@pytest.mark.parametrize("change", ["grows", "is replaced", "is touched", "vanishes"])
def test_a_file_that_changes_between_listing_and_reading_is_an_error(tmp_path: Path, change: str) -> None:
    path = tmp_path / "in" / "a.jsonl"
    path.parent.mkdir()
    path.write_text("{}\n")
    opened = OpenedLocalFiles(LocalFiles(root=str(path.parent)))
    watch = Watch(SilentReporter())
    [listed] = opened.files(watch)
    if change == "grows":
        with path.open("a") as file:
            file.write("{}\n")
    elif change == "is replaced":
        state = path.stat()
        (tmp_path / "new").write_text("[]\n")
        os.utime(tmp_path / "new", ns=(state.st_atime_ns, state.st_mtime_ns))
        (tmp_path / "new").replace(path)
    elif change == "is touched":
        os.utime(path, ns=(1, 1))
    else:
        path.unlink()
    with pytest.raises(DataError, match=r"file 'a.jsonl' (changed|is gone) since it was listed"):
        opened.fetch(listed, tmp_path / "out", watch)


def test_what_is_no_file_is_counted_and_never_read(tmp_path: Path) -> None:
    root = tmp_path / "in"
    root.mkdir()
    (root / "a.jsonl").write_text("{}\n")
    os.mkfifo(root / "pipe.jsonl")
    (root / "nowhere.jsonl").symlink_to(root / "missing.jsonl")
    (root / "inside.jsonl").symlink_to("a.jsonl")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(root / "s.jsonl"))
        report = take(root, tmp_path / "out")
    assert report.metrics["skipped/no_file"] == 3
    assert report.metrics["units"] == 2


def test_a_pointer_of_git_lfs_is_an_error_and_a_page_under_another_name_is_counted(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in/a.pdf").write_text("<!doctype html><html>what the server said</html>")
    report = take(tmp_path / "in", tmp_path / "out", pattern="*")
    assert report.metrics["extension_mismatch"] == 1
    (tmp_path / "in/b.jsonl").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\n")
    with pytest.raises(DataError, match=r"'b\.jsonl' is a Git LFS pointer"):
        take(tmp_path / "in", tmp_path / "out", pattern="*")


@pytest.mark.parametrize(
    ("name", "refused"),
    [
        ("test/x.jsonl", True),
        ("a/Validation/x.jsonl", True),
        ("a/dev.jsonl.gz", True),
        ("test-00000-of-00002.jsonl", True),
        ("validation-00000-of-00002.jsonl", True),
        ("train-00000-of-00002.jsonl", False),
        ("contest/x.jsonl", False),
        ("tested-00000-of-00002.jsonl", False),
        ("test-results.jsonl", False),
    ],
)
def test_which_paths_are_evaluation_splits(tmp_path: Path, name: str, refused: bool) -> None:
    (tmp_path / "in" / name).parent.mkdir(parents=True)
    (tmp_path / "in" / name).write_text("{}\n")
    if refused:
        with pytest.raises(ConfigError, match="evaluation split"):
            take(tmp_path / "in", tmp_path / "out")
        take(tmp_path / "in", tmp_path / "out", terms=[{"pattern": "**", "license": "x", "policy": "EVAL_ONLY"}])
    else:
        take(tmp_path / "in", tmp_path / "out")


def test_the_first_terms_that_match_a_file_are_its_terms(tmp_path: Path) -> None:
    for name in ("a.jsonl", "nc/b.jsonl", "nc/free/c.jsonl"):
        (tmp_path / "in" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "in" / name).write_text("{}\n")
    terms = [
        Terms(pattern="nc/free/**", license="CC-BY-4.0", policy="TRAINING_ALLOWED"),
        Terms(pattern="nc/**", license="CC-BY-NC-4.0", policy="BLOCKED"),
    ]
    take(tmp_path / "in", tmp_path / "out", terms=terms)
    found = {unit.origin: (unit.license, unit.policy) for unit in read_units(tmp_path / "out").units}
    assert found == {
        "a.jsonl": ("CC0-1.0", "TRAINING_ALLOWED"),
        "nc%2fb.jsonl": ("CC-BY-NC-4.0", "BLOCKED"),
        "nc%2ffree%2fc.jsonl": ("CC-BY-4.0", "TRAINING_ALLOWED"),
    }
    with pytest.raises(DataError, match=r"no file of the source matches 'typo/\*\*'"):
        take(tmp_path / "in", tmp_path / "out", terms=[*terms, Terms(pattern="typo/**", license="x", policy="BLOCKED")])
    with pytest.raises(ConfigError, match="terms"):
        IngestConfig(source=PythonStdlib(), license="x", policy="BLOCKED", terms=tuple(terms))


@pytest.mark.parametrize("policy", ["BLOCKED", "EVAL_ONLY"])
def test_one_file_that_training_may_not_see_keeps_its_shard_out_of_every_mixture(tmp_path: Path, corpus: Corpus, policy: str) -> None:
    """The policy of a unit goes with its documents: into the shard's footer, the token cache, and there it is refused."""
    for index, name in enumerate(("free", "other")):
        write_jsonl(tmp_path / "in" / name / "x.jsonl", sentences(40, index))
    take(tmp_path / "in", tmp_path / "raw", terms=[{"pattern": "other/**", "license": "unknown", "policy": policy}])
    parts = []
    for shard in ("00000", "00001"):
        filter_shard(FilterConfig(shards=2), tmp_path / "raw", shard, tmp_path / "filtered" / shard, SilentReporter())
        parts.append(tmp_path / "tokenized" / shard)
        tokenize_shard(TOKENIZE, [tmp_path / "filtered" / shard], corpus.tokenizer, parts[-1], shard, SilentReporter())
    config = MixtureConfig(weights={"a": 1.0}, sequence_length=16)
    make_mixture(config, {"a": parts[:1]}, tmp_path / "allowed", SilentReporter())
    with pytest.raises(ConfigError, match=f"component 'a', part '00001' has policy {policy}"):
        make_mixture(config, {"a": parts}, tmp_path / "refused", SilentReporter())


def test_units_say_nothing_that_their_source_does_not(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in/a.jsonl").write_text("{}\n")
    take(tmp_path / "in", tmp_path / "out")
    [unit] = json.loads((tmp_path / "out/units.json").read_bytes())["units"]
    assert not set(unit) & {"etag", "generation", "revision", "crc32c"}


def test_two_stars_at_the_end_mean_every_file_on_any_python(tmp_path: Path) -> None:
    """`Path.glob("**")` finds folders alone before Python 3.13."""
    for name in ("a.txt", "b/c.txt", "b/d/e.txt"):
        (tmp_path / "in" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "in" / name).write_text(name)
    assert take(tmp_path / "in", tmp_path / "all", pattern="**").metrics["units"] == 3
    assert take(tmp_path / "in", tmp_path / "below", pattern="b/**").metrics["units"] == 2
