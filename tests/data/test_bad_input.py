"""Bad input, row by row of the specification's list (spec: data §10): never a crash of the family, never silence.

Each case is a unit of its own beside a good unit of the same format in another shard. The bad one gives exactly the rejections and notes
that are listed, or fails its shard alone; the good one always arrives; and every record stands in exactly one place.
"""

import bz2
import gzip
import hashlib
import io
import json
import lzma
import subprocess
import sys
import zipfile
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from fastwarc.warc import WarcRecordType

from marin_core.data import filter as filter_module
from marin_core.data.filter import filter_shard
from marin_core.data.formats.config import (
    CodeTree,
    Format,
    FromHtml,
    HtmlFiles,
    Jsonl,
    ParquetRows,
    PdfFiles,
    PlainText,
    Warc,
    Wet,
    WikipediaDump,
)
from marin_core.data.limits import Limits
from marin_core.data.measures.interface import Measured
from marin_core.data.rules.decide import Rule
from marin_core.data.rules.interface import KEEP, Outcome
from marin_core.data.shard import read_part, read_rejected
from marin_core.data.stages import FilterConfig
from marin_core.data.units import UnitList
from marin_core.errors import DataError, ExitCode, MarinError
from marin_core.report import Report, SilentReporter
from tests.data.formats import made

GOOD = b'{"text": "good one"}\n'
LINES = b"".join(
    json.dumps({"text": f"line {index} {hashlib.sha256(b'%d' % index).hexdigest()}"}).encode() + b"\n" for index in range(5_000)
)
LIMITS = Limits()


@dataclass(frozen=True)
class Case:
    """One kind of bad input.

    Attributes:
        row: of the specification's list.
        name: what is wrong.
        data: the unit's bytes.
        kept: documents of the unit that arrive (None: at least one).
        rejected, dropped: reason → how many.
        notes: counts that have to be there.
        fails: what the shard fails with, a pattern; it exits with 65.
        format, file, on_truncated, limits: how the unit is read.
        texts: of the documents, in any order, where they say something.
    """

    row: int
    name: str
    data: Callable[[], bytes]
    kept: int | None = 0
    rejected: Mapping[str, int] = field(default_factory=dict)
    dropped: Mapping[str, int] = field(default_factory=dict)
    notes: Mapping[str, int] = field(default_factory=dict)
    fails: str = ""
    format: Format = field(default_factory=Jsonl)
    file: str = "unit"
    on_truncated: str = "fail"
    limits: Limits = LIMITS
    texts: tuple[str, ...] = ()


def line(text: object, **more: object) -> bytes:
    return json.dumps({"text": text, **more}).encode() + b"\n"


def parquet(**columns: object) -> bytes:
    buffer = io.BytesIO()
    pq.write_table(pa.table(columns), buffer)
    return buffer.getvalue()


def cut(data: bytes, share: float = 2 / 3) -> bytes:
    return data[: int(len(data) * share)]


def flipped(data: bytes, at: float = 0.5) -> bytes:
    changed = bytearray(data)
    place = int(len(data) * at)
    changed[place : place + 4] = bytes(byte ^ 0xFF for byte in changed[place : place + 4])
    return bytes(changed)


def warcs(count: int = 40) -> bytes:
    """Pages that differ, each in a gzip member of its own, as the web archives have them."""
    return b"".join(
        gzip.compress(made.response(f"https://e.org/{n}", made.PAGE.replace("Some", f"Text {n}").encode())) for n in range(count)
    )


def encrypted_zip() -> bytes:
    data = bytearray(made.zipped({"a.txt": b"hidden", "b.txt": b"plain text"}))
    for magic, offset in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        data[data.find(magic) + offset] |= 1
    return bytes(data)


def overlapping_zip() -> bytes:
    """Two entries of the directory point to the same bytes."""
    data = made.zipped({"a.txt": b"x" * 1_000, "b.txt": b"y" * 1_000}, zipfile.ZIP_STORED)
    second = data.rfind(b"PK\x01\x02")
    changed = bytearray(data)
    changed[second + 42 : second + 46] = data[data.find(b"PK\x01\x02") + 42 :][:4]
    return bytes(changed)


