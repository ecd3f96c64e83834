"""Whether a file begins as its name promises: servers answer with a login page, and git with a pointer, where data should be."""

import re
from pathlib import Path, PurePosixPath

from marin_core.errors import DataError

HEAD_BYTES = 1024
LFS_POINTER = b"version https://git-lfs.github.com/spec/"
_PAGE = re.compile(
    rb"(\xef\xbb\xbf)?\s*(<!--.*?-->\s*|<\?xml[^>]*>\s*)*<(!doctype\s+html|html|head|body|script)\b", re.IGNORECASE | re.DOTALL
)

_KINDS = {
    "gzip": ((".gz", ".gzip", ".tgz"), (b"\x1f\x8b",)),
    "zstd": ((".zst", ".zstd"), (b"\x28\xb5\x2f\xfd", *(bytes([0x50 + i, 0x2A, 0x4D, 0x18]) for i in range(16)))),
    "bzip2": ((".bz2", ".tbz2"), (b"BZh",)),
    "xz": ((".xz", ".txz"), (b"\xfd7zXZ\x00",)),
    "zip": ((".zip",), (b"PK\x03\x04", b"PK\x05\x06", b"PK\x07\x08")),
    "Parquet": ((".parquet",), (b"PAR1",)),
    "PDF": ((".pdf",), (b"%PDF-",)),
}
"""Kind → endings of names that promise it, beginnings of files that are it."""

_TEXT = (".jsonl", ".json", ".ndjson", ".csv", ".tsv", ".warc", ".wet", ".tar", ".arrow", ".xml", ".fasta", ".fa")
_PAGES = (".html", ".htm", ".xhtml")


def check_content(path: Path, name: str, *, served: bool) -> bool:
    """Whether the bytes at `path` are of the kind that `name` promises. Most that aren't are kept: readers go by the bytes.

    Args:
        served: it came from a server, which may answer with a page for people instead.

    Raises:
        DataError: it is a Git LFS pointer, or was served as an HTML page, where data is promised.
    """
    with path.open("rb") as file:
        head = file.read(HEAD_BYTES)
    suffix = PurePosixPath(name.lower()).suffix
    kind, magics = next(((kind, magics) for kind, (names, magics) in _KINDS.items() if suffix in names), ("", ()))
    if not kind and suffix not in _TEXT:
        return True
    is_page = _PAGE.match(head) is not None and not PurePosixPath(name.lower()).stem.endswith(_PAGES)
    is_pointer = head.startswith(LFS_POINTER)
    if is_pointer or (is_page and served):
        raise DataError(
            f"{name!r} is {'a Git LFS pointer' if is_pointer else 'an HTML page'}, not {kind or suffix.removeprefix('.')} data",
            advice="Fetch it with `git lfs pull`." if is_pointer else "Open its address in a browser: it may ask for a login.",
        )
    if kind == "PDF":
        return magics[0] in head
    return not is_page and (not kind or head.startswith(magics))
