"""From the configuration of a format to what reads it. Each reader, and the libraries that it needs, is loaded only if asked for."""

from collections import Counter
from typing import Protocol

from marin_core.data.formats.config import (
    CodeTree,
    Fasta,
    Format,
    HtmlFiles,
    Jsonl,
    ParquetRows,
    PdfFiles,
    PlainText,
    Warc,
    Wet,
    WikipediaDump,
)
from marin_core.data.formats.items import FormatReader
from marin_core.data.formats.pages import Pages
from marin_core.data.limits import Limits


class OpenReader(FormatReader, Protocol):
    """A reader that may hold a child process."""

    def close(self) -> None:
        """End the child process, if there is one."""


def make_reader(config: Format, limits: Limits, notes: Counter[str]) -> OpenReader:
    """The reader of a format; it counts in `notes` what it leaves out or repairs."""
    match config:
        case Jsonl():
            from marin_core.data.formats.jsonl import JsonlReader

            return JsonlReader(config, limits, Pages(config.html, notes))
        case ParquetRows():
            from marin_core.data.formats.parquet_rows import ParquetReader

            return ParquetReader(config, limits, Pages(config.html, notes))
        case Warc() | Wet():
            from marin_core.data.formats.warc import WarcReader

            return WarcReader(config, limits, Pages(config.html, notes) if isinstance(config, Warc) else None, notes)
        case WikipediaDump():
            from marin_core.data.formats.wikipedia import WikipediaReader

            return WikipediaReader(config, limits, notes)
        case Fasta():
            from marin_core.data.formats.fasta import FastaReader

            return FastaReader(config, limits)
    return _file_reader(config, limits, notes)


def _file_reader(config: HtmlFiles | PdfFiles | PlainText | CodeTree, limits: Limits, notes: Counter[str]) -> OpenReader:
    from marin_core.data.formats import files

    match config:
        case HtmlFiles():
            return files.HtmlReader(config, limits, Pages(config.html, notes))
        case PdfFiles():
            return files.PdfReader(config, limits)
        case PlainText():
            return files.PlainTextReader(config, limits)
        case CodeTree():
            return files.CodeReader(config, limits, notes)
