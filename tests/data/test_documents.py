"""Bad input, row by row: what is rejected says where and why, what fails names the unit."""

import bz2
import gzip
import hashlib
import json
import lzma
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
import zstandard

from marin_core.data.documents import Document, Rejection, UnitReader, sample_of
from marin_core.data.limits import Limits
from marin_core.data.units import Unit
from marin_core.errors import DataError

GOOD = b'{"text": "good one"}\n'


def read(
    folder: Path, data: bytes, name: str = "u.jsonl", limits: Limits | None = None, on_truncated: str = "fail"
) -> tuple[list[Document], list[Rejection], Counter[str]]:
    (folder / name).write_bytes(data)
    unit = Unit(name, len(data), hashlib.sha256(data).hexdigest(), "2026-01-01T00:00:00Z", "x", "TRAINING_ALLOWED", None, "web")
    notes: Counter[str] = Counter()
    records = list(UnitReader(folder, "raw/test", limits or Limits(), on_truncated, notes).read(unit))
    return [r for r in records if isinstance(r, Document)], [r for r in records if isinstance(r, Rejection)], notes


@pytest.mark.parametrize(
    ("line", "reason", "detail"),
    [
        (b'{"text": "a\xffb"}', "invalid_utf8", "0xff at 32"),
        (b'{"text": "a"', "bad_json", "at byte"),
        (b'{"text": NaN}', "bad_json", "NaN"),
        (b'{"text": "a", "x": Infinity}', "bad_json", "Infinity"),
        (b'{"text": "\\ud800"}', "bad_json", "surrogate"),
        (b'{"text": "a\x01b"}', "bad_json", "control"),
        (b'{"text": "a", "x": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", "bad_json", "recursion"),
        (b'{"text": "a", "x": ' + b"9" * 5_000 + b"}", "bad_json", "digits"),
        (b"[1, 2]", "not_object", "list"),
        (b"17", "not_object", "int"),
        (b'{"text": 17}', "text_type", "int"),
        (b'{"text": ["a"]}', "text_type", "list"),
        (b"{}", "no_text", "missing"),
        (b'{"text": null}', "no_text", "null"),
        (b'{"text": ""}', "no_text", "empty"),
        (b'{"text": " \\u0000\\n"}', "no_text", "empty"),
        (b'{"text": "a", "metadata": {"title": "' + b"t" * 70_000 + b'"}}', "metadata_too_large", "bytes"),
    ],
)
def test_a_broken_record_is_rejected_with_its_place_and_its_neighbours_are_read(
    tmp_path: Path, line: bytes, reason: str, detail: str
) -> None:
    documents, rejections, _ = read(tmp_path, GOOD + line + b"\n" + b'{"text": "another"}\n')
    assert [document.text for document in documents] == ["good one", "another"]
    (rejection,) = rejections
    assert rejection.reason == reason
    assert detail.lower() in rejection.detail.lower()
    assert (rejection.unit, rejection.offset, rejection.length) == ("u.jsonl", len(GOOD), len(line))
    assert rejection.sha256_16 == hashlib.sha256(line).hexdigest()[:16]


def test_lines_and_texts_over_the_limit_are_rejected_unread(tmp_path: Path) -> None:
    limits = Limits(record_bytes=100_000, text_bytes=1_000)
    long_line = b'{"text": "' + b"x" * 5_000_000 + b'"}'
    documents, rejections, _ = read(tmp_path, long_line + b"\n" + GOOD + json.dumps({"text": "y" * 1_001}).encode(), limits=limits)
    assert len(documents) == 1
    assert [(r.reason, r.offset) for r in rejections] == [("record_too_long", 0), ("text_too_long", len(long_line) + 1 + len(GOOD))]
    assert rejections[0].length == len(long_line)
    assert rejections[0].sha256_16 == hashlib.sha256(long_line).hexdigest()[:16]


@pytest.mark.parametrize(
    ("data", "texts"),
    [
        (b"\xef\xbb\xbf" + GOOD, ["good one"]),
        (GOOD.replace(b"\n", b"\r\n") * 2, ["good one", "good one"]),
        (b"\n\n \r\n" + GOOD + b"\n" * 100_000 + GOOD.rstrip(), ["good one", "good one"]),
        ('{"text": "a\u2028b"}'.encode(), ["a\u2028b"]),
        (b'{"text": "a\\u0000\\u001b[1mb\\r\\nc"}', ["a[1mb\nc"]),
        (b'{"text": "<|eos|>"}', ["<|eos|>"]),
    ],
)
def test_odd_but_valid_lines_are_read(tmp_path: Path, data: bytes, texts: list[str]) -> None:
    documents, rejections, _ = read(tmp_path, data)
    assert [document.text for document in documents] == texts
    assert not rejections


LINES = b"".join(
    json.dumps({"text": f"document {i} " + hashlib.sha256(str(i).encode()).hexdigest()}).encode() + b"\n" for i in range(3_000)
)


@pytest.mark.parametrize("name", ["u.jsonl.gz", "u.jsonl.zst", "u.jsonl"])
@pytest.mark.parametrize("kind", ["gzip", "zstd", "gzip members", "zstd frames", "padded gzip", "bzip2 streams", "xz streams"])
def test_compression_is_decided_by_magic_bytes_and_all_members_are_read(tmp_path: Path, name: str, kind: str) -> None:
    half = len(LINES) // 2
    data = {
        "gzip": lambda: gzip.compress(LINES),
        "zstd": lambda: zstandard.compress(LINES),
        "gzip members": lambda: gzip.compress(LINES[:half]) + gzip.compress(LINES[half:]),
        "zstd frames": lambda: zstandard.compress(LINES[:half]) + zstandard.compress(LINES[half:]),
        "padded gzip": lambda: gzip.compress(LINES) + b"\0" * 512,
        "bzip2 streams": lambda: bz2.compress(LINES[:half]) + bz2.compress(LINES[half:]),
        "xz streams": lambda: lzma.compress(LINES[:half]) + lzma.compress(LINES[half:]),
    }[kind]()
    documents, rejections, notes = read(tmp_path, data, name)
    assert len(documents) == 3_000
    assert not rejections
    right = name.endswith(".gz") if "gzip" in kind else name.endswith(".zst") if "zst" in kind else False
    assert notes["extension_mismatch"] == (0 if right else 1)


@pytest.mark.parametrize("compress", [gzip.compress, zstandard.compress, lzma.compress, lambda data: bz2.compress(data, 1)])
@pytest.mark.parametrize("damage", ["cut", "cut at the end", "garbage after"])
def test_a_cut_or_damaged_unit_fails_or_keeps_its_whole_records(tmp_path: Path, compress: Callable[[bytes], bytes], damage: str) -> None:
    whole = bytes(compress(LINES))
    data = {"cut": whole[: len(whole) * 2 // 3], "cut at the end": whole[:-3], "garbage after": whole + b"garbage"}[damage]
    with pytest.raises(DataError, match=r"unit 'u.gz': (truncated|damaged)_unit at byte") as caught:
        read(tmp_path, data, "u.gz")
    assert caught.value.exit_code == 65
    documents, rejections, _ = read(tmp_path, data, "u.gz", on_truncated="reject")
    assert len(documents) > (500 if damage == "cut" else 2_000)
    assert [rejection.reason.split("_")[1] for rejection in rejections] == ["unit"]
    texts = [json.loads(line)["text"] for line in LINES.splitlines()]
    assert [document.text for document in documents] == texts[: len(documents)]


def test_an_archive_bomb_stops_at_the_limit(tmp_path: Path) -> None:
    limits = Limits(bomb_floor_bytes=1 << 20, record_bytes=1 << 16)
    documents, rejections, _ = read(tmp_path, zstandard.compress(GOOD + b"\0" * (64 << 20)), "u.zst", limits)
    assert len(documents) == 1
    assert [rejection.reason for rejection in rejections] == ["archive_bomb"]


@pytest.mark.parametrize(
    ("data", "match"),
    [
        ('{"text": "a"}'.encode("utf-16"), "encoding.*UTF-16"),
        ('{"text": "a"}'.encode("utf-16-le"), "encoding.*UTF-16"),
        (b"PAR1xxxx", "Parquet"),
        (b"\x28\xb5\x2f\xfe" + b"x" * 20, "unknown data"),
    ],
)
def test_another_encoding_or_format_fails_naming_what_it_looks_like(tmp_path: Path, data: bytes, match: str) -> None:
    with pytest.raises(DataError, match=match):
        read(tmp_path, data)


def test_a_unit_that_differs_from_its_list_fails(tmp_path: Path) -> None:
    read(tmp_path, GOOD)
    (tmp_path / "u.jsonl").write_bytes(GOOD * 2)
    unit = Unit("u.jsonl", len(GOOD), hashlib.sha256(GOOD).hexdigest(), None, "x", "BLOCKED", None, "web")
    with pytest.raises(DataError, match="checksum"):
        list(UnitReader(tmp_path, "raw/test", Limits(), "reject", Counter()).read(unit))
    with pytest.raises(DataError, match="unit 'u2"):
        list(UnitReader(tmp_path, "raw/test", Limits(), "reject", Counter()).read(Unit("u2.jsonl", 1, "", None, "x", "BLOCKED", None, "w")))


def test_an_empty_unit_is_counted(tmp_path: Path) -> None:
    assert read(tmp_path, b"")[2]["empty_unit"] == 1
    assert read(tmp_path, b"\n\n")[2]["empty_unit"] == 1


def test_columns_come_from_the_record_and_its_unit(tmp_path: Path) -> None:
    record = {"id": "x/1", "text": "a ", "created": "2019", "metadata": {"url": "https://e.org", "junk": 1, "offset": 99}, "media": "odd"}
    (document,), _, notes = read(tmp_path, GOOD[:0] + json.dumps(record).encode())
    assert (document.source, document.added, document.created) == ("raw/test/web", "2026-01-01T00:00:00Z", "2019")
    assert json.loads(document.metadata) == {"offset": 0, "origin_id": "x/1", "unit": "u.jsonl", "url": "https://e.org"}
    assert notes["repaired_trailing_whitespace"] == 1


def test_samples_are_escaped_and_masked() -> None:
    assert sample_of(b"a\x1b[1m\xff mail me@example.org or +1 202 555 0100" + b"x" * 500).startswith(
        "a\\x1b[1m\\xff mail <masked> or +<masked>"
    )
    assert len(sample_of("x" * 500)) == 200