def special_tar() -> bytes:
    import tarfile

    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name, kind, target in [("link", tarfile.SYMTYPE, "/etc/passwd"), ("hard", tarfile.LNKTYPE, "x"), ("dev", tarfile.CHRTYPE, "")]:
            info = tarfile.TarInfo(name)
            info.type, info.linkname = kind, target
            archive.addfile(info)
        for name in ("../up.txt", "/etc/abs.txt", "a/../../up.txt", "fine.txt"):
            info = tarfile.TarInfo(name)
            info.size = 5
            archive.addfile(info, io.BytesIO(b"hello"))
    return buffer.getvalue()


def header_bomb() -> bytes:
    """A tar whose long name is 6 MiB: tarfile would hold it in memory."""
    import tarfile

    info = tarfile.TarInfo("././@LongLink")
    info.type, info.size = tarfile.GNUTYPE_LONGNAME, 6 << 20
    return info.tobuf(tarfile.GNU_FORMAT) + b"n" * (6 << 20)


def encrypted_pdf() -> bytes:
    import pypdf

    writer = pypdf.PdfWriter(io.BytesIO(made.pdf([["A line of text that nobody may read without a password"]])))
    writer.encrypt("secret", algorithm="RC4-128")
    buffer = io.BytesIO()
    writer.write(buffer)
    return buffer.getvalue()


def looping_pdf() -> bytes:
    """A page tree that holds itself."""
    return made.pdf([["A line of text"]]).replace(b"/Kids [5 0 R]", b"/Kids [2 0 R]")


def script_pdf() -> bytes:
    data = made.pdf([["A line of text beside a script that must never run"]])
    return data.replace(b"<< /Type /Catalog", b"<< /OpenAction << /S /JavaScript /JS (app.alert(1)) >> /Type /Catalog")


def many_pages_pdf(pages: int) -> bytes:
    return made.pdf([["x"]] * pages)


BOMB = Limits(bomb_floor_bytes=1 << 20, record_bytes=1 << 16)
SHORT = Limits(record_bytes=100_000, text_bytes=1_000)
TEXT = PlainText()
WIKI = WikipediaDump()
NESTED = "<div>" * 100_000 + "deep text" + "</div>" * 100_000
LOL = '<?xml version="1.0"?><!DOCTYPE lolz [<!ENTITY lol "lol"><!ENTITY lol2 "&lol;&lol;">]><mediawiki><page>&lol2;</page></mediawiki>'

