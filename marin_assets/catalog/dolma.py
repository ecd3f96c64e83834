"""Dolma, AI2's collection."""

from marin_assets.catalog.entry import CatalogSource
from marin_core.data.formats.config import Jsonl
from marin_core.data.sources.config import HttpFile, HttpFiles
from marin_core.experiment.documents import raw_source


def dolma(subset: str, version: str, *, revision: str, index_sha256: str) -> CatalogSource:
    """One subset of Dolma 1.7 (arXiv 2402.00159): web, books, papers, code, encyclopedia; ODC-By 1.0 as published.

    The collection is under ODC-By; the licences of what it collects stay in force, which differ from subset to subset.

    Args:
        subset: name of its folder, such as `wiki`, `books` or `c4-filtered`.
        revision: commit of `allenai/dolma` on the Hub, whose `urls/v1_7.txt` lists the files.
        index_sha256: of that list.
    """
    index = f"https://huggingface.co/datasets/allenai/dolma/resolve/{revision}/urls/v1_7.txt"
    source = HttpFiles(index=HttpFile(url=index, sha256=index_sha256), base="https://olmo-data.org/", pattern=f"dolma-v1_7/{subset}/**")
    name = f"raw/dolma/{subset.replace('-', '_')}"
    raw = raw_source(name, version, source, license="ODC-By-1.0", description=f"Dolma 1.7, subset {subset}.")
    return CatalogSource(raw, Jsonl())
