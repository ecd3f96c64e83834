"""Whether a document's URL is listed. Lists are sorted 64-bit hashes, read from disk as they are needed: millions cost no memory.

datatrove's filter keeps its 4.6 million domains as strings (712 MB a process), asks the public-suffix site first, and never matches IP
addresses and hosts of one label (spec: data §3.3).
"""

import re
import tarfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import ahocorasick
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import tldextract
import xxhash

from marin_core.data.measures.config import UrlListsMeasure
from marin_core.data.measures.interface import Measured
from marin_core.data.measures.word_lists import datatrove_assets, read_words
from marin_core.errors import DataError

DOMAINS_FILE = "domains.npy"
URLS_FILE = "urls.npy"
Hashes = npt.NDArray[np.uint64]

_SEPARATORS = re.compile(r"[^a-z0-9]+")


class UrlLists:
    """Whether registered domain, host and URL are listed, and how many hard, soft and inner words are in it; false and 0 without a URL.

    A hard word is a whole one that stands alone as reason, of soft ones it takes several, an inner one is found without separators.
    """

    name = "url_lists"
    columns: Mapping[str, pa.DataType] = {
        "domain": pa.bool_(),
        "host": pa.bool_(),
        "url": pa.bool_(),
        "hard_words": pa.int32(),
        "soft_words": pa.int32(),
        "inner_words": pa.int32(),
    }

    def __init__(self, config: UrlListsMeasure, lists: Path | None) -> None:
        """`lists` is a folder written by `write_url_lists`; raises DataError if it is damaged."""
        # The snapshot inside the package, and no cache: neither a network nor a home is touched.
        self._extract = tldextract.TLDExtract(cache_dir=None, suffix_list_urls=())
        self._domains = [_hashes(map(str.lower, config.domains))]
        self._urls = [_hashes(map(url_key, config.urls))]
        if lists is not None:
            self._domains.append(_read(lists / DOMAINS_FILE))
            self._urls.append(_read(lists / URLS_FILE))
        assets = datatrove_assets()
        self._hard = frozenset(_joined(read_words([assets / "banned_words.txt"])))
        self._soft = frozenset(_joined(read_words([assets / "soft_banned_words.txt"])))
        self._inner = ahocorasick.Automaton(ahocorasick.STORE_INTS)
        for word in _joined(read_words([assets / "banned_subwords.txt"])):
            self._inner.add_word(word, len(word))
        self._inner.make_automaton()

    def measure(self, document: Measured) -> Mapping[str, Any]:
        url = document.metadata.get("url")
        if not isinstance(url, str) or not url:
            return {"domain": False, "host": False, "url": False, "hard_words": 0, "soft_words": 0, "inner_words": 0}
        host = url_key(url).partition("/")[0]
        domain = self._extract.extract_str(host).top_domain_under_public_suffix
        words = set(_SEPARATORS.split(url.lower()))
        return {
            "domain": bool(domain) and _is_listed(domain, self._domains),
            "host": _is_listed(host, self._domains),
            "url": _is_listed(url_key(url), self._urls),
            "hard_words": len(words & self._hard),
            "soft_words": len(words & self._soft),
            "inner_words": sum(1 for _ in self._inner.iter(_SEPARATORS.sub("", url.lower()))),
        }


def url_key(url: str) -> str:
    """What is compared of a URL: host in lower case, path and query; no scheme, user, port, fragment or closing slash."""
    try:
        parts = urlsplit(url if "//" in url else f"//{url}")
        host = parts.hostname or ""
    except ValueError:  # brackets that are no IPv6 address
        return url.lower()
    query = f"?{parts.query}" if parts.query else ""
    return (host.rstrip(".") + parts.path).rstrip("/") + query


def write_url_lists(domains: Iterable[str], urls: Iterable[str], folder: Path) -> None:
    """Write the hashes of domains (or hosts) and URLs as a folder that a `UrlListsMeasure` can name."""
    folder.mkdir(parents=True, exist_ok=True)
    np.save(folder / DOMAINS_FILE, _hashes(domain.strip().lower() for domain in domains), allow_pickle=False)
    np.save(folder / URLS_FILE, _hashes(map(url_key, urls)), allow_pickle=False)


def datatrove_list(name: str) -> Iterator[str]:
    """Lines of `domains` or `urls` in the archive that comes with datatrove; read as a stream, nothing is unpacked."""
    archive = datatrove_assets() / "url_filterblacklistsv0_3_0.tar.gz"
    with tarfile.open(archive, "r|gz") as tar:
        for member in tar:
            if Path(member.name).name == name and (file := tar.extractfile(member)) is not None:
                yield from (line.decode().strip() for line in file if line.strip() and not line.startswith(b"#"))


def _joined(words: Iterable[str]) -> list[str]:
    return [_SEPARATORS.sub("", word) for word in words]


def _hashes(texts: Iterable[str]) -> Hashes:
    return np.unique(np.fromiter((xxhash.xxh3_64_intdigest(text.encode()) for text in texts), np.uint64))


def _is_listed(text: str, lists: Iterable[Hashes]) -> bool:
    digest = np.uint64(xxhash.xxh3_64_intdigest(text.encode()))
    for hashes in lists:
        place = int(np.searchsorted(hashes, digest))
        if place < len(hashes) and hashes[place] == digest:
            return True
    return False


def _read(path: Path) -> Hashes:
    try:
        hashes: Hashes = np.load(path, mmap_mode="r", allow_pickle=False)
        if hashes.dtype != np.uint64 or hashes.ndim != 1:
            raise ValueError(f"{hashes.dtype} of {hashes.ndim} dimensions")
    except (OSError, ValueError) as error:
        raise DataError(f"URL list {path.name!r} can't be read ({error})", advice="Write the lists anew with write_url_lists.") from error
    return hashes