CASES = [
    Case(1, "empty file", lambda: b"", fails="all of its 1 units are empty"),
    Case(1, "only blank lines", lambda: b"\n\n \n", fails="all of its 1 units are empty"),
    Case(2, "gzip cut", lambda: cut(gzip.compress(LINES)), fails="truncated_unit at byte", file="u.gz"),
    Case(2, "gzip cut, the rest kept", lambda: cut(gzip.compress(LINES)), None, {"truncated_unit": 1}, on_truncated="reject", file="u.gz"),
    Case(2, "bzip2 cut", lambda: cut(bz2.compress(LINES, 1)), fails="truncated_unit at byte", file="u.bz2"),
    Case(2, "xz cut", lambda: cut(lzma.compress(LINES)), None, {"truncated_unit": 1}, on_truncated="reject", file="u.xz"),
    Case(2, "gzip damaged in the middle", lambda: flipped(gzip.compress(LINES)), fails="damaged_unit at byte", file="u.gz"),
    Case(3, "zstd cut", lambda: cut(zstandard.compress(LINES)), fails="truncated_unit at byte", file="u.zst"),
    Case(3, "zstd cut, the rest kept", lambda: zstandard.compress(LINES)[:-2], None, {"truncated_unit": 1}, on_truncated="reject"),
    Case(4, "WARC cut", lambda: cut(warcs()), fails="truncated_unit", format=Warc(), file="u.warc.gz"),
    Case(
        4, "WARC cut, the rest kept", lambda: warcs(19) + warcs(1)[:-100], 19, {"truncated_unit": 1}, format=Warc(), on_truncated="reject"
    ),
    Case(4, "WARC damaged in the middle", lambda: flipped(warcs()), fails="damaged_unit", format=Warc(), file="u.warc.gz"),
    Case(4, "plain WARC cut", lambda: gzip.decompress(warcs(9))[:-200], 8, {"truncated_unit": 1}, format=Warc(), on_truncated="reject"),
    Case(5, "gzip named .jsonl", lambda: gzip.compress(GOOD), 1, notes={"extension_mismatch": 1}, file="u.jsonl"),
    Case(5, "plain text named .gz", lambda: GOOD, 1, notes={"extension_mismatch": 1}, file="u.gz"),
    Case(5, "several gzip members", lambda: gzip.compress(GOOD) + gzip.compress(line("second")), 2, file="u.gz"),
    Case(5, "several zstd frames", lambda: zstandard.compress(GOOD) + zstandard.compress(line("second")), 2, file="u.zst"),
    Case(6, "one invalid byte", lambda: GOOD + b'{"text": "a\xffb"}\n' + line("second"), 2, {"invalid_utf8": 1}),
    Case(6, "one invalid byte in a text file", lambda: b"caf\xe9", 0, {"invalid_utf8": 1}, format=TEXT),
    Case(7, "byte order mark", lambda: b"\xef\xbb\xbf" + GOOD, 1, texts=("good one",)),
    Case(7, "byte order mark in a text file", lambda: b"\xef\xbb\xbfhello", 1, format=TEXT, texts=("hello",)),
    Case(7, "UTF-16", lambda: GOOD.decode().encode("utf-16"), fails="encoding: it looks like UTF-16 little-endian"),
    Case(7, "UTF-16 text file", lambda: "hello".encode("utf-16"), 0, {"encoding": 1}, format=TEXT),
    Case(8, "cut JSON", lambda: GOOD + b'{"text": "a"\n', 1, {"bad_json": 1}),
    Case(8, "NaN, lone surrogate, control", lambda: b'{"text": NaN}\n{"text": "\\ud800"}\n{"text": "a\x01"}\n', 0, {"bad_json": 3}),
    Case(8, "nested 100,000 deep", lambda: b'{"text": "a", "x": ' + b"[" * 100_000 + b"]" * 100_000 + b"}\n", 0, {"bad_json": 1}),
    Case(9, "no objects, no texts", lambda: b'[1]\n17\n{"text": 1}\n{"text": ["a"]}\n', 0, {"not_object": 2, "text_type": 2}),
    Case(9, "media is a string", lambda: line("fine", media="odd", metadata="odd"), 1),
    Case(10, "no text", lambda: b'{}\n{"text": null}\n{"text": ""}\n{"text": " \\u0000\\n"}\n', 0, {"no_text": 4}),
    Case(11, "line over the limit", lambda: line("x" * 5_000_000) + GOOD, 1, {"record_too_long": 1}, limits=SHORT),
    Case(12, "ten million blank lines", lambda: b"\n" * 10_000_000 + GOOD + b"\r\n" * 10, 1),
    Case(12, "CR LF, lone CR, U+2028", lambda: line("a\r\nb\rc\u2028d"), 1, texts=("a\nb\nc\u2028d",), notes={"repaired_line_ends": 1}),
    Case(
        13,
        "megabytes of spaces",
        lambda: line("a" + " " * 5_000_000 + "b"),
        1,
        notes={"repaired_long_runs": 1},
        texts=("a" + " " * 128 + "b",),
    ),
    Case(14, "1 MB without whitespace", lambda: line("QUJD" * 250_000), 1),
    Case(15, "text over the limit", lambda: line("word " * 300), 0, {"text_too_long": 1}, limits=SHORT),
    Case(16, "controls", lambda: line("a\x00\x1b[1m\u202eb\ue000"), 1, texts=("a[1m\u202eb\ue000",), notes={"repaired_controls": 1}),
    Case(17, "column missing", lambda: parquet(body=["a"]), fails=r"no column 'text'; it has body: string", format=ParquetRows()),
    Case(17, "column of another type", lambda: parquet(text=[1]), fails=r"column 'text' holds int64", format=ParquetRows()),
    Case(17, "broken footer", lambda: parquet(text=["a"])[:-6], fails="not a readable Parquet", format=ParquetRows()),
    Case(17, "null cell", lambda: parquet(text=["a", None, "b"]), 2, {"no_text": 1}, format=ParquetRows()),
    Case(
        18,
        "mixed metadata",
        lambda: parquet(text=["a", "b"], m=[[{"x": None, "y": b"\xff"}], []]),
        2,
        format=ParquetRows(columns={"group": "m"}),
    ),
    Case(18, "10 MB of metadata", lambda: line("a", metadata={"title": "t" * 10_000_000}) + GOOD, 1, {"metadata_too_large": 1}),
    Case(
        18,
        "10 MB of metadata in a column",
        lambda: parquet(text=["a", "b"], t=["t" * 10_000_000, "t"]),
        1,
        {"metadata_too_large": 1},
        format=ParquetRows(columns={"title": "t"}),
    ),
    Case(19, "zstd bomb", lambda: zstandard.compress(GOOD + b"\0" * (8 << 20)), 1, {"archive_bomb": 1}, limits=BOMB),
    Case(19, "bzip2 bomb", lambda: bz2.compress(GOOD + b"\0" * (8 << 20)), 1, {"archive_bomb": 1}, limits=BOMB),
    Case(19, "zip bomb", lambda: made.zipped({"a.txt": b"\0" * (8 << 20)}), 0, {"archive_bomb": 1}, format=TEXT, limits=BOMB),
    Case(19, "tar.gz bomb", lambda: made.tar({"a.txt": b"\0" * (8 << 20)}, "w:gz"), 0, {"archive_bomb": 1}, format=TEXT, limits=BOMB),
    Case(19, "header bomb", header_bomb, 0, {"archive_bomb": 1}, format=TEXT),
    Case(
        19,
        "nested three deep",
        lambda: made.zipped({"b.zip": made.zipped({"c.zip": made.zipped({"d.txt": b"x"})}), "a.txt": b"first"}),
        0,
        {"archive_bomb": 1},
        format=TEXT,
    ),
    Case(
        19,
        "too many members",
        lambda: made.tar({f"{index}.txt": f"text {index}".encode() for index in range(300)}),
        200,
        {"archive_bomb": 1},
        format=PlainText(max_members=200),
    ),
    Case(
        20,
        "names that leave, links, devices",
        special_tar,
        1,
        notes={"member_skipped_unsafe_name": 3, "member_skipped_link": 2, "member_skipped_special": 1},
        format=TEXT,
    ),
    Case(20, "encrypted member", encrypted_zip, 1, notes={"member_skipped_encrypted": 1}, format=TEXT, texts=("plain text",)),
    Case(20, "overlapping members", overlapping_zip, None, notes={"member_skipped_overlapping": 2}, fails="empty", format=TEXT),
    Case(20, "tar cut in a member", lambda: made.tar({"a.txt": b"x" * 9_000})[:5_000], fails="truncated_unit", format=TEXT),
    Case(20, "tar cut between members", lambda: made.tar({"a": b"x" * 512, "b": b"y" * 512})[:1_024], fails="truncated_unit", format=TEXT),
    Case(
        20,
        "damaged member",
        lambda: made.tar({"a.gz": cut(gzip.compress(b"text")), "b": b"fine"}),
        1,
        {"truncated_unit": 1},
        format=TEXT,
        on_truncated="reject",
    ),
    Case(21, "PDF with a password", encrypted_pdf, 0, {"pdf_encrypted": 1}, format=PdfFiles()),
    Case(21, "PDF without text", lambda: made.pdf([[""], ["1"]]), 0, {"pdf_no_text": 1}, format=PdfFiles()),
    Case(21, "PDF that holds itself", looping_pdf, 0, {"pdf_damaged": 1}, format=PdfFiles()),
    Case(21, "PDF with too many pages", lambda: many_pages_pdf(30), 0, {"pdf_too_many_pages": 1}, format=PdfFiles(max_pages=20)),
    Case(21, "PDF cut", lambda: cut(made.pdf([["A line of text"]])), 0, {"pdf_damaged": 1}, format=PdfFiles()),
    Case(21, "no PDF", lambda: b"<html>Not found</html>", 0, {"pdf_damaged": 1}, format=PdfFiles()),
    Case(21, "PDF with a script", script_pdf, 1, format=PdfFiles(), texts=("A line of text beside a script that must never run",)),
    Case(22, "scripts only", lambda: b"<html><script>alert(1)</script></html>", 0, {"html_empty": 1}, format=HtmlFiles()),
    Case(22, "no body", lambda: b"just <b>words</b>", 1, format=HtmlFiles(), texts=("just words",)),
    Case(22, "nested 100,000 deep", lambda: NESTED.encode(), None, format=HtmlFiles(html=FromHtml(to="markdown")), texts=("deep text",)),
    Case(22, "wrong charset", lambda: made.response("https://a.org", "<p>Größe</p>".encode("latin-1")), 1, format=Warc(), texts=("Größe",)),
    Case(22, "in no charset", lambda: bytes(range(1, 256)) * 30, 0, {"undecodable": 1}, format=HtmlFiles()),
    Case(
        22,
        "WARC records that are no pages",
        lambda: (
            made.response("https://a.org/1", status="404 Not Found")
            + made.response("https://a.org/2", content_type="image/png")
            + made.response("https://a.org/3", headers={"WARC-Truncated": "length"})
            + made.record("https://a.org/4", b"", WarcRecordType.revisit)
            + made.response("https://a.org/5", b"no gzip", http={"Content-Encoding": "gzip"})
        ),
        0,
        {"http_status": 1, "not_html": 1, "warc_truncated": 1, "revisit": 1, "content_encoding": 1},
        format=Warc(),
    ),
    Case(
        22, "WET in another charset", lambda: made.record("u", b"caf\xe9", WarcRecordType.conversion), 0, {"invalid_utf8": 1}, format=Wet()
    ),
    Case(23, "entities that expand", lambda: LOL.encode(), fails="dtd_forbidden", format=WIKI),
    Case(
        23,
        "dump cut",
        lambda: cut(made.wiki_dump([made.wiki_page(f"T{n}", f"Text {n}", n) for n in range(9)])),
        None,
        {"truncated_unit": 1},
        format=WIKI,
        on_truncated="reject",
    ),
    Case(23, "unbalanced markup", lambda: made.wiki_dump([made.wiki_page("A", "{{x|[[y|'''text {{", 1)]), 1, format=WIKI),
    Case(
        23,
        "10,000 nested templates",
        lambda: made.wiki_dump([made.wiki_page("A", "{{a|" * 10_000 + "in" + "}}" * 10_000 + " out", 1)]),
        1,
        format=WIKI,
    ),
    Case(
        27,
        "names of members",
        lambda: made.tar({"a\nb.txt": b"one", "A.TXT": b"two", "a.txt": b"three", "d/" * 60 + "e.txt": b"four"}),
        4,
        format=TEXT,
    ),
    Case(27, "names that are no UTF-8", lambda: made.tar({"caf\udce9.txt": b"text"}), 1, format=TEXT),
    Case(
        31,
        "page that takes too long",
        lambda: made.PAGE.encode() * 20_000,
        0,
        {"extract_timeout": 1},
        format=HtmlFiles(html=FromHtml(cpu_seconds=0.02)),
    ),
    Case(33, "every document alike", lambda: GOOD * 3_000, 1, dropped={"dup_in_shard": 2_999}),
    Case(35, "text of special tokens", lambda: line("<|eos|><|bos|> a <|endoftext|>"), 1, texts=("<|eos|><|bos|> a <|endoftext|>",)),
    Case(35, "binary file in a tree", lambda: made.tar({"a.c": b"int\0x", "b.py": b"x = 1"}), 1, {"binary": 1}, format=CodeTree()),
]

