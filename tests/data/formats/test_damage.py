"""Units damaged at random: records, rejections or a DataError that names the unit, and nothing else."""

import gzip
import io
import random
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fastwarc.warc import WarcRecordType

from marin_core.data.formats.config import Format, Jsonl, ParquetRows, PlainText, Warc, Wet, WikipediaDump
from marin_core.errors import DataError
from tests.data.formats.made import PAGE, Read, record, response, tar, wiki_dump, wiki_page, zipped

FILES = {f"{number}.txt": f"text number {number} ".encode() * 20 for number in range(5)}


def parquet() -> bytes:
    buffer = io.BytesIO()
    pq.write_table(pa.table({"text": ["a", "b"] * 50, "m": [[{"x": "1"}]] * 100}), buffer)
    return buffer.getvalue()


UNITS: list[tuple[Format, Callable[[], bytes]]] = [
    (Jsonl(), lambda: b'{"text": "a", "id": 1}\n' * 20),
    (Jsonl(), lambda: gzip.compress(b'{"text": "a", "id": 1}\n' * 20)),
    (PlainText(), lambda: zipped(FILES)),
    (PlainText(), lambda: tar(FILES)),
    (PlainText(), lambda: tar({"in.zip": zipped(FILES)}, "w:gz")),
    (ParquetRows(), parquet),
    (Wet(), lambda: b"".join(record(f"u{number}", b"some text", WarcRecordType.conversion) for number in range(5))),
    (Warc(), lambda: b"".join(gzip.compress(response(f"https://e.org/{number}")) for number in range(3))),
    (Warc(), lambda: response("https://e.org", gzip.compress(PAGE.encode()), http={"Content-Encoding": "gzip"}) * 3),
    (WikipediaDump(), lambda: wiki_dump([wiki_page(f"T{number}", f"'''T''' {number}", number) for number in range(4)])),
]


def damaged(data: bytes, draw: random.Random) -> bytes:
    """Some bytes changed, removed, repeated or inserted, or the end cut off."""
    changed = bytearray(data)
    for _ in range(draw.choice((1, 1, 2, 6))):
        at = draw.randrange(len(changed) + 1)
        kind = draw.randrange(10)
        if kind < 6 and at < len(changed):
            changed[at] = draw.randrange(256)
        elif kind < 7:
            del changed[at : at + draw.randrange(1, 30)]
        elif kind < 8:
            changed[at:at] = draw.randbytes(draw.randrange(1, 9))
        elif kind < 9:
            changed[at:at] = changed[max(0, at - 50) : at]
        else:
            del changed[at:]
    return bytes(changed)


@pytest.mark.parametrize("count", [12, pytest.param(100, marks=pytest.mark.slow), pytest.param(1000, marks=pytest.mark.long)])
@pytest.mark.parametrize("unit", range(len(UNITS)), ids=lambda unit: f"{UNITS[unit][0].kind}-{unit}")
def test_damage_is_never_a_crash(tmp_path: Path, unit: int, count: int) -> None:
    format, make = UNITS[unit]
    data = make()
    whole = len(Read(tmp_path, format, data).documents)
    assert whole
    for seed in range(count):
        try:
            read = Read(tmp_path, format, damaged(data, random.Random(seed)), on_truncated="reject")
        except DataError as error:
            assert "unit 'units/web/unit'" in error.message  # noqa: PT017  # it needn't fail
        else:
            assert len(read.documents) <= 2 * whole
