"""Files of every format, made by hand or by the libraries that the world makes them with."""

import bz2
import hashlib
import io
import tarfile
import zipfile
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path

from fastwarc.warc import WarcRecord, WarcRecordType

from marin_core.data.documents import Document, Rejection, UnitReader
from marin_core.data.formats.config import Format
from marin_core.data.limits import Limits
from marin_core.data.units import Unit

PAGE = "<html><head><title>A page</title></head><body><p>Some text of a page that is long enough.</p></body></html>"


def unit_of(folder: Path, name: str, data: bytes) -> Unit:
    """A file of a raw source."""
    path = folder / "units" / "web" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    digest = hashlib.sha256(data).hexdigest()
    return Unit(f"units/web/{name}", len(data), digest, "2026-01-01T00:00:00Z", "CC0-1.0", "TRAINING_ALLOWED", None, "web")


class Read:
    """What a reader made of one unit."""

    def __init__(
        self, folder: Path, format: Format, data: bytes, name: str = "unit", on_truncated: str = "fail", limits: Limits | None = None
    ):
        from collections import Counter

        self.notes: Counter[str] = Counter()
        unit = unit_of(folder, name, data)
        with UnitReader(folder, "raw/test", limits or Limits(), on_truncated, self.notes, format) as reader:
            records = list(reader.read(unit))
        self.documents = [record for record in records if isinstance(record, Document)]
        self.rejections = [record for record in records if isinstance(record, Rejection)]

    @property
    def texts(self) -> list[str]:
        return [document.text for document in self.documents]

    @property
    def reasons(self) -> list[str]:
        return [rejection.reason for rejection in self.rejections]


def tar(members: Mapping[str, bytes], mode: str = "w") -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode=mode) as archive:  # type: ignore[call-overload]
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return buffer.getvalue()


def zipped(members: Mapping[str, bytes], compression: int = zipfile.ZIP_DEFLATED) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", compression) as archive:
        for name, data in members.items():
            archive.writestr(zipfile.ZipInfo(name), data, compression)
    return buffer.getvalue()


def response(
    url: str,
    body: bytes = PAGE.encode(),
    *,
    status: str = "200 OK",
    content_type: str = "text/html; charset=utf-8",
    http: Mapping[str, str] | None = None,
    headers: Mapping[str, str] | None = None,
) -> bytes:
    """A WARC record with an HTTP response, written by fastwarc."""
    lines = [f"HTTP/1.1 {status}", f"Content-Type: {content_type}", *(f"{name}: {value}" for name, value in (http or {}).items())]
    return record(url, "\r\n".join([*lines, "", ""]).encode() + body, WarcRecordType.response, headers)


def record(url: str, content: bytes, kind: WarcRecordType, headers: Mapping[str, str] | None = None) -> bytes:
    made = WarcRecord()
    made.init_headers(kind, hashlib.sha256(url.encode()).hexdigest()[:32].encode(), content_length=len(content))
    made.headers["WARC-Target-URI"] = url
    made.headers["WARC-Date"] = "2026-01-02T03:04:05Z"
    for name, value in (headers or {}).items():
        made.headers[name] = value
    made.is_http = kind == WarcRecordType.response
    made.set_bytes_content(content)
    buffer = io.BytesIO()
    made.write(buffer)
    return buffer.getvalue()


def wiki_page(title: str, text: str, page: int, *, namespace: int = 0, redirect: bool = False, form: str = "text/x-wiki") -> str:
    return (
        f"  <page>\n    <title>{escape(title)}</title>\n    <ns>{namespace}</ns>\n    <id>{page}</id>\n"
        + (f'    <redirect title="{escape(title)}" />\n' if redirect else "")
        + f"    <revision>\n      <id>{page * 100}</id>\n      <timestamp>2024-05-06T07:08:0{page % 10}Z</timestamp>\n"
        f"      <contributor><username>Someone</username><id>7</id></contributor>\n      <format>{form}</format>\n"
        f'      <text bytes="{len(text.encode())}" xml:space="preserve">{escape(text)}</text>\n    </revision>\n  </page>\n'
    )


WIKI_HEAD = (
    '<mediawiki xmlns="http://www.mediawiki.org/xml/export-0.11/" version="0.11" xml:lang="en">\n  <siteinfo>\n'
    "    <sitename>Wikipedia</sitename>\n    <base>https://en.wikipedia.org/wiki/Main_Page</base>\n  </siteinfo>\n"
)


def wiki_dump(pages: Sequence[str], *, streams: int = 0) -> bytes:
    """A dump; with `streams` in multistream bzip2, so many pages a stream, as Wikimedia publishes them."""
    if not streams:
        return (WIKI_HEAD + "".join(pages) + "</mediawiki>\n").encode()
    runs = [pages[start : start + streams] for start in range(0, len(pages), streams)]
    return b"".join(bz2.compress(part.encode()) for part in [WIKI_HEAD, *("".join(run) for run in runs), "</mediawiki>\n"])


def pdf(pages: Sequence[Sequence[str]], title: str = "A paper") -> bytes:
    """A PDF of lines in Helvetica; what it takes at least."""
    objects = [
        "<< /Type /Catalog /Pages 2 0 R >>",
        f"<< /Type /Pages /Kids [{' '.join(f'{5 + 2 * index} 0 R' for index in range(len(pages)))}] /Count {len(pages)} >>",
        "<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica /Encoding /WinAnsiEncoding >>",
        f"<< /Title ({title}) /CreationDate (D:20200102030405Z) >>",
    ]
    for index, lines in enumerate(pages):
        shown = "".join(f"({line}) Tj T* " for line in lines)
        stream = f"BT /F1 12 Tf 14 TL 72 720 Td {shown}ET"
        font = "/Resources << /Font << /F1 3 0 R >> >>"
        objects.append(f"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 612 792] {font} /Contents {6 + 2 * index} 0 R >>")
        objects.append(f"<< /Length {len(stream.encode('cp1252'))} >>\nstream\n{stream}\nendstream")
    data = b"%PDF-1.4\n"
    offsets = []
    for number, content in enumerate(objects, 1):
        offsets.append(len(data))
        data += f"{number} 0 obj\n{content}\nendobj\n".encode("cp1252")
    table = "".join(f"{offset:010d} 00000 n \n" for offset in offsets)
    trailer = f"trailer\n<< /Size {len(objects) + 1} /Root 1 0 R /Info 4 0 R >>\nstartxref\n{len(data)}\n%%EOF\n"
    return data + f"xref\n0 {len(objects) + 1}\n0000000000 65535 f \n{table}{trailer}".encode()