GOOD_UNITS: Mapping[str, Callable[[], bytes]] = {
    "jsonl": lambda: GOOD,
    "plain_text": lambda: b"a good file",
    "parquet": lambda: parquet(text=["good"], m=[[{"x": "1", "y": b"1"}]], t=["t"], body=["b"]),
    "warc": lambda: made.response("https://good.org"),
    "wet": lambda: made.record("https://good.org", b"good text", WarcRecordType.conversion),
    "wikipedia": lambda: made.wiki_dump([made.wiki_page("Good", "Good text", 1)]),
    "html": lambda: b"<p>good",
    "pdf": lambda: made.pdf([["A good line of text that is long enough"]]),
    "code": lambda: made.tar({"good.py": b"x = 1"}),
}


ARRIVED: list[FilterConfig] = []
"""Configurations with which the good unit has arrived; the bad one stands in another shard and can't change that."""


def source_of(folder: Path, units: Mapping[str, bytes]) -> Path:
    UnitList("raw/test", tuple(made.unit_of(folder, name, data) for name, data in units.items())).write(folder)
    return folder


def account_of(output: Path, report: Report) -> tuple[Counter[str], Counter[str], list[str]]:
    """(dropped, rejected, texts) of a shard, counted from disk; they add up."""
    (check,) = report.checks
    assert check.passed
    counts = json.loads((output / "counts.json").read_text())
    (rejected,) = (output / "rejected").glob("*.zst")
    rows = read_rejected(rejected)
    assert Counter(row["reason"] for row in rows) == Counter(counts["rejected"])
    assert all(len(row["sample"]) <= 200 * 10 and "\x00" not in row["sample"] for row in rows)
    (part,) = output.glob("part-*.parquet")
    texts = [text for group in read_part(part) for text in group["text"]]
    assert counts["documents_in"] == len(texts) + sum(counts["dropped"].values()) + len(rows)
    return Counter(counts["dropped"]), Counter(counts["rejected"]), texts


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.row}: {case.name}")
def test_bad_input_is_rejected_or_fails_its_shard_alone(tmp_path: Path, case: Case) -> None:
    raw = source_of(tmp_path / "raw", {f"0-{case.file}": case.data(), "1-good": GOOD_UNITS[case.format.kind]()})
    config = FilterConfig.from_json(
        {"shards": 2, "format": case.format.model_dump(), "on_truncated": case.on_truncated, "limits": case.limits.model_dump()}
    )
    if case.format.kind == "parquet" and "column" in case.fails:
        config = config.changed(format=ParquetRows())
    if case.fails:
        with pytest.raises(DataError, match=case.fails) as caught:
            filter_shard(config, raw, "00000", tmp_path / "bad", SilentReporter())
        assert caught.value.exit_code == ExitCode.BAD_DATA
        assert case.file in str(caught.value) or "empty" in case.fails
    else:
        report = filter_shard(config, raw, "00000", tmp_path / "bad", SilentReporter())
        dropped, rejected, texts = account_of(tmp_path / "bad", report)
        assert rejected == Counter(case.rejected)
        assert dropped == Counter(case.dropped)
        assert len(texts) == case.kept if case.kept is not None else texts
        assert not case.texts or sorted(texts) == sorted(case.texts)
        notes = json.loads((tmp_path / "bad" / "counts.json").read_text())["notes"]
        assert {name: notes.get(name) for name in case.notes} == dict(case.notes)
    if "column" not in case.fails and config not in ARRIVED:
        good = filter_shard(config, raw, "00001", tmp_path / "good", SilentReporter())
        assert good.metrics["documents_kept"] == 1
        ARRIVED.append(config)
    assert not [path for path in tmp_path.rglob("*") if path.name.startswith((".sorting", "up.txt", "abs.txt"))]


