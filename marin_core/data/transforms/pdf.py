"""Text of PDF files. A task of `worker`: pypdf is plain Python, runs no script of a file, and can be led into endless loops."""

import io
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import pypdf
from pypdf.errors import DependencyError, FileNotDecryptedError

from marin_core.data.transforms.child import ChildError

EDGE_LINES = 2
"""Lines at the top and bottom of a page that may be headers and footers."""
MIN_REPEATED_PAGES = 3
_HYPHEN = re.compile(r"(?<=[^\W\d_])[-\u2010\u00ad]\n[ \t]*(?=[^\W\d_])")
_DIGITS = re.compile(r"\d+")


def work(request: Mapping[str, Any], data: bytes) -> tuple[dict[str, Any], bytes]:
    """Text of one file, its title and creation date.

    Args:
        request: `max_pages`, `min_characters_per_page`.

    Raises:
        ChildError: `pdf_encrypted`, `pdf_too_many_pages`, `pdf_no_text` or `pdf_damaged`.
    """
    try:
        reader = _open(data)
        pages = len(reader.pages)
        if pages > request["max_pages"]:
            raise ChildError("pdf_too_many_pages", f"{pages} pages, at most {request['max_pages']} are read")
        texts = [page.extract_text() for page in reader.pages]
        found = {"title": _title(reader), "created": _created(reader), "pages": pages}
    except (ChildError, MemoryError):
        raise
    except (FileNotDecryptedError, DependencyError) as error:
        raise ChildError("pdf_encrypted", str(error)[:200]) from None
    except Exception as error:  # a broken file makes pypdf raise nearly anything: KeyError, TypeError, RecursionError
        raise ChildError("pdf_damaged", f"{type(error).__name__}: {error}"[:200]) from None
    text = joined_pages(texts)
    if sum(not char.isspace() for char in text) < request["min_characters_per_page"] * max(1, pages) or not text.strip():
        raise ChildError("pdf_no_text", f"{len(text)} characters on {pages} pages")
    return found, text.encode(errors="replace")


def _open(data: bytes) -> pypdf.PdfReader:
    reader = pypdf.PdfReader(io.BytesIO(data), strict=False)
    if reader.is_encrypted and not reader.decrypt(""):
        raise ChildError("pdf_encrypted", "it needs a password")
    return reader


def joined_pages(pages: Sequence[str]) -> str:
    """Pages as one text: repeated headers and footers are gone, words divided at line ends are whole again."""
    lines = [[line.rstrip() for line in page.split("\n")] for page in pages]
    kept = [_without_edges(page) for page in lines]
    repeated = _repeated_edges(kept)
    texts = ("\n".join(line for index, line in enumerate(page) if (_edge(page, index), _shape(line)) not in repeated) for page in kept)
    return join_hyphens("\n\n".join(text.strip("\n") for text in texts if text.strip()))


def join_hyphens(text: str) -> str:
    """Join words divided at the end of a line; the rest of the word stays on the upper line, and the line goes on below."""
    return _HYPHEN.sub(lambda match: "" if _continues(match) else match[0], text)


def _continues(match: re.Match[str]) -> bool:
    """Whether what follows is the rest of a word: both sides are lower case ("exam-/ple", not "Jean-/Luc" or "A-/B")."""
    return match.string[match.start() - 1].islower() and match.string[match.end()].islower()


def _without_edges(page: list[str]) -> list[str]:
    """A page without blank lines at its top and bottom."""
    filled = [index for index, line in enumerate(page) if line.strip()]
    return page[filled[0] : filled[-1] + 1] if filled else []


def _shape(line: str) -> str:
    """A line with its numbers made alike: page numbers differ from page to page."""
    return _DIGITS.sub("#", line.strip())


def _edge(page: Sequence[str], index: int) -> str:
    if index < EDGE_LINES:
        return "top"
    return "bottom" if index >= len(page) - EDGE_LINES else ""


def _repeated_edges(pages: Sequence[Sequence[str]]) -> set[tuple[str, str]]:
    """(edge, shape) of lines that stand at the same edge of more than half of the pages, and of at least three."""
    counts: Counter[tuple[str, str]] = Counter()
    for page in pages:
        counts.update({(_edge(page, index), _shape(line)) for index, line in enumerate(page) if _edge(page, index) and line.strip()})
    least = max(MIN_REPEATED_PAGES, len(pages) // 2 + 1)
    return {edge for edge, count in counts.items() if count >= least}


def _title(reader: pypdf.PdfReader) -> str:
    title = reader.metadata.title if reader.metadata else None
    return title.strip()[:1_000] if isinstance(title, str) else ""


def _created(reader: pypdf.PdfReader) -> str | None:
    try:
        created = reader.metadata.creation_date if reader.metadata else None
    except ValueError:
        return None
    return created.isoformat() if created else None
