"""Every format on good input: what becomes a document, and what its metadata says."""

import gzip
import io
import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fastwarc.warc import WarcRecordType

from marin_core.data.documents import Document
from marin_core.data.formats.config import (
    CodeTree,
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
from marin_core.data.formats.items import Piece
from marin_core.data.formats.languages import language_of
from marin_core.data.formats.pages import Pages
from marin_core.data.formats.parquet_rows import ParquetReader
from marin_core.data.limits import Limits
from marin_core.errors import ConfigError
from tests.data.formats.made import (
    PAGE,
    Read,
    pdf,
    record,
    response,
    tar,
    wiki_dump,
    wiki_page,
    zipped,
)

TEXT_OF_PAGE = "Some text of a page that is long enough."


def metadata(document: Document) -> Any:
    return json.loads(document.metadata)


def test_jsonl_takes_its_fields_from_where_the_configuration_says(tmp_path: Path) -> None:
    line = json.dumps({"content": "text", "link": "https://e.org", "when": "2019", "id": 7, "metadata": {"lang": "en", "junk": 1}}).encode()
    fields = {"url": "link", "created": "when"}
    (document,) = Read(tmp_path, Jsonl(text_field="content", fields=fields), line).documents
    assert (document.text, document.created) == ("text", "2019")
    assert metadata(document) == {"lang": "en", "offset": 0, "origin_id": "7", "unit": "units/web/unit", "url": "https://e.org"}


def test_jsonl_with_pages_in_it(tmp_path: Path) -> None:
    lines = [json.dumps({"id": str(n), "html": PAGE}) for n in range(2)] + ['{"html": 3}', '{"text": "no page"}']
    read = Read(tmp_path, Jsonl(html_field="html", html=FromHtml(to="markdown")), "\n".join(lines).encode())
    assert read.texts == [TEXT_OF_PAGE] * 2
    assert read.reasons == ["text_type", "no_text"]
    assert metadata(read.documents[0])["title"] == "A page"


def parquet_bytes(table: pa.Table, **options: Any) -> bytes:
    buffer = io.BytesIO()
    pq.write_table(table, buffer, **options)
    return buffer.getvalue()


def test_parquet_rows_come_in_pieces_in_their_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("marin_core.data.formats.parquet_rows.BATCH_BYTES", 5_000)
    texts = [f"text {index} " + "x" * (index % 90) for index in range(600)]
    for kind in (pa.string(), pa.large_string(), pa.string_view(), pa.dictionary(pa.int32(), pa.string())):
        data = parquet_bytes(pa.table({"n": list(range(600)), "text": pa.array(texts, kind)}), row_group_size=250)
        read = Read(tmp_path, ParquetRows(columns={"origin_id": "n"}), data)
        assert read.texts == [text.rstrip() for text in texts]
        assert [metadata(document)["offset"] for document in read.documents] == list(range(600))
        assert metadata(read.documents[77])["origin_id"] == "77"


def test_a_large_row_group_is_never_held_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("marin_core.data.formats.parquet_rows.BATCH_BYTES", 1 << 20)
    texts = [f"{index} " + "word " * 2_000 for index in range(4_000)]  # 40 MB in one row group
    path = tmp_path / "a.parquet"
    path.write_bytes(parquet_bytes(pa.table({"text": texts}), row_group_size=4_000, compression="zstd", use_dictionary=False))
    del texts
    before = pa.total_allocated_bytes()
    reader = ParquetReader(ParquetRows(), Limits(), Pages(FromHtml(), Counter()))
    held = [pa.total_allocated_bytes() for _ in reader.items(Piece("u", "u", path, iter([])))]
    assert len(held) == 4_000
    assert max(held) - before < 16 << 20


def test_parquet_values_of_every_type_are_json(tmp_path: Path) -> None:
    import datetime
    from decimal import Decimal

    value = {
        "when": datetime.datetime(2020, 1, 2),
        "price": Decimal("1.50"),
        "raw": b"\xff\x01",
        "score": float("nan"),
        "tags": ["a", None],
    }
    (document,) = Read(tmp_path, ParquetRows(columns={"group": "m"}), parquet_bytes(pa.table({"text": ["t"], "m": [value]}))).documents
    group = metadata(document)["group"]
    assert group == {"when": "2020-01-02T00:00:00", "price": "1.50", "raw": "\\xff\x01", "score": None, "tags": ["a", None]}


def test_parquet_with_pages_in_it(tmp_path: Path) -> None:
    table = pa.table({"page": pa.array([PAGE.encode(), b"<script>x"], pa.binary())})
    read = Read(tmp_path, ParquetRows(html_column="page"), parquet_bytes(table))
    assert (read.texts, read.reasons) == ([TEXT_OF_PAGE], ["html_empty"])


@pytest.mark.parametrize("pack", [lambda records: b"".join(records), lambda records: b"".join(map(gzip.compress, records))])
def test_warc_pages_have_their_url_and_date(tmp_path: Path, pack: Any) -> None:
    records = [
        record("https://e.org", b"software: x\r\n", WarcRecordType.warcinfo),
        record("https://e.org/1", b"GET / HTTP/1.1\r\n\r\n", WarcRecordType.request),
        response("https://e.org/1"),
        response("https://e.org/2", gzip.compress(PAGE.encode()), http={"Content-Encoding": "gzip"}),
        response("https://e.org/3", b"8\r\n<p>one t\r\n3\r\nwo \r\n0\r\n\r\n", http={"Transfer-Encoding": "chunked"}),
        response("https://e.org/4", "<p>Größe".encode("latin-1"), content_type="text/html; charset=ISO-8859-1"),
    ]
    read = Read(tmp_path, Warc(), pack(records), "a.warc")
    assert read.texts == [TEXT_OF_PAGE, TEXT_OF_PAGE, "one two", "Größe"]
    first = metadata(read.documents[0])
    assert (first["url"], first["title"], first["offset"]) == ("https://e.org/1", "A page", len(b"".join(records[:2])))
    assert read.documents[0].created == "2026-01-02T03:04:05Z"
    assert {name: count for name, count in read.notes.items() if name.startswith("skipped")} == {
        "skipped_warcinfo": 1,
        "skipped_request": 1,
    }


def test_wet_is_text(tmp_path: Path) -> None:
    data = record("https://e.org", b"", WarcRecordType.warcinfo) + record(
        "https://e.org/1", "héllo\nworld".encode(), WarcRecordType.conversion
    )
    read = Read(tmp_path, Wet(), data)
    assert read.texts == ["héllo\nworld"]
    assert metadata(read.documents[0])["url"] == "https://e.org/1"


@pytest.mark.parametrize("streams", [0, 3])
def test_a_wiki_dump_gives_its_articles(tmp_path: Path, streams: int) -> None:
    pages = [wiki_page(f"Title {n} & more", f"'''Article''' number [[x|{n}]]. <ref>r</ref>" + "padding " * 3_000, n) for n in range(1, 8)]
    pages += [wiki_page("Talk:x", "talk", 8, namespace=1), wiki_page("R", "#REDIRECT [[x]]", 9, redirect=True)]
    pages += [wiki_page("Module", "return {}", 10, form="text/plain"), wiki_page("Empty", " ", 11), wiki_page("Markup", "{{x}}", 12)]
    read = Read(tmp_path, WikipediaDump(), wiki_dump(pages, streams=streams), "d.xml.bz2" if streams else "d.xml")
    assert [text[:17] for text in read.texts] == [f"Article number {n}." for n in range(1, 8)]
    assert read.reasons == ["not_wikitext", "no_text", "no_text"]
    assert (read.notes["skipped_namespace"], read.notes["skipped_redirect"]) == (1, 1)
    third = metadata(read.documents[2])
    assert (third["origin_id"], third["title"], third["lang"]) == ("3:300", "Title 3 & more", "en")
    assert third["url"] == "https://en.wikipedia.org/wiki/Title_3_%26_more"
    assert read.documents[2].created == "2024-05-06T07:08:03Z"


def test_a_page_of_a_dump_that_is_too_long_is_measured_and_passed_over(tmp_path: Path) -> None:
    pages = [wiki_page("Long", "x" * 300_000, 1), wiki_page("Short", "fine", 2)]
    read = Read(tmp_path, WikipediaDump(), wiki_dump(pages), limits=Limits(record_bytes=100_000))
    assert (read.texts, read.reasons) == (["fine"], ["record_too_long"])
    assert read.rejections[0].length == 300_000


def test_markup_that_takes_too_long_is_stripped_and_counted(tmp_path: Path) -> None:
    markup = "'''Bold''' text {{a|" + "[[x|y]] {{b|c}} " * 20_000 + "}} the end"
    read = Read(tmp_path, WikipediaDump(cpu_seconds=0.05), wiki_dump([wiki_page("A", markup, 1), wiki_page("B", "''next'' page", 2)]))
    assert read.texts == ["Bold text  the end", "next page"]
    assert read.notes["wiki_stripped"] == 1


def test_pdf_files(tmp_path: Path) -> None:
    lines = ["A line of text that is long enough", "and has an exam-", "ple in it"]
    read = Read(tmp_path, PdfFiles(), zipped({"a.pdf": pdf([lines]), "b.txt": b"no"}))
    assert read.texts == ["A line of text that is long enough\nand has an example in it"]
    assert metadata(read.documents[0])["title"] == "A paper"
    assert read.documents[0].created == "2020-01-02T03:04:05+00:00"
    assert read.notes["member_skipped_pattern"] == 1


@pytest.mark.parametrize("mode", ["w", "w:gz", "w:bz2", "w:xz"])
def test_members_of_archives_are_pieces_of_their_unit(tmp_path: Path, mode: str) -> None:
    inner = tar({"deep/x.jsonl.gz": gzip.compress(b'{"text": "deep one"}\n{"text": "deep two"}\n')}, "w:gz")
    data = tar({"a.jsonl": b'{"text": "one"}\nbroken\n', "b/inner.tgz": inner, "c.txt": b"not wanted"}, mode)
    read = Read(tmp_path, Jsonl(members="*.jsonl*"), data)
    assert read.texts == ["one", "deep one", "deep two"]
    assert [metadata(document)["unit"] for document in read.documents] == [
        "units/web/unit!/a.jsonl",
        "units/web/unit!/b/inner.tgz!/deep/x.jsonl.gz",
        "units/web/unit!/b/inner.tgz!/deep/x.jsonl.gz",
    ]
    assert [(rejection.unit, rejection.offset) for rejection in read.rejections] == [("units/web/unit!/a.jsonl", 16)]
    assert metadata(read.documents[2])["offset"] == 21


def test_tar_and_zip_of_the_same_files_give_the_same_texts(tmp_path: Path) -> None:
    files = {f"d{n % 3}/{n}.txt": f"text number {n}\n".encode() * (n + 1) for n in range(40)}
    assert Read(tmp_path, PlainText(), tar(files)).texts == Read(tmp_path, PlainText(), zipped(files)).texts


def test_a_tree_of_code(tmp_path: Path) -> None:
    files = {
        "p-1/main.py": b"# -*- coding: latin-1 -*-\nname = '\xe9'\n",
        "p-1/src/lib.rs": b"fn main() {}\n",
        "p-1/tool": b"#!/usr/bin/env -S python3 -u\nprint()\n",
        "p-1/Makefile": b"all:\n\ttrue\n",
        "p-1/node_modules/x/index.js": b"no",
        "p-1/vendor/y.go": b"no",
        "p-1/data.bin": b"\x00\x01",
        "p-1/bad.c": b"caf\xe9",
        "p-1/text\xc3\xa9.md".encode().decode("latin-1"): b"# title\n",
    }
    commit = "0123456789abcdef0123456789abcdef01234567"
    read = Read(tmp_path, CodeTree(repository="github.com/a/p", commit=commit), tar(files, "w:gz"))
    found = {metadata(document)["origin_id"].partition(":p-1/")[2]: metadata(document)["lang"] for document in read.documents}
    assert found["main.py"] == found["tool"] == "python"
    assert (found["src/lib.rs"], found["Makefile"]) == ("rust", "makefile")
    assert len(read.documents) == 5
    assert read.documents[0].text == "# -*- coding: latin-1 -*-\nname = 'é'"
    assert metadata(read.documents[0])["origin_id"] == f"github.com/a/p@{commit}:p-1/main.py"
    assert read.reasons == ["invalid_utf8"]
    assert (read.notes["skipped_folder"], read.notes["skipped_no_language"]) == (2, 1)


@pytest.mark.parametrize(
    ("name", "head", "language"),
    [
        ("a/b.PY", b"", "python"),
        ("x.h", b"", "c"),
        ("x.tsx", b"", "typescript"),
        ("CMakeLists.txt", b"", "cmake"),
        ("run", b"#!/bin/bash -e\n", "shell"),
        ("run", b"#! /usr/local/bin/perl5.36 -w", "perl"),
        ("run", b"#!/usr/bin/env python3.12\n", "python"),
        ("run", b"plain", None),
        ("photo.jpg", b"#!/bin/sh", None),
    ],
)
def test_languages_by_name_and_first_line(name: str, head: bytes, language: str | None) -> None:
    assert language_of(name, head) == language


def test_this_pythons_library_as_a_tree_and_as_an_archive(tmp_path: Path) -> None:
    """Real files: every one is a document, a rejection or counted."""
    import json.decoder as package

    folder = Path(package.__file__).parent
    files = {f"json/{path.name}": path.read_bytes() for path in sorted(folder.glob("*.py"))}
    read = Read(tmp_path, CodeTree(), tar(files, "w:gz"))
    assert len(read.documents) + len(read.rejections) == len(files)
    assert {document.text for document in read.documents} == {data.decode().rstrip() for data in files.values()}


def test_pydoc_pages_through_a_web_archive_and_as_files_are_the_same_text(tmp_path: Path) -> None:
    import pydoc
    import textwrap

    page = pydoc.HTMLDoc().page("textwrap", pydoc.HTMLDoc().document(textwrap, "textwrap")).encode()
    html = FromHtml(to="markdown")
    from_files = Read(tmp_path, HtmlFiles(html=html), tar({"textwrap.html": page}))
    from_warc = Read(tmp_path, Warc(html=html), gzip.compress(response("https://docs/textwrap", page)))
    assert from_files.texts == from_warc.texts
    assert re.search(r"fill\(", from_files.texts[0])


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda: Jsonl(fields={"color": "x"}), "'color' is not kept; metadata keys are url"),
        (lambda: ParquetRows(columns={"text": "x"}), "'text' is not kept"),
        (lambda: FromHtml(to="markdown", main_content=True), "main_content is only there for to='text'"),
        (lambda: CodeTree(repository="x"), "give both or none"),
        (lambda: CodeTree(repository="x", commit="main"), "commit"),
        (lambda: PdfFiles(max_pages=0), "max_pages"),
    ],
)
def test_a_wrong_format_fails_when_it_is_made(make: Any, match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        make()