def test_there_are_more_than_thirty_cases_for_every_row_of_ours() -> None:
    assert len(CASES) >= 30
    assert {case.row for case in CASES} >= set(range(1, 24)) | {27, 31, 33, 35}


def test_a_rule_that_raises_on_one_document_and_on_five_percent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Row 30."""

    def raising(share: int) -> Callable[[object], list[Rule]]:
        def decide(document: Measured) -> Outcome:
            if int(document.text.split()[1]) % share == 0:
                raise ZeroDivisionError("oops")
            return KEEP

        return lambda _: [Rule("brittle", decide)]

    raw = source_of(tmp_path / "raw", {"a": LINES})
    monkeypatch.setattr(filter_module, "make_rules", raising(5_000))
    report = filter_shard(FilterConfig(shards=1), raw, "00000", tmp_path / "one", SilentReporter())
    assert account_of(tmp_path / "one", report)[1] == {"error:brittle:ZeroDivisionError": 1}
    monkeypatch.setattr(filter_module, "make_rules", raising(20))
    with pytest.raises(MarinError, match="250 of 5000") as caught:
        filter_shard(FilterConfig(shards=1), raw, "00000", tmp_path / "many", SilentReporter())
    assert caught.value.exit_code == ExitCode.BUG


CHILD = """
import resource, sys
from pathlib import Path
resource.setrlimit(resource.RLIMIT_AS, (2 << 30, 2 << 30))
from marin_core.data.filter import filter_shard
from marin_core.data.stages import FilterConfig
from marin_core.report import SilentReporter
config = FilterConfig.from_json({"shards": 1, **__import__("json").loads(sys.argv[3])})
report = filter_shard(config, Path(sys.argv[1]), "00000", Path(sys.argv[2]), SilentReporter())
# Not ru_maxrss, in which a child begins with what its parent had.
peak = next(int(line.split()[1]) for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM")) / 1024
print(f"peak {peak:.0f} MiB;", {name: report.metrics[name] for name in ("documents_in", "documents_kept", "documents_rejected")})
"""


def in_two_gigabytes(raw: Path, output: Path, **config: object) -> str:
    """Filter in a process with 2 GiB of address space; returns what it printed, its peak of memory first."""
    arguments = [sys.executable, "-c", CHILD, str(raw), str(output), json.dumps(config)]
    environment = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "ARROW_DEFAULT_MEMORY_POOL": "system"}
    done = subprocess.run(arguments, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr[-2_000:]
    print(done.stdout)
    return done.stdout


@pytest.mark.slow
def test_two_gigabytes_in_one_line_pass_in_bounded_memory(tmp_path: Path) -> None:
    """Row 11: the line comes out of 2 MB of gzip, so the ratio is allowed here."""
    raw = tmp_path / "raw"
    path = raw / "units" / "web" / "a.gz"
    path.parent.mkdir(parents=True)
    with gzip.open(path, "wb", 1) as file:
        file.write(b'{"text": "')
        for _ in range(2_048):
            file.write(b"x" * (1 << 20))
        file.write(b'"}\n' + GOOD)
    source_of(raw, {"a.gz": path.read_bytes()})
    printed = in_two_gigabytes(raw, tmp_path / "out", limits={"bomb_ratio": 2_000})
    assert "{'documents_in': 2, 'documents_kept': 1, 'documents_rejected': 1}" in printed
    assert float(printed.split()[1]) < 700


@pytest.mark.slow
def test_bombs_of_gigabytes_stop_in_bounded_memory(tmp_path: Path) -> None:
    """Row 19: 8 GiB of zeros in zip, in zstd and in bzip2."""
    packed = zstandard.ZstdCompressor().compressobj()
    zeros = bytes(64 << 20)
    zstd = b"".join(packed.compress(zeros) for _ in range(128)) + packed.flush()
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive, archive.open("zeros.txt", "w", force_zip64=True) as member:
        for _ in range(32):
            member.write(zeros)
    raw = source_of(tmp_path / "raw", {"a.zip": buffer.getvalue(), "b.zst": zstd, "c": b"fine"})
    printed = in_two_gigabytes(raw, tmp_path / "out", format={"kind": "plain_text"})
    assert "{'documents_in': 3, 'documents_kept': 1, 'documents_rejected': 2}" in printed
    assert float(printed.split()[1]) < 900


@pytest.mark.slow
@pytest.mark.parametrize("count", [400_000, pytest.param(10_000_000, marks=pytest.mark.long)])
def test_millions_of_tiny_documents_pass_in_bounded_memory(tmp_path: Path, count: int) -> None:
    raw = tmp_path / "raw"
    path = raw / "units" / "web" / "a.jsonl.gz"
    path.parent.mkdir(parents=True)
    with gzip.open(path, "wb", 1) as file:
        for start in range(0, count, 10_000):
            file.write(b"".join(b'{"text":"%d"}\n' % (index - index % 5) for index in range(start, start + 10_000)))
    source_of(raw, {"a.jsonl.gz": path.read_bytes()})
    printed = in_two_gigabytes(raw, tmp_path / "out")
    assert f"'documents_in': {count}, 'documents_kept': {count // 5}" in printed
    assert float(printed.split()[1]) < 900 + count / 20_000  # digests of what was seen: some 50 bytes a document
